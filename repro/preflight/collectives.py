"""The recipe's groups made as training makes them, and the first transfer over every kind, each within the deadline."""

import time

from repro.preflight.groups import MESSAGES

FIRST = 10  # orders of first transfers begin here; what comes before them is meeting and making
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def make(kinds, arrivals, rank):
    """``{kind: process group, or None}`` of this rank; of pairs that need no group of their own, ``None``.

    Making a group is something that all ranks do, members or not: a rank that stays away from it holds up all.
    """
    import torch.distributed as dist

    made = {}
    for kind in kinds:
        if kind.name in MESSAGES or kind.name == "world":
            made[kind.name] = None  # the default group
            continue
        with arrivals.phase(kind.number + 1, f"making of the groups: {kind.title}", arrivals.world):
            for members in kind.groups:
                arrivals.beat(waiting=False)  # hundreds of groups take their time, each has the deadline
                group = dist.new_group(ranks=list(members))
                if rank in members:
                    made[kind.name] = group
    return made


def first(kind, groups, members, rank, device):
    """One transfer over this rank's group of a kind; an error in words where the result is wrong.

    The first over a group is the one that connects its ranks: it is here that a wrong network hangs.
    """
    import torch
    import torch.distributed as dist

    if kind.name in MESSAGES:
        lower, upper = members
        value = torch.full((4,), float(lower + 1), device=device)
        if rank == lower:
            dist.send(value, upper)
            dist.recv(value, upper)
        else:
            dist.recv(value, lower)
            dist.send(value, lower)
        wanted = float(lower + 1)
    else:
        value = torch.full((4,), float(rank + 1), device=device)
        dist.all_reduce(value, group=groups[kind.name])
        wanted = float(sum(member + 1 for member in members))
    if found := [x for x in value.tolist() if x != wanted]:  # also: waits for the device
        return f"rank {rank} got {found[0]:g} instead of {wanted:g}"
    return None


def try_all(kinds, groups, arrivals, rank, device, report):
    """``[{name, title, seconds, problem}]`` of the kinds in which this rank has company."""
    found = []
    for kind in kinds:
        members = kind.of(rank)
        if members is None or len(members) == 1:
            continue
        report("phase", f"first transfer of the {kind.title}")
        order = FIRST + len(kinds) + kind.number
        title = f"first {'message' if kind.name in MESSAGES else 'all-reduce'} of the {kind.title}"
        started = time.perf_counter()
        with arrivals.phase(order, title, members):
            problem = first(kind, groups, members, rank, device)
        found.append({"name": kind.name, "seconds": time.perf_counter() - started, "problem": problem})
    return found


def summary(kinds, tried):
    """``{name, title, groups, size, state, reason, seconds}`` of every kind.

    Args:
        tried: what :func:`try_all` returned on each rank.
    """
    rows = []
    for kind in kinds:
        own = [one for ranks in tried for one in ranks if one["name"] == kind.name]
        problems = [one["problem"] for one in own if one["problem"]]
        rows.append({
            "name": kind.name,
            "title": kind.title,
            "groups": len(kind.groups),
            "size": kind.size,
            "state": "failed" if problems else "ok" if own else "not checked",
            "reason": problems[0] if problems else "" if own else "groups of one rank",
            "seconds": max((one["seconds"] for one in own), default=None),
        })  # fmt: skip
    return rows
