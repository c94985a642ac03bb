"""One submission at a time for a run folder, over all login nodes and through any death of the submitter."""

import contextlib
import fcntl
import os
import socket
import tempfile
import time
from pathlib import Path

from repro.errors import InputError

WAIT_SECONDS = 150.0  # a little longer than sbatch may take
STALE_SECONDS = 300.0


@contextlib.contextmanager
def held(path, wait_seconds=WAIT_SECONDS, sleep=time.sleep):
    """Hold the lock file ``path``; yields its descriptor, for a child that must hold it too.

    The file appears by a hard link, which is exclusive on every file system. On this host ``flock`` tells further
    whether its holder, or the ``sbatch`` that the holder started, still lives: a dead one's file is taken over at
    once. Another host's file is taken over when it is older than five minutes.

    Raises:
        InputError: somebody else holds it for longer than ``wait_seconds``.
    """
    path, end = Path(path), time.monotonic() + wait_seconds
    while (descriptor := _make(path) or _inherit(path)) is None:
        if time.monotonic() > end:
            raise InputError(
                f"{_holder(path) or 'another process'} is submitting this run folder; wait for it, or remove {path}"
            )
        sleep(0.1)
    try:
        yield descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _make(path):
    """The descriptor of a new lock file, ``None`` where there is one already."""
    descriptor, own = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with contextlib.suppress(OSError):  # not every file system has it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, _words().encode())
        os.link(own, path)
    except FileExistsError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    finally:
        Path(own).unlink(missing_ok=True)
    return descriptor


def _inherit(path):
    """The descriptor of a lock file whose holder is dead, ``None`` where that is not known."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    found = os.fstat(descriptor)
    if _holder(path).startswith(f"{socket.gethostname()} "):
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(path, found):
                os.pwrite(descriptor, _words().encode(), 0)
                return descriptor
    elif time.time() - found.st_mtime > STALE_SECONDS and _is(path, found):
        path.unlink(missing_ok=True)  # the next attempt makes a new one
    os.close(descriptor)
    return None


def _words():
    return f"{socket.gethostname()} process {os.getpid():<10}\n"


def _is(path, found):
    try:
        return path.stat().st_ino == found.st_ino
    except FileNotFoundError:
        return False


def _holder(path):
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
