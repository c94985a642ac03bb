"""One rank of a run that torchrun or srun has started."""

import contextlib
import faulthandler
import os
import threading
import time
import traceback

from repro import progress
from repro.engine.launch import Summary, check_options, record_end
from repro.engine.local_rank import first_line, is_peer_loss
from repro.engine.resume import opened
from repro.engine.stop import Watched
from repro.engine.watch import ASLEEP_SECONDS
from repro.errors import InputError, RunFailed, RunInterrupted


def train_as_rank(
    recipe, place, run_folder=None, wandb="offline", deadline_seconds=600.0, keeping=None, resume="never"
):
    """Take this process's place in the run; the rank that owns the loss opens the run folder.

    SIGUSR1 and SIGTERM stop the run as :mod:`repro.engine.stop` says.

    Returns:
        The :class:`repro.engine.launch.Summary` on the rank that owns the loss, ``None`` on the others.

    Raises:
        InputError: the launcher started another number of ranks, or the run folder does not allow it.
        RunFailed: this rank failed; the status says so too.
        RunInterrupted: stopped as asked, with a checkpoint.
    """
    owner = place.rank == recipe.layout.loss_rank
    shown = progress.Plain() if owner else progress.Silent()
    life = _Life(place.rank, deadline_seconds, shown)
    if place.world_size != recipe.world_size:
        p = recipe.parallel
        raise InputError(
            f"the launcher started {place.world_size} ranks, recipe {recipe.name} needs {recipe.world_size} "
            f"(tp {p.tp} x pp {p.pp} x dp {p.dp}); start {recipe.world_size}, or override parallel.dp"
        )
    check_options(wandb, deadline_seconds)
    shown.start(recipe)
    with contextlib.ExitStack() as locks:
        start = None
        if owner:
            start = locks.enter_context(opened(recipe, run_folder, resume))
            life.folder = start.folder
        _train(recipe, place, start, life, wandb, keeping)
    if not owner:
        return None
    status = start.folder.status()
    if status["state"] == "interrupted":
        raise RunInterrupted(f"{status['reason']} (run folder {start.folder.path})", resumable=True)
    return Summary(start.folder, status["summary"], status.get("tracking", {}))


def _train(recipe, place, start, life, wandb, keeping):
    from repro.engine.worker import run_rank

    folder = start and start.folder
    options = {"wandb": wandb, "deadline_seconds": life.deadline, "keeping": keeping, "stop": life.stop}
    options |= {"sources": start.sources, "named": start.named, "done": start.done} if start else {}
    try:
        run_rank(recipe, place, folder and folder.path, life.report, **options)
    except InputError as error:
        if folder:
            record_end(folder, "failed", str(error))
            folder.discard()
        raise
    except Exception as error:
        reason = f"rank {place.rank} failed in phase {life.phase!r}: {type(error).__name__}: {first_line(error)}"
        state = "failed"
        if is_peer_loss(error):
            reason = f"{reason} (another rank ended first; its launcher names it)"
            state = "interrupted" if life.stop.asked else "failed"
        if folder:
            record_end(folder, state, reason)
        with contextlib.suppress(OSError):
            traceback.print_exc()
        raise RunFailed(reason) from None


class _Life:
    """What one rank is at, and what ends it from outside: signals, and silence beyond the deadline."""

    def __init__(self, rank, deadline_seconds, shown):
        self.rank, self.deadline, self.shown = rank, deadline_seconds, shown
        self.phase, self.heard, self.folder = "starting", time.monotonic(), None
        self.stop = Watched(self._interrupted)
        _every_second(self._hung)

    def report(self, kind, value):
        self.heard = time.monotonic()
        if kind == "row":
            self.shown.row(value)
        elif kind == "note":
            progress.say(value)
        else:
            self.phase = value

    def _interrupted(self, name, why):
        reason = f"rank {self.rank} was ended by {name} in phase {self.phase!r}{why}"
        if self.folder:
            record_end(self.folder, "interrupted", f"{reason}; if another rank died first, its launcher names it")
        progress.say(f"repro: {reason}")

    def _hung(self, slept):
        self.heard += slept if slept > ASLEEP_SECONDS else 0  # stopped, perhaps with all others: that was no silence
        if time.monotonic() - self.heard < self.deadline:
            return
        reason = f"rank {self.rank} did nothing for {self.deadline:g} s in phase {self.phase!r}: it hangs or waits"
        try:
            if self.folder:
                record_end(self.folder, "failed", f"{reason} for another rank")
            progress.say(f"repro: {reason} for another rank")
            faulthandler.dump_traceback()
        finally:
            os._exit(3)


def _every_second(act):
    # Not left to the timeouts of collectives: the groups that DeepSpeed makes wait half an hour.
    def follow():
        while True:
            before = time.monotonic()
            time.sleep(1)
            act(time.monotonic() - before)

    threading.Thread(target=follow, daemon=True, name="deadline").start()
