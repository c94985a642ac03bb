"""The process beside a run that copies its metrics to wandb: ``python -m repro.records.sidecar RUN_FOLDER``.

It reads what the run has written anyway, so wandb can be slow, broken or absent and the run does not
notice. It ends with the run: when asked to, when the status is final, or when its parent is gone.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from repro.records.run_folder import FINAL, RunFolder, write_json
from repro.records.wandb_file import copies, last_logged_step

PROJECT = "frontier-llm-repro"
RESULT = "wandb/sidecar.json"
ASK = "wandb/finish"  # this file asks the sidecar to end; a signal could arrive before it is handled
POLL_SECONDS = 0.2
ORPHAN_IDLE_SECONDS = 2.0  # without a parent, and with no new row for so long, nothing more will come
ORPHAN_SECONDS = 5.0
ORPHAN_KILL_SECONDS = 10.0
ENDED_KILL_SECONDS = 60.0
LIFE_SECONDS = 7 * 24 * 3600
INIT_TIMEOUT_SECONDS = 5.0  # wandb may take 10 s more than told, and then there must be time to go offline
UPLOAD_TIMEOUT_SECONDS = 8.0
WRITE_TIMEOUT_SECONDS = 5.0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m repro.records.sidecar", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", choices=("offline", "online"), default="offline")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process id of the run")
    chosen = parser.parse_args(arguments)
    # A cancelled job signals every process at once; the run still has its last rows to write.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(LIFE_SECONDS)
    os.nice(5)  # the run's own processes first
    folder = RunFolder.open(chosen.folder)
    threading.Thread(target=watch, args=(folder, chosen.parent), daemon=True).start()
    result = copy(folder, chosen.mode, chosen.parent)
    write_json(folder.path / RESULT, result)
    return 0 if result["state"] == "complete" else 1


def copy(folder, mode, parent):
    """Copy the run as it goes; once more from its beginning, offline, if wandb fails on the way.

    Returns:
        ``{"state": "complete" | "failed", "mode", "last_step", "reason"}``.
    """
    reasons = []
    for attempt in (mode, "offline"):
        before = set(copies(folder.path))
        try:
            last, note = _copy(folder, attempt, parent, before)
            reason = "; ".join([*reasons, *filter(None, [note])]) or None
            return {"state": "complete", "mode": attempt, "last_step": last, "reason": reason}
        except Exception as error:  # wandb is a copy: whatever goes wrong in it is a reason in the record
            reasons.append(f"{attempt}: {one_line(error)}")
            with contextlib.suppress(Exception):
                sys.modules["wandb"].teardown()
            for path in set(copies(folder.path)) - before:
                shutil.rmtree(path.parent, ignore_errors=True)
    return {"state": "failed", "mode": mode, "last_step": None, "reason": "; ".join(dict.fromkeys(reasons))}


def _copy(folder, mode, parent, before):
    """One wandb run from the first row that no copy ``before`` holds. Returns the last step and a note."""
    import wandb

    done = max((s for s in map(last_logged_step, before) if s is not None), default=None)
    run = wandb.init(config=folder.recipe().to_dict(), settings=settings(wandb, folder.path, mode))
    last = done
    for row in follow(folder, parent):
        step = row.get("step")
        # wandb drops what goes backwards, as after a resume from an older checkpoint
        if type(step) is int and (last is None or step > last):
            run.log({key: value for key, value in row.items() if value is not None}, step=step, commit=True)
            last = step
    file = Path(run.settings.sync_file)
    note = None
    try:
        run.finish(exit_code=int(folder.status()["state"] in ("failed", "interrupted")))
    except TimeoutError:
        note = f"not all uploaded within {UPLOAD_TIMEOUT_SECONDS:.0f} s; the local copy is whole"
    wandb.teardown()  # finish returns before the file is written to its end
    if last != done:
        _await_step(file, last)
    return last, note


def _await_step(file, step):
    deadline = time.monotonic() + WRITE_TIMEOUT_SECONDS
    while (written := last_logged_step(file)) != step:
        if time.monotonic() > deadline:
            raise RuntimeError(f"wandb's file ends with step {written}, the run with step {step}")
        time.sleep(0.05)


def settings(wandb, path, mode):
    """wandb's settings for a run folder: those it knows of ours, over what the user's own configuration says."""
    wanted = {
        "mode": mode,
        "root_dir": str(path),
        "run_id": run_id(path),
        "run_name": path.name,
        "project": wandb.setup().settings.project or PROJECT,
        "init_timeout": INIT_TIMEOUT_SECONDS,
        "finish_timeout": UPLOAD_TIMEOUT_SECONDS,
        "finish_timeout_raises": True,
        "x_transaction_log_flush_interval": 2.0,
        "console": "off",
        "silent": True,
        "disable_git": True,
        "disable_code": True,
        "disable_job_creation": True,
        # environment.json is the record of the machine; the sidecar's own load says nothing about the run
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_disable_stats": True,
        "x_save_requirements": False,
    }
    known = wandb.Settings.model_fields
    return wandb.Settings(**{key: value for key, value in wanted.items() if key in known})


def run_id(path):
    """wandb's id of the run in ``path``: its name, and a few letters that tell apart folders of one name."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.name)[:56]
    return f"{name}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"


def follow(folder, parent):
    """The rows of the metrics, from the first, as they are written, until the run is over."""
    path, offset = folder.path / "metrics.jsonl", 0
    grown, orphaned = time.monotonic(), None
    while True:
        over = ended(folder)  # asked before reading: rows are written before the end is announced
        rows, offset = read_rows(path, offset)
        yield from rows
        now = time.monotonic()
        grown = now if rows else grown
        if os.getppid() != parent:
            orphaned = orphaned or now
        if over or (orphaned and (now - grown > ORPHAN_IDLE_SECONDS or now - orphaned > ORPHAN_SECONDS)):
            return
        time.sleep(POLL_SECONDS)


def ended(folder):
    """Whether the run asked the sidecar to end or has a final status."""
    try:
        return (folder.path / ASK).exists() or folder.status()["state"] in FINAL
    except (OSError, ValueError, KeyError):
        return False


def read_rows(path, offset):
    """The whole rows behind ``offset`` and the offset behind them; a row still being written waits."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            new = file.read()
    except OSError:
        return [], offset
    whole = new[: new.rfind(b"\n") + 1]
    rows = []
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)], offset + len(whole)


def watch(folder, parent):
    """End this process if wandb hangs after the run is over; wandb's own process ends with it."""
    orphaned = over = None
    while True:
        now = time.monotonic()
        if os.getppid() != parent:
            orphaned = orphaned or now
        if ended(folder):
            over = over or now
        if (orphaned and now - orphaned > ORPHAN_KILL_SECONDS) or (over and now - over > ENDED_KILL_SECONDS):
            print("wandb did not end in time; given up", flush=True)
            os._exit(1)
        time.sleep(0.5)


def one_line(error):
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
