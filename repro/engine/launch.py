"""Start all ranks of a recipe on this machine, watch over them, and say truthfully how it ended."""

import contextlib
import os
import signal
import sys
import time
import types
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver, get_context

from repro.engine.host import check_machine, cores, has_gpu
from repro.engine.interrupts import PASSED_ON, Asking, deaf_to_interrupts, interruptible
from repro.engine.local_rank import rank_main
from repro.engine.place import Place
from repro.engine.resume import opened
from repro.engine.watch import Watch, log_name
from repro.errors import InputError, RunFailed, RunInterrupted
from repro.progress import say
from repro.recipe import load
from repro.records.run_folder import RunFolder
from repro.records.scratch import scratch

TRACKING = ("offline", "online", "off")
MOST_SECONDS = 1_000_000
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Summary:
    """How a run ended: its folder, the numbers of :func:`repro.records.metrics.summarize`, the wandb copy."""

    folder: RunFolder
    numbers: dict
    tracking: dict = field(default_factory=dict)

    @property
    def state(self):
        return self.folder.status()["state"]

    @property
    def rows(self):
        return self.folder.metrics()


def train_local(
    recipe,
    run_folder=None,
    steps=None,
    overrides=None,
    wandb="offline",
    deadline_seconds=600.0,
    progress=None,
    timeline=False,
    threads=None,
    keeping=None,
    resume="never",
):
    """Train a recipe on ranks started on this machine.

    Args:
        recipe: name, TOML path or :class:`repro.recipe.Recipe`.
        run_folder: a new folder; ``runs/<recipe>-<time>`` by default.
        overrides: ``{dotted field: value}``.
        wandb: ``offline`` (a copy in the run folder), ``online`` or ``off``.
        deadline_seconds: a run in which no rank reports anything for this long has hung, and is ended.
        progress: object with ``start(recipe)``, ``row(row)`` and ``stop()``; by default
            :func:`repro.progress.default`.
        threads: of each rank's kernels; by default all cores are shared out.
        timeline: whether each rank records when each instruction ran, see :mod:`repro.engine.timeline`.
        keeping: :class:`repro.engine.keeper.Keeping`, how often a checkpoint is written; by default never.
        resume: ``never``, ``auto`` or a path, see :func:`repro.engine.resume.open_run`.

    Raises:
        InputError: nothing was started.
        RunFailed: a rank failed, died or hung; the message names it.
        RunInterrupted: Ctrl-C at once; SIGTERM or SIGUSR1 after the step in progress, with a checkpoint of it.
    """
    recipe = load(recipe, {**(overrides or {}), **({"steps": steps} if steps is not None else {})})
    check_machine(recipe)
    check_options(wandb, deadline_seconds)
    if progress is None:
        from repro.progress import default

        progress = default()
    with opened(recipe, run_folder, resume) as start:
        if start.done:
            return _summary(start.folder)
        # The launcher's deadline comes first: a rank that waits for a hung one must not be blamed for it.
        options = {"folder": start.folder.path, "wandb": wandb, "deadline_seconds": deadline_seconds + PATIENCE_SECONDS}
        options |= {"timeline": timeline, "keeping": keeping, "sources": start.sources, "named": start.named}
        _train_in(start.folder, recipe, options, deadline_seconds, progress, threads)
    status = start.folder.status()
    if status["state"] == "interrupted":
        raise RunInterrupted(f"{status['reason']} (run folder {_short(start.folder.path)})", resumable=True)
    return _summary(start.folder)


def _summary(folder):
    status = folder.status()
    return Summary(folder, status["summary"], status.get("tracking", {}))


def _train_in(folder, recipe, options, deadline_seconds, progress, threads):
    try:
        asked = run_ranks(recipe, rank_main, options, deadline_seconds, folder.path / "logs", progress, threads)
        if asked and (status := folder.status())["state"] == "interrupted":
            record_end(folder, "interrupted", status["reason"].replace(PASSED_ON, asked))
    except RunInterrupted as error:
        record_end(folder, "interrupted", str(error))
        raise
    except InputError as error:
        record_end(folder, "failed", str(error))
        folder.discard()
        raise
    except RunFailed as error:
        record_end(folder, "failed", str(error))
        raise RunFailed(f"{error} (run folder {_short(folder.path)})") from None
    except OSError as error:
        text = f"{error.strerror}: {error.filename or folder.path}"
        record_end(folder, "failed", text)
        raise RunFailed(text) from error
    except KeyboardInterrupt:  # before or after the block in which a signal is more than that
        record_end(folder, "interrupted", "interrupted by SIGINT")
        raise
    except BaseException as error:
        record_end(folder, "failed", f"{type(error).__name__}: {error}")
        raise


