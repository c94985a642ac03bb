"""Follow a job to its end: few questions to Slurm, the run folder read in between, the truth at the end."""

import json
import time
from dataclasses import dataclass

from repro.cluster import slurm
from repro.cluster.job_log import Tail, culprit, last_lines
from repro.cluster.queue import ENDED, HELD, RUNNING
from repro.cluster.verdict import close, judge, status_of
from repro.errors import RunInterrupted
from repro.records.run_folder import FINAL

FIRST_SECONDS, MOST_SECONDS, GROWTH = 2.0, 30.0, 1.3
LOOK_SECONDS = 1.0  # at the run folder, between two questions to Slurm


@dataclass(frozen=True)
class Patience:
    """How long the follower waits, in seconds.

    Attributes:
        deadline: for the end of the job, its time in the queue included.
        outage: for a Slurm that does not answer.
        gone: before a job that Slurm does not know counts as ended.
        settle: for the run's last word to appear in the file system after the job has ended.
    """

    deadline: float = 7 * 86400.0
    outage: float = 1800.0
    gone: float = 15.0
    settle: float = 3.0


@dataclass(frozen=True)
class View:
    """What there is to show about a job at one moment."""

    text: str  # without what changes every second
    clock: str = ""
    lines: tuple[str, ...] = ()


def follow(folder, record, show=None, patience=None, sleep=time.sleep, clock=time.monotonic):
    """Follow the job of a run folder; returns the :class:`repro.cluster.verdict.Verdict` that its record now holds.

    Args:
        show: called with a :class:`View` after each look.

    Raises:
        RunInterrupted: Ctrl-C, or the deadline passed. The job goes on.
        NoAnswer: Slurm was silent for longer than ``patience.outage``. The job may go on.
    """
    patience, show = patience or Patience(), show or (lambda view: None)
    try:
        return _follow(folder, record, show, patience, sleep, clock)
    except KeyboardInterrupt:
        raise RunInterrupted(_goes_on(folder, record, "stopped following")) from None


def look(folder, record, patience=None, sleep=time.sleep):
    """One look: the verdict of this moment. A job that has ended has its record closed.

    Raises:
        NoAnswer: Slurm does not answer.
    """
    job = slurm.find(record["job"])
    if (job is None or job.phase == ENDED) and not _agreed(job, status_of(folder)):
        sleep((patience or Patience()).settle)  # the run's last word may not have got here yet
    verdict = judge(job, status_of(folder), _culprit(record))
    close(folder, verdict)
    return verdict


def _follow(folder, record, show, patience, sleep, clock):
    number, began = record["job"], clock()
    tail = Tail(record["log"]) if record.get("log") else None
    interval, ended_at, silent_since, before, said = FIRST_SECONDS, None, None, None, None
    while True:
        job, problem = _ask(number)
        silent_since = (clock() if silent_since is None else silent_since) if problem else None
        if problem and clock() - silent_since > patience.outage:
            raise slurm.NoAnswer(
                _goes_on(folder, record, f"Slurm has not answered for {patience.outage:.0f} s: {problem}")
            )
        status = status_of(folder)
        show(_view(folder, number, job, problem, status, tail, before))
        if not problem:
            over = job is None or job.phase == ENDED
            ended_at = (ended_at if ended_at is not None else clock()) if over else None
            wait = patience.gone if job is None else patience.settle
            if over and (_agreed(job, status) or clock() - ended_at >= wait):
                verdict = judge(job, status, _culprit(record))
                close(folder, verdict)
                return verdict
            news = over or _moved(job, before) or status.get("state") != said
            interval = FIRST_SECONDS if news else min(interval * GROWTH, MOST_SECONDS)
            before, said = job, status.get("state")
        if clock() - began > patience.deadline:
            raise RunInterrupted(_goes_on(folder, record, f"stopped following after {patience.deadline / 3600:g} h"))
        _wait(folder, 0.5 if ended_at is not None else interval, status, sleep)


def _ask(number):
    try:
        return slurm.find(number), None
    except slurm.NoAnswer as error:
        return None, str(error)


def _agreed(job, status):
    """Whether Slurm and the run both say the last word, so that there is nothing to wait for."""
    if status.get("state") == "completed":
        return True
    return job is not None and job.state in ("COMPLETED", "FAILED", "CANCELLED") and status.get("state") in FINAL


def _moved(job, before):
    return before is None or (job.state, job.reason) != (before.state, before.reason)


def _wait(folder, seconds, status, sleep):
    """Sleep, but no longer than until the run says something new about its state."""
    while seconds > 0:
        step = min(seconds, LOOK_SECONDS)
        sleep(step)
        seconds -= step
        if status_of(folder).get("state") != status.get("state"):
            return


def _view(folder, number, job, problem, status, tail, before):
    lines = tail.new() if tail else []
    if problem:
        return View(f"job {number}: {problem}; still following", lines=tuple(lines))
    if job is None:
        return View(f"job {number}: not known to Slurm", lines=tuple(lines))
    if before is not None and before.phase == RUNNING and job.phase not in (RUNNING, ENDED):
        lines.append(f"job {number} was requeued; it resumes from its last checkpoint")
    text = f"job {number} {job.words}"
    if job.phase == HELD:
        text += f"; scontrol release {number} lets it go on"
    if job.phase == RUNNING and job.nodelist:
        text += f" on {job.nodelist}"
    elif job.nodes and job.phase != ENDED:
        text += f", {job.nodes} nodes" + (f", expected to start {job.start}" if job.start else "")
    if job.phase == RUNNING and status.get("state") == "running":
        text += _progress(folder)
    clock = f"{job.elapsed}, {job.left} left" if job.phase == RUNNING and job.left else ""
    return View(text, clock, tuple(lines))


def _progress(folder):
    row = last_row(folder.path / "metrics.jsonl")
    if row is None:
        return ""
    loss = row.get("loss")
    return f", step {row['step'] + 1}" + (f", loss {loss:.4f}" if isinstance(loss, int | float) else "")


def last_row(path):
    """The last complete row of ``metrics.jsonl``, without reading the rows before it; ``None`` without one."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 8192))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and type(row.get("step")) is int:
            return row
    return None


def _culprit(record):
    return culprit(last_lines(record["log"], most=2000)) if record.get("log") else None


def _goes_on(folder, record, why):
    return f"{why}; job {record['job']} is left alone. Follow it again: repro job follow {folder.path}"
