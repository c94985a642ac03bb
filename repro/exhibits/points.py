"""Points of a sweep as rows of the tidy table: projected, measured on local ranks, or read from run folders.

Every kind has the same four metrics, so that one figure takes them all. Rounded to :data:`DIGITS` significant
digits: what differs beyond, from one version of numpy to the next, is no result.
"""

from pathlib import Path

from repro import flops
from repro.errors import InputError
from repro.records.table import Row, Table

DIGITS = 6
UNITS = {
    "hardware TFLOP/s": "TFLOP/s per device",
    "model TFLOP/s": "TFLOP/s per device",
    "step time": "s",
    "throughput": "token/s",
}
COLUMNS = {
    "hardware TFLOP/s": "hardware_tflops",
    "model TFLOP/s": "model_tflops",
    "step time": "seconds",
    "throughput": "tokens_per_second",
}


def projected(recipes, xs, series, exhibit, machine):
    """Recipes as projected rows, with bands, all from one calibration.

    What does not fit into the device's memory is projected all the same, and its source says so.

    Args:
        xs: x of each recipe.
        series: one name, or one of each recipe.
        machine: name, path or :class:`repro.projection.machine.Machine`.

    Raises:
        InputError: unknown names, a machine without a peak for a recipe's dtype.
    """
    from repro.projection.cost import estimate
    from repro.projection.machine import load

    recipes, xs, series = _together(recipes, xs, series)
    if not recipes:
        return Table()
    machine = load(machine)
    for recipe in recipes:
        if machine.device.peak(recipe.precision.dtype) is None:
            raise InputError(f"{machine.device.name} has no peak for {recipe.precision.dtype}, of {recipe.name}")
    point, sampled, learned = _seconds(recipes, machine)
    rows = []
    for i, (recipe, x, name) in enumerate(zip(recipes, xs, series, strict=True)):
        source = source_of(machine, learned) + too_large(recipe, machine)
        for metric, (amount, way) in _amounts(recipe).items():
            found = estimate(amount / point[i] ** way, amount / sampled[:, i] ** way, UNITS[metric])
            low, value, high = (rounded(v) for v in (found.low, found.value, found.high))
            rows.append(Row(exhibit, name, x, metric, value, found.unit, low, high, "projected", source))
    return Table(rows)


def shares(recipes, xs, series, exhibit, machine, items, metric):
    """Share of a step in percent that some :data:`repro.projection.step.ITEMS` take together, as projected rows.

    Raises:
        InputError: as :func:`projected`.
    """
    from repro.projection import belief as beliefs
    from repro.projection import local, step
    from repro.projection import work as works
    from repro.projection.cost import estimate

    recipes, xs, series = _together(recipes, xs, series)
    if not recipes:
        return Table()
    if isinstance(machine, local.LocalMachine):
        raise ValueError("on a local machine ranks share cores: what they wait for each other is no item of a step")
    machine, belief = beliefs.calibrated(machine)
    work, rows = works.of_recipes(recipes), []
    point, sampled = (_share(step.step(work, *how), items) for how in (
        (belief.central(machine),), (machine, belief.constants(machine))))  # fmt: skip
    for i, (x, name) in enumerate(zip(xs, series, strict=True)):
        found = estimate(point[0, i], sampled[:, i], "%")
        low, value, high = (rounded(v) for v in (found.low, found.value, found.high))
        source = source_of(machine, belief.points)
        rows.append(Row(exhibit, name, x, metric, value, "%", low, high, "projected", source))
    return Table(rows)


def _share(step, items):
    return 100 * sum(step.items[name] for name in items) / step.seconds


def held_out(machine):
    """How far projections of a machine are from published runs that it was not calibrated on: a clause for a caption.

    The authors' log is left out, as in :func:`repro.projection.validate.everything`: other machine, other software.
    """
    from repro.projection import validate
    from repro.records import published_runs

    runs = [run for run in published_runs.runs(machine=machine) if "log" not in run.id]
    found = validate.validate(machine, runs=runs)
    checks = found.held_out()
    if not checks:
        return f"{found.title}: nothing held out"
    s = validate.summary(checks)
    return (
        f"{found.title}: mean error {s['mean_error']:.1%}, worst {s['worst_error']:.0%} on {s['rows']} held-out "
        f"published numbers, {s['inside_band']:.0%} of them in the band"
    )


def measured(recipes, xs, series, exhibit, folder, steps=6):
    """Train each recipe on real ranks of this machine, one thread each: a rank is a core, however many there are.

    Args:
        folder: the new run folders come below it, one a recipe.
        steps: of each run; the recipe's ``timing_warmup`` of them stay out of the means.

    Returns:
        ``(Table, run folders)``: measured rows of means, the band from the slowest to the fastest timed step.

    Raises:
        InputError: a recipe that this machine cannot run; nothing of it was started.
        RunFailed: a run failed; the message names its folder.
    """
    from repro.engine.launch import train_local
    from repro.progress import Silent

    recipes, xs, series = _together(recipes, xs, series)
    rows, paths = (), []
    for number, (recipe, x, name) in enumerate(zip(recipes, xs, series, strict=True)):
        path = Path(folder) / f"{exhibit}-{number:02d}".replace(" ", "-")
        done = train_local(recipe, path, steps=steps, wandb="off", progress=Silent(), threads=1)
        paths.append(done.folder.path)
        rows += _means(done.folder, exhibit, name, x)
    return Table(rows), tuple(paths)


