"""Kill -9 of a random process of a run at a random moment, resume, and again: nothing may be lost or wrong.

A run of tp 2 x pp 2 with a checkpoint every 2 steps is started with ``repro train --resume auto``, always in the same
folder. Each time one of its processes (the launcher, the fork server, a rank) is killed at a moment drawn evenly over
the start, the steps and the writing of checkpoints. In the end the run is let through and compared with one that
nobody disturbed. Exit code 1 when a promise is broken.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from repro.records import checkpoints
from repro.records.compare import compare
from repro.records.run_folder import FINAL, RunFolder

OVERRIDES = ("shape.layers=2", "shape.dropout=0.1", "batch.global=4", "optimizer.decay_steps=10000")
ENDLESS = 1_000_000
HANG_SECONDS = 30.0  # the longest that anything may take after a kill
LIFE_SECONDS = 240.0  # the longest that a run that nobody disturbs may take to start, or to end


@dataclass
class Seen:
    """What happened so far."""

    kills: int = 0
    resumed: int = 0
    lost_steps: int = 0
    duplicate_rows: int = 0
    victims: Counter = field(default_factory=Counter)
    moments: Counter = field(default_factory=Counter)
    starts: list = field(default_factory=list)
    ends: list = field(default_factory=list)
    broken: list = field(default_factory=list)  # promises, in words


def train(folder, steps, *options):
    command = [sys.executable, "-m", "repro", "train", "tiny-3d", "--wandb", "off", "--json", "--deadline", "60"]
    command += [word for one in OVERRIDES for word in ("--set", one)]
    return subprocess.Popen(
        [*command, "--steps", str(steps), "--run-folder", str(folder), *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def resume(folder, steps):
    return train(folder, steps, "--resume", "auto", "--checkpoint-every", "2", "--keep", "2")


def processes(launcher):
    """``[(kind, process number)]`` of a run's processes that live right now."""
    members = session(launcher)
    servers = [pid for pid, (parent, words) in members.items() if parent == launcher and "forkserver" in words]
    ranks = [pid for pid, (parent, _) in members.items() if parent in servers]
    return [("launcher", launcher), *(("fork server", pid) for pid in servers), *(("rank", pid) for pid in ranks)]


