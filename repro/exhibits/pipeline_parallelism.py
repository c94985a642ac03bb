"""Exhibit 04: throughput against the global batch and against stages; the bubble; see also :mod:`schedule`.

One replica each. ``batch`` keeps the recipe's stages; ``stages`` keeps the samples of a step, so that the bubble
grows with the stages; ``scaled`` keeps the micro-batches of a stage, so that it does not.
"""

from dataclasses import dataclass

from repro.errors import InputError
from repro.exhibits import points
from repro.records.table import Table
from repro.report.grid import Grid

BATCH, STAGES, SCALED = "batch", "stages", "scaled"
SWEEPS = (BATCH, STAGES, SCALED)
MICRO_BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
PP = (4, 8, 12, 16, 24, 48)
FIXED, RATIO = 128, 8  # micro-batches of ``stages``; micro-batches a stage of ``scaled``
TINY_STAGES = 2  # of ``batch``
TINY_MICRO_BATCHES, TINY_PP, TINY_FIXED, TINY_RATIO = (2, 4, 8, 16), (1, 2, 4), 8, 4
BUBBLE = "filling and draining"


@dataclass(frozen=True)
class Variant:
    """A point of a sweep: its recipe, or why there is none."""

    sweep: str
    series: str
    x: int
    recipe: object = None
    why: str = ""


def variants(names, scale="paper", seed=1234):
    """Every point of every sweep; at scale ``tiny`` the recipe ``tiny`` alone, small enough to train here.

    Raises:
        InputError: a recipe that does not exist.
    """
    from repro.recipe import load

    tiny = scale == "tiny"
    models = [load("tiny")] if tiny else [load(name) for name in names]
    counts, stages = (TINY_MICRO_BATCHES, TINY_PP) if tiny else (MICRO_BATCHES, PP)
    fixed, ratio = (TINY_FIXED, TINY_RATIO) if tiny else (FIXED, RATIO)
    found = []
    for model in models:
        own = TINY_STAGES if tiny else model.parallel.pp
        found += [_variant(model, BATCH, own, m, m * model.batch.micro, seed) for m in counts]
        found += [_variant(model, STAGES, pp, fixed, pp, seed) for pp in stages]
        found += [_variant(model, SCALED, pp, ratio * pp, pp, seed) for pp in stages]
    return tuple(found)


def _variant(model, sweep, pp, micro_batches, x, seed):
    from repro.recipe import load

    changes = {"parallel.pp": pp, "parallel.dp": 1, "parallel.stage_layers": [], "seed": seed}
    try:
        recipe = load(model, {**changes, "batch.global": micro_batches * model.batch.micro})
    except InputError as error:
        return Variant(sweep, model.name, x, why=str(error))
    return Variant(sweep, model.name, x, recipe)


def plan(found, machine, scale="paper"):
    """The layouts, and what is not possible, does not fit, or only just."""
    from repro.projection.machine import load

    have, rows = load(machine).device.memory_gib if scale == "paper" else float("inf"), []
    for v in found:
        if v.recipe is None:
            rows.append((v.sweep, v.series, v.x, "", "", "", v.why))
            continue
        p, layers, need = v.recipe.parallel, v.recipe.stage_layers, points.fullest_gib(v.recipe)
        remarks = ["does not fit"] if need > have else []
        remarks += [f"{max(layers)} or {min(layers)} layers a stage"] if max(layers) > min(layers) else []
        layout = f"{p.tp} x {p.pp} x {p.dp}"
        rows.append((v.sweep, v.series, v.x, layout, v.recipe.accumulation, f"{need:.3g}", "; ".join(remarks)))
    columns = ("sweep", "model", "x", "tp x pp x dp", "micro-batches", "peak, fullest stage (GiB)", "remark")
    return Grid(columns, tuple(rows))


def table(found, machines, scale, runs, folder):
    """Projected points on every machine and measured ones: of ``runs``, and at scale ``tiny`` trained here.

    Raises:
        InputError: unknown machines; a folder of ``runs`` that holds no completed run, or none of these sweeps.
    """
    possible = [v for v in found if v.recipe is not None]
    rows, given = Table(), _given(possible, runs)
    if scale == "tiny":
        trained, here = _trained(possible, folder)
        rows += trained
        machines = (here,)
    for machine in machines:
        for sweep in SWEEPS:
            own = [v for v in possible if v.sweep == sweep]
            names = [v.series if scale == "tiny" else f"{v.series}, {machine}" for v in own]
            where = ([v.recipe for v in own], [v.x for v in own], names, sweep, machine)
            rows += points.projected(*where)
            if scale != "tiny":
                rows += points.shares(*where, (BUBBLE,), BUBBLE)
    return rows + given


def _trained(possible, folder):
    """Each sweep on real ranks; the machine is calibrated on the one run of one stage at fixed batch."""
    rows, alone = Table(), None
    for sweep in SWEEPS:
        own = [v for v in possible if v.sweep == sweep]
        names = [v.series for v in own]
        measured, paths = points.measured([v.recipe for v in own], [v.x for v in own], names, sweep, folder / "points")
        rows += measured
        if sweep == STAGES:
            alone = next(path for v, path in zip(own, paths, strict=True) if v.recipe.world_size == 1)
    return rows, points.this_machine(alone)


