"""Exhibit 07, cost: days, node-hours and energy to train on a number of tokens, with failures and checkpoints."""

from repro import flops, parameters
from repro.exhibits import points
from repro.exhibits.throughput import printed_run
from repro.records.table import Row, Table
from repro.report.grid import Grid

EXHIBIT = "cost"
# name in a projection: metric here, unit, factor to it
METRICS = {
    "compute_days": ("compute", "d", 1),
    "days": ("wall time", "d", 1),
    "node_hours": ("node-hours", "million node-hours", 1e-6),
    "energy_mwh": ("energy", "GWh", 1e-3),
    "failures": ("failures", "1", 1),
    "efficiency": ("share of time that trains", "1", 1),
    "interval_seconds": ("between checkpoints", "s", 1),
    "lost_days": ("lost work", "d", 1),
    "checkpoint_days": ("writing checkpoints", "d", 1),
    "restart_days": ("restarts", "d", 1),
}
DAY = 86_400  # seconds


def table(names, nodes, tokens, machine):
    """Cost of every model on its largest number of nodes, on each of ``tokens`` and on 20 for each parameter.

    Every replica keeps the recipe's batch. Beside it, what the printed throughput gives without any failure.

    Raises:
        InputError: as :func:`repro.projection.project.project`.
    """
    from repro.projection.machine import load
    from repro.projection.project import on_nodes, project
    from repro.recipe import load as load_recipe

    machine, rows = load(machine), []
    for name in names:
        recipe = on_nodes(load_recipe(name), machine, max(nodes[name]), weak=True)
        own = 20 * parameters.true_count(recipe)
        for count, label in [(own, "20 tokens a parameter"), *((t, f"{t / 1e12:g}T tokens") for t in tokens)]:
            found = project(recipe, machine, tokens=count)
            series = f"{name}, {label}"
            source = f"{points.source_of(machine, found.calibration)}; steady state"
            for key, (metric, unit, factor) in METRICS.items():
                one = found.cost[key]
                value, low, high = (points.rounded(factor * v) for v in (one.value, one.low, one.high))
                rows.append(Row(EXHIBIT, series, found.nodes, metric, value, unit, low, high, "projected", source))
            rows += _printed(recipe, machine, count, series, found.nodes)
    return Table(rows)


def _printed(recipe, machine, tokens, series, nodes):
    """Compute days at the printed throughput: arithmetic on a published number."""
    run = printed_run(recipe, machine)
    if run is None:
        return []
    each = flops.hardware_flops(recipe) / (recipe.batch.global_ * recipe.shape.seq)
    days = points.rounded(each * tokens / (run.value * 1e12 * recipe.world_size) / DAY)
    source = f"{run.id}; hardware FLOPs of a token over it, no failure, no checkpoint"
    return [Row(EXHIBIT, series, nodes, "compute", days, "d", None, None, "published", source)]


def work(names, tokens):
    """FLOPs of the training three ways; the paper's abstract has 120 million exaflop for 1T on 20T tokens."""
    from repro.recipe import load

    grid = []
    for name in names:
        recipe = load(name)
        count = parameters.true_count(recipe)
        step = recipe.batch.global_ * recipe.shape.seq
        for number in (20 * count, *tokens):
            model, hardware = (f(recipe) / step * number for f in (flops.model_flops, flops.hardware_flops))
            grid.append((name, f"{count:.4g}", f"{number:.3g}", *(f"{v / 1e24:.3g}" for v in (
                6 * count * number, model, hardware))))  # fmt: skip
    columns = ("model", "parameters", "tokens", "6 N D (million EFLOP)", "model FLOPs (million EFLOP)",
               "hardware FLOPs (million EFLOP)")  # fmt: skip
    return Grid(columns, tuple(grid))


def numbers(found):
    """Every training in numbers."""
    rows, grid = found.select(exhibit=EXHIBIT), []
    for series in dict.fromkeys(row.series for row in rows):
        own = {row.metric: row for row in rows.select(series=series, provenance="projected")}
        printed = next((f"{row.value:,.0f}" for row in rows.select(series=series, provenance="published")), "")
        cells = [_banded(own[metric]) for metric in ("compute", "wall time", "node-hours", "energy", "failures",
                                                     "share of time that trains")]  # fmt: skip
        grid.append((series, own["compute"].x, printed, *cells))
    columns = ("training", "nodes", "compute at the printed rate (d)", "compute, projected (d)", "wall time (d)",
               "million node-hours", "energy (GWh)", "failures", "share of time that trains")  # fmt: skip
    return Grid(columns, tuple(grid))


def _banded(row):
    digits = "{:,.0f}" if row.value >= 100 else "{:.3g}"
    low, value, high = (digits.format(v) for v in (row.low, row.value, row.high))
    return f"{value} ({low} to {high})"


def figure(found, machine, into="figures"):
    """Wall time, node-hours and energy, saved as ``07_cost``."""
    from repro.report import scaling_figures

    note = (
        f"Held out: {points.held_out(machine)}; no training of this length was published. Failures, checkpoints and "
        "power of a node are judged, see the machine's profile. Not modelled: queues, maintenance, evaluation. "
    )
    return scaling_figures.cost(found.select(exhibit=EXHIBIT), note, "07_cost", into)
