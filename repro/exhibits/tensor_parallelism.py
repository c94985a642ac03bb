"""Exhibit 03: throughput against tensor parallelism, inside and across nodes, and what its collectives take.

Held fixed: stages, one replica, the samples of a step and of a micro-batch, hence micro-batches and the pipeline's
bubble. Only tp changes, and with it the number of ranks: a model that shards for nothing keeps its TFLOP/s a device.
"""

from dataclasses import dataclass

from repro.errors import InputError
from repro.exhibits import points
from repro.records.table import Table
from repro.report.grid import Grid

EXHIBIT = "tensor parallelism"
TP = (1, 2, 4, 8, 16)
BATCH = 640  # samples of a step; as many micro-batches, so that a step's fixed cost does not weigh
TINY_TP, TINY_BATCH = (1, 2, 4), 8
RESERVED_GIB = 10.0  # LUMI's run held about as much beyond its peak
COLLECTIVES = "tensor-parallel collectives"


@dataclass(frozen=True)
class Variant:
    """A model at one tp: its recipe, or why there is none."""

    series: str
    tp: int
    recipe: object = None
    why: str = ""


def variants(names, scale="paper", seed=1234):
    """Every model at every tp; at scale ``tiny`` the recipe ``tiny`` alone, small enough to train here.

    Raises:
        InputError: a recipe that does not exist.
    """
    from repro.recipe import load

    if scale == "tiny":
        return tuple(_variant(load("tiny"), tp, 1, TINY_BATCH, seed) for tp in TINY_TP)
    models = [load(name) for name in names]
    return tuple(_variant(model, tp, model.parallel.pp, BATCH, seed) for model in models for tp in TP)


def _variant(model, tp, pp, batch, seed):
    from repro.recipe import load

    changes = {"parallel.tp": tp, "parallel.pp": pp, "parallel.dp": 1, "batch.global": batch * model.batch.micro}
    changes |= {"parallel.sequence_parallel": model.parallel.sequence_parallel and tp > 1, "seed": seed}
    try:
        return Variant(model.name, tp, load(model, changes))
    except InputError as error:
        return Variant(model.name, tp, why=str(error))


def plan(found, machine, scale="paper"):
    """What each point runs on, and what is not possible or only just."""
    from repro.projection.machine import load

    machine, rows = load(machine), []
    for v in found:
        if v.recipe is None:
            rows.append((v.series, v.tp, "", "", "", v.why))
            continue
        p, need = v.recipe.parallel, points.fullest_gib(v.recipe)
        per_node, have = machine.devices_per_node, machine.device.memory_gib if scale == "paper" else float("inf")
        note = "does not fit" if need > have else "fits barely" if have - need < RESERVED_GIB else ""
        where = "one node" if v.tp <= per_node else f"{-(-v.tp // per_node)} nodes"
        rows.append((v.series, v.tp, where, f"{p.tp} x {p.pp} x {p.dp}", f"{need:.3g}", note))
    columns = ("model", "tp", "tensor-parallel group", "tp x pp x dp", "peak, fullest stage (GiB)", "remark")
    return Grid(columns, tuple(rows))


def rings(found, machines):
    """What the links give a tensor-parallel group, and the time of one of its all-reduces: projected."""
    from repro.projection import network
    from repro.projection.belief import calibrated

    [*_, largest] = [v.recipe for v in found if v.recipe is not None]
    size = largest.shape.seq * largest.batch.micro * largest.shape.hidden * 2
    rows = []
    for name in machines:
        machine, belief = calibrated(name)
        central, net = belief.central(machine), network.fabric(machine)
        k = {key: constant.value for key, constant in central.constants.items()}
        for tp in TP[1:]:
            ring, crosses = (x.item() for x in net.group(tp, 1, 16 * net.devices))
            rate = ring * (k["nic_collective"] if crosses else k["link_efficiency"])
            hop = k["nic_hop_seconds"] if crosses else k["hop_seconds"]
            seconds = 2 * (tp - 1) / tp * size / rate / 1e9 + 2 * (tp - 1) * hop + k["call_seconds"]
            order = " ".join(str(device) for device in machine.order)
            where = "across nodes" if crosses else "in a node"
            rows.append((machine.title, order, tp, where, f"{ring:.0f}", f"{rate:.0f}", f"{1e3 * seconds:.2f}"))
    columns = ("machine", "device of each local rank", "tp", "where", "ring's links (GB/s)", "reached (GB/s)",
               f"all-reduce of {size / 2**20:.0f} MiB (ms)")  # fmt: skip
    return Grid(columns, tuple(rows))


