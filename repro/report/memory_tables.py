"""Memory without running anything: closed forms of stages and of other layouts, and what LUMI's run printed."""

import csv
from pathlib import Path

from repro import parameters
from repro.errors import InputError
from repro.projection.counts import dtype_bytes
from repro.projection.memory import memory
from repro.records.table import Row, Table
from repro.report.grid import Grid

GIB = 2**30
PUBLISHED = Path(__file__).parents[1] / "records" / "published" / "lumi-175b-memory.csv"
LUMI = {"allocated_mib": "live after the step", "max_allocated_mib": "peak", "reserved_mib_max": "reserved"}
TP = (1, 2, 4, 8)
PP = (1, 2, 4, 8, 16, 32, 64, 128)
OTHERS = ((1, 1), (16, 1), (16, 4))  # replicas, samples of a micro-batch
TIGHT_GIB = 10.0  # LUMI's run reserved about as much beyond its peak


def stages(models):
    """Every stage of each model: peak and what stays between steps. Exhibit ``stages``."""
    return Table(row for model in models for row in _of_recipe("stages", model.name, model))


def lumi():
    """The run of lumi-175b at dp 2 and 4, published and in closed form. Exhibit ``lumi``."""
    from repro.recipe import load

    published, rows = _published(), []
    for dp in sorted({int(line["dp"]) for line in published}):
        recipe, series = load("lumi-175b", {"parallel.dp": dp}), f"dp {dp}"
        for line in (line for line in published if int(line["dp"]) == dp):
            source = f"{line['source']}; {line['confidence']}"
            for column, metric in LUMI.items():
                value = float(line[column]) / 1024
                rows.append(_row("lumi", series, int(line["stage"]), metric, value, "published", source))
        rows += _of_recipe("lumi", series, recipe, deepspeed="2023")
    return Table(rows)


def _published():
    return list(csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines()))


def _of_recipe(exhibit, series, recipe, **options):
    for stage in range(recipe.parallel.pp):
        found = memory(recipe, stage, **options)
        for metric, size in (("peak", found.peak_bytes), ("live after the step", found.between_bytes)):
            yield _closed(exhibit, series, stage, metric, size)


def items(models):
    """The peak of each model's fullest stage, item by item. Projected: closed form."""
    columns, found = [], []
    for model in models:
        stage, fullest = max(
            ((stage, memory(model, stage)) for stage in range(model.parallel.pp)), key=lambda pair: pair[1].peak_bytes
        )
        columns.append(f"{model.name}, stage {stage}, in {fullest.phase} (GiB)")
        found.append(fullest.peak)
    names = sorted({name for one in found for name in one}, key=lambda name: -max(one.get(name, 0) for one in found))
    rows = [(name, *(f"{one.get(name, 0) / GIB:.2f}" for one in found)) for name in names]
    total = ("sum", *(f"{sum(one.values()) / GIB:.2f}" for one in found))
    return Grid(("item (projected: closed form)", *columns), (*rows, total))


def layouts(models, device):
    """Peak of each model on other layouts, at its own number of micro-batches per replica. Exhibit ``layouts``.

    Where the states alone exceed the device the metric is ``states alone``, a lower bound.
    """
    rows = []
    for model in models:
        for dp, micro in OTHERS:
            series = f"{model.name}, dp {dp}, mbs {micro}"
            for tp in TP:
                for pp in PP:
                    recipe = _with_layout(model, tp, pp, dp, micro)
                    if recipe is not None:
                        metric, size = _least_or_peak(recipe, device)
                        rows.append(_closed("layouts", series, f"{tp} x {pp}", metric, size))
    return Table(rows)


def _with_layout(model, tp, pp, dp, micro):
    from repro.recipe import load

    if model.shape.layers % pp:
        return None
    changes = {"parallel.tp": tp, "parallel.pp": pp, "parallel.dp": dp, "parallel.stage_layers": []}
    changes |= {"parallel.sequence_parallel": False} if tp == 1 else {}
    changes |= {"batch.micro": micro, "batch.global": model.accumulation * micro * dp}
    try:
        return load(model, changes)
    except InputError:  # e.g. tp does not divide the heads
        return None


def _least_or_peak(recipe, device):
    """The stages between first and last differ in micro-batches in flight alone: the second has the most."""
    element = dtype_bytes(recipe)
    states = 8 if element == 4 else 12  # Adam's moments; in 16 bits also a master copy of the weights
    least = (2 * element + states / (recipe.parallel.dp if recipe.zero.stage else 1)) * parameters.per_rank(recipe, 0)
    if recipe.zero.stage < 2 and least > device.memory_gib * GIB:
        return "states alone", least
    last = recipe.parallel.pp - 1
    return "peak", max(memory(recipe, stage).peak_bytes for stage in {0, min(1, last), last})


def _closed(exhibit, series, x, metric, size):
    return _row(exhibit, series, x, metric, size / GIB, "projected", "closed form")


def _row(exhibit, series, x, metric, value, provenance, source):
    return Row(exhibit, series, x, metric, value, "GiB", None, None, provenance, source)
