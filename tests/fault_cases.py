"""What happens in each row of the fault matrix, and the ground that it happens on."""

import contextlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import fault_mains
import pytest
from notebook_files import BEGIN, END
from notebook_files import write as write_notebook
from test_launch import wait_for

from repro.engine import launch
from repro.engine.keeper import Keeping
from repro.errors import InputError, RunFailed, RunInterrupted
from repro.progress import Silent
from repro.records import checkpoints, lock
from repro.records.run_folder import FINAL, RunFolder


def train(folder, main=None, fault=None, at=None, overrides=None, progress=None, resume="auto", deadline=60, keep=9):
    """Train in this process's launcher. ``main``: a body of ranks that has the fault, or makes fp16 possible."""
    body = launch.rank_main
    launch.rank_main = partial(fault_mains.rank, fault=fault or main, at=at) if fault or main else body
    try:
        return launch.train_local(
            "tiny-3d", folder, overrides={**fault_mains.SMALL, **(overrides or {})}, wandb="off",
            progress=progress or Silent(), deadline_seconds=deadline, keeping=Keeping(2, keep=keep), resume=resume,
        )  # fmt: skip
    finally:
        launch.rank_main = body


class Whole:
    """Uninterrupted runs, each trained once."""

    def __init__(self, root):
        self.root, self.done = root, {}

    def run(self, main=None, overrides=None):
        key = f"{main} {overrides}"
        if key not in self.done:
            self.done[key] = self.root / f"whole-{len(self.done)}"
            train(self.done[key], main, overrides=overrides)
        return self.done[key]


@dataclass
class Ground:
    """Where a fault happens.

    Attributes:
        overrides: of the recipe, for the run with the fault, the resumed and the uninterrupted one.
        main: body of the ranks without a fault.
        undo: called with nothing before the run is resumed: what an administrator or the user would do.
    """

    whole: Whole
    path: Path
    overrides: dict = field(default_factory=dict)
    main: str | None = None
    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def folder(self):
        return self.path / "run"

    def mark(self):
        """The fault happens now: what came before it was only needed to get here."""
        self.folder.with_suffix(".fault").write_text(str(time.monotonic()))

    def train(self, fault=None, at=None, **options):
        return train(self.folder, self.main, fault, at, self.overrides, **options)

    def copy(self, last=4):
        """The uninterrupted run with rows of all steps, but no checkpoint after that of step ``last``."""
        shutil.copytree(self.whole.run(self.main, self.overrides), self.folder)
        run = RunFolder.open(self.folder)
        run.set_status("running")
        for one in checkpoints.complete(self.folder):
            if one.step > last:
                checkpoints.remove(one.path)
        return checkpoints.complete(self.folder)


