"""Reading a file that a user names: only a plain one, only up to a size; every fault is one line."""

from pathlib import Path

from repro.errors import InputError, shortened

SMALL_BYTES = 2**20  # of a DeepSpeed JSON
SCRIPT_BYTES = 2**18


def regular(path, most, what, advice="wrong file?"):
    """The path of a plain file of at most ``most`` bytes.

    Raises:
        InputError: a folder, a device, no such file, or too large.
    """
    try:
        path = Path(path)
        size = path.stat().st_size if path.is_file() else None
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {what} {shortened(str(path))}: {getattr(error, 'strerror', None) or error}"
        ) from None
    if size is None:
        kind = "a folder" if path.is_dir() else "no regular file" if path.exists() else "no such file"
        raise InputError(f"cannot read {what} {shortened(str(path))}: {kind}")
    if size > most:
        raise InputError(f"{what} {path} has {size / 2**20:,.4g} MiB; the most is {most / 2**20:,.4g}: {advice}")
    return path


def contents(path, what, most=SMALL_BYTES):
    """Bytes of a small plain file.

    Raises:
        InputError: as :func:`regular`, or the file cannot be opened.
    """
    path = regular(path, most, what)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {what} {shortened(str(path))}: {error.strerror or error}") from None