def _given(possible, runs):
    """Run folders as points of the sweeps to which they belong: what a sweep holds fixed must agree."""
    from repro.records.run_folder import RunFolder

    rows = Table()
    for path in runs:
        recipe = RunFolder.open(path).recipe()
        homes = [sweep for sweep in SWEEPS if any(_same_sweep(v, recipe) for v in possible if v.sweep == sweep)]
        if not homes:
            raise InputError(
                f"run folder {path} belongs to no sweep: {recipe.name} with {recipe.parallel.pp} stages and "
                f"{recipe.accumulation} micro-batches on each of {recipe.parallel.dp} replicas"
            )
        for sweep in homes:
            x = recipe.accumulation * recipe.batch.micro if sweep == BATCH else recipe.parallel.pp
            rows += points.recorded([path], lambda _, x=x: x, lambda r: f"{r.name}, given runs", sweep)
    return rows


def _same_sweep(variant, recipe):
    other, m, pp = variant.recipe, recipe.accumulation, recipe.parallel.pp
    if other.name != recipe.name or other.parallel.tp != recipe.parallel.tp or other.batch.micro != recipe.batch.micro:
        return False
    if variant.sweep == BATCH:
        return other.parallel.pp == pp
    if variant.sweep == STAGES:
        return other.accumulation == m
    return other.accumulation * pp == m * other.parallel.pp


def bubbles(found, machine, scale="paper"):
    """Share of a step that a mean stage stands idle: three ways, which must agree where stages are equal.

    ``(p - 1) / (m + p - 1)``; the projection's filling and draining, and with it the waiting for a slower stage;
    and idle time in the event simulation, fed with the projected times of the stages. At scale ``tiny``, which is
    not projected on ``machine``, the simulation has equal stages and free messages.
    """
    from repro.exhibits.schedule import central, stage_times
    from repro.projection.simulate import simulate

    tiny = scale == "tiny"
    middle, rows = None if tiny else central(machine), []
    for v in found:
        if v.recipe is None or v.sweep == BATCH:
            continue
        p, m = v.recipe.parallel.pp, v.recipe.accumulation
        if tiny:
            forward, backward, p2p, projected = [1] * p, [3] * p, 0, ("", "")
        else:
            forward, backward, p2p, filling, waiting = stage_times(v.recipe, middle)
            projected = (f"{filling:.1f}", f"{filling + waiting:.1f}")
        played = simulate(forward, backward, m, p2p)
        idle = 100 * sum(played.idle) / p
        rows.append((v.sweep, v.series, p, m, f"{100 * (p - 1) / (m + p - 1):.1f}", *projected, f"{idle:.1f}"))
    columns = ("sweep", "model", "stages", "micro-batches", "(p - 1) / (m + p - 1) (%)",
               "projected, filling and draining (%)", "and slower stages (%)", "simulated, idle (%)")  # fmt: skip
    return Grid(columns, tuple(rows))


def numbers(found):
    """What each sweep gains or loses from its first to its last point."""
    rows, grid = found.select(metric="hardware TFLOP/s"), []
    for sweep, series, provenance in dict.fromkeys((r.exhibit, r.series, r.provenance) for r in rows):
        own = [r for r in rows if (r.exhibit, r.series, r.provenance) == (sweep, series, provenance)]
        first, last = min(own, key=lambda r: r.x), max(own, key=lambda r: r.x)
        best = max(own, key=lambda r: r.value)
        grid.append((sweep, series, provenance, *(f"{r.value:.3g} at {r.x}" for r in (first, last, best)),
                     f"{100 * (last.value / first.value - 1):+.0f}"))  # fmt: skip
    columns = (
        "sweep",
        "series",
        "provenance",
        "first (TFLOP/s)",
        "last (TFLOP/s)",
        "best (TFLOP/s)",
        "last to first (%)",
    )
    return Grid(columns, tuple(grid))


def differences(found):
    """Measured beside projected, wherever a model has both at one x."""
    return points.differences(found, "x")


def figure(found, scale, machines, into="figures"):
    """The three sweeps, drawn and saved as ``04_pipeline_parallelism``; at scale ``tiny`` with ``_tiny`` behind it."""
    from repro.report import sweep_figures

    tiny = scale == "tiny"
    fixed, ratio = (TINY_FIXED, TINY_RATIO) if tiny else (FIXED, RATIO)
    panels = (
        (BATCH, f"{TINY_STAGES} stages" if tiny else "stages of the recipe", "global batch (samples)"),
        (STAGES, f"{fixed} micro-batches", "pipeline stages"),
        (SCALED, f"{ratio} micro-batches a stage", "pipeline stages"),
    )
    metrics = (("hardware TFLOP/s", sweep_figures.RATE), (BUBBLE, "filling and draining\n(% of a step)"))
    error = (
        "This machine: a judged core, its speed set by the run of one stage; nothing else was fitted. "
        if tiny
        else "Held out: "
        + "; ".join(points.held_out(m) for m in machines)
        + ". None of these varies the stages alone. "
    )
    beside = "other processes on this machine. " if tiny else "other jobs on the network. "
    text = "One replica. " + sweep_figures.BARS + error
    text += "Not modelled: jitter between micro-batches, which a pipeline adds up; " + beside
    name = "04_pipeline_parallelism" + ("_tiny" if tiny else "")
    return sweep_figures.sweeps(found, panels, metrics, name, text, into)
