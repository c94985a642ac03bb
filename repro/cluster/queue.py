"""What Slurm says about a job: its states, and the parsers of ``squeue``, ``sacct`` and ``scontrol``.

Pure functions of text, tolerant of what else a site's commands print: a line that is no row of the asked shape
is left out. ``--json`` is not used: its shape changes from release to release.
"""

import re
from dataclasses import dataclass

# One separator between all fields; free text stands last, so that a separator inside it does no harm.
SQUEUE = "%A|%T|%M|%L|%D|%S|%P|%N|%j|%r"
SACCT = "JobIDRaw,State,ExitCode,Elapsed,NNodes,Start,Partition,NodeList,JobName"

WAITING, RUNNING, ENDED, HELD, UNKNOWN = "waiting", "running", "ended", "held", "unknown"

# Slurm's state: phase, and for an ended job the run's state where the run itself has not written a last word.
STATES = {
    "PENDING": (WAITING, None),
    "REQUEUED": (WAITING, None),
    "REQUEUE_FED": (WAITING, None),
    "REQUEUE_HOLD": (HELD, None),
    "RESV_DEL_HOLD": (HELD, None),
    "SPECIAL_EXIT": (HELD, None),
    "CONFIGURING": (RUNNING, None),
    "POWER_UP_NODE": (RUNNING, None),
    "RUNNING": (RUNNING, None),
    "COMPLETING": (RUNNING, None),
    "STAGE_OUT": (RUNNING, None),
    "SIGNALING": (RUNNING, None),
    "RESIZING": (RUNNING, None),
    "EXPEDITING": (RUNNING, None),
    "SUSPENDED": (RUNNING, None),
    "STOPPED": (RUNNING, None),
    "COMPLETED": (ENDED, "failed"),  # a job that ended well without the run having said so
    "FAILED": (ENDED, "failed"),
    "OUT_OF_MEMORY": (ENDED, "failed"),
    "LAUNCH_FAILED": (ENDED, "failed"),
    "RECONFIG_FAIL": (ENDED, "failed"),
    "CANCELLED": (ENDED, "interrupted"),
    "TIMEOUT": (ENDED, "interrupted"),
    "DEADLINE": (ENDED, "interrupted"),
    "PREEMPTED": (ENDED, "interrupted"),
    "NODE_FAIL": (ENDED, "interrupted"),
    "BOOT_FAIL": (ENDED, "interrupted"),
    "REVOKED": (ENDED, "interrupted"),
}

WORDS = {
    "OUT_OF_MEMORY": "out of memory",
    "TIMEOUT": "the wall time was over",
    "DEADLINE": "its deadline passed",
    "PREEMPTED": "pre-empted by another job",
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "cancelled",
    "LAUNCH_FAILED": "its steps could not be launched",
}


@dataclass(frozen=True)
class Job:
    """A job as the scheduler sees it; a field that Slurm did not give is empty.

    Attributes:
        state: Slurm's own word, e.g. ``PENDING``; of ``CANCELLED by 1000`` only the first.
        elapsed, left: Slurm's text, e.g. ``1-02:03:04``.
        nodes: their number.
        exit_code: ``code:signal``, from ``sacct`` and ``scontrol`` only.
    """

    id: int
    state: str
    reason: str = ""
    elapsed: str = ""
    left: str = ""
    nodes: str = ""
    nodelist: str = ""
    start: str = ""
    partition: str = ""
    name: str = ""
    exit_code: str = ""

    @property
    def phase(self):
        """``waiting``, ``running``, ``ended``, ``held``, or ``unknown`` for a state this program does not know."""
        return STATES.get(self.state, (UNKNOWN, None))[0]

    @property
    def active(self):
        """Whether it may still run: then nothing else may be submitted for the same run folder."""
        return self.phase != ENDED

    @property
    def run_state(self):
        """What an ended job makes of a run that has not written its own last word."""
        return STATES.get(self.state, (UNKNOWN, None))[1]

    @property
    def words(self):
        """How it ended, or why it waits, in a few words."""
        if self.phase != ENDED:
            return self.state.lower() + (f" ({self.reason})" if self.reason else "")
        text = WORDS.get(self.state, self.state.lower().replace("_", " "))
        code, _, number = self.exit_code.partition(":")
        if self.state in ("FAILED", "OUT_OF_MEMORY") and code not in ("", "0"):
            text += f" with exit code {code}"
        elif self.state == "FAILED" and number not in ("", "0"):
            text += f" by signal {number}"
        return text


