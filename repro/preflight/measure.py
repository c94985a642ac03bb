"""Times of collectives and messages over the recipe's own groups: all groups of a kind at once, as in training.

Groups of one kind share the node's NICs, so each is timed while all of them work. A *burst* is so many transfers one
after the other with one wait for the device at its end; messages go there and back, each waited for, and half of that
is the time of one. Before each burst all ranks meet. A group takes as long as its slowest rank.
"""

import time
from statistics import median

from repro.preflight.groups import MESSAGES
from repro.records.network import Point

BURSTS = 5  # after one to warm up
SLOW = 2.0  # times the median of its kind: a group to name
MOST_BYTES = {"nccl": 256 * 2**20, "gloo": 2 * 2**20}


def repeats(size_bytes):
    """Transfers in a burst: many small ones, so that the clock does not count."""
    return 20 if size_bytes <= 2**16 else 5 if size_bytes <= 2**23 else 2


def measure(items, kinds, groups, arrivals, rank, device, dtype, report, first_order):
    """``{"<item>/<elements>": seconds of one transfer in each burst}`` of this rank.

    Args:
        first_order: of the phases here.
    """
    import torch

    by_name, found, order = {kind.name: kind for kind in kinds}, {}, first_order
    for number, item in enumerate(items):
        kind = by_name[item.kind]
        members = kind.of(rank) or ()
        report("phase", f"measuring {item.collective} of the {kind.title}")
        for elements in item.elements:
            times, order = [], order + 1
            title = f"{item.collective} of the {kind.title}"
            transfer = count = None
            if len(members) > 1:
                transfer = _transfer(item, members, groups, rank, device, elements, dtype, torch)
                count = repeats(elements * dtype.itemsize)
            with arrivals.phase(order, title, members if transfer else arrivals.world):
                for _ in range(1 + BURSTS):
                    arrivals.beat(waiting=True)
                    _meet(device)
                    arrivals.beat(waiting=False)
                    if transfer:
                        times.append(_burst(transfer, count, device) / count)
            if transfer:
                found[f"{number}/{elements}"] = times[1:]
    return found


def _meet(device):
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(1, device=device))
    _wait(device)


def _burst(transfer, count, device):
    started = time.perf_counter()
    for _ in range(count):
        transfer()
    _wait(device)
    return time.perf_counter() - started


def _wait(device):
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _transfer(item, members, groups, rank, device, elements, dtype, torch):
    """A function that does one transfer of a tensor of ``elements``; of messages there and back, one in turn."""
    dist = torch.distributed
    group, n = groups[item.kind], len(members)
    whole = torch.zeros(elements, device=device, dtype=dtype)
    if item.kind in MESSAGES:
        lower, upper = members
        mine = rank == lower
        turn = [False]

        def message():
            # called once for each transfer, which alternate in direction
            turn[0] = not turn[0]
            (dist.send if mine == turn[0] else dist.recv)(whole, upper if mine else lower)
            _wait(device)

        return message
    part = torch.zeros(elements // n, device=device, dtype=dtype)
    return {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
    }[item.collective]


def combine(items, kinds, times, element_bytes):
    """``(points, slow)``: a :class:`repro.records.network.Point` for each item and size, and groups to name.

    Args:
        times: what :func:`measure` returned on every rank, in order.
    """
    by_name, of_groups, collected = {kind.name: kind for kind in kinds}, {}, {}
    for number, item in enumerate(items):
        kind = by_name[item.kind]
        for elements in item.elements:
            key = f"{number}/{elements}"
            for members in kind.groups:
                if len(members) == 1:
                    continue
                bursts = [max(values) for values in zip(*(times[rank][key] for rank in members), strict=True)]
                size_bytes = elements * element_bytes
                collected.setdefault((item.collective, item.group, size_bytes), []).append((members, bursts))
    points = []
    for (collective, group, size_bytes), found in collected.items():
        values = [value for _, bursts in found for value in bursts]
        members = found[0][0]
        points.append(Point(collective, group, len(members), members[1] - members[0], size_bytes, median(values),
                            min(values), max(values)))  # fmt: skip
        of_groups[collective, group] = found  # the largest size, which comes last
    return tuple(points), _slow(of_groups)


def _slow(of_groups):
    """``(what, members, times the median)`` of groups that need far longer than the median of their kind."""
    named = []
    for (collective, group), found in of_groups.items():
        each = [(median(bursts), members) for members, bursts in found]
        middle = median(seconds for seconds, _ in each)
        if len(each) >= 4:  # fewer have no middle to stand out from
            named += [(f"{collective}, {group}", members, s / middle) for s, members in each if s > SLOW * middle]
    return named
