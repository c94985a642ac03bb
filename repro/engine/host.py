"""What this machine is, asked without torch: GPUs, cores, memory, and whether a recipe can start here."""

import os
from pathlib import Path

from repro.errors import InputError

RANKS_PER_CORE = 16  # beyond this, ranks of a toy model only wait for a core


def check_machine(recipe):
    """Refuse what this machine cannot start: too many ranks, or weights that do not fit its memory.

    Raises:
        InputError: with the number that would do.
    """
    from repro import parameters

    if has_gpu():
        return  # each rank checks its own device
    most = RANKS_PER_CORE * cores()
    if recipe.world_size > most:
        raise InputError(
            f"recipe {recipe.name} needs {recipe.world_size} ranks, this machine has {cores()} cores and no GPU: "
            f"at most {most} local ranks; start it on a cluster, or override parallel.tp, pp and dp"
        )
    bytes_per_parameter = 16 if recipe.precision.dtype == "fp32" else 18  # weight, gradient, master, two moments
    need, have = parameters.all_ranks(recipe) * bytes_per_parameter / 2**30, memory_gib()
    if have and need > have:
        raise InputError(
            f"recipe {recipe.name} needs about {need:,.0f} GiB for weights and optimizer of all ranks, "
            f"this machine has {have:.0f} GiB; start it on a cluster, or make shape.layers or shape.hidden smaller"
        )


def has_gpu():
    """Whether a GPU driver is there; asked without torch, which must not touch the GPU before a fork."""
    return Path("/dev/kfd").exists() or Path("/dev/nvidiactl").exists()


def cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_gib():
    """Memory of this machine that is free or can be freed, in GiB; ``None`` where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 2**20
    except (OSError, StopIteration):
        return None
