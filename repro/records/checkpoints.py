"""Checkpoint folders of a run: complete or absent. No torch.

``checkpoints/step-000004/`` holds what DeepSpeed's ranks wrote after 4 steps. It counts from the moment
its ``manifest.json`` is there, which names every file with size and checksum and is written last;
``checkpoints/latest`` then names the folder. Anything else is what a crash left, and is ignored.
"""

import contextlib
import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from repro.errors import InputError, shortened
from repro.records.atomic import now, sync_folder, write_atomic, write_json

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
LATEST = "latest"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and its manifest.

    Attributes:
        files: ``{name: (bytes, checksum)}``.
        manifest: step, recipe (TOML), layout, versions, time, files.
    """

    path: Path
    step: int
    files: dict
    manifest: dict

    def damaged(self, names=None):
        """What is wrong with the files ``names`` (all by default): missing, of another size, other bytes.

        Returns:
            One line for each damaged file; reads every byte.
        """
        return [why for name in (self.files if names is None else names) if (why := self._damage(name))]

    def _damage(self, name):
        size, wanted = self.files[name]
        path = self.path / name
        try:
            found = path.stat().st_size
            if found != size:
                return f"{name} has {found:,} bytes, {size:,} were written"
            return None if checksum(path) == wanted else f"{name} is not what was written: its checksum differs"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"


def name_of(step):
    return f"step-{step:06d}"


def _step(path):
    return int(path.name[5:]) if re.fullmatch(r"step-\d{6,}", path.name) else -1


def folder_of(run_folder):
    return Path(run_folder) / FOLDER


def complete(run_folder):
    """The complete checkpoints of a run, oldest first, by their manifests alone: no file is read."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder_of(run_folder).iterdir():
            if _step(path) >= 0:
                with contextlib.suppress(InputError):
                    found.append(open_checkpoint(path))
    return sorted(found, key=lambda one: one.step)


def open_checkpoint(path):
    """The :class:`Checkpoint` in a folder.

    Raises:
        InputError: it has no manifest, hence was never finished, or the manifest is broken.
    """
    path = Path(path).absolute()
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        step, files = (
            manifest["step"],
            {str(n): (int(f["bytes"]), str(f["blake2b"])) for n, f in manifest["files"].items()},
        )
        if manifest["format"] != FORMAT or type(step) is not int or not files or type(manifest["recipe"]) is not str:
            raise ValueError(f"format {manifest['format']!r}, step {step!r}, {len(files)} files")
    except FileNotFoundError:
        raise InputError(f"{path} is not a complete checkpoint: it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path / MANIFEST} is broken: {shortened(str(error))}") from None
    for name in files:
        if Path(name).name != name or name in ("", ".", ".."):
            raise InputError(f"{path / MANIFEST} names {shortened(name)}, which is no file of that folder")
    return Checkpoint(path, step, files, manifest)


def commit(run_folder, step, recipe, files, versions):
    """Make the checkpoint of ``step`` count: its manifest, then ``latest``.

    Args:
        recipe: :class:`repro.recipe.Recipe` that is trained.
        files: ``{name: (bytes, checksum)}`` of everything the ranks wrote.
        versions: ``{package: version}``.
    """
    path, p = folder_of(run_folder) / name_of(step), recipe.parallel
    write_json(
        path / MANIFEST,
        {
            "format": FORMAT,
            "step": step,
            "time": now(),
            "layout": {"tp": p.tp, "pp": p.pp, "dp": p.dp, "zero": recipe.zero.stage},
            "versions": versions,
            "recipe": recipe.to_toml(),
            "files": {name: {"bytes": size, "blake2b": digest} for name, (size, digest) in sorted(files.items())},
        },
    )
    sync_folder(path)
    write_atomic(folder_of(run_folder) / LATEST, path.name + "\n")
    sync_folder(folder_of(run_folder))


def broken(run_folder):
    """Checkpoints of a run whose manifest is there and cannot be used: one line each."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(folder_of(run_folder).iterdir()):
            if _step(path) >= 0 and (path / MANIFEST).exists():
                try:
                    open_checkpoint(path)
                except InputError as error:
                    found.append(f"checkpoint of step {_step(path)} passed over: {error}")
    return found


def prune(run_folder, keep):
    """Remove all but the ``keep`` newest complete checkpoints, and what crashes left of older ones."""
    found = complete(run_folder)
    for old in found[:-keep]:
        remove(old.path)
    for path in folder_of(run_folder).glob("step-*"):
        if found and 0 <= _step(path) < found[-1].step and not (path / MANIFEST).exists():
            remove(path)


def remove(path):
    """Remove a checkpoint folder; one that is half removed no longer counts. Of a link, only the link."""
    if path.is_symlink():
        return path.unlink()
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def leftover(run_folder, step):
    """Remove what an earlier, unfinished write of ``step`` left."""
    path = folder_of(run_folder) / name_of(step)
    if path.is_dir():
        remove(path)


class Summed:
    """A file opened for writing whose bytes are counted and summed on their way.

    ``torch.save`` writes from front to back, so nothing is read again, and the sum is that of what was
    meant, not of what a bad disk kept.
    """

    def __init__(self, file):
        self.file, self.size, self._sum = file, 0, hashlib.blake2b(digest_size=16)
        self.error = None  # torch tells of a full disk in words of its own

    def write(self, data):
        self._sum.update(data)
        self.size += memoryview(data).nbytes
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self):
        self.file.flush()

    @property
    def digest(self):
        return self._sum.hexdigest()


def checksum(path):
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
