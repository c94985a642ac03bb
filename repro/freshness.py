"""What a notebook's results depend on, by content: nothing is done twice for nothing, and a redo says why.

A job depends on its notebook and parameters, on every module of this package that the notebook imports, directly
or through others, on the package's data files, on the versions of Python and the main libraries, and on its own
results still lying where it left them.
"""

import ast
import hashlib
import json
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parent
DATA = (".toml", ".csv", ".json", ".txt", ".j2")
LIBRARIES = ("torch", "deepspeed", "numpy", "pandas", "matplotlib", "seaborn", "pydantic", "papermill")
ALWAYS = ("repro.notebook.begin", "repro.notebook.runner")  # what runs every notebook


def inputs(notebook, parameters):
    """``{name: hash}`` of everything that a notebook's results depend on; files relative to the checkout."""
    notebook = Path(notebook)
    found = {
        f"notebook {notebook.name}": _hash_notebook(notebook),
        "parameters": _hash(json.dumps(parameters, sort_keys=True).encode()),
        "versions": _hash(json.dumps(_versions()).encode()),
    }
    for path in (*modules(_code(notebook)), *data_files()):
        found[str(path.relative_to(PACKAGE.parent))] = _hash(path.read_bytes())
    return found


def outputs(paths):
    """``{path: hash}`` of files; the hash is empty where one is missing."""
    return {str(path): _hash(Path(path).read_bytes()) if Path(path).is_file() else "" for path in paths}


def difference(before, after):
    """Why results are not fresh, in a few words; an empty string where nothing differs."""
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    gone, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    parts = [
        f"{what} {_listed(names)}"
        for what, names in (("changed:", changed), ("removed:", gone), ("new:", new))
        if names
    ]
    return "; ".join(parts)


def _listed(names, most=3):
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def modules(code):
    """Paths of the package's modules that ``code`` imports, directly or through others, at any depth of a function."""
    tree = ast.parse(code)
    found, waiting = {}, [*_imports(tree), *_calls(tree), *ALWAYS]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        path = _path(name)
        found[name] = path
        if path and name != PACKAGE.name:  # the package itself only passes calls on: see _calls
            waiting += _imports_of(path)
            waiting.append(name.rpartition(".")[0])  # a package's own __init__
    return tuple(sorted(path for path in found.values() if path))


def _calls(tree):
    """What the package's own functions import, of those that the code calls as ``repro.name``."""
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == PACKAGE.name
    }
    whole = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    own = {node.name: node for node in whole.body if isinstance(node, ast.FunctionDef)}
    waiting, seen = [name for name in used if name in own], set()
    while waiting:  # one of them may call another
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [node.id for node in ast.walk(own[name]) if isinstance(node, ast.Name) and node.id in own]
            yield from _imports(own[name])


@cache
def data_files():
    """Data that ships inside the package."""
    return tuple(sorted(path for path in PACKAGE.rglob("*") if path.suffix in DATA and "__pycache__" not in path.parts))


@cache
def _imports_of(path):
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(tree):
    """Dotted names of this package that a module imports; of ``from a import b`` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE.name)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE.name:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _path(name):
    if not name:
        return None
    base = PACKAGE.parent.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _code(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def _hash_notebook(path):
    """Of sources only: opening a notebook and saving it with outputs changes nothing."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return _hash(json.dumps([[c["cell_type"], "".join(c["source"])] for c in cells]).encode())


def _versions():
    return {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}}


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _hash(content):
    return hashlib.sha256(content).hexdigest()
