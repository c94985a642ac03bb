"""Where ranks stand when nobody reports any more: their Python stacks, asked for by a signal. No torch."""

import contextlib
import os
import re
import time
from pathlib import Path

from repro.engine.local_rank import DUMP

ANSWER_SECONDS = 1.0
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
WRAPPERS = ("c10d_logger.py", "contextlib.py")


def standing(ranks):
    """Let each rank write the stacks of its threads to its log, and read where its main thread is.

    Args:
        ranks: ``{rank: (process number, path of its log)}``.

    Returns:
        ``{rank: words}``, those first that wait for nobody.
    """
    before = {rank: _size(log) for rank, (_, log) in ranks.items()}
    for pid, _ in ranks.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, DUMP)
    until = time.monotonic() + ANSWER_SECONDS
    while any(_size(log) == before[rank] for rank, (_, log) in ranks.items()) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.1)  # for what is still being written
    found = {rank: _words(main_thread(_from(log, before[rank]))) for rank, (_, log) in ranks.items()}
    return dict(sorted(found.items(), key=lambda one: one[1].startswith("waits")))


def main_thread(text):
    """Frames ``(file, line, function)`` of the main thread in what faulthandler wrote, innermost first."""
    _, _, last = text.rpartition("(most recent call first):\n")  # threads stand there youngest first
    return [match.groups() for line in last.splitlines() if (match := FRAME.fullmatch(line))]


def _words(frames):
    if not frames:
        return "does not answer: it is stopped, or holds the interpreter"
    file, line, function = next((one for one in frames if Path(one[0]).name not in WRAPPERS), frames[0])
    waits = "/torch/distributed/" in file or function == "barrier"
    return f"{'waits for others' if waits else 'is'} in {function} ({Path(file).name}:{line})"


def _size(log):
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _from(log, offset):
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""
