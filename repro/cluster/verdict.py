"""How a job ended, from Slurm's word and the run folder's; and the record closed where the run could not do it."""

import contextlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from repro.cluster.queue import ENDED, RUNNING
from repro.errors import InputError
from repro.records.run_folder import FINAL

PEER = "another rank"  # in the words of a rank that saw others go
SKEW = timedelta(seconds=2)  # Slurm gives whole seconds, and nodes' clocks differ a little
LOST = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED")  # ends that look like an error to the ranks


@dataclass(frozen=True)
class Verdict:
    """``state`` as in status.json, never ``running`` for a job that has ended; ``reason`` in one line."""

    state: str
    reason: str | None
    job: object = None

    @property
    def over(self):
        return self.state in FINAL


def judge(job, status, culprit=None, known=True):
    """The truth about a run.

    Args:
        job: :class:`repro.cluster.queue.Job`, or ``None`` where Slurm does not know its number any more.
        status: the run folder's status, ``{}`` where it cannot be read.
        culprit: the line of the job's log that names the error, if there is one.
        known: ``False`` where Slurm did not answer: then a run that says it runs is believed.

    Returns:
        A :class:`Verdict`. A completed run stays completed, whatever happened to its job afterwards. A job that
        waits or runs is not over, whatever its run wrote before it was requeued.
    """
    state, reason = status.get("state", "pending"), status.get("reason")
    if state == "completed":
        return Verdict(state, reason, job)
    if job is None:
        if state in FINAL or not known:
            return Verdict(state, reason, None)
        return Verdict("interrupted", "the job ended without a last word, and Slurm no longer knows how", None)
    if job.phase != ENDED:
        return Verdict("running" if job.phase == RUNNING and state == "running" else "pending", job.words, job)
    words = f"job {job.id}: {job.words}"
    if state not in FINAL or _older(status, job):
        if job.state == "COMPLETED":
            words = f"job {job.id} ended with exit code 0, but the run did not complete"
        return Verdict(job.run_state, _with(words, culprit if job.run_state == "failed" else None), job)
    # A rank that saw others go cannot know why. Slurm knows of nodes and limits, the log of the rank that failed.
    if PEER in (reason or ""):
        return Verdict(job.run_state, _with(words, culprit if job.run_state == "failed" else reason), job)
    if state == "failed" and job.state in LOST:
        return Verdict("interrupted", _with(words, reason), job)
    return Verdict(state, reason or _with(words, culprit), job)


def _older(status, job):
    """Whether the status was written before the job's last start: a requeued job that ended before its run began."""
    try:
        written, start = datetime.fromisoformat(status["time"]), datetime.fromisoformat(job.start).astimezone()
    except (KeyError, TypeError, ValueError):
        return False
    return written.tzinfo is not None and written < start - SKEW


def _with(words, more):
    return f"{words}: {more}" if more else words


def close(folder, verdict):
    """Write the verdict into a run folder whose status says something else; its other entries stay."""
    if not verdict.over:
        return
    with contextlib.suppress(OSError, InputError):
        before = folder.written_status()
        if before["state"] != verdict.state:
            kept = {key: value for key, value in before.items() if key not in ("state", "reason", "time")}
            folder.set_status(verdict.state, verdict.reason, **kept)


def status_of(folder):
    """The folder's status, ``{}`` where it cannot be read just now."""
    try:
        return folder.written_status()  # what became of its processes, Slurm knows
    except InputError:
        return {}
