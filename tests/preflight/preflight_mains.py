"""Bodies of preflight ranks that go wrong on purpose; imported by the rank processes."""

import os
import signal
import time


def stay_away(recipe, place, report, rank, name, **options):
    """One rank never enters the first transfer of one kind of groups."""
    _before(place.rank == rank, name, lambda: time.sleep(3600), entered=False)
    _run(recipe, place, report, options)


def hang_inside(recipe, place, report, rank, name, **options):
    """One rank enters, and hangs in the transfer."""
    _before(place.rank == rank, name, lambda: time.sleep(3600), entered=True)
    _run(recipe, place, report, options)


def die_inside(recipe, place, report, rank, name, **options):
    """SIGKILL inside the first transfer of a kind."""
    _before(place.rank == rank, name, lambda: os.kill(os.getpid(), signal.SIGKILL), entered=True)
    _run(recipe, place, report, options)


def raise_inside(recipe, place, report, rank, name, **options):
    """An error of one rank alone, while others wait for it."""

    def fail():
        raise ValueError("a fault of this rank alone")

    _before(place.rank == rank, name, fail, entered=True)
    _run(recipe, place, report, options)


def ask_the_launcher_to_stop(recipe, place, report, pid, **options):
    """SIGTERM to the launcher while all ranks are at work."""

    def ask():
        os.kill(pid, signal.SIGTERM)
        time.sleep(3600)

    _before(place.rank == 0, "data", ask, entered=True)
    _run(recipe, place, report, options)


def never_start(recipe, place, report, rank, **options):
    """One rank does not even come to the meeting."""
    if place.rank == rank:
        time.sleep(3600)
    _run(recipe, place, report, options)


def leave_out_a_group(recipe, place, report, rank, **options):
    """One rank stops while groups are made, which is something that all ranks do."""
    import torch.distributed as dist

    if place.rank == rank:
        dist.new_group = lambda ranks: time.sleep(3600)
    _run(recipe, place, report, options)


def hang_while_measured(recipe, place, report, rank, collective, name, **options):
    """One rank hangs in a timed transfer."""
    from repro.preflight import measure

    original = measure._transfer

    def transfer(item, *arguments):
        if place.rank == rank and item.collective == collective and item.kind == name:
            return lambda: time.sleep(3600)
        return original(item, *arguments)

    measure._transfer = transfer
    _run(recipe, place, report, options)


def spoil_a_result(recipe, place, report, rank, name, **options):
    """One rank puts a wrong number into the first transfer of a kind."""
    import torch

    from repro.preflight import collectives

    original, full = collectives.first, torch.full

    def first(kind, *arguments):
        if place.rank == rank and kind.name == name:
            torch.full = lambda size, value, **more: full(size, value + 1, **more)
        try:
            return original(kind, *arguments)
        finally:
            torch.full = full

    collectives.first = first
    _run(recipe, place, report, options)


def _before(mine, name, act, entered):
    """Act before a kind's first transfer: having told that the rank entered, or not."""
    if not mine:
        return
    from repro.preflight import collectives

    if entered:
        original = collectives.first

        def first(kind, *arguments):
            if kind.name == name:
                act()
            return original(kind, *arguments)

        collectives.first = first
        return
    from repro.preflight.arrivals import Arrivals

    enter = Arrivals.enter

    def refuse(self, order, title, members, seconds=None):
        if title.startswith("first") and f"{_title(name)}" in title:
            act()
        return enter(self, order, title, members, seconds)

    Arrivals.enter = refuse


def _title(name):
    from repro.preflight.groups import TITLES

    return TITLES[name]


def _run(recipe, place, report, options):
    from repro.preflight.rank import run_rank

    run_rank(recipe, place, report, **options)
