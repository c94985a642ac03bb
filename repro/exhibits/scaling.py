"""Exhibit 07: weak and strong scaling of the large models. See also :mod:`explanations` and :mod:`cost`.

Weak: every replica keeps its samples, so that a step should take as long. Strong: a step keeps its samples, so that
each replica has fewer micro-batches for the same number of stages. Efficiency is the rate of a device over that in the
smallest run. Batches and the smallest run are those of the likely reading of the published scaling runs.
"""

from dataclasses import dataclass, replace

from repro import flops
from repro.errors import InputError, shortened
from repro.exhibits import points
from repro.exhibits.sampled import sampled
from repro.exhibits.throughput import printed_run
from repro.records.table import Row, Table
from repro.report.grid import Grid

WEAK, STRONG = "weak scaling", "strong scaling"
PRINTED_AS = {WEAK: "weak_efficiency", STRONG: "strong_efficiency"}
EFFICIENCY, TOTAL, RATE = "efficiency", "aggregate hardware PFLOP/s", "hardware TFLOP/s"
STEADY, COLD, READINGS, PRINTED = "steady state", "cold first step counted", "all readings", "printed"
TINY_RANKS, TINY_WEAK, TINY_STRONG = (1, 2, 4), 8, 16  # ranks; samples of a step, each rank's and in all


@dataclass(frozen=True)
class Variant:
    """A model on so many devices: its recipe, or why there is none; ``base`` where efficiency counts as 100 %."""

    mode: str
    series: str
    devices: int
    base: bool = False
    recipe: object = None
    why: str = ""


def variants(names, nodes, machine, scale="paper", seed=1234):
    """Every point of both scalings; at scale ``tiny`` the recipe ``tiny`` on 1, 2 and 4 ranks.

    Args:
        nodes: ``{recipe: [nodes, ...]}``.

    Raises:
        InputError: an unknown recipe or machine; a recipe without a list of nodes, or a list that is none.
    """
    from repro.projection.machine import load as load_machine
    from repro.recipe import load

    machine, found = load_machine(machine), []
    if scale == "tiny":
        model, batches = load("tiny", {"parallel.dp": 1}), {WEAK: TINY_WEAK, STRONG: TINY_STRONG}
        return tuple(_variant(model, mode, n, n == 1, batches[mode], seed) for mode in batches for n in TINY_RANKS)
    for name in names:
        counts = nodes.get(name)
        valid = isinstance(counts, list) and counts and all(type(n) is int and n > 0 for n in counts)
        if not valid:
            raise InputError(f"nodes[{name!r}] is {shortened(counts)}: every recipe needs a list of numbers of nodes")
        model = load(name)
        for mode in (WEAK, STRONG):
            run = printed_run(model, machine, PRINTED_AS[mode])
            ranks = sorted({n * machine.devices_per_node for n in counts})
            base = run.base_gpus if run and run.base_gpus in ranks else ranks[0]
            found += [_variant(model, mode, n, n == base, _batch(model, mode, run), seed) for n in ranks]
    return tuple(found)


def _batch(model, mode, run):
    """Samples of a step, of one replica where scaling is weak: as published, else the recipe's."""
    total, replicas = (run.gbs, run.dp) if run else (model.batch.global_, model.parallel.dp)
    return total if mode == STRONG else total // replicas


def _variant(model, mode, devices, base, batch, seed):
    from repro.recipe import load

    replicas, rest = divmod(devices, model.parallel.tp * model.parallel.pp)
    if rest or not replicas:
        each = model.parallel.tp * model.parallel.pp
        return Variant(mode, model.name, devices, why=f"{devices} devices are no multiple of the {each} of a replica")
    total = batch * replicas if mode == WEAK else batch
    try:
        recipe = load(model, {"parallel.dp": replicas, "batch.global": total, "seed": seed})
    except InputError as error:
        return Variant(mode, model.name, devices, why=str(error))
    return Variant(mode, model.name, devices, base, recipe)


def plan(found):
    """What each point runs on, and what is not possible."""
    rows = []
    for v in found:
        if v.recipe is None:
            rows.append((v.mode, v.series, v.devices, "", "", "", v.why))
            continue
        p = v.recipe.parallel
        layout, remark = f"{p.tp} x {p.pp} x {p.dp}", "counts as 100 %" if v.base else ""
        rows.append((v.mode, v.series, v.devices, layout, v.recipe.batch.global_, v.recipe.accumulation, remark))
    columns = ("scaling", "model", "devices", "tp x pp x dp", "global batch", "micro-batches a replica", "remark")
    return Grid(columns, tuple(rows))


