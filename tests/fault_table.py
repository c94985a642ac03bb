"""The fault matrix for people: one row a fault."""

import io
import shutil

from rich import box
from rich.console import Console
from rich.table import Table


def lines(rows):
    """The table as lines of text.

    Args:
        rows: dictionaries with ``fault``, and as far as the test got: ``happened``, ``seconds`` from the fault to its
            end, ``from`` (the step a resumed run began with; ``None``: nothing had to be resumed) and ``equal``.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    table.add_column("what happened", ratio=1)
    for name in ("s", "resumed from", "losses equal"):
        table.add_column(name, justify="right")
    for row in rows:
        seconds, start = row.get("seconds"), row.get("from")
        table.add_row(
            row["fault"],
            row.get("happened", "the test ended before"),
            "" if seconds is None else f"{seconds:.1f}",
            "" if start is None else f"step {start}",
            {True: "yes", False: "NO"}.get(row.get("equal"), "not seen"),
        )
    text = io.StringIO()
    Console(file=text, width=max(140, shutil.get_terminal_size().columns), highlight=False, markup=False).print(table)
    equal = sum(row.get("equal") is True for row in rows)
    return [*text.getvalue().splitlines(), f"{len(rows)} faults, {equal} resumed or ended with equal losses"]
