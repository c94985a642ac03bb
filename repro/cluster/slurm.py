"""Slurm's own commands, each with a deadline; nothing else in this program talks to Slurm.

A command that is missing, or a refusal, is the user's to mend (:class:`InputError`). A controller that does not
answer is nobody's fault and may answer the next time (:class:`NoAnswer`).
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, replace

from repro.cluster.queue import (
    SACCT,
    SQUEUE,
    parse_sacct,
    parse_sbatch,
    parse_scontrol,
    parse_squeue,
    refusal,
)
from repro.errors import InputError, RunFailed

SECONDS = 30.0
SUBMIT_SECONDS = 120.0
# Variables that would change what a command does or prints behind the back of the job script.
UNWANTED = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_TIME_FORMAT", "SLURM_DEBUG")
DOWN = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Connection timed out",
    "Transport endpoint is not connected",
    "standby mode",
    "Unable to establish controller machine",
    "Slurm controller is busy",
    "Resource temporarily unavailable",
    "Slurm temporarily unable to accept job",
)


class NoAnswer(RunFailed):
    """Slurm did not answer in time: worth asking again."""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def call(program, *arguments, seconds=SECONDS, keep_open=()):
    """Run one of Slurm's commands.

    Args:
        keep_open: descriptors that the command inherits; a lock held by one lasts until the command has ended.

    Raises:
        InputError: the command is not installed.
        NoAnswer: the deadline passed, or the controller does not answer.
    """
    path = shutil.which(program)
    if path is None:
        raise InputError(f"{program} is not here: this is no login node of a Slurm site; --show-script prints the job")
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=_environment(),
            pass_fds=keep_open,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{program} gave no answer within {seconds:g} s") from None
    except OSError as error:
        raise NoAnswer(f"{program} cannot be started: {error.strerror}") from None
    if done.returncode and any(sign in done.stderr for sign in DOWN):
        raise NoAnswer(f"{program}: {refusal(done.stderr)}")
    return Answer(done.returncode, done.stdout, done.stderr)


def submit(script, name, keep_open=()):
    """Submit a script; returns ``(job, cluster)``, the latter ``None`` where Slurm does not name one.

    Raises:
        InputError: refused, in the words of Slurm and of the site.
        NoAnswer: nobody knows whether it was accepted.
    """
    arguments = ("--parsable", f"--job-name={name}", str(script))
    done = call("sbatch", *arguments, seconds=SUBMIT_SECONDS, keep_open=keep_open)
    if done.code:
        raise InputError(f"sbatch refused the job: {refusal(done.err) or f'exit code {done.code}'}")
    found = parse_sbatch(done.out)
    if found is None:
        raise RunFailed(f"sbatch gave no job number: {refusal(done.out + done.err) or 'it printed nothing'}")
    return found


def test_only(script):
    """Whether Slurm would take the script, without submitting it: its estimate of the start, in its own words.

    Raises:
        InputError: it would be refused.
    """
    done = call("sbatch", "--test-only", str(script), seconds=SUBMIT_SECONDS)
    if done.code:
        raise InputError(f"sbatch would refuse the job: {refusal(done.err) or f'exit code {done.code}'}")
    return refusal(done.err or done.out)


def find(job):
    """The :class:`repro.cluster.queue.Job` of a number, from the queue, else from accounting; ``None`` if neither
    knows it.

    Raises:
        NoAnswer: the controller does not answer; so nothing is known.
    """
    found = _last(_squeue(f"--jobs={job}"))
    if found is None:
        return _last(_sacct(f"--jobs={job}"))
    if found.active:
        return found
    return replace(found, exit_code=details(job).get("ExitCode", ""))  # which squeue does not give


def find_by_name(name):
    """The newest of the user's own jobs with a name; one that may still run comes first. ``None`` without any."""
    return _last(_squeue("--me", f"--name={name}"))


def details(job):
    """What ``scontrol show job`` says, as a dictionary; empty where it says nothing."""
    done = call("scontrol", "show", "job", "-o", str(job))
    return parse_scontrol(done.out.strip().splitlines()[0]) if done.code == 0 and done.out.strip() else {}


def cancel(job):
    """Ask Slurm to end a job. One that has ended already is no error."""
    done = call("scancel", str(job))
    if done.code and not any(sign in done.err for sign in ("already completed", "Invalid job id", "finished")):
        raise InputError(f"scancel refused: {refusal(done.err) or f'exit code {done.code}'}")


def _squeue(*which):
    done = call("squeue", "--noheader", "--states=all", *which, f"--format={SQUEUE}")
    if done.code and "Invalid job id" not in done.err:
        raise NoAnswer(f"squeue: {refusal(done.err) or f'exit code {done.code}'}")
    return parse_squeue(done.out)


def _sacct(*which):
    try:
        done = call("sacct", "-P", "-n", "-D", "-X", *which, f"--format={SACCT}")
    except (InputError, NoAnswer):  # no accounting here, or not now: the queue has answered already
        return []
    return parse_sacct(done.out) if done.code == 0 else []


def _last(jobs):
    return max(jobs, key=lambda job: (job.active, job.id), default=None)


def _environment():
    kept = {key: value for key, value in os.environ.items() if not key.startswith(UNWANTED)}
    return {**kept, "LC_ALL": "C"}
