"""Ranks, launchers and disks that go wrong on purpose: imported by the processes that they happen to."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

WHERE = []  # the run folder
SMALL = {"shape.layers": 2, "shape.dropout": 0.1, "batch.global": 4, "steps": 6}


def rank(recipe, place, report, fault=None, at=None, **options):
    """:func:`repro.engine.local_rank.rank_main`, with a fault in the rank ``at``, in all if it is ``None``.

    Args:
        fault: name of a function below, called as ``fault(when, options)``; ``when(phase, act)`` has ``act`` called
            as soon as this rank reports that phase.
    """
    from repro.engine.local_rank import rank_main

    acts = {}
    WHERE[:] = [options["folder"]]

    def noticing(kind, value):
        report(kind, value)
        for phase in [one for one in acts if kind == "phase" and value.startswith(one)]:
            acts.pop(phase)()

    if fault and at in (None, place.rank):
        globals()[fault](acts.__setitem__, options)
    rank_main(recipe, place, noticing, **options)


def die():
    mark()
    os.kill(os.getpid(), signal.SIGKILL)


def mark():
    """Note when the fault happened, on the clock that all processes share."""
    beside = Path(WHERE[0]).with_suffix(".fault")
    if not beside.exists():
        beside.write_text(str(time.monotonic()))


def happened(folder, default):
    beside = Path(folder).with_suffix(".fault")
    return float(beside.read_text()) if beside.exists() else default


def fp16(when=None, options=None):
    """fp16 where DeepSpeed's accelerator says no: slow on a CPU, but the arithmetic is there."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True


# Ranks that are killed


def killed_in_forward(when, options):
    _in_step_4(when, "ForwardPass", die)


def killed_in_backward(when, options):
    _in_step_4(when, "BackwardPass", die)


def killed_in_reduction(when, options):
    _in_step_4(when, "ReduceGrads", die)


def killed_in_optimizer(when, options):
    _in_step_4(when, "OptimizerStep", die)


def killed_while_meeting(when, options):
    when("meeting", die)


def killed_while_building(when, options):
    when("building", die)


def killed_while_loading(when, options):
    when("loading", die)


def killed_while_writing(when, options):
    """After the first of its files of the checkpoint of step 4."""
    _on_file(2, lambda path: die())


def killed_before_latest(when, options):
    """The manifest is there, ``latest`` still names the checkpoint before."""
    from repro.records import checkpoints

    original = checkpoints.write_atomic

    def write(path, text):
        if path.name == checkpoints.LATEST and "4" in text:
            die()
        original(path, text)

    checkpoints.write_atomic = write


def killed_while_cutting_the_record(when, options):
    """A resumed run has dropped the rows that it will write again, and not yet noted that."""
    from repro.records.run_folder import RunFolder

    RunFolder.note_start = lambda *_: die()


def fork_server_killed(when, options):
    _in_step_4(when, "ForwardPass", lambda: os.kill(os.getppid(), signal.SIGKILL))


def hangs(when, options):
    _in_step_4(when, "ForwardPass", stand_still)


def stopped(when, options):
    _in_step_4(when, "ForwardPass", lambda: os.kill(os.getpid(), signal.SIGSTOP))


def stand_still():
    time.sleep(3600)


def waits(when, options):
    """Long enough for another run to ask for the folder."""
    _in_step_4(when, "ForwardPass", lambda: time.sleep(3))


def signalled_at_the_end(when, options):
    for phase in ("finishing", "finishing wandb"):
        when(phase, lambda: [os.kill(os.getpid(), number) for number in (signal.SIGTERM, signal.SIGUSR1)])


# Numbers


def nan_loss(when, options):
    import torch

    def poison():
        with torch.no_grad():
            next(engine[0].module.parameters()).fill_(float("nan"))

    engine = _engine()
    _in_step_4(when, "ForwardPass", poison)


def infinite_gradient(when, options):
    engine = _engine()
    when("step 4", lambda: next(engine[0].module.parameters()).register_hook(lambda gradient: gradient * float("inf")))


def endless_overflow(when, options):
    from repro.engine import loop

    loop.MOST_SKIPPED = 2
    fp16()
    infinite_gradient(when, options)


# Disks


def disk_full_for_a_checkpoint(when, options):
    """Where a small file system cannot be mounted."""

    def full(path):
        path.write_bytes(b"half a file")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    _on_file(2, full)


