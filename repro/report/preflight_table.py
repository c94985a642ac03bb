"""A preflight for people: what was checked, the ranks that sit wrong, the measured network."""

from repro.report import network_table

MOST_RANKS = 16  # of the binding, where all are right; wrong ones are always shown


def show(found, short=str):
    """Print a :class:`repro.preflight.launch.Preflight`.

    Args:
        short: makes a path short for a reader.
    """
    data = found.data
    layout = data["layout"]
    title = f"Preflight of {data['recipe']}: {layout['ranks']} ranks, {data['backend']}, {data['seconds']:.1f} s"
    checks = _table(title, "check", "state", "what")
    for check in data["checks"]:
        fix = f"\n-> {check['fix']}" if check["fix"] else ""
        checks.add_row(check["name"], check["state"], check["reason"] + fix)
    _print(checks)
    rows = binding_rows(data)
    if rows:
        table = _table("Where ranks sit", *BINDING)
        for row in rows:
            table.add_row(*map(str, row))
        _print(table)
    points = network_table.rows(found.table)
    if points:
        table = _table(f"Network, measured over {data['backend']}", *network_table.COLUMNS)
        for row in points[: network_table.MOST_ROWS]:
            table.add_row(*row)
        _print(table)
    print(f"folder  {short(str(found.folder))}")
    print("passed; what is 'not checked' was not" if found.passed else f"failed: {data['reason']}")


BINDING = ("rank", "node", "local rank", "GCD", "cores", "NUMA", "NIC", "expected", "state")


def binding_rows(data):
    """The ranks of a ``preflight.json``: wrong ones first, then the others, as many as people read."""
    keys = ("rank", "host", "local_rank", "gcd", "cores", "numa", "nic", "expected", "state")
    wrong = [row for row in data["binding"] if row["state"] == "wrong"]
    others = [row for row in data["binding"] if row["state"] != "wrong"]
    shown = wrong + others[: max(0, MOST_RANKS - len(wrong))]
    return tuple(tuple(row[key] if row[key] != "" else "-" for key in keys) for row in shown)


def _table(title, *columns):
    from rich.table import Table

    table = Table(title=title)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table):
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)