def table(found, machine, scale, runs, folder):
    """Rates, totals and efficiencies: published and projected; measured of ``runs``, and at ``tiny`` trained here.

    Raises:
        InputError: an unknown machine; a folder of ``runs`` that holds no completed run, or none of these scalings.
    """
    possible = [v for v in found if v.recipe is not None]
    measured = _given(possible, runs)
    if scale == "tiny":
        trained, machine = _trained(possible, folder)
        measured += trained
    measured += _efficiencies(measured)
    here, rows = sampled(machine), Table()
    for mode in PRINTED_AS:
        for name in dict.fromkeys(v.series for v in possible):
            own = [v for v in possible if (v.mode, v.series) == (mode, name)]
            recipes, xs = [v.recipe for v in own], [v.devices for v in own]
            rows += points.projected(recipes, xs, f"{name}, {STEADY}", mode, here.machine)
            rows += _projected(own, here) + (Table() if scale == "tiny" else _printed(own[-1], here))
    rows += measured
    return rows + _totals(rows)


def _projected(own, here):
    """Efficiencies in steady state and, but for local machines, with the cold first step in a mean of 1 to 10 steps."""
    from repro.projection.readings import EFFICIENCY_ERROR

    base = next((i for i, v in enumerate(own) if v.base), 0)
    work = [flops.hardware_flops(v.recipe) / v.devices for v in own]
    cold = {STEADY: 0.0} if here.local else {STEADY: 0.0, COLD: (1 / here.belief.steps)[:, None]}
    rows = []
    for name, share in cold.items():
        point, samples = here.seconds([v.recipe for v in own], share)
        for i, v in enumerate(own):
            one, many = (100 * work[i] / work[base] * s[..., base] / s[..., i] for s in (point, samples))
            many = many if i == base else here.noisy(many, EFFICIENCY_ERROR)  # the smallest run is 100 % by definition
            rows.append(here.row(v.mode, f"{v.series}, {name}", v.devices, EFFICIENCY, float(one), many, "%"))
    return Table(rows)


def _printed(variant, here):
    """The published efficiency, and its prediction over everything that the source leaves open."""
    import numpy as np

    from repro.projection import readings

    run = printed_run(variant.recipe, here.machine, PRINTED_AS[variant.mode])
    if run is None:
        return Table()
    many, name = readings.predict(here.belief, here.machine, run), variant.series
    source = f"{here.source}; {len(tuple(run.readings()))} readings of {run.id}"
    told = f"{run.id}: {run.source.partition(';')[0]}"
    return Table((
        here.row(variant.mode, f"{name}, {READINGS}", run.gpus, EFFICIENCY, float(np.median(many)), many, "%", source),
        Row(variant.mode, f"{name}, {PRINTED}", run.gpus, EFFICIENCY, run.value, "%", None, None, "published", told),
    ))  # fmt: skip


def _trained(possible, folder):
    """Every point on real ranks; the machine's speed is set by the one rank of strong scaling."""
    rows, alone = Table(), None
    for mode in PRINTED_AS:
        own = [v for v in possible if v.mode == mode]
        where = ([v.recipe for v in own], [v.devices for v in own], [f"{v.series}, runs" for v in own])
        measured, paths = points.measured(*where, mode, folder / "points")
        rows += measured
        alone = next(path for v, path in zip(own, paths, strict=True) if v.devices == 1)
    return rows, points.this_machine(alone)


def _given(possible, runs):
    """Run folders as points of the scalings to which they belong: by layout and batch."""
    from repro.records.run_folder import RunFolder

    rows = Table()
    for path in runs:
        recipe = RunFolder.open(path).recipe()
        modes = [mode for mode in PRINTED_AS if any(_same(v, recipe) for v in possible if v.mode == mode)]
        if not modes:
            raise InputError(
                f"run folder {path} belongs to neither scaling: {recipe.name} with a global batch of "
                f"{recipe.batch.global_} on {recipe.parallel.dp} replicas"
            )
        for mode in modes:
            rows += points.recorded([path], lambda r: r.world_size, lambda r: f"{r.name}, given runs", mode)
    return rows


