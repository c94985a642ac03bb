"""The completion record: proof, in the run folder, that a notebook ran to its last cell.

An exit code does not prove it: ``sys.exit(0)`` in a cell or a dead kernel looks like success to papermill.
The record names every file that counts with its hash; the notebook displays the record's own hash.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

from repro.errors import InputError, RunFailed
from repro.records.run_folder import RunFolder, now, write_json

MIME = "application/vnd.repro.completion+json"
NAME = "completed.json"
RECORDED = ("recipe.toml", "environment.json", "metrics.jsonl", "table.csv")


def write(folder, notebook, parameters, files=(), token=None):
    """Write ``completed.json`` into ``folder`` and return the bundle that the notebook displays.

    Raises:
        RunFailed: the folder holds a run that did not complete, or a file to record is missing.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _require_completed(folder)
    missing = [str(path) for path in map(Path, files) if not path.is_file()]
    if missing:
        raise RunFailed(f"{notebook} cannot complete: {missing[0]} does not exist")
    paths = [folder / name for name in RECORDED if (folder / name).is_file()]
    for file in map(Path, files):
        # A copy: the next run draws its figure over this one, and this record must still hold.
        kept = folder / "figures" / file.name
        kept.parent.mkdir(exist_ok=True)
        paths.append(Path(shutil.copy2(file, kept)))
    record = {
        "notebook": notebook,
        "time": now(),
        "token": token,
        "parameters": parameters,
        # Relative, so that a run folder that was moved still checks.
        "files": {os.path.relpath(path, folder): sha256(path) for path in paths},
    }
    write_json(folder / NAME, record)
    return {"path": str(folder / NAME), "sha256": sha256(folder / NAME), "token": token}


def verify(bundle, token=None, parameters=None):
    """The record behind a displayed bundle, checked against the disk.

    Raises:
        RunFailed: no such record, another run's, other parameters, or a file that changed since.
    """
    try:
        path, digest = Path(bundle["path"]), bundle["sha256"]
        text = path.read_bytes()
        record = json.loads(text)
        files, time = record["files"], record["time"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"completion record cannot be read: {type(error).__name__} {error}") from None
    if hashlib.sha256(text).hexdigest() != digest:
        raise RunFailed(f"completion record {path} changed since the notebook wrote it: its hash does not match")
    if token is not None and (bundle.get("token") != token or record.get("token") != token):
        raise RunFailed(f"completion record {path} is stale: another run wrote it at {time}")
    if parameters is not None and record.get("parameters") != parameters:
        raise RunFailed(f"completion record {path} is of other parameters than those asked for")
    for name, expected in files.items():
        file = path.parent / name
        if not file.is_file() or sha256(file) != expected:
            raise RunFailed(f"{name} of {path.parent} changed or vanished since the completion record was written")
    return record


def sha256(path):
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_completed(folder):
    if (folder / "status.json").is_file():
        try:
            found = RunFolder(folder).status()
        except InputError as error:
            raise RunFailed(str(error)) from None
        if found["state"] != "completed":
            reason = f": {found['reason']}" if found.get("reason") else ""
            raise RunFailed(f"run {folder.name} is {found['state']}, not completed{reason}")