def parse_squeue(text):
    """Jobs of ``squeue -h -o SQUEUE``, in its order. An array or heterogeneous job gives its parts."""
    jobs = []
    for line in text.splitlines():
        parts = line.strip().split("|", SQUEUE.count("|"))
        if len(parts) <= SQUEUE.count("|") or not _is_id(parts[0]) or not _state(parts[1]):
            continue
        number, state, elapsed, left, nodes, start, partition, nodelist, rest, reason = map(_plain, parts)
        if "|" in reason:  # a name with a separator: the reason never holds one
            more, _, reason = reason.rpartition("|")
            rest = f"{rest}|{more}"
        reason = "" if reason == "None" else reason
        jobs.append(
            Job(int(number), _state(state), reason, elapsed, left, nodes, nodelist, start, partition, name=rest)
        )
    return jobs


def parse_sacct(text):
    """Jobs of ``sacct -P -n -D -X -o SACCT``; of a requeued job's rows the last one counts. Steps are left out."""
    jobs = {}
    for line in text.splitlines():
        parts = line.strip().split("|", SACCT.count(","))
        if len(parts) <= SACCT.count(",") or not _is_id(parts[0]) or not _state(parts[1]):
            continue
        number, state, exit_code, elapsed, nodes, start, partition, nodelist, name = map(_plain, parts)
        jobs[int(number)] = Job(
            int(number),
            _state(state),
            elapsed=elapsed,
            nodes=nodes,
            nodelist="" if nodelist == "None assigned" else nodelist,
            start=start,
            partition=partition,
            name=name,
            exit_code=exit_code,
        )
    return list(jobs.values())


def parse_scontrol(text):
    """``Key=Value`` of ``scontrol show job -o`` as a dictionary; values may hold blanks."""
    keys = list(re.finditer(r"(?:^|(?<=\s))([A-Z][\w:/]*)=", text))
    ends = [*(key.start() for key in keys[1:]), len(text)]
    return {key.group(1): text[key.end() : end].strip() for key, end in zip(keys, ends, strict=False)}


def parse_sbatch(text):
    """``(job, cluster)`` from ``sbatch --parsable``: ``123`` or ``123;frontier``; ``None`` where there is no number."""
    for line in reversed(text.splitlines()):
        found = re.fullmatch(r"(?:Submitted batch job )?(\d+)(?:;(\S+))?(?: on cluster (\S+))?", line.strip())
        if found:
            return int(found.group(1)), found.group(2) or found.group(3)
    return None


def refusal(text):
    """What Slurm and the site's own filter say when they refuse a job, as one line without Slurm's prefixes."""
    said = []
    for line in text.splitlines():
        marked = re.match(r"\s*(?:sbatch|srun|scancel|scontrol|slurm_load_\w+)?:?\s*(error|fatal|warning):\s*", line)
        rest = line[marked.end() :] if marked else re.sub(r"^\s*sbatch:\s*", "", line)
        rest = re.sub(r"^(Batch job submission failed|allocation failure): *", "", rest.strip()).strip()
        if rest and not rest.startswith("Try "):
            said.append((bool(marked) or rest != line.strip(), rest))
    chosen = [rest for own, rest in said if own] or [rest for _, rest in said]
    return "; ".join(dict.fromkeys(chosen))


def _is_id(text):
    return text.strip().isascii() and text.strip().isdecimal()


def _state(text):
    """Slurm's word without ``by 1000`` or ``+``, or empty where it is none."""
    word = (text.split() or [""])[0].rstrip("+")
    return word if re.fullmatch(r"[A-Z][A-Z_]+", word) else ""


def _plain(text):
    text = text.strip()
    return "" if text in ("(null)", "N/A", "Unknown", "INVALID", "NOT_SET", "n/a") else text