def _same(variant, recipe):
    other = variant.recipe
    p, q = other.parallel, recipe.parallel
    if (other.name, p.tp, p.pp, other.batch.micro) != (recipe.name, q.tp, q.pp, recipe.batch.micro):
        return False
    if variant.mode == STRONG:
        return other.batch.global_ == recipe.batch.global_
    return other.batch.global_ * q.dp == recipe.batch.global_ * p.dp


def _efficiencies(measured):
    """Of every measured series, against its smallest run; the band from its slowest and fastest step."""
    found, rates = [], measured.select(metric=RATE)
    for mode, series in dict.fromkeys((row.exhibit, row.series) for row in rates):
        own = sorted(rates.select(exhibit=mode, series=series), key=lambda row: row.x)
        base = own[0].value
        for row in own if len({row.x for row in own}) > 1 else ():
            low, value, high = (points.rounded(100 * v / base) for v in (row.low, row.value, row.high))
            found.append(replace(row, metric=EFFICIENCY, unit="%", value=value, low=low, high=high))
    return Table(found)


def _totals(rows):
    """All devices together."""
    found = []
    for row in rows.select(metric=RATE):
        low, value, high = (points.rounded(v * row.x / 1e3) for v in (row.low, row.value, row.high))
        found.append(replace(row, metric=TOTAL, unit="PFLOP/s", value=value, low=low, high=high))
    return Table(found)


def numbers(found):
    """Efficiency, and what all devices reach together, at every point."""
    grid = []
    for row in found.select(metric=EFFICIENCY):
        same = {"exhibit": row.exhibit, "series": row.series, "x": row.x, "provenance": row.provenance}
        total = next((f"{r.value:.3g}" for r in found.select(metric=TOTAL, **same)), "")
        band = "" if row.low is None else f"{row.low:.1f} to {row.high:.1f}"
        grid.append((row.exhibit, row.series, row.provenance, row.x, f"{row.value:.1f}", band, total))
    columns = ("scaling", "series", "provenance", "devices", "efficiency (%)", "band (%)", "aggregate (PFLOP/s)")
    return Grid(columns, tuple(grid))


def differences(found):
    """Measured beside projected efficiency and step time, wherever a model has both on as many devices."""
    grid, wanted = [], found.select(metric=("step time", EFFICIENCY))
    for row in wanted.select(provenance="measured"):
        model = row.series.partition(",")[0]
        other = next(
            iter(wanted.select(exhibit=row.exhibit, series=f"{model}, {STEADY}", x=row.x, metric=row.metric)), None
        )
        if other:
            inside = "yes" if other.low <= row.value <= other.high else "no"
            grid.append((row.exhibit, row.series, row.x, f"{row.metric} ({row.unit})", f"{row.value:.3g}",
                         f"{other.value:.3g}", f"{other.low:.3g} to {other.high:.3g}", inside))  # fmt: skip
    columns = ("scaling", "series", "devices", "what", "measured", "projected", "band", "in the band")
    return Grid(columns, tuple(grid) or (("nothing was measured", *[""] * 7),))


def note(scale, machine):
    """What captions say of calibration, error, and what is left out."""
    if scale == "tiny":
        return (
            "This machine: a judged core, its speed set by the run of one rank; ranks beyond the cores share them. "
            "Not modelled: other processes. "
        )
    return (
        f"Held out: {points.held_out(machine)}. Not modelled: other jobs on the network, jitter between micro-batches. "
    )


def figure(found, scale, machine, into="figures"):
    """Efficiency against devices, saved as ``07_efficiency``; at scale ``tiny`` with ``_tiny`` behind it."""
    from repro.report import scaling_figures

    rows = found.select(metric=EFFICIENCY)
    return scaling_figures.efficiency(rows, note(scale, machine), _name("efficiency", scale), into)


def total_figure(found, scale, machine, into="figures"):
    """What all devices reach together, saved as ``07_aggregate``."""
    from repro.report import scaling_figures

    return scaling_figures.aggregate(found.select(metric=TOTAL), note(scale, machine), _name("aggregate", scale), into)


def _name(what, scale):
    return f"07_{what}" + ("_tiny" if scale == "tiny" else "")
