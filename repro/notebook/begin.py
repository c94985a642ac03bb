"""What runs inside a notebook: ``begin`` in its second cell, ``complete`` in its last.

Under plain papermill nobody else can refuse a wrong parameter, so ``begin`` does: it reads the kernel's
own history to tell the defaults of the parameters cell from what papermill injected.
"""

import contextlib
import copy
import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from repro.errors import InputError, RunFailed, RunInterrupted, unknown
from repro.notebook import completion
from repro.notebook.cell import assigned_names, assignments, check, is_injected, is_literal_cell, merge
from repro.recipe import load
from repro.records.run_folder import default_path, unused

RUNNER = "REPRO_RUNNER_PID"
TOKEN = "REPRO_RUN_TOKEN"
UNTAGGED = (
    "no cell is tagged 'parameters': papermill put its values on top, where the notebook's own defaults undo them; "
    "tag the cell of the defaults, and do not begin it with '# Parameters'"
)


@dataclass(frozen=True)
class Run:
    """A notebook's run: its checked parameters and the folder that its record goes to."""

    notebook: str
    parameters: dict
    folder: Path
    token: str | None = None

    def recipe(self):
        """The recipe that the parameters ``recipe``, ``overrides`` and ``steps`` (0: the recipe's own) describe."""
        steps = self.parameters.get("steps")
        return load(
            self.parameters["recipe"], {**self.parameters.get("overrides", {}), **({"steps": steps} if steps else {})}
        )

    def record(self, table):
        """The record of a notebook that trains nothing: its numbers and where they were computed."""
        from repro.records.environment import describe
        from repro.records.run_folder import write_json

        self.folder.mkdir(parents=True, exist_ok=True)
        table.write(self.folder / "table.csv")
        write_json(self.folder / "environment.json", describe())

    def complete(self, *files):
        """Write the completion record over the run folder and ``files``, and display it.

        Raises:
            RunFailed: the run in the folder did not complete, or a file is missing.
        """
        bundle = completion.write(self.folder, self.notebook, self.parameters, _flat(files), self.token)
        from IPython.display import display

        text = f"{self.notebook} completed: {os.path.relpath(bundle['path'])} sha256 {bundle['sha256'][:12]}"
        display({completion.MIME: bundle, "text/plain": text}, raw=True)


def begin(namespace, notebook, choices=None):
    """Check the notebook's parameters and name its run folder.

    Args:
        namespace: the notebook's ``globals()``.
        notebook: its name, e.g. ``02_train``; a kernel cannot know it.
        choices: ``{parameter: allowed values}``.

    Raises:
        InputError: untagged or derived parameters, an unknown name, a wrong type or choice, a used run folder.
    """
    shell = _shell()
    shell.set_custom_exc((InputError, RunFailed, RunInterrupted), _show_one_line)
    _die_with_papermill()
    defaults, injected = read_history(shell.history_manager.input_hist_parsed)
    parameters = merge(defaults, injected)
    for name, expected in parameters.items():
        # Not after merge alone: a cell in between may have assigned the name again.
        found = namespace.get(name)
        if type(found) is not type(expected) or found != expected:
            raise InputError(
                f"parameter {name} is {found!r} but its cell says {expected!r}: another cell assigned it; "
                "rerun the parameters cell"
            )
    for name, allowed in (choices or {}).items():
        if name not in parameters:
            raise unknown("parameter", name, parameters)
        if parameters[name] not in allowed:
            raise unknown(f"{name}", parameters[name], allowed)
    token = os.environ.get(TOKEN) if _runner_is_parent() else None
    return Run(notebook, copy.deepcopy(parameters), _folder(parameters, notebook), token)


def read_history(history):
    """Defaults and injected values, from the inputs of a kernel of which the last is the current cell.

    Raises:
        InputError: no parameters cell, an untagged one, derived values, a name assigned again before ``begin``.
    """
    *before, current = history or [""]
    cells = [(number, source) for number, source in enumerate(before) if source.strip()]
    if cells and is_injected(cells[0][1]):
        raise InputError(UNTAGGED)
    rerun = any(source == current for _, source in cells)
    injected, skipped = {}, []
    for number, source in reversed(cells):
        if is_injected(source):
            # Only the last counts, and only when no parameters cell ran after it (JupyterLab, rerun by hand).
            injected = injected or assignments(source, f"injected cell In[{number}]")
        elif is_literal_cell(source):
            defaults = assignments(source, f"parameters cell In[{number}]")
            for later, text in skipped:
                _refuse_reassignment(later, text, {*defaults, *injected})
            for name in injected:
                if name in defaults:
                    check(name, injected[name], defaults[name])
            return defaults, injected
        elif assigned_names(source) and not rerun:
            # In a first run through, the cell just before is the parameters cell or a broken one.
            assignments(source, f"parameters cell In[{number}]")
        else:
            skipped.append((number, source))
    raise InputError("no parameters cell ran before begin(); run all cells from the top")


def _refuse_reassignment(number, source, names):
    for name in sorted(assigned_names(source) & names):
        raise InputError(f"In[{number}] assigns the parameter {name} after its cell; rerun the parameters cell")


def _folder(parameters, notebook):
    given = parameters.get("run_folder")
    if given:
        # A run that was submitted as a job is found again, and followed, by the same notebook.
        return Path(given).absolute() if (Path(given) / "job.json").is_file() else unused(given)
    recipe = parameters.get("recipe")
    stem = Path(recipe).stem if isinstance(recipe, str) and recipe else notebook
    return default_path(stem).absolute()


def _shell():
    with contextlib.suppress(ImportError):
        from IPython import get_ipython

        if (shell := get_ipython()) is not None:
            return shell
    raise InputError("begin() works inside a notebook only; a script calls repro.train and its like directly")


def _show_one_line(shell, kind, error, _traceback, tb_offset=None):
    """IPython's handler for the three errors whose text says it all; a traceback would only bury it."""
    shell._showtraceback(kind, error, [f"{kind.__name__}: {error}"])


def _flat(files):
    """Paths out of paths and of things with ``.files``, such as a saved figure."""
    return [path for item in files for path in getattr(item, "files", [item])]


def _runner_is_parent():
    # The variable alone would do for kernels that a notebook under `repro run` starts in turn.
    return os.environ.get(RUNNER) == str(os.getppid())


def _die_with_papermill():
    """Ask Linux to kill this kernel with the process that executes the notebook.

    Not in JupyterLab, whose kernels may outlive a restart of the server. Elsewhere nothing happens:
    ipykernel's own check of its parent remains.
    """
    if sys.platform != "linux" or not (_runner_is_parent() or _papermill_is_parent()):
        return
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request stood
        os.kill(os.getpid(), signal.SIGKILL)


def _papermill_is_parent():
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return any(Path(word).name == "papermill" for word in words[:2]) or words[1:3] == ["-m", "papermill"]
