"""A recipe projected on a machine: time, rates, memory, cost, each with a band and what it rests on. No torch."""

from dataclasses import asdict, dataclass

import numpy as np

from repro import flops
from repro.errors import InputError
from repro.projection import belief as beliefs
from repro.projection import step as steps
from repro.projection import work as works
from repro.projection.calibrate import MODEL_ERROR
from repro.projection.cost import Estimate, cost, estimate, given_tokens
from repro.projection.fitting import nearest_layouts
from repro.projection.machine import load
from repro.projection.memory import memory

RESERVED_GIB = 10  # what the allocator held beyond the peak on LUMI (records/published/lumi-175b-memory.csv)


@dataclass(frozen=True)
class Item:
    """One part of a step.

    Attributes:
        share: of the step.
        kind: the weakest of what it rests on: specification, measured, fitted, judged; of bubbles, the other items.
        rests_on: constants of the machine, with the kind of each.
    """

    seconds: Estimate
    share: float
    kind: str
    rests_on: dict


@dataclass(frozen=True)
class Projection:
    """A recipe on a machine; see :func:`project`.

    Attributes:
        rates: ``{name: Estimate}``: step time, hardware and model TFLOP/s of one device, HFU, MFU, tokens a second.
        items: ``{name: Item}``, which add up to the step time.
        stages: of every stage, layers and projected peak memory.
        fits: whether every stage's peak is below the device's memory; ``tight`` where less than 10 GiB remain.
        cost: ``{name: Estimate}`` of training on ``tokens``.
        band_rests_on: shares of the band's variance by constant, the largest first.
        calibration: runs that the machine was calibrated on.
    """

    recipe: str
    machine: str
    nodes: int
    devices: int
    global_batch: int
    micro_batches: int
    rates: dict
    items: dict
    stages: tuple
    memory_gib: float
    fits: bool
    tight: bool
    tokens: float
    cost: dict
    band_rests_on: dict
    calibration: tuple
    counts: str

    def to_dict(self):
        return {"provenance": "projected", **asdict(self)}

    @property
    def seconds(self):
        return self.rates["step time"]


def on_nodes(recipe, machine, nodes, weak=False):
    """The recipe with as many replicas as fill ``nodes``: the global batch stays, or with ``weak`` each replica's.

    Raises:
        InputError: no whole number of replicas fills the nodes.
    """
    from repro.recipe import load as load_recipe

    p, per_node = recipe.parallel, load(machine).devices_per_node
    replica = p.tp * p.pp
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise InputError(f"nodes {nodes!r}: input should be a whole number of at least 1")
    if nodes * per_node % replica:
        least = replica // np.gcd(replica, per_node)
        near = max(least, round(nodes / least) * least)
        raise InputError(
            f"{nodes} nodes have {nodes * per_node} devices, no multiple of the {replica} of a replica "
            f"(tp {p.tp} x pp {p.pp}); nearest valid: {near} nodes"
        )
    dp = nodes * per_node // replica
    batch = recipe.batch.global_ // p.dp * dp if weak else recipe.batch.global_
    return load_recipe(recipe, {"parallel.dp": dp, "batch.global": batch})


