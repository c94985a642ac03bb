"""One run, one folder: locks that the kernel gives back when their holder dies."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path

from repro.errors import InputError

RUN, RECORD = ".run.lock", ".record.lock"  # held by who started the ranks; held by the rank that writes the record
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS)
MOST_CHARACTERS = 300
PATIENCE_SECONDS = 5.0  # a rank whose launcher was killed notices and writes its last words


@contextlib.contextmanager
def held(folder, name=RUN, patience_seconds=None):
    """Hold a lock of a run folder inside the block.

    On a file system without locks (some Lustre mounts) nothing is held, and two runs may meet.

    Raises:
        InputError: another process still holds it after ``patience_seconds``; names it.
    """
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    path, until = Path(folder) / name, time.monotonic() + patience
    with contextlib.ExitStack() as closing:
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            file = closing.enter_context(os.fdopen(opened, "r+", encoding="utf-8"))
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            yield False
            return
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in UNSUPPORTED:
                    yield False
                    return
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() > until:
                file.seek(0)
                holder = file.read(MOST_CHARACTERS).strip() or "another process"
                raise InputError(f"run folder {folder} is in use by {holder}; wait for it, or take another folder")
            time.sleep(0.05)
        with contextlib.suppress(OSError):  # a full disk: the lock is what counts
            _sign(file)
        yield True


def abandoned(folder):
    """Whether processes of this host ran a run in this folder and none of them lives any more.

    ``False`` where that cannot be known: another host's run, on whose locks not every file system agrees.
    """
    found = False
    for name in (RUN, RECORD):
        try:
            with (Path(folder) / name).open(encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if not file.read(MOST_CHARACTERS).endswith(f"{_here()}\n"):
                    return False
        except FileNotFoundError:
            continue
        except (OSError, ValueError):  # held, or no locks here
            return False
        found = True
    return found


def _sign(file):
    words = f"process {os.getpid()}{_here()}\n".encode()
    os.pwrite(file.fileno(), words, 0)  # before the cut: whenever a kill comes, somebody's name stands there
    os.ftruncate(file.fileno(), len(words))


def _here():
    return f" on {socket.gethostname()}"
