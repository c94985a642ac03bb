"""Exhibit 06: throughput of the paper's models, hardware and model FLOPs told apart, and where a step's time goes.

Two projections stand beside the printed value. ``all readings`` is a prediction of what was printed: its band holds
all that the source leaves open, a cold first step in a mean of a few among it. ``steady state`` is the recipe as it
would run for days. Attention is in :mod:`attention`, one layer's operations in :mod:`roofline`.
"""

from dataclasses import replace

from repro import flops
from repro.exhibits import attention, points, roofline
from repro.exhibits.sampled import sampled
from repro.records.table import Row, Table
from repro.report.grid import Grid

EXHIBIT, STEP = "throughput", "step"
READINGS, STEADY, PRINTED = "all readings", "steady state", "printed"
RATES = ("hardware TFLOP/s", "model TFLOP/s")
SHARES = {"hardware TFLOP/s": "HFU", "model TFLOP/s": "MFU"}
UNIT = "TFLOP/s per device"
TINY_BATCH = 16  # samples of a step


def models(names, scale="paper", seed=1234):
    """The recipes; at scale ``tiny`` the recipe ``tiny`` on one rank, with flash attention.

    Raises:
        InputError: a recipe that does not exist.
    """
    from repro.recipe import load

    if scale == "tiny":
        return (load("tiny", {"parallel.dp": 1, "batch.global": TINY_BATCH, "seed": seed}),)
    return tuple(load(name, {"seed": seed}) for name in names)


def plan(recipes):
    """What each model runs on, and its FLOPs in both countings."""
    rows = []
    for r in recipes:
        p, hardware, model = r.parallel, flops.hardware_flops(r), flops.model_flops(r)
        layout = f"{p.tp} x {p.pp} x {p.dp}"
        rows.append((r.name, layout, r.world_size, r.batch.global_, r.shape.seq, f"{hardware:.3e}", f"{model:.3e}",
                     f"{model / hardware:.3f}"))  # fmt: skip
    columns = ("model", "tp x pp x dp", "devices", "global batch", "sequence", "hardware FLOPs a step",
               "model FLOPs a step", "model over hardware")  # fmt: skip
    return Grid(columns, tuple(rows))


def table(recipes, machine, scale, runs, folder):
    """Every number of the exhibit: published and projected; measured ones of ``runs``, and at ``tiny`` trained here.

    Raises:
        InputError: an unknown machine; a folder of ``runs`` that holds no completed run.
    """
    given = points.recorded(runs, lambda r: r.name, lambda r: f"{r.compute.attention}, given runs", EXHIBIT)
    given += attention.recorded(runs)
    if scale == "tiny":
        trained, here = attention.trained(recipes[0], folder)
        own = [row for row in trained if row.series.endswith(attention.FLASH) and row.x == recipes[0].shape.seq]
        rates = Table(replace(row, exhibit=EXHIBIT, x=recipes[0].name, series="flash") for row in own)
        given += trained + rates
        machine = here
    found = sampled(machine)
    rows = published(recipes, found.machine) + predicted(recipes, found)
    rows += steady(recipes, found) + step_items(recipes, found)
    return rows + attention.table(recipes, found, tiny=scale == "tiny") + roofline.table(recipes, found) + given


def printed_run(recipe, machine, metric="tflops"):
    """The published run of a model's throughput on a machine, or None."""
    from repro.records import published_runs

    for run in published_runs.runs():
        same = (run.layers, run.hidden) == (recipe.shape.layers, recipe.shape.hidden)
        if run.machine == machine.name and run.metric == metric and same:
            return run
    return None


def published(recipes, machine):
    """Printed throughput. Its share in model FLOPs is derived: nobody printed which FLOPs were counted."""
    rows = []
    for r in recipes:
        run, percent = printed_run(r, machine), printed_run(r, machine, "percent_of_peak")
        if run is None:
            continue
        source, ratio = f"{run.id}: {run.source.partition(';')[0]}", flops.model_flops(r) / flops.hardware_flops(r)
        less = f"{source}; times {ratio:.3f}, if recompute was counted"
        values = {"hardware TFLOP/s": (run.value, UNIT, source), "model TFLOP/s": (run.value * ratio, UNIT, less)}
        if percent:
            source = f"{percent.id}: {percent.source.partition(';')[0]}"
            less = f"{source}; times {ratio:.3f}, if recompute was counted"
            values |= {"HFU": (percent.value / 100, "1", source), "MFU": (percent.value * ratio / 100, "1", less)}
        for metric, (value, unit, why) in values.items():
            value = points.rounded(value)
            rows.append(Row(EXHIBIT, PRINTED, r.name, metric, value, unit, None, None, "published", why))
    return Table(rows)


def predicted(recipes, found):
    """What should have been printed, over everything that the source leaves open: rows of ``all readings``."""
    from repro.projection import readings

    rows = []
    for r in recipes:
        run = printed_run(r, found.machine)
        if run is None:
            continue
        rate = readings.predict(found.belief, found.machine, run)
        source = f"{found.source}; {len(tuple(run.readings()))} readings of {run.id}, means of 1 to 10 steps"
        source += "; calibrated on this very number" if run.id in found.belief.points else ""
        rows += _both(r, found, READINGS, _median(rate), rate, source)
    return Table(rows)


def steady(recipes, found):
    """The recipes' steps without a cold first one: rows of ``steady state``, step time and tokens/s included."""
    rows = points.projected(recipes, [r.name for r in recipes], STEADY, EXHIBIT, found.machine)
    shares = []
    for r in recipes:
        peak = None if found.local else found.machine.device.peak(r.precision.dtype)
        for row in rows.select(metric=RATES, x=r.name) if peak else ():
            value, low, high = (points.rounded(v / peak) for v in (row.value, row.low, row.high))
            shares.append(replace(row, metric=SHARES[row.metric], value=value, low=low, high=high, unit="1"))
    return rows + Table(shares)


