"""The process of a local rank: tied to its launcher's life, its output in a log, its errors in the pipe."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import traceback

from repro.errors import InputError
from repro.records.run_folder import FINAL, RunFolder

DUMP = signal.SIGUSR2


def rank_main(recipe, place, report, **options):
    """Train; imported late so that the launching process needs no torch."""
    from repro.engine.stop import Quiet

    stop = Quiet()
    from repro.engine.worker import run_rank

    run_rank(recipe, place, report=report, stop=stop, **options)


def enter(main, recipe, place, pipe, log, threads, options):
    """Body of the process. Ends it with 0, or with 1 after the error has gone through the pipe."""
    _output_to(log)
    _die_with_launcher(pipe, options.get("folder") if place.rank == recipe.layout.loss_rank else None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group; the launcher decides
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are here, and a login node's name may not resolve
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))

    def report(kind, value):
        with contextlib.suppress(BrokenPipeError, OSError):
            pipe.send((kind, value))

    try:
        import torch

        torch.set_num_threads(threads)
        main(recipe, place, report, **options)
        code = 0
    except InputError as error:
        report("input error", str(error))
        code = 1
    except BaseException as error:  # whatever it was, the launcher must hear of it
        report("error", (type(error).__name__, first_line(error), is_peer_loss(error)))
        with contextlib.suppress(OSError):  # the log may lie on the very disk that is full
            traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # gloo's threads may hold the interpreter back


def first_line(error):
    return (str(error).strip().splitlines() or [""])[0][:500]


def is_peer_loss(error):
    """Whether an error only says that another rank has gone: then that rank is the one to name."""
    text = str(error)
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "recvBytes")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


def _die_with_launcher(pipe, folder=None):
    """End this process when the launcher's end of the pipe closes, even if its main thread hangs.

    The fork server is no help: it lives until the last rank has ended. The rank that keeps the record,
    which is given the ``folder``, says there what nobody else is left to say.
    """

    def follow():
        with contextlib.suppress(EOFError, OSError):
            pipe.recv_bytes()
        if folder:
            with contextlib.suppress(Exception):
                close_record(RunFolder(folder), "failed", "the launcher was killed")
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, daemon=True, name="launcher").start()


def close_record(folder, state, reason):
    """Write a last status, unless there is one."""
    if folder.status()["state"] not in FINAL:
        folder.set_status(state, reason)


def _output_to(log):
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    faulthandler.register(DUMP, sys.stderr)
