"""Every shipped notebook: literals, no logic, no outputs; and it runs, at tiny scale, to its last cell."""

import ast
import json
from pathlib import Path

import nbformat
import pytest

from repro.notebook.runner import read_notebook, run_notebook

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TINY = {
    "01_models_and_memory": {"scale": "tiny"},
    "02_train": {"recipe": "tiny", "steps": 4, "wandb": "off"},
    "03_tensor_parallelism": {"scale": "tiny"},
    "04_pipeline_parallelism": {"scale": "tiny"},
    "06_throughput": {"scale": "tiny"},
    "07_scaling": {"scale": "tiny"},
    "08_frontier": {"scale": "tiny"},
    "09_scorecard": {"scale": "tiny"},
}
LOGIC = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While, ast.If, ast.Try, ast.With,
         ast.comprehension, ast.IfExp)  # fmt: skip

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def code(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@each
def test_parameters_come_first_and_are_literals(path):
    source = read_notebook(path)
    assert source.cell == source.notebook.cells.index(next(c for c in source.notebook.cells if c.cell_type == "code"))
    assert source.defaults


@each
def test_no_outputs_and_nothing_of_the_machine(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
        assert set(cell["metadata"]) <= {"tags"}
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }, "plain papermill needs a kernel name; only python3 exists everywhere"


@each
def test_begin_second_complete_last_and_no_logic_between(path):
    cells = code(path)
    assert f'begin(globals(), "{path.stem}"' in cells[1].source
    assert cells[-1].source.startswith("run.complete(")
    assert sum(len(cell.source.splitlines()) for cell in cells) <= 40
    for cell in cells[1:]:
        found = [type(node).__name__ for node in ast.walk(ast.parse(cell.source)) if isinstance(node, LOGIC)]
        assert not found, cell.source


@each
def test_runs_at_tiny_scale(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_notebook(path, TINY[path.stem], timeout_seconds=120)
    assert done.record["notebook"] == path.stem
    assert done.folder.parent == tmp_path / "runs"
    for name in done.record["files"]:
        assert (done.folder / name).resolve().is_relative_to(tmp_path)
