"""Several traces at once: a trace keeps one core busy, and needs no other."""

import sys
import tempfile
import types
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from pathlib import Path

from repro.engine.host import cores, has_gpu
from repro.engine.place import Place
from repro.errors import InputError, RunFailed
from repro.recipe import load


@dataclass(frozen=True)
class Job:
    """A recipe and the options of :func:`repro.tracing.trace.trace`."""

    recipe: object
    options: dict = field(default_factory=dict)


@dataclass
class Worker:
    """A process that traces one job after the other; ``number`` is that of its present one."""

    process: object
    results: object
    jobs: object
    number: int | None = None


def trace_several(jobs, progress=None):
    """The traces of the jobs, in their order, on as many processes as there are cores.

    Args:
        progress: called with ``(done, of)`` after each job.

    Raises:
        InputError, RunFailed: the first job that ended so; no process is left behind.
    """
    jobs = [Job(load(job.recipe), job.options) for job in jobs]
    waiting, done, workers = list(range(len(jobs))), {}, {}
    with tempfile.TemporaryDirectory(prefix="repro-traces-", ignore_cleanup_errors=True) as logs:
        try:
            for number in range(min(cores(), len(jobs))):
                worker = _start(Path(logs) / f"{number}.log")
                workers[worker.results] = worker
                _next(worker, waiting, jobs)
            while len(done) < len(jobs):
                for pipe in connection.wait(list(workers)):
                    worker = workers[pipe]
                    done[worker.number] = _result(pipe, jobs[worker.number])
                    if not _next(worker, waiting, jobs):
                        del workers[pipe]
                    if progress:
                        progress(len(done), len(jobs))
        finally:
            for worker in workers.values():
                worker.process.kill()
    return [done[number] for number in range(len(jobs))]


def _start(log):
    context = get_context("spawn" if has_gpu() else "forkserver")
    if not has_gpu():
        context.set_forkserver_preload(["repro.engine.preload"])
    results, theirs = context.Pipe()
    jobs, todo = context.Pipe()
    recipe, place = load("tiny"), Place(0, 1, 0, "")
    process = context.Process(target=_run, args=(recipe, place, theirs, log, todo), daemon=True)
    caller = sys.modules["__main__"]
    try:
        # A child would import the caller's script, and run it all again where that has no ``if __name__ == ...``.
        sys.modules["__main__"] = types.ModuleType("__main__")
        process.start()
    finally:
        sys.modules["__main__"] = caller
    theirs.close()
    todo.close()
    return Worker(process, results, jobs)


def _next(worker, waiting, jobs):
    """Give the worker a job; without one it ends by itself."""
    worker.number = waiting.pop(0) if waiting else None
    job = jobs[worker.number] if worker.number is not None else None
    worker.jobs.send(job)
    return job is not None


def _run(recipe, place, pipe, log, todo):
    from repro.engine.local_rank import enter

    enter(_work, recipe, place, pipe, log, 1, {"jobs": todo})


def _work(recipe, place, report, jobs):
    from repro.tracing.trace import trace

    for job in iter(jobs.recv, None):
        report("trace", trace(job.recipe, **job.options))


def _result(pipe, job):
    name = job.recipe.name
    try:
        kind, value = pipe.recv()
    except (EOFError, OSError):
        raise RunFailed(f"the trace of {name} ended without a word: killed, perhaps for want of memory") from None
    if kind == "input error":
        raise InputError(value)
    if kind == "error":
        raise RunFailed(f"the trace of {name} failed: {value[0]}: {value[1]}")
    return value
