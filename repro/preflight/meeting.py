"""The two stores of a preflight: one for torch's groups, one of our own that a hung group cannot block."""

import os
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlparse

from repro.errors import InputError, RunFailed

PREFIX = "repro-preflight"


def stores(place, seconds):
    """``(for torch, for us)``: two connections to one meeting place.

    A rank that waits for a member of its group inside of torch holds its store's connection; another thread could not
    ask it anything. And neither waits here for the others: who has come is for :mod:`repro.preflight.arrivals` to say.

    Raises:
        RunFailed: the meeting place cannot be reached within ``seconds``.
    """
    import torch.distributed as dist

    if place.init_method.startswith("file://"):
        paths = [Path(place.init_method.removeprefix("file://") + end) for end in ("", ".arrivals")]
        for path in paths:
            path.touch()  # torch would look for a missing folder for minutes, with Python's lock in hand
        return tuple(dist.FileStore(str(path), place.world_size) for path in paths)
    host, port = address(place)
    # torchrun's agent serves the store itself; else rank 0 does
    agent = place.init_method == "env://" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    options = {"timeout": timedelta(seconds=seconds), "wait_for_workers": False, "multi_tenant": True}
    try:
        first = dist.TCPStore(host, port, place.world_size, is_master=place.rank == 0 and not agent, **options)
        second = dist.TCPStore(host, port, place.world_size, is_master=False, **options)
    except (RuntimeError, OSError) as error:
        what = "cannot serve the meeting place" if place.rank == 0 and not agent else "cannot reach rank 0"
        raise RunFailed(
            f"rank {place.rank} {what} at {host}:{port} within {seconds:g} s: {_first_line(error)}; "
            "is MASTER_ADDR the first node of the allocation, and the port free?"
        ) from None
    return first, dist.PrefixStore(PREFIX, second)


def address(place):
    """Host and port of a place."""
    url = place.init_method
    if url == "env://":
        url = f"tcp://{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    try:
        parsed = urlparse(url)
        host, port = parsed.hostname, parsed.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise InputError(f"{url!r} is no meeting place of the form tcp://HOST:PORT; check MASTER_ADDR and MASTER_PORT")
    return host, port


def _first_line(error):
    return (str(error).strip().splitlines() or [""])[0][:200]