def fails(ground, fault, at, error=RunFailed, **options):
    with pytest.raises(error) as caught:
        ground.train(fault, at, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def in_a_process(name, folder, environment=None):
    return subprocess.Popen(
        [sys.executable, Path(__file__).with_name("fault_mains.py"), name, str(folder)],
        env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# What happens. Each is called with the Ground and returns one line about it, which the reason must agree with.


def rank_fault(fault, at, **options):
    return lambda ground: fails(ground, fault, at, **options)


def on_a_resume(fault, at):
    def happen(ground):
        ground.copy()
        return fails(ground, fault, at)

    return happen


def launcher_fault(name):
    def happen(ground):
        process = in_a_process(name, ground.folder)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        return "killed by SIGKILL"

    return happen


def recording_rank_of_srun(ground):
    ground.overrides = {"parallel.pp": 1}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    meeting |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        in_a_process("recording_rank_killed", ground.folder, {**meeting, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r in range(2)
    ]
    for process in ranks:
        process.communicate(timeout=60)
    assert [process.returncode for process in ranks] == [-signal.SIGKILL, 3]
    assert RunFolder.open(ground.folder).written_status()["state"] == "running", "nobody was left to say it"
    return "rank 0 was killed by SIGKILL"


def hung(fault, deadline=4):
    def happen(ground):
        message = fails(ground, fault, 2, deadline=deadline)
        if fault == "hangs":
            assert "stand_still" in (ground.folder / "logs" / "rank-2.log").read_text(), "the stack of the hung rank"
        return message

    return happen


def disk_full_for_a_checkpoint(ground):
    with_mount = small_disk(ground, "4m")
    message = fails(ground, None if with_mount else "disk_full_for_a_checkpoint", 1)
    assert not (ground.folder / "checkpoints" / "step-000004").exists(), "half a checkpoint only takes room"
    return message


def disk_full_for_the_last_status(ground):
    small_disk(ground, "16m")
    assert ground.train("disk_full_for_the_last_status", 2).state == "completed"
    return "completed, and the status says so"


def small_disk(ground, size):
    """Whether ``ground.path`` is a file system of that size now. When it is over there is room again."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(ground.path)]
    if os.getuid() or subprocess.run(command, capture_output=True, timeout=10).returncode:
        return False
    grow = ["mount", "-o", "remount,size=64m", str(ground.path)]
    ground.undo.callback(subprocess.run, grow, check=True, timeout=10)
    return True


def read_only_while_training(ground):
    ground.undo.callback(fault_mains.writable, ground.folder)
    message = fails(ground, "read_only_from_here_on", 0)
    return message


def read_only_at_the_start(ground):
    fault_mains.read_only(ground.path)
    ground.undo.callback(fault_mains.writable, ground.path)
    return fails(ground, None, None, InputError)


def damage(how):
    def happen(ground):
        newest = ground.copy()[-1]
        path = newest.path / next(name for name in newest.files if "optim" in name)
        if how == "truncated":
            os.truncate(path, path.stat().st_size // 2)
        elif how == "bit-flipped":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        elif how == "missing file":
            path.unlink()
        elif how == "missing manifest":
            (newest.path / checkpoints.MANIFEST).unlink()
        else:
            os.truncate(newest.path / checkpoints.MANIFEST, 100)
        ground.train()
        note = json.loads((ground.folder / "starts.jsonl").read_text())
        assert note["step"] == 2
        if how == "missing manifest":
            assert note["notes"] == [], "one that was never finished is no news"
            return "it does not count: it was never finished"
        assert "checkpoint of step 4 passed over" in note["notes"][0]
        assert (checkpoints.MANIFEST if how == "broken manifest" else path.name) in note["notes"][0]
        return note["notes"][0]

    return happen


def all_damaged(ground):
    for one in ground.copy():
        os.truncate(one.path / next(iter(one.files)), 10)
    before = (ground.folder / "metrics.jsonl").read_bytes()
    message = fails(ground, None, None)
    assert (ground.folder / "metrics.jsonl").read_bytes() == before, "the record is not touched"
    ground.undo.callback(shutil.rmtree, ground.folder / "checkpoints")
    return message


def broken_status(ground):
    ground.copy()
    (ground.folder / "status.json").write_text('{"state": "runn')
    ground.train()
    return "read as nothing said, and written anew"


def not_a_number(fault):
    def happen(ground):
        if fault == "endless_overflow":
            ground.main = "fp16"
            ground.overrides = {"precision.dtype": "fp16", "precision.grad_accum": "fp16"}
        message = fails(ground, fault, None if fault == "endless_overflow" else 0)
        assert [one.step for one in checkpoints.complete(ground.folder)][-1] < 5, "none of the bad weights"
        return message

    return happen


def corrupt_index(ground):
    import numpy as np

    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="the extra 'megatron'")
    prefix = ground.path / "corpus"
    builder = indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for length in (1500, 1000):
        builder.add_document(np.arange(length) * 7 % 200, [length])
    builder.finalize(f"{prefix}.idx")
    # one rank: the library takes seconds to import, in each of them
    ground.overrides = {"data.kind": "megatron", "data.prefix": str(prefix), "parallel.tp": 1, "parallel.pp": 1}
    ground.copy()
    sound = prefix.with_suffix(".idx").read_bytes()
    prefix.with_suffix(".idx").write_bytes(sound[:9] + bytes([sound[9] ^ 255]) + sound[10:60])
    ground.undo.callback(prefix.with_suffix(".idx").write_bytes, sound)
    ground.mark()
    return fails(ground, None, None, InputError)


def clock_jumps(ground):
    assert ground.train("clock_jumps", None, deadline=30).state == "completed"
    times = [datetime.fromisoformat(row["time"]) for row in RunFolder.open(ground.folder).metrics()]
    hours = [(b - a).total_seconds() / 3600 for a, b in itertools.pairwise(times)]
    assert min(hours) < -1.9 and max(hours) > 80, "the clock really jumped"
    assert all(0 < row["seconds"] < 60 for row in RunFolder.open(ground.folder).metrics())
    return "no step and no deadline notices"


def slow_disk(ground):
    assert ground.train("slow_disk").state == "completed"
    rows = RunFolder.open(ground.folder).metrics()
    first = checkpoints.complete(ground.folder)[0]
    assert rows[3]["time"] < first.manifest["time"], "training went on while the checkpoint was being written"
    assert [one.step for one in checkpoints.complete(ground.folder)] == [2, 4, 6]
    return "training goes on beside it, the checkpoint becomes complete"


@contextlib.contextmanager
def another_run(ground, patience, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", patience)
    thread = threading.Thread(target=ground.train, args=("waits", 0))
    thread.start()
    try:
        wait_for(lambda: (ground.folder / "metrics.jsonl").exists(), 30)
        yield
    finally:
        thread.join(30)


def two_runs(ground):
    with pytest.MonkeyPatch.context() as patched, another_run(ground, 0.5, patched):
        message = fails(ground, None, None, InputError)
        assert RunFolder.open(ground.folder).status()["state"] == "running", "the first is not disturbed"
    return message


def two_runs_one_after_another(ground):
    with pytest.MonkeyPatch.context() as patched, another_run(ground, 20, patched):
        before = (ground.folder / "recipe.toml").stat().st_mtime_ns
        assert ground.train().state == "completed"
    assert not (ground.folder / "starts.jsonl").exists(), "it trained nothing"
    assert (ground.folder / "recipe.toml").stat().st_mtime_ns == before
    return "the second waits, and finds it completed"


def second_signal(ground):
    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)

    return fails(ground, None, None, RunInterrupted, progress=fault_mains.Progress(at_step=twice))


def signal_to_all(ground):
    """As Slurm and batch systems send it: to the launcher, the fork server and every rank."""
    from multiprocessing.forkserver import _forkserver

    def all_of_them():
        ranks = [process.pid for process in multiprocessing.active_children()]
        for pid in [*ranks, _forkserver._forkserver_pid, os.getpid()]:
            os.kill(pid, signal.SIGTERM)

    return fails(ground, None, None, RunInterrupted, progress=fault_mains.Progress(at_step=all_of_them, step=2))


def signal_before_the_handlers(ground):
    command = [sys.executable, "-m", "repro", "train", "tiny-3d", "--wandb", "off", "--run-folder", ground.folder]
    for name, value in fault_mains.SMALL.items():
        command += ["--set", f"{name}={value}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: blocks(process.pid, signal.SIGUSR1), 30)
    ground.mark()
    process.send_signal(signal.SIGUSR1)
    assert not ground.folder.exists(), "nobody handles it yet"
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in errors
    return errors.splitlines()[-1]


def blocks(pid, number):
    found = re.search(r"SigBlk:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1], 16) >> (number - 1) & 1


def signals_in_the_teardown(ground):
    """Of every rank, and of a launcher that was started from the command line, which holds SIGUSR1 back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        stopping = fault_mains.Progress(at_stop=lambda: signal.raise_signal(signal.SIGUSR1))
        assert ground.train("signalled_at_the_end", progress=stopping).state == "completed"
        assert signal.sigtimedwait([signal.SIGUSR1], 0), "it was sent, and waits"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return "completed; nobody is left to be asked"


CELL = f"""import os, signal, time
import repro
from repro.engine.keeper import Keeping
from repro.progress import Silent

class Dying(Silent):
    def row(self, row):
        if row["step"] == 4:
            run.folder.with_suffix(".fault").write_text(str(time.monotonic()))
            os.kill(os.VICTIM(), signal.SIGKILL)

repro.train(
    "tiny-3d", overrides={fault_mains.SMALL}, run_folder=run.folder, wandb="off", progress=Dying(),
    keeping=Keeping(2, keep=9),
)"""


def notebook_fault(victim):
    def happen(ground):
        defaults = f'recipe = "tiny-3d"\nrun_folder = "{ground.folder}"'
        path = write_notebook(ground.path, BEGIN, CELL.replace("VICTIM", victim), END, defaults=defaults)
        command = [sys.executable, "-m", "repro", "run", path, "--output", ground.path / "out.ipynb"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (3 if victim == "getpid" else -signal.SIGKILL)
        assert not (ground.path / "out.ipynb").exists(), "a failed run must not look finished"
        wait_for(lambda: RunFolder.open(ground.folder).status()["state"] in FINAL, 10)
        return errors.splitlines()[-1] if victim == "getpid" else "killed by SIGKILL, and the kernel with it"

    return happen
