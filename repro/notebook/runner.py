"""``repro run``: papermill, made to fail wherever it would let a broken run pass.

Checked before anything runs: the tagged cell, its literals, every parameter. Checked after: that no cell
failed, that the kernel lived, and that the last cell left a completion record of this very run.
"""

import contextlib
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from repro.errors import InputError, RunFailed, RunInterrupted, shortened, unknown
from repro.notebook import completion
from repro.notebook.begin import RUNNER, TOKEN, UNTAGGED
from repro.notebook.cell import assignments, check, from_text, is_injected, merge
from repro.notebook.kernel import Lines, Watch, kernel_class, quiet_papermill
from repro.records.run_folder import default_path, now, write_atomic, write_json
from repro.records.scratch import scratch

START_ATTEMPTS = 3
MOST_SECONDS = 1_000_000
PARTIAL = ".partial.ipynb"


@dataclass(frozen=True)
class NotebookRun:
    """A notebook that ran to its end: the executed copy, the run folder, the verified completion record."""

    output: Path
    folder: Path
    record: dict
    seconds: float


@dataclass(frozen=True)
class Source:
    """A notebook as read: stripped of outputs, with its parameters cell and the defaults there."""

    path: Path
    notebook: object
    cell: int
    defaults: dict

    @property
    def code_cells(self):
        return sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in self.notebook.cells)


def run_notebook(notebook, parameters=None, output=None, timeout_seconds=3600, start_seconds=60, progress=None):
    """Execute a notebook in the caller's folder on a kernel of this very interpreter.

    Args:
        parameters: values by name; strings are read by the type of the default, as from a command line.
        output: the executed notebook, by default ``runs/<notebook>-<time>.ipynb``. Until it is complete it is
            called ``.partial.ipynb``; a failure leaves that and ``.failure.json``.
        timeout_seconds: the whole run; the kernel is killed then.
        start_seconds: how long one of three starts of the kernel may take.
        progress: called with one line per code cell.

    Raises:
        InputError: nothing ran, or a cell refused its input.
        RunFailed: a cell failed, the kernel died, the time was up, the completion record is missing or wrong.
        RunInterrupted: SIGINT, SIGTERM or SIGHUP; the kernel is dead.
    """
    if not 0 < timeout_seconds <= MOST_SECONDS:
        raise InputError(f"timeout {timeout_seconds:g} s must be above 0 and at most {MOST_SECONDS:,}, e.g. 3600")
    source = read_notebook(notebook)
    given = resolve(source.defaults, parameters or {})
    output = _output_path(output, source.path)
    partial, failure = output.with_suffix(PARTIAL), output.with_suffix(".failure.json")
    for old in (partial, failure):
        old.unlink(missing_ok=True)
    token, started = uuid.uuid4().hex, time.monotonic()
    watch = Watch(timeout_seconds, progress, total=source.code_cells + bool(given))
    try:
        try:
            _execute(source, given, partial, token, watch, start_seconds)
        finally:
            watch.close()
        bundle = _displayed(_read(partial), source.path.name)
        record = completion.verify(bundle, token, merge(source.defaults, given))
    except (InputError, RunFailed, RunInterrupted) as error:
        # The news is the failure, not that a full disk takes no report of it, or cut the partial notebook short.
        with contextlib.suppress(OSError, InputError):
            _record_failure(source, given, partial, failure, watch, error)
        raise
    folder = Path(bundle["path"]).parent
    try:
        _finish(source, partial, output, folder)
    except OSError as error:
        raise RunFailed(f"{source.path.name} ran, its executed copy cannot be kept: {error.strerror}") from None
    return NotebookRun(output, folder, record, time.monotonic() - started)


def read_notebook(path):
    """The notebook at ``path``, fit to run.

    Raises:
        InputError: no such file, no notebook, no single tagged code cell, values that are not literals.
    """
    path = Path(path).absolute()
    notebook = _read(path)
    tagged = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    if any("injected-parameters" in cell.metadata.get("tags", []) for cell in notebook.cells):
        raise InputError(f"{path.name} is an executed copy that still holds injected parameters; run its source")
    if not tagged:
        raise InputError(f"{path.name}: no cell is tagged 'parameters'; tag the cell of the defaults")
    if len(tagged) > 1:
        raise InputError(f"{path.name}: cells {tagged} are all tagged 'parameters'; keep one")
    cell = notebook.cells[tagged[0]]
    if cell.cell_type != "code":
        raise InputError(f"{path.name}: the cell tagged 'parameters' is {cell.cell_type}; tag a code cell")
    if is_injected(cell.source):
        raise InputError(f"{path.name}: {UNTAGGED.rsplit(', and ', 1)[1]}: papermill marks its own cell so")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    # A name baked in by whoever saved the notebook says nothing about this machine.
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata.pop("papermill", None)
    where = f"{path.name}: parameters cell"
    return Source(path, notebook, tagged[0], assignments(notebook.cells[tagged[0]].source, where))


def resolve(defaults, parameters):
    """The given values as plain literals of the types of the defaults; strings are read as a command line's."""
    values = {}
    for name, value in parameters.items():
        if name not in defaults:
            raise unknown("parameter", name, defaults)
        values[name] = from_text(name, value, defaults[name]) if type(value) is str else value
        check(name, values[name], defaults[name])
    return values


