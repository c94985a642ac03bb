"""Kill -9 of a random process of a run at a random moment, resume, again and again: what is lost?

    python benchmarks/chaos.py --kills 50

A tp 2 x pp 2 run writes a checkpoint every second step. Each round starts it with ``--resume auto``, waits for a random
time that may end in start-up, in a step or in a checkpoint, and kills one of its processes: the launcher, the fork
server or a rank. After the last round it runs to its end. Promised: every start goes on from the last checkpoint that
was complete when the one before was killed, no step stands twice in the record, and the losses are those of a run that
nobody touched. Exit code 1 when a promise is broken.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from repro.records import checkpoints
from repro.records.compare import compare
from repro.records.run_folder import RunFolder

EVERY = 2
OVERRIDES = ["shape.layers=2", "shape.dropout=0.1", "batch.global=4", "optimizer.decay_steps=10000"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1500.0, help="limit for all of it")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="repro-chaos-") as root:
        found = chaos(Path(root), chosen.kills, chosen.seed, chosen.seconds, quiet=chosen.json)
    if chosen.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:36} {value}")
    broken = found["kills"] < chosen.kills or found["resumed"] < found["kills"] or found["broken_promises"]
    sys.exit(1 if broken else 0)


def chaos(root, kills, seed, limit_seconds, quiet=True):
    """Run it in ``root``; returns the counts."""
    draw, until = random.Random(seed), time.monotonic() + limit_seconds
    folder, log = root / "run", (root / "log").open("wb")
    victims, broken, resumed, done = {}, [], 0, 0
    longest = _start_to_row(root / "probe", log)  # seconds until a run here writes its first row
    while done < kills and time.monotonic() < until:
        before = _last_complete(folder)
        starts = _starts(folder)
        process = _launch(folder, 100_000, log)
        # from the very start to some steps after the first row: start-up, steps and checkpoints all get their share
        moment = draw.uniform(0.05, 1.6) * longest
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        victim, name = _pick(process, draw)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            broken.append(f"kill {done + 1} ({name}): the launcher did not end within 30 s")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        _wait_for_end_of(process.pid, broken, f"kill {done + 1} ({name})")
        done += 1
        victims[name] = victims.get(name, 0) + 1
        began = _starts(folder)
        problem = None
        if len(began) > len(starts) and began[-1]["step"] < before:
            problem = f"went on from step {began[-1]['step']}, {before} was complete"
        if folder.exists() and (problem := problem or _problem(folder)):
            broken.append(f"kill {done} ({name} after {moment:.1f} s): {problem}")
        resumed += problem is None
        if not quiet:
            print(
                f"kill {done:3} of {name:12} after {moment:4.1f} s, complete: step {_last_complete(folder)}", flush=True
            )
    end = _last_complete(folder) + 3
    lost = _finish(folder, end, log, broken)
    untouched = root / "untouched"
    if _launch(untouched, end, log, resume=False).wait(300):
        broken.append("the run that nobody touched failed")
    same = compare(RunFolder.open(folder), RunFolder.open(untouched))
    if not same.equal:
        broken.append(f"differs from the run that nobody touched: {same.first or same.missing}")
    log.close()
    return {
        "kills": done,
        "victims": victims,
        "resumed": resumed,
        "steps_of_the_run": end,
        "steps_lost_beyond_a_checkpoint": lost,
        "steps_compared_with_an_untouched_run": same.steps,
        "equal_bit_for_bit": same.equal,
        "broken_promises": broken,
    }


def _launch(folder, steps, log, resume=True):
    words = [sys.executable, "-m", "repro", "train", "tiny-3d", "--run-folder", str(folder), "--steps", str(steps)]
    words += ["--checkpoint-every", str(EVERY), "--wandb", "off", *(w for one in OVERRIDES for w in ("--set", one))]
    words += ["--resume", "auto"] if resume else []
    return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)


def _start_to_row(folder, log):
    process, began = _launch(folder, 3, log, resume=False), time.monotonic()
    while not (folder / "metrics.jsonl").exists():
        if process.poll() is not None or time.monotonic() - began > 120:
            sys.exit("a run does not even start here")
        time.sleep(0.05)
    taken = time.monotonic() - began
    process.wait(120)
    shutil.rmtree(folder)
    return taken


def _pick(process, draw):
    """A process of the run and what it is; multiprocessing's resource tracker, which no rank needs, is left alone."""
    members = [int(p.name) for p in Path("/proc").glob("[0-9]*") if _session(p) == process.pid]
    others = {pid: _words(pid) for pid in members if pid != process.pid}
    chosen = draw.choice(
        [process.pid, *sorted(pid for pid, words in others.items() if "resource_tracker" not in words)]
    )
    if chosen == process.pid:
        return chosen, "launcher"
    return chosen, "fork server" if _parent(chosen) == process.pid else "rank"


def _session(path):
    try:
        return int(path.joinpath("stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError, ValueError):
        return None


def _parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _words(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _wait_for_end_of(session, broken, what):
    until = time.monotonic() + 30
    while any(_session(p) == session for p in Path("/proc").glob("[0-9]*")):
        if time.monotonic() > until:
            broken.append(f"{what}: a process of the run was still there after 30 s")
            os.killpg(session, signal.SIGKILL)
            return
        time.sleep(0.05)


def _last_complete(folder):
    found = checkpoints.complete(folder) if folder.exists() else []
    return found[-1].step if found else 0


def _starts(folder):
    try:
        return [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return []


def _problem(folder):
    """What is wrong with a run folder right after a kill, or ``None``."""
    try:
        rows = [row["step"] for row in RunFolder(folder).metrics()]
    except ValueError as error:
        return str(error)
    if rows != list(range(len(rows))):
        return f"the record holds steps {rows[:3]}...: some twice, or missing"
    if len(rows) < _last_complete(folder):
        return f"a checkpoint of step {_last_complete(folder)} with {len(rows)} rows"
    for one in checkpoints.complete(folder):
        if damage := one.damaged():
            return f"complete checkpoint of step {one.step}: {damage[0]}"
    return None


def _finish(folder, end, log, broken):
    """Run to the end; returns how many steps had to be done again beyond the last complete checkpoint."""
    before = _last_complete(folder)
    if code := _launch(folder, end, log).wait(300):
        broken.append(f"the last start ended with {code}: {RunFolder(folder).status().get('reason')}")
        return None
    last = _starts(folder)[-1]["step"] if _starts(folder) else 0
    if problem := _problem(folder):
        broken.append(f"at the end: {problem}")
    return max(0, before - last)


if __name__ == "__main__":
    main()
