"""Temporary folders that a killed process does not leave behind for good: the next one of its kind sweeps them."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

HELD = ".held"  # locked as long as the owner lives
YOUNG_SECONDS = 60.0  # one that was just made may not be locked yet


@contextlib.contextmanager
def scratch(prefix):
    """A new temporary folder inside the block; those of the same prefix whose owners were killed are removed."""
    sweep(prefix)
    with contextlib.ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        file = closing.enter_context((Path(folder) / HELD).open("w"))
        with contextlib.suppress(OSError):  # no locks here: then nobody sweeps either
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder


def sweep(prefix):
    """Remove this user's folders of that prefix that nobody holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # gone meanwhile, held, or another user's
            about = path.stat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > YOUNG_SECONDS and _free(path):
                shutil.rmtree(path, ignore_errors=True)


def _free(path):
    try:
        with (path / HELD).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False  # not made here
    return True
