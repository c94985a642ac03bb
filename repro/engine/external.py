"""One rank of a run that torchrun or srun has started."""

import contextlib
import faulthandler
import os
import signal
import threading
import time
import traceback

from repro.engine.launch import Summary, check_options, record_end
from repro.engine.local_rank import first_line, is_peer_loss
from repro.engine.watch import ASLEEP_SECONDS
from repro.errors import InputError, RunFailed
from repro.records.run_folder import RunFolder, default_path


def train_as_rank(recipe, place, run_folder=None, wandb="offline", deadline_seconds=600.0):
    """Take this process's place in the run; the rank that owns the loss makes the run folder.

    Returns:
        The :class:`repro.engine.launch.Summary` on the rank that owns the loss, ``None`` on the others.

    Raises:
        InputError: the launcher started another number of ranks, or the run folder exists.
        RunFailed: this rank failed; the status says so too.
    """
    from repro import progress
    from repro.engine.worker import run_rank

    if place.world_size != recipe.world_size:
        p = recipe.parallel
        raise InputError(
            f"the launcher started {place.world_size} ranks, recipe {recipe.name} needs {recipe.world_size} "
            f"(tp {p.tp} x pp {p.pp} x dp {p.dp}); start {recipe.world_size}, or override parallel.dp"
        )
    check_options(wandb, deadline_seconds)
    owner = place.rank == recipe.layout.loss_rank
    path = run_folder or default_path(recipe.name)
    folder = RunFolder.create(path, recipe) if owner else None
    shown = progress.Plain() if owner else progress.Silent()
    shown.start(recipe)
    phase, heard = "starting", time.monotonic()

    def report(kind, value):
        nonlocal phase, heard
        heard = time.monotonic()
        if kind == "row":
            shown.row(value)
        else:
            phase = value

    def interrupted(name):
        reason = f"rank {place.rank} was ended by {name} in phase {phase!r}"
        if folder:
            record_end(folder, "interrupted", f"{reason}; if another rank died first, its launcher names it")
        progress.say(f"repro: {reason}")

    def hung(slept):
        nonlocal heard
        heard += slept if slept > ASLEEP_SECONDS else 0  # stopped, perhaps with all others: that was no silence
        if time.monotonic() - heard < deadline_seconds:
            return
        reason = f"rank {place.rank} did nothing for {deadline_seconds:g} s in phase {phase!r}: it hangs or waits"
        try:
            if folder:
                record_end(folder, "failed", f"{reason} for another rank")
            progress.say(f"repro: {reason} for another rank")
            faulthandler.dump_traceback()
        finally:
            os._exit(3)

    _on_signal(interrupted)
    _every_second(hung)
    try:
        run_rank(recipe, place, folder and folder.path, report, wandb, deadline_seconds)
    except InputError as error:
        if folder:
            record_end(folder, "failed", str(error))
            folder.discard()
        raise
    except Exception as error:
        reason = f"rank {place.rank} failed in phase {phase!r}: {type(error).__name__}: {first_line(error)}"
        if is_peer_loss(error):
            reason = f"{reason} (another rank ended first; its launcher names it)"
        if folder:
            record_end(folder, "failed", reason)
        with contextlib.suppress(OSError):
            traceback.print_exc()
        raise RunFailed(reason) from None
    if owner:
        status = folder.status()
        return Summary(folder, status["summary"], status["tracking"])
    return None


def _every_second(act):
    # Not left to the timeouts of collectives: the groups that DeepSpeed makes wait half an hour.
    def follow():
        while True:
            before = time.monotonic()
            time.sleep(1)
            act(time.monotonic() - before)

    threading.Thread(target=follow, daemon=True, name="deadline").start()


def _on_signal(act):
    """Call ``act(name of the signal)`` and end the process, also while the main thread hangs in a collective.

    torchrun ends all ranks by SIGTERM when one has died; Python's own handlers would wait for gloo to return.
    """
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def follow():
        number = os.read(wake, 1)[0]
        try:
            act(signal.Signals(number).name)
        finally:
            os._exit(130)

    threading.Thread(target=follow, daemon=True, name="signals").start()
