"""The run folder: recipe, environment, metrics and status of one run, readable after any crash.

``recipe.toml`` resolved · ``environment.json`` · ``metrics.jsonl`` one row a step, append-only, the
record · ``status.json`` pending, running, completed, failed or interrupted, with the reason ·
``checkpoints/``, see :mod:`repro.records.checkpoints` · ``starts.jsonl`` one row for each continuation.
Whole files are replaced atomically; a row of the metrics that a crash cut short is ignored on reading.
"""

import contextlib
import errno
import json
import os
import re
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from repro.errors import InputError, shortened
from repro.recipe import from_toml
from repro.records.atomic import append_line, json_text, now, write_atomic, write_json
from repro.records.lock import abandoned

STATES = ("pending", "running", "completed", "failed", "interrupted")
FINAL = ("completed", "failed", "interrupted")
NO_LAST_WORD = "the run ended without a last word: its processes are gone"


@dataclass(frozen=True)
class RunFolder:
    """A run folder that exists. Make one with :meth:`create`, find one with :meth:`open`."""

    path: Path

    @classmethod
    def create(cls, path, recipe):
        """A new folder holding ``recipe.toml`` and status ``pending``.

        Raises:
            InputError: the folder exists and is not empty, or cannot be written.
        """
        path = unused(path)
        text = recipe.to_toml()
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Two runs may have found the folder empty: it belongs to the one that makes this file.
            file = (path / "recipe.toml").open("x", encoding="utf-8")
        except FileExistsError:
            raise _used(path) from None
        except (OSError, ValueError) as error:
            raise _unwritable(path, error) from None
        folder = cls(path)
        try:
            with file:
                file.write(text)
            folder.set_status("pending")
        except (OSError, ValueError) as error:
            folder.discard()
            raise _unwritable(path, error) from None
        return folder

    @classmethod
    def adopt(cls, path, recipe):
        """The run folder of a run to go on with, or a new one: where nothing was started, where a start left it.

        Raises:
            InputError: something else is there, or it cannot be written.
        """
        path = Path(path).absolute()
        try:
            found = {one.name for one in path.iterdir() if not one.name.startswith(".")} if path.is_dir() else set()
        except OSError as error:
            raise _unwritable(path, error) from None
        if not found and not path.is_file():
            with contextlib.suppress(OSError):
                for lock in path.glob(".*.lock"):
                    lock.unlink()
            return cls.create(path, recipe)
        if "recipe.toml" not in found:
            raise InputError(f"{path} is not a run folder: recipe.toml is missing. Free name: {free_name(path)}")
        folder = cls(path)
        try:
            if not found & {"metrics.jsonl", "checkpoints"} and not (path / "recipe.toml").read_text().strip():
                write_atomic(path / "recipe.toml", recipe.to_toml())  # a start was killed right here
            folder.recipe()
            if "status.json" not in found:
                folder.set_status("pending")
        except (OSError, ValueError) as error:
            raise error if isinstance(error, InputError) else _unwritable(path, error) from None
        return folder

    def discard(self):
        """Remove a folder made for a run whose input turned out wrong: unless a step was recorded, nothing is lost."""
        if not any((self.path / name).exists() for name in ("metrics.jsonl", "checkpoints", "job.json")):
            shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, path):
        """An existing run folder.

        Raises:
            InputError: there is no run in ``path``.
        """
        try:
            path = Path(path).absolute()
            whole = (path / "status.json").is_file() and (path / "recipe.toml").is_file()
        except (OSError, ValueError) as error:
            raise InputError(f"{shortened(str(path))} is not a run folder: {_why(error)}") from None
        if not whole:
            raise InputError(f"{path} is not a run folder: status.json or recipe.toml is missing")
        return cls(path)

    def recipe(self):
        return from_toml(self._read("recipe.toml"))

    def status(self):
        """``{"state", "reason", "time", ...}``: the last word written, or that its writers died without one."""
        found = self.written_status()
        if found["state"] not in FINAL and abandoned(self.path):
            found = self.written_status()  # a last word may have come in between
            if found["state"] not in FINAL:
                return {**found, "state": "failed", "reason": f"{NO_LAST_WORD}; it was {found['state']}"}
        return found

    def written_status(self):
        """The last status written, believed: it may be of a run that was killed since."""
        found = self._read_json("status.json")
        if found.get("state") not in STATES:
            raise InputError(f"{self.path / 'status.json'} is broken: state {shortened(found.get('state'))}")
        return found

    def set_status(self, state, reason=None, **extra):
        if state not in STATES:
            raise ValueError(f"state {state!r} is not one of {STATES}")
        path, status = self.path / "status.json", {"state": state, "reason": reason, "time": now(), **extra}
        try:
            write_json(path, status)
        except OSError:
            if not path.is_file():
                raise
            # A full disk still takes a few lines in the block that the last status holds: the truth in time
            # is worth more than the one moment in which a reader could see half of it.
            with path.open("r+", encoding="utf-8") as file:
                file.write(json_text(status))
                file.truncate()

    def write_environment(self, environment):
        write_json(self.path / "environment.json", environment)

    def environment(self):
        return self._read_json("environment.json")

    def append_metrics(self, row):
        """Append the row of a step."""
        append_line(self.path / "metrics.jsonl", row)

    def keep_metrics_below(self, step):
        """Move the rows from ``step`` on, which a continued run writes again, to ``metrics-dropped.jsonl``.

        Returns:
            How many were dropped.
        """
        rows = self.metrics()
        kept = [row for row in rows if row["step"] < step]
        for row in rows:
            if row["step"] >= step:
                append_line(self.path / "metrics-dropped.jsonl", row)
        if rows or (self.path / "metrics.jsonl").exists():
            write_atomic(self.path / "metrics.jsonl", "".join(json.dumps(row, allow_nan=False) + "\n" for row in kept))
        return len(rows) - len(kept)

    def sweep(self):
        """Remove what kills left of whole files that were being written; only for who holds the folder."""
        for path in (*self.path.glob(".*"), *self.path.glob("checkpoints/.*")):
            if re.fullmatch(r"\..+\.\d+", path.name):
                path.unlink(missing_ok=True)

    def note_start(self, note):
        """Append to ``starts.jsonl`` how a continued run began: from which step, what was dropped, what differs."""
        append_line(self.path / "starts.jsonl", {"time": now(), **note})

    def sync(self):
        """Metrics on disk, not only handed to the system."""
        with contextlib.suppress(FileNotFoundError), (self.path / "metrics.jsonl").open("rb") as file:
            os.fsync(file.fileno())

    def metrics(self):
        """All complete rows, in order, as dictionaries with at least a ``step``.

        Raises:
            InputError: a whole line is no such row: this run did not write it.
        """
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue  # a row that a crash cut short
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise InputError(f"{path} line {number} is not a step: {shortened(line)}")
            rows.append(row)
        return rows

    def _read(self, name):
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path / name} cannot be read: {_why(error)}") from None

    def _read_json(self, name):
        text = self._read(name)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.path / name} is broken: {_why(error)}") from None
        if not isinstance(found, dict):
            raise InputError(f"{self.path / name} is broken: it holds {shortened(found)}")
        return found


def unused(path):
    """``path``, absolute, where a run folder may be made: nothing is there but perhaps an empty folder.

    Raises:
        InputError: something is there, or the system takes no such path.
    """
    try:
        path = Path(path).absolute()
        used = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    if used:
        raise _used(path)
    return path


def _used(path):
    return InputError(f"run folder {path} exists; nothing is overwritten. Free name: {free_name(path)}")


def require_writable(path):
    """Before ranks are started: each of them would fail at its own log.

    Raises:
        InputError: nothing can be written into this folder.
    """
    if not os.access(path, os.W_OK | os.X_OK):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
        raise _unwritable(path, OSError(number, os.strerror(number)))


def _unwritable(path, error):
    return InputError(f"cannot write run folder {shortened(str(path), 300)}: {_why(error)}")


def _why(error):
    return getattr(error, "strerror", None) or str(error)


def free_name(path):
    """``path`` with the first number behind it that no file or folder has."""
    path = Path(path)
    return next(c for n in range(2, 10**6) if not (c := path.parent / f"{path.name}-{n}").exists())


def default_path(stem, root="runs"):
    """A new folder name for a run started now. The process number tells apart what starts in one second."""
    path = Path(root) / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    return free_name(path) if path.exists() else path
