"""A run folder becomes a job, once: submitted, found again, resumed; never in the queue twice.

Beside what every run folder holds, a submitted one holds ``job.sh``, the script as submitted, and ``job.json``:
number, name, time, hash of the script, and the jobs before it. The job's name follows from the path of the run
folder, so a job is found also where its submitter died before it could write the number down.
"""

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from repro.cluster import lock, slurm
from repro.cluster.verdict import close, judge, status_of
from repro.errors import InputError
from repro.records.run_folder import RunFolder, free_name, now, unused, write_json

RECORD = "job.json"


@dataclass(frozen=True)
class Submission:
    """Attributes:

    how: ``submitted``, ``found`` (it waits or runs already), ``resumed`` (a new job for an ended one), or
        ``completed`` (there is nothing left to do).
    note: what the user should know about it, or ``None``.
    """

    folder: RunFolder
    record: dict
    how: str
    note: str | None = None

    @property
    def job(self):
        return self.record.get("job")


def submit(recipe, run_folder, script, *, site=None, again=False):
    """Submit ``script`` as the one job of ``run_folder``.

    A job that waits or runs already is found, whatever became of the call that submitted it. A run that was
    interrupted is submitted again and resumes from its last checkpoint; one that failed only with ``again``,
    because it would most likely fail again; a completed one never.

    Args:
        script: the text of the job script.
        site: name of the site, for the record.

    Raises:
        InputError: refused by Slurm or the site, in their words; another run lies there. Nothing is left behind.
        NoAnswer: Slurm does not answer. The next call finds out whether there is a job.
    """
    path = Path(run_folder).absolute()
    with _parents(path), lock.held(path.with_name(f".{path.name}.submitting")) as descriptor:
        name = job_name(recipe, path)
        active = slurm.find_by_name(name)
        active = active if active and active.active else None
        if not _is_run(path):
            unused(path)
            if active:
                raise InputError(
                    f"job {active.id}, submitted for {path} before that was removed, is {active.words}; "
                    f"scancel {active.id}, or take another run folder"
                )
            folder, earlier = RunFolder.create(path, recipe), []
            try:
                return _send(folder, recipe, script, name, site, earlier, descriptor)
            except InputError:
                folder.discard()
                raise
        folder = RunFolder.open(path)
        require_same(folder, recipe)
        before, record = status_of(folder), read_record(folder)
        if active:
            return _found(folder, record, active, script, name, site)
        note = _why_again(folder, before, record, again)
        if note is None:
            return Submission(folder, record or {}, "completed")
        before = status_of(folder)
        try:
            return _send(folder, recipe, script, name, site, _history(record), descriptor, note)
        except InputError:
            kept = {key: value for key, value in before.items() if key not in ("state", "reason", "time")}
            folder.set_status(before.get("state", "pending"), before.get("reason"), **kept)
            raise


def read_record(folder):
    """``job.json`` of a run folder, ``None`` where there is none.

    Raises:
        InputError: it is broken.
    """
    path = folder.path / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(record, dict) or type(record.get("job")) is not int:
        raise InputError(f"{path} is broken: it holds no job number")
    return record


def open_record(run_folder):
    """``(folder, record)`` of a submitted run; the job of a submitter that died is found by its name.

    Raises:
        InputError: no run folder, or no job was submitted for it.
    """
    folder = RunFolder.open(run_folder)
    record = read_record(folder)
    if record is None:
        name = status_of(folder).get("job_name")
        job = slurm.find_by_name(name) if name else None
        if job is None:
            raise InputError(f"no job was submitted for {folder.path}: it holds no {RECORD}")
        record = _write(folder, _entry(job.id, None, name, None, folder.path / "job.sh", None), [])
    return folder, record


def job_name(recipe, path):
    """The recipe's name and eight digits that follow from the run folder's path."""
    digits = hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', recipe.name)[:40]}-{digits}"


def require_same(folder, recipe):
    """Raises :class:`InputError` where a run folder holds another recipe, with the first field that differs."""
    there, here = _flat(folder.recipe().to_dict()), _flat(recipe.to_dict())
    for field in sorted({*there, *here}):
        if field.split(".")[0] not in ("sources", "title") and there.get(field) != here.get(field):
            raise InputError(
                f"run folder {folder.path} holds another recipe: {field} is {there.get(field)} there and "
                f"{here.get(field)} here; free name: {free_name(folder.path)}"
            )