def project(
    recipe,
    machine,
    nodes=None,
    weak=False,
    tokens=None,
    anyway=False,
    operation=None,
    stage_counts=None,
    samples=beliefs.SAMPLES,
    seed=beliefs.SEED,
):
    """The :class:`Projection` of a recipe on a machine.

    Args:
        recipe, machine: names, paths, or loaded.
        nodes: instead of the recipe's data parallelism, see :func:`on_nodes`.
        tokens: to train on, for the cost; 20 for each parameter by default.
        anyway: project also what does not fit into memory; it is marked.
        operation: values for :data:`repro.projection.machine.OPERATION` instead of the machine's.
        stage_counts: counts from elsewhere, a trace say, instead of closed forms; see
            :func:`repro.projection.work.counted`.

    Raises:
        InputError: unknown names, a machine without a peak for the recipe's dtype, a layout that does not fit.
    """
    from repro.recipe import load as load_recipe

    recipe, machine = load_recipe(recipe), load(machine)
    if nodes is not None:
        recipe = on_nodes(recipe, machine, nodes, weak)
    peak = machine.device.peak(recipe.precision.dtype)
    if peak is None:
        raise InputError(
            f"{machine.device.name} has no peak for {recipe.precision.dtype} in devices.toml; "
            "nearest valid: precision.dtype = 'bf16'"
        )
    stages = stage_memory(recipe)
    fullest = max(stages, key=lambda s: s["peak_gib"])
    fits = fullest["peak_gib"] <= machine.device.memory_gib
    if not fits and not anyway:
        raise InputError(
            f"stage {fullest['stage']} of {recipe.name} needs {fullest['peak_gib']:.1f} GiB, "
            f"{machine.device.name} has {machine.device.memory_gib:g}; nearest that fits: {_nearest(recipe, machine)}; "
            "--anyway projects it all the same"
        )
    work = works.counted(recipe, stage_counts) if stage_counts else works.of_recipes([recipe])
    _, belief = beliefs.calibrated(machine, samples, seed)
    central = belief.central(machine)
    point = steps.step(work, central)
    sampled = steps.step(work, machine, belief.constants(machine))
    noise = np.exp(MODEL_ERROR * belief.noise)
    seconds = sampled.seconds[:, 0] * noise
    nodes = -(-recipe.world_size // machine.devices_per_node)
    tokens = given_tokens(tokens, recipe)
    return Projection(
        recipe=recipe.name,
        machine=machine.name,
        nodes=nodes,
        devices=recipe.world_size,
        global_batch=recipe.batch.global_,
        micro_batches=recipe.accumulation,
        rates=_rates(recipe, float(point.seconds.ravel()[0]), seconds, peak),
        items=_items(machine, central, point, sampled),
        stages=tuple(stages),
        memory_gib=machine.device.memory_gib,
        fits=fits,
        tight=machine.device.memory_gib - fullest["peak_gib"] < RESERVED_GIB,
        tokens=tokens,
        cost=cost(recipe, machine, float(point.seconds.ravel()[0]), seconds, nodes, tokens, operation or {}),
        band_rests_on=_rests(belief, machine, np.log(seconds)),
        calibration=belief.points,
        counts="given" if stage_counts else "closed forms",
    )


def _nearest(recipe, machine):
    found = nearest_layouts(recipe, machine.device)
    return f"tp {found[0]['tp']} pp {found[0]['pp']}" if found else "none up to tp 8 and 128 equal stages"


def stage_memory(recipe):
    """``{stage, layers, peak_gib, between_gib}`` of every stage, by :func:`repro.projection.memory.memory`."""
    rows = []
    for stage, layers in enumerate(recipe.stage_layers):
        found = memory(recipe, stage)
        rows.append(
            {
                "stage": stage,
                "layers": layers,
                "peak_gib": found.peak_bytes / 2**30,
                "between_gib": found.between_bytes / 2**30,
            }
        )
    return rows


def _rates(recipe, point, seconds, peak):
    count = recipe.world_size
    hardware, model = (f(recipe) / count / 1e12 for f in (flops.hardware_flops, flops.model_flops))
    tokens = recipe.batch.global_ * recipe.shape.seq
    rows = {
        "step time": (1.0, -1, "s"),
        "hardware TFLOP/s": (hardware, 1, "TFLOP/s per device"),
        "model TFLOP/s": (model, 1, "TFLOP/s per device"),
        "HFU": (hardware / peak, 1, "1"),
        "MFU": (model / peak, 1, "1"),
        "throughput": (tokens, 1, "token/s"),
    }
    found = {}
    for name, (amount, way, unit) in rows.items():
        found[name] = estimate(amount / point**way, amount / seconds**way, unit)
    return found


def _items(machine, central, point, sampled):
    total = float(point.seconds.ravel()[0])
    found = {}
    for name, constants in steps.ITEMS.items():
        value = float(point.items[name].ravel()[0])
        used = {c: central.constants[c].kind for c in constants}
        order = ("specification", "measured", "fitted", "judged")
        kind = max(used.values(), key=order.index) if used else "from the items above"
        found[name] = Item(estimate(value, sampled.items[name][:, 0], "s"), value / total, kind, used)
    return found


def _rests(belief, machine, logs):
    """Shares of the variance of ``logs`` that each constant explains alone: squared correlations."""
    found = {"the model's own error": float(np.corrcoef(belief.noise, logs)[0, 1] ** 2)}
    for name, z in belief.deviations.items():
        constant = machine.constants[name]
        if constant.low < constant.high and np.std(z):
            found[name] = float(np.corrcoef(z, logs)[0, 1] ** 2)
    ranked = sorted(found.items(), key=lambda pair: -pair[1])
    return {name: share for name, share in ranked if share >= 0.01}