def session(launcher):
    """``{process number: (that of its parent, its command)}`` of all that live in the session of a launcher."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent, _, leader = (path / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            if state not in "ZX" and int(leader) == launcher:
                found[int(path.name)] = (int(parent), (path / "cmdline").read_text().replace("\0", " "))
    return found


def one_life(folder, seen, chance):
    """Start the run, kill one of its processes at a random moment, and see what is left.

    The moment is drawn evenly from twice the time of a start: half of the lives end in it, half in training.
    """
    before, notes = last_step(folder), len(starts(folder))
    start_seconds = statistics.median(seen.starts) if seen.starts else None
    moment = chance.uniform(0.0, 2.0 * (start_seconds or 0.0))
    began, rows, started = time.monotonic(), size(folder), False
    with life(resume(folder, ENDLESS)) as process:
        while time.monotonic() - began < moment or not (started or start_seconds):
            if process.poll() is not None:
                return seen.broken.append(f"the run ended by itself: {process.stderr.read()[-300:]}")
            if time.monotonic() - began > LIFE_SECONDS:
                return seen.broken.append(f"no step was recorded within {LIFE_SECONDS:g} s")
            if not started and size(folder) != rows:
                started = True
                seen.starts.append(time.monotonic() - began)
                if start_seconds is None:  # the first life shows how long a start takes
                    start_seconds = seen.starts[0]
                    moment = start_seconds * chance.uniform(1.0, 2.0)
            time.sleep(0.01)
        kind, victim = chance.choice(processes(process.pid))
        seen.moments["checkpoint" if started and being_written(folder) else "steps" if started else "start"] += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        seen.kills += 1
        seen.victims[kind] += 1
        killed = time.monotonic()
        if not ended(process):
            seen.broken.append(f"kill {seen.kills}, {kind}: processes live {HANG_SECONDS:g} s after it")
        seen.ends.append(time.monotonic() - killed)
        check_record(folder, seen, before, notes)


def ended(process):
    """Whether the launcher and all that it started end soon."""
    until = time.monotonic() + HANG_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None and not session(process.pid):
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def life(process):
    """Nothing of a run is left behind the block."""
    try:
        yield process
    finally:
        end_all(process)


def end_all(process):
    for pid in session(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(10)


def check_record(folder, seen, before, notes):
    """Whether the record is true after a kill, and the life before the kill began where it had to."""
    if not (folder / "status.json").exists():
        return  # killed before there was a run
    run, where = RunFolder.open(folder), f"kill {seen.kills}"
    status = run.status()
    if status["state"] not in FINAL and (folder / ".run.lock").exists():
        seen.broken.append(f"{where}: nobody runs, the status says {status['state']}")
    steps = [row["step"] for row in run.metrics()]
    seen.duplicate_rows += len(steps) - len(set(steps))
    if sorted(set(steps)) != list(range(len(set(steps)))):
        seen.broken.append(f"{where}: rows are missing")
    new = starts(folder)[notes:]
    if new:
        seen.resumed += 1
        seen.lost_steps += before - new[-1]
    if len(set(steps)) < last_step(folder):
        seen.broken.append(f"{where}: a checkpoint of step {last_step(folder)} with {len(set(steps))} rows")
    for damage in [line for one in checkpoints.complete(folder) for line in one.damaged()]:
        seen.broken.append(f"{where}: a checkpoint counts and is damaged: {damage}")


def starts(folder):
    """The steps that continuations began with."""
    with contextlib.suppress(OSError):
        lines = (folder / "starts.jsonl").read_text().splitlines()
        return [row["step"] for line in lines if (row := whole(line))]
    return []


def whole(line):
    with contextlib.suppress(ValueError):
        return json.loads(line)
    return None


def last_step(folder):
    found = checkpoints.complete(folder)
    return found[-1].step if found else 0


def being_written(folder):
    return any(not (path / checkpoints.MANIFEST).exists() for path in (folder / "checkpoints").glob("step-*"))


def size(folder):
    with contextlib.suppress(OSError):
        return (folder / "metrics.jsonl").stat().st_size
    return 0


def let_through(process, what, seen):
    with life(process):
        try:
            _, errors = process.communicate(timeout=LIFE_SECONDS)
        except subprocess.TimeoutExpired:
            return seen.broken.append(f"{what} does not end within {LIFE_SECONDS:g} s")
    if process.returncode:
        seen.broken.append(f"{what} ended with exit code {process.returncode}: {errors[-300:]}")


def chaos(root, kills, seed, seconds, say=lambda text: None):
    """Kill, resume, compare.

    Returns:
        A dictionary for people and machines; ``broken`` lists the promises that were not kept.
    """
    folder, seen, chance, began = root / "run", Seen(), random.Random(seed), time.monotonic()
    while seen.kills < kills and not seen.broken and time.monotonic() - began < seconds:
        one_life(folder, seen, chance)
        say(f"\r{seen.kills} of {kills} kills, {last_step(folder)} steps kept, {time.monotonic() - began:.0f} s")
    if seen.kills < kills and not seen.broken:
        seen.broken.append(f"{seen.kills} of {kills} kills within {seconds:g} s")
    before, notes = last_step(folder), starts(folder)
    steps, equal = before + 4, False
    let_through(resume(folder, steps), "the last life", seen)
    if len(new := starts(folder)) > len(notes):
        seen.lost_steps += before - new[-1]
        seen.resumed += 1
    let_through(train(root / "undisturbed", steps), "the undisturbed run", seen)
    with contextlib.suppress(ValueError, OSError):
        equal = compare(RunFolder.open(folder), RunFolder.open(root / "undisturbed")).equal
        rows = [row["step"] for row in RunFolder.open(folder).metrics()]
        seen.duplicate_rows += len(rows) - len(set(rows))
    for found, words in ((seen.lost_steps, "steps lost"), (seen.duplicate_rows, "duplicate rows")):
        seen.broken += [f"{found} {words}"] if found else []
    seen.broken += [] if equal else ["losses differ from those of the undisturbed run"]
    return {
        "kills": seen.kills,
        "victims": dict(seen.victims),
        "moments": dict(seen.moments),
        "lives_resumed": seen.resumed,
        "steps_lost_beyond_the_last_complete_checkpoint": seen.lost_steps,
        "duplicate_rows": seen.duplicate_rows,
        "steps": steps,
        "equal_to_the_undisturbed_run": equal,
        "longest_end_seconds": round(max(seen.ends, default=0.0), 2),
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
        "broken": seen.broken,
    }


def show(found):
    from rich.console import Console
    from rich.table import Table

    table = Table("chaos", "", title=None)
    for key, value in found.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(key.replace("_", " "), "none" if value == [] else text)
    Console().print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1500.0, help="after so long nothing is killed any more")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending the run

    def say(text):
        print(text, end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="repro-chaos-") as root:
        found = chaos(Path(root), options.kills, options.seed, options.seconds, say)
    print(file=sys.stderr)
    print(json.dumps(found)) if options.json else show(found)
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