def _execute(source, given, partial, token, watch, start_seconds):
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError

    with scratch("repro-run-") as folder, quiet_papermill():
        clean = Path(folder) / "source.ipynb"
        nbformat.write(source.notebook, clean)
        environment = {TOKEN: token, RUNNER: str(os.getpid())}
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                papermill.execute_notebook(
                    str(clean),
                    str(partial).replace("{", "{{").replace("}", "}}"),  # papermill formats its paths
                    parameters=given,
                    kernel_name="python3",
                    language="python",
                    progress_bar=False,
                    start_timeout=start_seconds,
                    # A polite end may take 5 s and print an interrupt; everything that counts is on disk by then.
                    shutdown_kernel="immediate",
                    # Not every file system takes socket files: later attempts use TCP.
                    kernel_manager_class=kernel_class(
                        Path(folder) / str(attempt), environment, watch, sockets=attempt == 1
                    ),
                    stderr_file=Lines(watch.progress),  # where training reports its steps
                    on_cell_start=watch.cell_start,
                    on_cell_execute=watch.cell_execute,
                )
            except papermill.PapermillExecutionError as error:
                watch.failed(error.ename, error.evalue)
                text = _first_line(error.evalue)
                if error.ename == "InputError":  # still the user's input, found late
                    raise InputError(f"{source.path.name}, {watch.where()}: {text}") from None
                text = text if error.ename == "RunFailed" else f"{error.ename}: {text}"
                raise RunFailed(f"{source.path.name} failed in {watch.where()}: {text}") from None
            except Exception as error:  # whatever nbclient, its kernel manager or the disk raise
                watch.failed(type(error).__name__, error)
                if watch.executed:
                    dead = isinstance(error, DeadKernelError)
                    text = "the kernel died" if dead else f"{type(error).__name__}: {_first_line(error)}"
                    raise RunFailed(f"{source.path.name} failed in {watch.where()}: {text}") from None
                if attempt == START_ATTEMPTS:
                    text = f"{type(error).__name__}: {_first_line(error)}"
                    raise RunFailed(f"{source.path.name}: no kernel started in {attempt} attempts: {text}") from None
            else:
                watch.raise_if_stopped()
                return


def _displayed(notebook, name):
    """The completion bundle that the last code cell displayed."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    bundles = [out.data[completion.MIME] for out in code[-1].outputs if completion.MIME in out.get("data", {})]
    if bundles:
        return bundles[-1]
    for cell in code:
        if any(out.output_type == "error" and out.ename == "SystemExit" for out in cell.outputs):
            raise RunFailed(f"{name} stopped early: sys.exit in In[{cell.execution_count}]; no completion record")
    raise RunFailed(f"{name} left no completion record: the last cell did not call run.complete()")


def _record_failure(source, given, partial, failure, watch, error):
    """``failure.json`` for machines, and a partial notebook that no longer calls unreached cells completed."""
    cell = watch.cell
    if cell is not None and given and cell > source.cell:
        cell = None if cell == source.cell + 1 else cell - 1  # papermill's own cell stands after the tagged one
    name, message = watch.error or (type(error).__name__, str(error))
    failed = {
        "notebook": source.path.name,
        "cell": cell,
        "execution_count": watch.count or None,
        "source": None if cell is None else _first_line(source.notebook.cells[cell].source),
        "error": name,
        "message": message,
        "summary": str(error),
        "parameters": merge(source.defaults, given),
        "partial": partial.name if partial.is_file() else None,
        "time": now(),
    }
    write_json(failure, failed)
    if partial.is_file():
        notebook = _read(partial)
        _mark_statuses(notebook, watch.cell)
        notebook.metadata["repro"] = {"failure": failed}
        _write(notebook, partial)


def _mark_statuses(notebook, last):
    """Undo papermill's last act, which declares every pending cell completed, even when the kernel is dead."""
    if last is None:
        return
    markers = sum("papermill-error-cell-tag" in cell.metadata.get("tags", []) for cell in notebook.cells)
    failed = last + markers  # papermill puts them above the cell
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and index >= failed:
            cell.metadata["papermill"]["status"] = "failed" if index == failed else "pending"


def _finish(source, partial, output, folder):
    notebook = _read(partial)
    notebook.metadata.papermill["input_path"] = source.path.name
    notebook.metadata.papermill["output_path"] = output.name
    _write(notebook, partial)
    text = partial.read_text(encoding="utf-8")
    write_atomic(folder / "notebook.ipynb", text)
    partial.replace(output)


def _output_path(output, source):
    path = Path(output or f"{default_path(source.stem)}.ipynb")
    if path.suffix != ".ipynb":
        raise InputError(f"output {path.name} must end in .ipynb, e.g. {path.stem or 'executed'}.ipynb")
    try:
        path = path.absolute()
        if path.exists():
            raise InputError(f"output {path} exists; nothing is overwritten. Free name: {_free_output(path)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(PARTIAL).touch()  # the longest of the names that it will have
    except InputError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write to {shortened(str(path), 300)}: {why}") from None
    return path


def _free_output(path):
    return next(c for n in range(2, 10**6) if not (c := path.with_stem(f"{path.stem}-{n}")).exists())


def _read(path):
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except OSError as error:
        raise InputError(f"cannot read notebook {path}: {error.strerror}") from None
    except (nbformat.ValidationError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a notebook: {_first_line(error)}") from None


def _write(notebook, path):
    import nbformat

    write_atomic(path, nbformat.writes(notebook) + "\n")


def _first_line(text):
    lines = str(text).strip().splitlines() or [""]
    return lines[0] if len(lines[0]) <= 300 else lines[0][:299] + "…"
