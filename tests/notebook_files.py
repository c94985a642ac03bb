"""Small notebooks for the tests, written to a folder."""

import nbformat

DEFAULTS = 'recipe = "tiny"\ncount = 4\nrate = 0.5\nflag = False\nextra = {}\nnote = None\nrun_folder = ""'
BEGIN = 'from repro.notebook import begin\n\nrun = begin(globals(), "small")'
END = "run.complete()"


def write(folder, *cells, defaults=DEFAULTS, tagged=True, name="small.ipynb", metadata=None):
    """Markdown, the parameters cell, then ``cells``; the path."""
    tags = {"tags": ["parameters"]} if tagged else {}
    code = [nbformat.v4.new_code_cell(source) for source in cells]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# Small"), nbformat.v4.new_code_cell(defaults, metadata=tags), *code],
        metadata=metadata or {"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}},
    )
    path = folder / name
    nbformat.write(notebook, path)
    return path
