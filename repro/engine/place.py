"""Which rank this process is, when a launcher (torchrun, srun) has started it. No torch."""

import os
import re
from dataclasses import dataclass

from repro.errors import InputError


@dataclass(frozen=True)
class Place:
    """One process of a run.

    Attributes:
        local_rank: number among the processes of this node.
        init_method: where the ranks meet, as torch.distributed takes it.
    """

    rank: int
    world_size: int
    local_rank: int
    init_method: str


def from_environment(variables=None):
    """The place that torchrun or srun gave this process, or ``None`` when neither started it.

    Raises:
        InputError: a launcher's variables are incomplete.
    """
    env = os.environ if variables is None else variables
    if "RANK" in env and "WORLD_SIZE" in env:
        if "LOCAL_RANK" not in env:
            raise InputError("RANK and WORLD_SIZE are set but LOCAL_RANK is not; start the ranks with torchrun or srun")
        return _place(env, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    tasks = "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    in_step = tasks == "SLURM_STEP_NUM_TASKS" or (tasks in env and "SLURM_STEP_ID" in env)
    if in_step and "SLURM_PROCID" in env and _number(env, tasks) > 1:
        return _place(env, "SLURM_PROCID", tasks, "SLURM_LOCALID")
    return None


def _place(env, rank, world_size, local_rank):
    place = Place(_number(env, rank), _number(env, world_size), _number(env, local_rank), _meeting(env))
    if place.rank >= place.world_size:
        raise InputError(f"{rank} is {place.rank} of {place.world_size} ranks ({world_size}); the last is one less")
    return place


def device_index(local_rank, visible):
    """The device of a process: its local rank, or 0 where the launcher shows each process one device."""
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise InputError(
            f"local rank {local_rank} needs device {local_rank} but {visible} devices are visible; "
            f"start at most {visible} ranks on a node, or bind one device to each"
        )
    return local_rank


def expand_nodes(nodelist):
    """Host names of a Slurm node list: ``frontier[00863,00971-00973]`` gives four."""
    names = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]+)\])?([^,\[\]]*)", nodelist):
        if not ranges:
            names.append(prefix + suffix)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names.append(f"{prefix}{number:0{len(first)}d}{suffix}")
    return names


def _meeting(env):
    """torchrun's own store, or the first host of the allocation (never the host of submission) and a
    port that follows from the job number."""
    if "MASTER_PORT" in env:
        _number(env, "MASTER_PORT")
    if "RANK" in env and "MASTER_ADDR" in env and "MASTER_PORT" in env:
        return "env://"
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    try:
        host = env.get("MASTER_ADDR") or (expand_nodes(nodes)[0] if nodes else None)
    except (ValueError, IndexError):
        raise InputError(f"{nodes!r} is not a Slurm node list, e.g. frontier[00001-00002]") from None
    if host is None:
        raise InputError(
            "MASTER_ADDR is not set and there is no Slurm node list; start the ranks with torchrun or srun"
        )
    job = _number(env, "SLURM_JOB_ID") if "SLURM_JOB_ID" in env else 0
    port = env.get("MASTER_PORT") or 20000 + job % 20000
    return f"tcp://{host}:{port}"


def _number(env, name):
    text = env.get(name, "")
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"{name} is {env.get(name)!r}, not a number; start the ranks with torchrun or srun")
    return int(text)