def record_end(folder, state, reason):
    # The run's own end is the news; that a full or vanished disk does not take it must not hide it.
    with contextlib.suppress(OSError, ValueError):
        before = folder.status()
        if before["state"] == "completed" and state == "interrupted":
            return  # all steps are done and recorded, only the copy for wandb was cut short
        folder.set_status(state, reason, **{k: v for k, v in before.items() if k not in ("state", "reason", "time")})


def run_ranks(recipe, main, options, deadline_seconds, logs, progress=None, threads=None):
    """Run ``main(recipe, place, report, **options)`` once for every rank of a recipe, each in its process.

    Returns:
        Name of the signal that asked to stop, ``None`` without one.

    Raises:
        InputError, RunFailed, RunInterrupted: as the ranks ended; no process is left behind.
    """
    context = get_context("spawn" if has_gpu() else "forkserver")
    if not has_gpu():
        context.set_forkserver_preload(["repro.engine.preload"])
    logs.mkdir(parents=True, exist_ok=True)
    threads = threads or max(1, cores() // recipe.world_size)
    with scratch("repro-ranks-") as meeting:
        ranks = []
        for rank in range(recipe.world_size):
            ours, theirs = context.Pipe()
            place = Place(rank, recipe.world_size, rank, f"file://{meeting}/store")
            log = logs / log_name(rank)
            arguments = (main, recipe, place, theirs, log, threads, options)
            process = context.Process(target=_run, args=arguments, name=f"rank {rank}", daemon=True)
            ranks.append((process, ours, theirs))
        watch = Watch(recipe.layout, deadline_seconds, logs)
        if progress:
            progress.start(recipe)
        try:
            asking = Asking(ranks)
            with interruptible(asking):
                _start(ranks, context)
                _supervise(ranks, watch, progress, asking)
        finally:
            if progress:
                progress.stop()
            _end(ranks)
    return asking.name


def _start(ranks, context):
    main, program = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        # A rank would import the caller's script, and run it all again where that has no ``if __name__ == ...``.
        sys.modules["__main__"] = program
        if context.get_start_method() == "forkserver":
            with deaf_to_interrupts():
                forkserver.ensure_running()
        for process, _, theirs in ranks:
            process.start()
            theirs.close()
    except (EOFError, OSError) as error:
        why = getattr(error, "strerror", None) or "the process that forks them has died"
        raise RunFailed(f"ranks cannot be started: {why}") from error
    finally:
        sys.modules["__main__"] = main


def _run(main, *arguments):
    from repro.engine.local_rank import enter

    enter(main, *arguments)


def _supervise(ranks, watch, progress, asking):
    pipes = {ours: rank for rank, (_, ours, _) in enumerate(ranks)}
    sentinels = {process.sentinel: rank for rank, (process, _, _) in enumerate(ranks)}
    while sentinels and not watch.must_stop():
        for ready in connection.wait([*pipes, *sentinels], timeout=watch.patience()):
            if ready in sentinels:
                continue
            try:
                kind, value = ready.recv()
            except (EOFError, OSError):
                del pipes[ready]
                continue
            watch.heard(pipes[ready], kind, value)
            asking.heard(pipes[ready])
            if kind == "row" and progress:
                progress.row(value)
            elif kind == "note":
                say(value)
        for sentinel, rank in list(sentinels.items()):
            # Its last words may still lie in the pipe: they are read before the exit is judged.
            if connection.wait([sentinel], timeout=0) and not any(p.poll() for p, r in pipes.items() if r == rank):
                del sentinels[sentinel]
                ranks[rank][0].join(5)
                watch.ended(rank, ranks[rank][0].exitcode)
            if _server_died(ranks[rank][0]):
                raise RunFailed("the fork server, the parent of all ranks, was killed")
    watch.verdict(lambda: {rank: process.pid for rank, (process, _, _) in enumerate(ranks) if process.is_alive()})


def _end(ranks):
    """No rank outlives the run. One that cannot be killed, as it waits for a disk, is not waited for long."""
    orphans = [process.pid for process, _, _ in ranks if _server_died(process)]
    living = [process for process, _, _ in ranks if process.pid and process.is_alive()]
    for process in living:
        process.kill()
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in living:
        process.join(5)
    until = time.monotonic() + 1
    while any(map(_exists, orphans)) and time.monotonic() < until:
        time.sleep(0.02)  # nobody reports their end any more, and until then they may still write


def _server_died(process):
    # What multiprocessing gives as exit code when it cannot know; a rank ends with 0 or 1, or by a signal.
    return process.exitcode == 255


def _exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def check_options(wandb, deadline_seconds):
    """Raise :class:`InputError` for what is no mode of wandb, or a deadline that no clock takes."""
    if wandb not in TRACKING:
        raise InputError(f"wandb {wandb!r} is not one of {', '.join(TRACKING)}")
    if not 0 < deadline_seconds <= MOST_SECONDS:
        raise InputError(f"deadline_seconds {deadline_seconds:g} must be above 0 and at most {MOST_SECONDS:,}")


def _short(path):
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