def disk_full_for_metrics(when, options):
    """The row of step 4 is cut short. A limit on the size of files stands for the disk."""

    def limit():
        size = (Path(options["folder"]) / "metrics.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))

    _in_step_4(when, "ForwardPass", limit)


def disk_full_for_the_last_status(when, options):
    from repro.records.run_folder import RunFolder

    original = RunFolder.set_status

    def set_status(self, state, reason=None, **extra):
        if state == "completed":
            fill(self.path)
        original(self, state, reason, **extra)

    RunFolder.set_status = set_status


def fill(folder):
    """Fill a file system of a few MiB to its last byte, or act as if, on a large one."""
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < 2**30:
        with Path(folder, "filler").open("wb", buffering=0) as file:
            for size in (2**16, 1):
                try:
                    while True:
                        file.write(b"0" * size)
                except OSError:
                    pass
    else:
        from repro.records import run_folder

        def full(path, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        run_folder.write_json = full


def read_only_from_here_on(when, options):
    _in_step_4(when, "ForwardPass", lambda: read_only(options["folder"]))


def read_only(folder):
    """No file can be made or changed below ``folder`` any more; undone by :func:`writable`."""
    if os.getuid():
        for path in (*Path(folder).rglob("*"), Path(folder)):
            path.chmod(0o555)
    else:  # root may write anywhere but where the file system says no
        subprocess.run(["mount", "--bind", folder, folder], check=True, timeout=10)
        command, until = ["mount", "-o", "remount,bind,ro", folder], time.monotonic() + 5
        while subprocess.run(command, capture_output=True, timeout=10).returncode and time.monotonic() < until:
            pass  # another rank had a file open just now


def writable(folder):
    if os.getuid():
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755)
    else:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=10)


def slow_disk(when, options):
    from repro.engine import checkpoint_io

    original = checkpoint_io._write

    def slowly(state, path):
        time.sleep(0.2)
        return original(state, path)

    checkpoint_io._write = slowly


def clock_jumps(when, options):
    """Hours back, then days ahead."""
    real = time.time

    def jump(seconds):
        time.time = lambda: real() + seconds

    when("step 2", lambda: jump(-7200))
    when("step 4", lambda: jump(300_000))


def _on_file(number, act):
    """Before a rank writes its ``number``-th file of the checkpoint of step 4."""
    from repro.engine import checkpoint_io

    original, seen = checkpoint_io._write, []

    def write(state, path):
        seen.extend([path] if path.parent.name == "step-000004" else [])
        if len(seen) == number:
            mark()
            act(path)
        return original(state, path)

    checkpoint_io._write = write


def _in_step_4(when, instruction, act):
    """Before the first instruction of that kind in step 4: the checkpoint of step 2 is complete, that of 4 is taken."""
    from deepspeed.runtime.pipe import schedule
    from deepspeed.runtime.pipe.engine import PipelineEngine

    key, waiting = getattr(schedule, instruction), []
    original = PipelineEngine._INSTRUCTION_MAP[key]

    def first_act(self, *args, **kwargs):
        while waiting:
            mark()
            waiting.pop()()
        return original(self, *args, **kwargs)

    PipelineEngine._INSTRUCTION_MAP = {**PipelineEngine._INSTRUCTION_MAP, key: first_act}
    when("step 4", lambda: waiting.append(act))


def _engine():
    """A list that will hold the engine of this rank."""
    from repro.engine import build

    original, found = build.build_engine, []

    def build_engine(*arguments):
        made = original(*arguments)
        found.append(made[0])
        return made

    build.build_engine = build_engine
    return found


# Launchers, each a process of its own: python fault_mains.py NAME FOLDER


class Progress:
    """Calls ``at_start`` when the ranks are about to be started, ``at_step`` when that step has been recorded."""

    def __init__(self, at_start=None, at_step=None, at_stop=None, step=4):
        self.at_start, self.at_step, self.at_stop, self.step = at_start, at_step, at_stop, step

    def start(self, recipe):
        if self.at_start:
            self.at_start()

    def row(self, row):
        if self.at_step and row["step"] == self.step:
            self.at_step()

    def stop(self):
        if self.at_stop:
            self.at_stop()


def train(folder, progress):
    from repro.engine.keeper import Keeping
    from repro.engine.launch import train_local

    return train_local(
        "tiny-3d", folder, overrides=SMALL, wandb="off", deadline_seconds=60, progress=progress,
        keeping=Keeping(2, keep=9), resume="auto",
    )  # fmt: skip


def launcher_killed(folder):
    train(folder, Progress(at_step=die))


def launcher_killed_at_the_start(folder):
    train(folder, Progress(at_start=die))


def recording_rank_killed(folder):
    """One of two ranks that a launcher like srun has started; the one that keeps the record dies."""
    from repro.engine.external import train_as_rank
    from repro.engine.keeper import Keeping
    from repro.engine.place import from_environment
    from repro.errors import RunFailed
    from repro.recipe import load
    from repro.records.run_folder import RunFolder

    original = RunFolder.append_metrics

    def append_metrics(self, row):
        original(self, row)
        if row["step"] == 4:
            die()

    RunFolder.append_metrics = append_metrics
    recipe = load("tiny-3d", {**SMALL, "parallel.pp": 1})
    try:
        train_as_rank(recipe, from_environment(), folder, "off", 60, Keeping(2, keep=9), "auto")
    except RunFailed:
        os._exit(3)


if __name__ == "__main__":
    WHERE.append(sys.argv[2])
    globals()[sys.argv[1]](sys.argv[2])