def recorded(paths, x_of, series_of, exhibit):
    """Measured rows of run folders that exist, a cluster's say.

    Args:
        x_of, series_of: x and series of a recipe.

    Raises:
        InputError: a folder holds no run, one that did not complete, or one whose means would mislead.
    """
    from repro.records.run_folder import RunFolder

    rows = ()
    for path in paths:
        folder = RunFolder.open(path)
        recipe = folder.recipe()
        rows += _means(folder, exhibit, series_of(recipe), x_of(recipe))
    return Table(rows)


def this_machine(path):
    """The machine that we stand on, for local ranks, from a measured run of one rank.

    Returns:
        A :class:`repro.projection.local.LocalMachine`.

    Raises:
        InputError: no such run, or one of several ranks.
    """
    from repro.engine.host import cores, memory_gib
    from repro.projection import local
    from repro.records.run_folder import RunFolder

    folder = RunFolder.open(path)
    return local.calibrated(
        folder.recipe(), _summary(folder)["seconds"], f"run {folder.path.name}", cores(), memory_gib()
    )


def source_of(machine, points):
    """Source of a projected number: the machine and what it was calibrated on."""
    return f"{machine.title}; " + (f"calibrated on {', '.join(points)}" if points else "not calibrated")


def rounded(value):
    """To :data:`DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def fullest_gib(recipe):
    """Peak memory of the fullest stage in GiB: closed form. Stages between first and last do not exceed the second."""
    from repro.projection.memory import memory

    last, stages = recipe.parallel.pp - 1, recipe.stage_layers
    # layers may be split unevenly, where one in between may be longer than the second
    longest = max(range(len(stages)), key=lambda stage: stages[stage])
    return max(memory(recipe, s).peak_bytes for s in {0, min(1, last), longest, last}) / 2**30


def _seconds(recipes, machine):
    """``(point [n], samples [samples, n], ids of the runs learned)``: of every recipe's step."""
    import numpy as np

    from repro.projection import belief as beliefs
    from repro.projection import local, step
    from repro.projection import work as works
    from repro.projection.calibrate import MODEL_ERROR

    work = works.of_recipes(recipes)
    if isinstance(machine, local.LocalMachine):
        belief = local.believed(machine)
        sampled = local.seconds(work, machine, belief.constants(machine))
        point = np.median(sampled, axis=0)
    else:
        machine, belief = beliefs.calibrated(machine)
        sampled = step.step(work, machine, belief.constants(machine)).seconds
        point = step.step(work, belief.central(machine)).seconds[0]
    return point, sampled * np.exp(MODEL_ERROR * belief.noise)[:, None], belief.points


def too_large(recipe, machine):
    """What a source says of a recipe that exceeds the device's memory; else nothing."""
    need, have = fullest_gib(recipe), machine.device.memory_gib
    return f"; does not fit: {need:.1f} of {have:g} GiB" if need > have else ""


def _amounts(recipe):
    """``{metric: (amount, way)}``: the metric is amount / seconds ** way."""
    hardware, model = (f(recipe) / recipe.world_size / 1e12 for f in (flops.hardware_flops, flops.model_flops))
    return {
        "hardware TFLOP/s": (hardware, 1),
        "model TFLOP/s": (model, 1),
        "step time": (1.0, -1),
        "throughput": (recipe.batch.global_ * recipe.shape.seq, 1),
    }


def _summary(folder):
    from repro.records.metrics import checked, summarize

    status = folder.status()
    if status["state"] != "completed":
        why = f" ({status['reason']})" if status.get("reason") else ""
        raise InputError(f"run folder {folder.path} is {status['state']}{why}, not completed: it has no mean to show")
    try:
        found = summarize(checked(folder.metrics()))
    except InputError as error:
        raise InputError(f"run folder {folder.path}: {error}") from None
    if found["throughput_invalid"]:
        raise InputError(f"run folder {folder.path} has no mean throughput: {found['throughput_invalid']}")
    return found


def _means(folder, exhibit, series, x):
    found = _summary(folder)
    timed = [row for row in folder.metrics() if not row["warmup"]]
    rows = []
    for metric, column in COLUMNS.items():
        values = [row[column] for row in timed]
        low, value, high = (rounded(v) for v in (min(values), found[column], max(values)))
        source = f"run {folder.path.name}, {len(timed)} timed steps"
        rows.append(Row(exhibit, series, x, metric, value, UNITS[metric], low, high, "measured", source))
    return tuple(rows)


def _together(recipes, xs, series):
    recipes, xs = list(recipes), list(xs)
    series = [series] * len(recipes) if isinstance(series, str) else list(series)
    if not len(recipes) == len(xs) == len(series):
        raise ValueError(f"{len(recipes)} recipes, {len(xs)} x, {len(series)} series: one each")
    return recipes, xs, series


def differences(table, what):
    """Measured beside projected step times, wherever a model has both at one x: a grid.

    Args:
        what: the name of x.
    """
    from repro.report.grid import Grid

    rows, grid = table.select(metric="step time"), []
    for row in rows.select(provenance="measured"):
        for other in rows.select(provenance="projected", exhibit=row.exhibit, x=row.x):
            if other.series.partition(",")[0] == row.series.partition(",")[0]:
                off = f"{100 * (other.value / row.value - 1):+.0f}"
                inside = "yes" if other.low <= row.value <= other.high else "no"
                band = f"{other.low:.3g} to {other.high:.3g}"
                grid.append((row.series, row.x, f"{row.value:.3g}", f"{other.value:.3g}", band, off, inside))
    columns = ("series", what, "measured (s)", "projected (s)", "band (s)", "off by (%)", "in the band")
    return Grid(columns, tuple(grid) or (("nothing was measured", *[""] * 6),))