def _send(folder, recipe, script, name, site, earlier, descriptor, note=None):
    path = folder.path / ("job.sh" if not earlier else f"job-{len(earlier) + 1}.sh")
    # Written before the submission only: the job may start, and write its own status, before sbatch returns.
    folder.set_status("pending", "waiting for its job", ranks=recipe.world_size, job_name=name)
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    try:
        job, cluster = slurm.submit(path, name, (descriptor,))
    except slurm.NoAnswer as error:
        found = None
        with contextlib.suppress(slurm.NoAnswer):
            found = slurm.find_by_name(name)
        if found is None or not found.active:
            raise slurm.NoAnswer(
                f"{error}; whether there is a job is not known. The same command finds out; run folder {folder.path}"
            ) from None
        job, cluster = found.id, None
    except InputError:
        path.unlink(missing_ok=True)
        raise
    record = _write(folder, _entry(job, cluster, name, site, path, script), earlier)
    return Submission(folder, record, "resumed" if note else "submitted", note)


def _found(folder, record, active, script, name, site):
    if record is None or record["job"] != active.id:
        path = folder.path / ("job.sh" if record is None else f"job-{len(_history(record)) + 1}.sh")
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        record = _write(folder, _entry(active.id, None, name, site, path, text), _history(record))
    note = None
    if record.get("script_sha256") not in (None, _hash(script)):
        note = (
            f"job {active.id} was submitted with other options, and those hold; repro job cancel makes room for others"
        )
    return Submission(folder, record, "found", note)


def _why_again(folder, status, record, again):
    """Why an ended run is submitted again; ``None`` where it completed."""
    if record is None and status.get("state") == "pending":
        return "its submission was cut short; submitted now"
    if record is None and status.get("state") == "running":
        raise InputError(f"{folder.path} says that it runs, and not as a job; free name: {free_name(folder.path)}")
    job = slurm.find(record["job"]) if record else None
    verdict = judge(job, status)
    close(folder, verdict)
    if verdict.state == "completed":
        return None
    if verdict.state == "failed" and not again:
        raise InputError(
            f"{folder.path.name} failed: {verdict.reason}; nothing was submitted. "
            f"--again submits it all the same, to resume from its last checkpoint"
        )
    return f"{verdict.state} before ({verdict.reason}); submitted again, to resume from its last checkpoint"


def _entry(job, cluster, name, site, script, text):
    entry = {"job": job, "cluster": cluster, "site": site, "name": name, "submitted": now(), "script": script.name}
    if text is not None:
        entry |= {"script_sha256": _hash(text), "log": log_path(text, job, name, script.parent)}
    return entry


def _write(folder, entry, earlier):
    record = {**entry, "earlier": earlier}
    write_json(folder.path / RECORD, record)
    return record


def _history(record):
    if record is None:
        return []
    return [*record.get("earlier", []), {key: value for key, value in record.items() if key != "earlier"}]


def log_path(script, job, name, folder):
    """Where a script's ``#SBATCH --output`` lets the job write; Slurm's default lies in the current folder."""
    found = re.findall(r"^#SBATCH\s+(?:--output[= ]|-o\s*)\s*(\"(?:[^\"\\]|\\.)*\"|\S+)", script, re.MULTILINE)
    pattern = found[-1].strip("\"'").replace('\\"', '"') if found else "slurm-%j.out"
    for sign, value in (("%j", job), ("%A", job), ("%x", name)):
        pattern = pattern.replace(sign, str(value))
    return str(Path.cwd() / pattern)


def _is_run(path):
    return (path / "status.json").is_file() and (path / "recipe.toml").is_file()


@contextlib.contextmanager
def _parents(path):
    """Folders above the run folder, taken away again where nothing came to lie in them."""
    missing = [one for one in path.parents if not one.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write run folder {path}: {error.strerror}") from None
    try:
        yield
    finally:
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()


def _flat(data, prefix=""):
    flat = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _hash(text):
    return hashlib.sha256(text.encode()).hexdigest()
