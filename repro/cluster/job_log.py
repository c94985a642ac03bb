"""The log of a job: its new lines while it grows, and the line that says what went wrong."""

import re
from pathlib import Path

from repro.cluster.verdict import PEER

MOST_BYTES = 64_000
MOST_LINES = 20
# From the most telling to the least; ``(?:\d+: )?`` is what ``srun --label`` puts before a line.
SIGNS = (
    r"^job: error: ",  # the script itself gave up
    # What the rank's own words cannot tell: it was killed. "Terminated" is what srun does to the others.
    r"srun: error: \S+: tasks? [\d,-]+: (?!Terminated|Exited|Killed\b.*step)[A-Z]",
    r"repro: rank \d+ (?:failed|did nothing|was ended)",
    r"^(?:\d+: )?repro: ",
    r"^(?:\d+: )?\w*(?:Error|Exception): ",
    r"(?:srun|slurmstepd\S*): error: ",
    r"(?i)\berror\b",
)
LOST_PEER = r"gloo/transport|Connection (?:closed|reset) by peer|Broken pipe"  # a rank that saw another go
REQUEUED = r"JOB \d+ ON \S+ CANCELLED AT \S+ DUE TO (?:JOB REQUEUE|NODE FAILURE|PREEMPTION)"


class Tail:
    """New lines of a file that may not exist yet, may grow fast, and may start over when a job is requeued."""

    def __init__(self, path, from_start=True):
        self.path = Path(path)
        self.at = 0 if from_start else self._size()

    def new(self, most=MOST_LINES):
        """Complete lines since the last call; of more than ``most`` only the last, with a word on what was left out."""
        size = self._size()
        if size < self.at:
            self.at = 0
        if size == self.at:
            return []
        skipped = max(0, size - self.at - MOST_BYTES)
        try:
            with self.path.open("rb") as file:
                file.seek(self.at + skipped)
                data = file.read(size - self.at - skipped)
        except OSError:
            return []
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return []
        self.at += skipped + len(whole) + 1
        lines = printable(whole.decode(errors="replace"))
        lines = lines[1:] if skipped else lines
        return lines if len(lines) <= most else [f"... {len(lines) - most} lines left out", *lines[-most:]]

    def _size(self):
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def last_lines(path, most=MOST_LINES):
    """The end of a log, without blank lines; empty where there is none."""
    try:
        with Path(path).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - MOST_BYTES))
            data = file.read()
    except OSError:
        return []
    return [line for line in printable(data.decode(errors="replace")) if line.strip()][-most:]


def culprit(lines):
    """The line that names what went wrong first: a rank's own error rather than what others saw of it.

    A job that was requeued goes on in the same log: only its last start counts.
    """
    starts = [number for number, line in enumerate(lines) if re.search(REQUEUED, line)]
    lines = lines[starts[-1] + 1 :] if starts else lines
    for sign in SIGNS:
        found = [line for line in lines if re.search(sign, line)]
        first = next((line for line in found if PEER not in line and not re.search(LOST_PEER, line)), None)
        if first:
            return re.sub(r"^\d+: ", "", first).strip().removeprefix("repro: ").removeprefix("job: error: ")
    return None


def printable(text):
    """Lines without escapes and carriage returns, as a terminal would show them after all is said."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).translate(_CONTROL) for line in lines]


_CONTROL = {code: None for code in range(32) if code != 9}