def table(found, machines, scale, runs, folder):
    """Projected points on every machine, and measured ones: of ``runs``, and at scale ``tiny`` trained here.

    Raises:
        InputError: unknown machines, a folder of ``runs`` that holds no completed run.
    """
    measured = points.recorded(runs, lambda r: r.parallel.tp, lambda r: f"{r.name}, given runs", EXHIBIT)
    possible = [v for v in found if v.recipe is not None]
    recipes, xs = [v.recipe for v in possible], [v.tp for v in possible]
    if scale == "tiny":
        names = [v.series for v in possible]
        trained, paths = points.measured(recipes, xs, names, EXHIBIT, folder / "points")
        here = points.this_machine(paths[0])
        return points.projected(recipes, xs, names, EXHIBIT, here) + trained + measured
    rows = Table()
    for machine in machines:
        names = [f"{v.series}, {machine}" for v in possible]
        rows += points.projected(recipes, xs, names, EXHIBIT, machine)
        rows += points.shares(recipes, xs, names, EXHIBIT, machine, (COLLECTIVES,), "share of " + COLLECTIVES)
    return rows + measured


def numbers(found):
    """Every series: TFLOP/s at each tp with its band, the best, and what a doubling of tp costs."""
    rows = found.select(metric="hardware TFLOP/s")
    keys = list(dict.fromkeys((row.series, row.provenance) for row in rows))
    grid = []
    for series, provenance in keys:
        own = {r.x: r for r in rows if (r.series, r.provenance) == (series, provenance)}
        whole = own.get(1)
        for tp, row in sorted(own.items()):
            relative = f"{100 * row.value / whole.value:.0f}" if whole else ""
            band = f"{row.low:.3g} to {row.high:.3g}"
            grid.append((series, provenance, tp, f"{row.value:.3g}", band, relative, _share_at(found, row)))
    columns = (
        "series",
        "provenance",
        "tp",
        "hardware TFLOP/s per device",
        "band",
        "% of tp 1",
        "collectives (% of step)",
    )
    return Grid(columns, tuple(grid))


def _share_at(found, row):
    shares = found.select(metric="share of " + COLLECTIVES, series=row.series, x=row.x).rows
    return f"{shares[0].value:.0f} ({shares[0].low:.0f} to {shares[0].high:.0f})" if shares else ""


def differences(found):
    """Measured beside projected, wherever a series has both at one tp."""
    return points.differences(found, "tp")


def across_nodes(found):
    """The paper's claim in numbers: tp 8 in a node against 16 across two."""
    rows = found.select(metric="hardware TFLOP/s", provenance="projected")
    grid = []
    for series in dict.fromkeys(row.series for row in rows):
        own = {row.x: row for row in rows.select(series=series)}
        if 8 not in own or 16 not in own:
            grid.append((series, "", "", "", "cannot be compared: no point at tp 8 and 16"))
            continue
        inside, across = own[8], own[16]
        verdict = "tp 8 is faster; bands apart" if inside.low > across.high else (
            "tp 8 is faster; bands overlap" if inside.value > across.value else "tp 16 is faster")  # fmt: skip
        grid.append(
            (series, f"{inside.value:.3g}", f"{across.value:.3g}", f"{inside.value / across.value:.2f}", verdict)
        )
    columns = ("series", "tp 8 (TFLOP/s per device)", "tp 16 (TFLOP/s per device)", "ratio", "claim")
    return Grid(columns, tuple(grid))


def note(scale, machines):
    """What the caption says of calibration, error and what is left out."""
    if scale == "tiny":
        return (
            "This machine: a judged core, its speed set by the run at tp 1; nothing else was fitted. "
            "Not modelled: other processes on it."
        )
    errors = "; ".join(points.held_out(machine) for machine in machines)
    return (
        f"Held out: {errors}. None of these varies tp alone. Not modelled: other jobs on the network; shapes that a "
        "kernel prefers."
    )


def figure(found, tried, scale, machines, into="figures"):
    """The exhibit, drawn and saved as ``03_tensor_parallelism``; at scale ``tiny`` with ``_tiny`` behind it."""
    from repro.report import sweep_figures

    refused = [(v.series, v.tp, v.why) for v in tried if v.recipe is None]
    name = "03_tensor_parallelism" + ("_tiny" if scale == "tiny" else "")
    return sweep_figures.tensor_parallel(found, refused, note(scale, machines), name, into)
