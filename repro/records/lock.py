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
PATIENCE_SECONDS = 5.0  # a rank whose launcher was killed notices and writes its last words


@contextlib.contextmanager
def held(folder, name=RUN, patience_seconds=PATIENCE_SECONDS):
    """Hold a lock of a run folder inside the block.

    On a file system without locks (some Lustre mounts) nothing is held, and two runs may meet.

    Raises:
        InputError: another process still holds it after ``patience_seconds``; names it.
    """
    path, until = Path(folder) / name, time.monotonic() + patience_seconds
    with contextlib.ExitStack() as closing:
        try:
            file = closing.enter_context(path.open("a+", encoding="utf-8"))
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
                holder = file.read(200).strip() or "another process"
                raise InputError(f"run folder {folder} is in use by {holder}; wait for it, or take another folder")
            time.sleep(0.05)
        with contextlib.suppress(OSError):  # a full disk: the lock is what counts
            file.seek(0)
            file.truncate()
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        yield True