def _both(recipe, found, series, point, samples, source):
    """Rows of hardware and model TFLOP/s and their shares of the peak, from hardware TFLOP/s."""
    ratio, peak = flops.model_flops(recipe) / flops.hardware_flops(recipe), found.machine.device.peak("bf16")
    scales = {"hardware TFLOP/s": (1, UNIT), "model TFLOP/s": (ratio, UNIT), "HFU": (1 / peak, "1"),
              "MFU": (ratio / peak, "1")}  # fmt: skip
    return [
        found.row(EXHIBIT, series, recipe.name, metric, scale * point, scale * samples, unit, source)
        for metric, (scale, unit) in scales.items()
    ]


def _median(values):
    import numpy as np

    return float(np.median(values))


def step_items(recipes, found):
    """Seconds and share of every item of a step in steady state."""
    point, samples = found.steps(recipes)
    rows = []
    for i, r in enumerate(recipes):
        total, totals = float(point.seconds.ravel()[i]), samples.seconds[:, i]
        for item in point.items:
            one, many = float(point.items[item].ravel()[i]), samples.items[item][:, i]
            if one > 0:
                rows.append(found.row(STEP, r.name, item, "time", one, many, "s"))
                rows.append(found.row(STEP, r.name, item, "share of a step", 100 * one / total,
                                      100 * many / totals, "%"))  # fmt: skip
    return Table(rows)


def rates(found):
    """Printed, predicted, steady and measured, in both countings."""
    rows, grid = found.select(exhibit=EXHIBIT), []
    for row in rows.select(metric="hardware TFLOP/s"):
        same = {"series": row.series, "x": row.x, "provenance": row.provenance}
        model = next((r for r in rows.select(metric="model TFLOP/s", **same)), None)
        shares = [next((f"{100 * r.value:.1f}" for r in rows.select(metric=m, **same)), "") for m in ("HFU", "MFU")]
        grid.append((row.x, row.provenance, row.series, *(_banded(r) for r in (row, model)), *shares))
    order = list(dict.fromkeys(row[0] for row in grid))
    grid.sort(key=lambda row: order.index(row[0]))
    columns = ("model", "provenance", "series", "hardware TFLOP/s per device", "model TFLOP/s per device",
               "HFU (%)", "MFU (%)")  # fmt: skip
    return Grid(columns, tuple(grid))


def _banded(row):
    if row is None:
        return ""
    return f"{row.value:.3g}" + ("" if row.low is None else f" ({row.low:.3g} to {row.high:.3g})")


def readings(recipes, machine, scale="paper"):
    """What one open point of the source does to a printed throughput, all else in its likely reading and steady."""
    from repro.projection.readings import FOLLOW, Open

    columns = ("model", "reading", "projected TFLOP/s per device", "to steady (%)", "to printed (%)")
    found, rows = None if scale == "tiny" else sampled(machine), []
    for r in () if found is None else recipes:
        run = printed_run(r, found.machine)
        if run is None:
            continue
        one, start = Open(run), None
        for steps in (None, 10, 3, 1):
            values = one.values(found.central, None, 1 / steps if steps else 0.0)[0]
            for choice, value in zip([x.choice for x in one.readings], values, strict=True):
                start = start or float(value)
                apart = sum(part.split("=")[0] not in FOLLOW for part in choice.split(", ") if part)
                single = steps is None and apart <= 1
                if single or not choice:
                    cold = f"mean of {steps} steps, the cold first among them" if steps else ""
                    name = "; ".join(filter(None, (choice, cold))) or "likely reading, steady state"
                    rows.append((r.name, name, f"{value:.1f}", f"{100 * (value / start - 1):+.1f}",
                                 f"{100 * (value / run.value - 1):+.1f}"))  # fmt: skip
    return Grid(columns, tuple(rows) or (("nothing was printed of these models on this machine", *[""] * 4),))


def note(scale, machine):
    """What captions say of calibration, error, and what is left out."""
    if scale == "tiny":
        return (
            "This machine: a judged core, its speed set by one measured run; nothing else was fitted. Not modelled: "
            "other processes on it. "
        )
    return (
        f"Held out: {points.held_out(machine)}. Not modelled: other jobs on the network, shapes that a kernel prefers, "
        "hiding of communication behind products. "
    )


def figure(found, scale, machine, into="figures"):
    """Throughput in both countings, saved as ``06_throughput``; at scale ``tiny`` with ``_tiny`` behind it."""
    from repro.report import throughput_figures

    return throughput_figures.rates(
        found.select(exhibit=EXHIBIT), note(scale, machine), _name("throughput", scale), into
    )


def breakdown(found, scale, machine, into="figures"):
    """Shares of a step as stacked bars, saved as ``06_step``."""
    from repro.report import throughput_figures

    return throughput_figures.breakdown(found.select(exhibit=STEP), note(scale, machine), _name("step", scale), into)


def attention_figure(found, scale, machine, into="figures"):
    """Gain and memory of flash attention over the sequence length, saved as ``06_attention``."""
    from repro.report import throughput_figures

    rows = found.select(exhibit=attention.EXHIBIT)
    return throughput_figures.attention(rows, note(scale, machine), _name("attention", scale), into)


def roofline_figure(found, scale, machine, into="figures"):
    """Operations of one layer under the roof of one device, saved as ``06_roofline``."""
    from repro.report import roofline as drawn

    return drawn.roofline(found.select(exhibit=roofline.EXHIBIT), note(scale, machine), _name("roofline", scale), into)


def _name(what, scale):
    return f"06_{what}" + ("_tiny" if scale == "tiny" else "")
