"""The scorecard for people: in a terminal, and as tables of a notebook."""

from repro.report.grid import Grid
from repro.report.scorecard_figure import band, kind, number, sign


def grid(card):
    """Every claim: published, ours, verdict and the reason in words."""
    heads = ("claim", "published", "ours", "band", "unit", "ours is", "verdict", "reason", "confidence")
    return Grid(heads, tuple(_cells(line) for line in card.lines))


def ways(card):
    """How ours came about, and who printed what stands beside it."""
    heads = ("claim", "in words", "how ours came about", "published by")
    return Grid(heads, tuple((line.title, line.claim, line.how or line.reason, line.source) for line in card.lines))


def changed(changes):
    """What differs from the accepted verdicts."""
    rows = [
        (c.id, c.was or "new", c.now or "gone", "worse" if c.worse else "not worse", c.reason) for c in changes
    ] or [("none", "", "", "", "every verdict is the accepted one")]
    return Grid(("claim", "accepted", "now", "", "reason"), tuple(rows))


def show(card, changes, drawn, accepted):
    """Print the card, what changed, and where it lies."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The paper's claims beside this reproduction")
    for name in ("claim", "published", "ours", "band", "unit", "ours is", "verdict", "reason"):
        table.add_column(name, no_wrap=name in ("claim", "verdict"), justify="left")
    for line in card.lines:
        table.add_row(*(str(cell) for cell in _cells(line)[:-1]))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
    print(", ".join(f"{count} {verdict}" for verdict, count in card.counts().items()))
    for change in changes:
        # one that is worse comes as the error that ends the command
        if not change.worse:
            print(f"changed: {change}")
    if accepted:
        print(f"accepted: {len(card.lines)} verdicts")
    print(f"figure and table: {drawn!r}")


def _cells(line):
    published = "" if line.published is None else f"{sign(line)}{number(line.published)}"
    ours = "" if line.ours is None else number(line.ours)
    limits = "" if line.ours is None else band(line)
    unit = "" if line.unit in ("1", "-") else line.unit
    return (line.title, published, ours, limits, unit, kind(line), line.verdict, line.reason, line.confidence)
