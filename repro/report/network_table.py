"""Measured networks for people: the points of a preflight, and a machine fitted to them."""

import sys

from repro.records import network

MOST_ROWS = 60


def size(count):
    """Bytes as people say them, in powers of two."""
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= one:
            return f"{count / one:.3g} {unit}"
    return f"{count} B"


def duration(seconds):
    """Seconds in the unit that keeps them readable."""
    for unit, one in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= one:
            return f"{seconds / one:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def rows(table):
    """``(what, size, time, fastest and slowest, bus bandwidth)`` of every point in a measured table."""
    bus = {(r.series, r.x): r for r in table.select(exhibit=network.EXHIBIT, metric=network.BUS)}
    return tuple(
        (r.series, size(r.x), duration(r.value), f"{duration(r.low)} to {duration(r.high)}",
         f"{bus[r.series, r.x].value:.3g}")
        for r in table.select(exhibit=network.EXHIBIT, metric=network.TIME)
    )  # fmt: skip


COLUMNS = ("measured", "size", "time", "fastest to slowest", "bus bandwidth (GB/s)")


def show_fit(fit, to_stderr=False):
    """Print what a fit changed, and how well it describes the rows."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=to_stderr)
    console = console if console.is_terminal else Console(stderr=to_stderr, width=160)
    table = Table(title=f"{fit.machine.title}: constants measured by {fit.setup.source}")
    for name in ("constant", "before", "measured", "range"):
        table.add_column(name, no_wrap=True)
    for name, (before, after) in fit.changed.items():
        found = (f"{before.value:.3g} ({before.kind})", f"{after.value:.3g}", f"{after.low:.3g} to {after.high:.3g}")
        table.add_row(name, *found)
    console.print(table)
    file = sys.stderr if to_stderr else sys.stdout
    print(f"{len(fit.rows)} rows, off by {fit.error:.1%} (root of the mean square)", file=file)
    if fit.at_bound:
        names = ", ".join(fit.at_bound)
        print(f"as far as the profile allows: {names}: this network is not like the profile's", file=file)
