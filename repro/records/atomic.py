"""Writing that a crash cannot leave half done: whole files by replacement, lines one by one. Errors name the file."""

import contextlib
import errno
import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path


def now():
    """UTC time in ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")


def append_line(path, data):
    """Append one line of JSON and flush it; not-a-number becomes ``null``, as JSON has no name for it."""
    line = json.dumps(finite(data), default=str, allow_nan=False) + "\n"
    with _named(path), path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line  # a crash cut the last line short: do not glue this one to it
        file.write(line.encode())


@contextlib.contextmanager
def _named(path):
    """An error of writing says which file; the system says so only of opening one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path, data):
    write_atomic(path, json_text(data))


def json_text(data):
    return json.dumps(finite(data), indent=2, default=str, allow_nan=False) + "\n"


def write_atomic(path, text):
    """Replace ``path`` by ``text``: a reader sees the old file or the new one, never a part."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _named(path):
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # a read-only folder
            temporary.unlink(missing_ok=True)


def sync_folder(path):
    """The names in a folder on disk, not only its files: a power cut may come before the system writes them."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(opened)


def finite(value):
    """The same data with ``None`` for every float that is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
