"""What explains the published scaling: each mechanism alone, what the best one breaks, and what was predicted.

The list of mechanisms was made with the published points known (:mod:`repro.projection.mechanisms`).
"""

from repro.exhibits import points, throughput
from repro.exhibits.sampled import sampled
from repro.records.table import Row, Table
from repro.report.grid import Grid

EXHIBIT, MACHINE = "mechanisms", "frontier"
EFFICIENCY = "efficiency"
FIRST, SECOND = "FR-log-405287-1", "FR-log-405287-2"


def table():
    """Efficiency of each published scaling run under each mechanism alone, and as printed."""
    from repro.projection import belief as beliefs
    from repro.projection.mechanisms import mechanisms

    rows = []
    found = mechanisms()
    for run in beliefs.named_runs(found[0].values):
        told = f"{run.id}: {run.source.partition(';')[0]}"
        rows.append(Row(EXHIBIT, "printed", run.id, EFFICIENCY, run.value, "%", None, None, "published", told))
    for one in found:
        c = one.candidate
        for run, value in one.values.items():
            source = f"{c.what} ({c.kind}); calibrated on 22B"
            value = points.rounded(value)
            rows.append(Row(EXHIBIT, c.name, run, EFFICIENCY, value, "%", None, None, "projected", source))
    return Table(rows)


def numbers(found):
    """Every mechanism: its four efficiencies, how many it explains within 2 points, what it breaks."""
    from repro.projection.mechanisms import CLOSE

    rows = found.select(exhibit=EXHIBIT)
    printed = {row.x: row.value for row in rows.select(provenance="published")}
    grid, alone = [("printed", "", *(f"{v:.0f}" for v in printed.values()), "", "")], None
    for name in dict.fromkeys(row.series for row in rows.select(provenance="projected")):
        own = {row.x: row for row in rows.select(series=name)}
        near = [run for run, value in printed.items() if abs(own[run].value - value) <= CLOSE]
        alone = near if alone is None else alone
        broken = ", ".join(run for run in alone if run not in near)
        what = own[next(iter(own))].source.partition(";")[0]
        grid.append(
            (name, what, *(f"{own[run].value:.1f}" for run in printed), f"{len(near)} of {len(printed)}", broken)
        )
    columns = ("mechanism", "what it is (evidence of its size)", *printed, "explained", "breaks")
    return Grid(columns, tuple(grid))


def cold_start():
    """The one source of the cold step's size: the authors' own log, published."""
    from repro.projection import belief as beliefs

    first, second = beliefs.named_runs([FIRST, SECOND])
    longer = first.seconds - second.seconds
    rows = (
        (f"first iteration, {first.id}", f"{first.seconds:.1f}", "s", "published"),
        (f"second iteration, {second.id}", f"{second.seconds:.1f}", "s", "published"),
        ("the first is longer by", f"{longer:.1f}", "s", "derived"),
        (f"for each of {first.pp} stages", f"{longer / first.pp:.2f}", "s", "derived"),
    )
    return Grid(("what", "value", "unit", "provenance"), rows)


def broken(machine=MACHINE):
    """Printed throughput of each model if it too were a mean of so few steps, the cold one among them."""
    from repro.projection.readings import Open
    from repro.recipe import load

    found, grid = sampled(machine), []
    for name in ("22b", "175b", "1t"):
        run = throughput.printed_run(load(name), found.machine)
        if run is None:
            continue
        cells = []
        for steps in (1, 3, 10, None):
            value = Open(run).values(found.central, None, 1 / steps if steps else 0.0)[0, 0]
            cells.append(f"{value:.1f} ({100 * (value / run.value - 1):+.0f} %)")
        grid.append((name, f"{run.value:.1f}", *cells))
    columns = ("model", "printed (TFLOP/s per device)", "one step, the first", "first of three", "first of ten",
               "steady state")  # fmt: skip
    return Grid(columns, tuple(grid) or (("nothing was printed of these models on this machine", *[""] * 5),))


def predictions(names, machine, runs=()):
    """Predictions written down before anyone compared them, beside today's model and what ``runs`` measured."""
    from repro.projection import predictions as ledger
    from repro.projection.machine import load
    from repro.projection.project import on_nodes
    from repro.recipe import load as load_recipe

    machine, grid = load(machine), []
    rows = [row for row in ledger.read() if row.machine == machine.name and row.recipe in names]
    recipes = [on_nodes(load_recipe(row.recipe), machine, row.nodes, row.id.endswith("-weak")) for row in rows]
    today = points.projected(recipes, [row.id for row in rows], "today", "predictions", machine)
    measured = _measured(runs)
    for row, recipe in zip(rows, recipes, strict=True):
        [now] = today.select(x=row.id, metric="step time").rows
        key = (recipe.name, recipe.world_size, recipe.batch.global_)
        grid.append((row.id, row.written, row.nodes, f"{row.batch:,}", f"{row.seconds:.4g}",
                     f"{row.low:.4g} to {row.high:.4g}", f"{now.value:.4g}", measured.get(key, "")))  # fmt: skip
    columns = ("prediction", "written", "nodes", "global batch", "step (s)", "band (s)", "today's model (s)",
               "measured (s)")  # fmt: skip
    return Grid(columns, tuple(grid) or (("none for these recipes on this machine", *[""] * 7),))


def _measured(runs):
    """``{(recipe, ranks, global batch): seconds}`` of run folders."""
    from repro.records.run_folder import RunFolder

    found = {}
    for path in runs:
        recipe = RunFolder.open(path).recipe()
        [row] = points.recorded([path], lambda _: 0, lambda r: r.name, EXHIBIT).select(metric="step time").rows
        found[recipe.name, recipe.world_size, recipe.batch.global_] = f"{row.value:.4g}"
    return found


def figure(found, into="figures"):
    """How far each mechanism is from the four printed points, saved as ``07_mechanisms``."""
    from repro.projection.mechanisms import CLOSE
    from repro.report import scaling_figures

    error = f"Held out: {points.held_out(MACHINE)}. "
    return scaling_figures.mechanisms(found.select(exhibit=EXHIBIT), CLOSE, error, "07_mechanisms", into)
