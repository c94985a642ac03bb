"""Numbers of the scorecard that rest on a model of time: projected with a band, or measured where there are runs."""

from repro.exhibits.scorecard_sources import MODELS, banded

RATES = {"tflops": "hardware_tflops", "percent_of_peak": "hfu"}  # what a run folder measures of a claim


def run(sources, name):
    from repro.projection import belief as beliefs
    from repro.projection import readings

    [run] = beliefs.named_runs([name])
    found = sources.measured.get((run.layers, run.hidden, run.seq))
    if found and run.metric in RATES:
        return _of_runs(found, run)
    machine, belief = sources.projected
    why = f"over {_counted(len(list(run.readings())), 'possible reading')} of the run"
    if _same(name) in {_same(point) for point in belief.points}:
        machine, belief = sources.independent
        why += "; the profile is calibrated on this very number, so that here another site's run takes its place"
    low, mid, high = beliefs.band(readings.predict(belief, machine, run))
    points = ", ".join(belief.points) or "nothing"
    return banded(mid, low, high, f"{why}; calibrated on {points}")


def _same(name):
    return name.removesuffix("-percent").removesuffix("-tflops")


def _counted(number, word):
    return f"{number} {word}{'s' * (number != 1)}"


def _of_runs(found, run):
    scale = 100 if run.metric == "percent_of_peak" else 1
    values = [scale * metrics[RATES[run.metric]] for _, metrics in found]
    names = ", ".join(name for name, _ in found)
    mean = sum(values) / len(values)
    return banded(mean, min(values), max(values), f"mean of {names}", "measured", True)


def tp_node(sources, name):
    how = f"{name} on 128 GCDs at TP 8 over TP 16, same batch, PP 8"
    return _ratio(sources, {"parallel.tp": 8, "parallel.dp": 2}, {"parallel.tp": 16, "parallel.dp": 1}, name, how)


def _fabric(sources):
    from repro.projection.network import fabric

    net = fabric(sources.projected[0])
    return {size: float(net.group(size, 1, 1024)[0]) for size in (2, 4, 8, 16)}


def ring_two(sources, _):
    ring = _fabric(sources)
    how = f"links of the node diagram, GB/s of a ring: TP 2 {ring[2]:g}, TP 4 {ring[4]:g}, TP 8 {ring[8]:g}"
    value = ring[2] / max(ring[4], ring[8])
    return banded(value, value, value, how)


def ring_node(sources, _):
    import numpy as np

    machine, belief = sources.projected
    ring, constants = _fabric(sources), belief.constants(machine)
    near, far = (np.ravel(getattr(constants, name)) for name in ("link_efficiency", "nic_collective"))
    central = belief.central(machine).constants
    value = min(ring[4], ring[8]) / ring[16]
    middle = value * central["link_efficiency"].value / central["nic_collective"].value
    low, _, high = nine_in_ten(value * near / far)
    how = "rings over links against rings over the node's NICs, both at the share of their peak found on LUMI"
    return banded(middle, min(low, middle), max(high, middle), how)


def flash(sources, _):
    found = {}
    for name in MODELS:
        one = _ratio(sources, {"compute.attention": "flash"}, {"compute.attention": "unfused"}, name, "")
        found[name] = [100 * (number - 1) for number in (one.value, one.low, one.high)]
    told = ", ".join(f"{name} {value:.1f} %" for name, (value, _, _) in found.items())
    how = f"{told}; attention is a small part of these models, and the claim's baseline and model are not known"
    value = max(value for value, _, _ in found.values())
    low, high = min(low for _, low, _ in found.values()), max(high for _, _, high in found.values())
    return banded(value, low, high, how)


def stages_scaled(sources, name):
    how = f"{name}, 16 stages and twice the batch over 8 stages, as many micro-batches per stage"
    found = _ratio(sources, {"parallel.pp": 16, "batch.global": 1280}, {"parallel.pp": 8}, name, how)
    return banded(*(100 * number for number in (found.value, found.low, found.high)), how)


def stages_fixed(sources, name):
    how = f"{name}, 16 stages over 8, same batch, per GCD"
    found = _ratio(sources, {"parallel.pp": 16}, {"parallel.pp": 8}, name, how)
    return banded(*(100 * number for number in (found.value, found.low, found.high)), how)


def _ratio(sources, one, other, name, how):
    """Rate of a GCD under the changes ``one`` over that under ``other``; both in the same sample of the machine."""
    import numpy as np

    from repro.projection import readings, step
    from repro.projection import work as works
    from repro.recipe import load

    machine, belief = sources.projected
    pair = [load(name, changes) for changes in (one, other)]
    work = works.of_recipes(pair)
    amount = [r.batch.global_ / r.world_size for r in pair]  # samples a GCD: the FLOPs of a sample are the same

    def rates(seconds):
        return amount[0] / seconds[:, 0] / (amount[1] / seconds[:, 1])

    point = float(rates(step.step(work, belief.central(machine)).seconds)[0])
    sampled = rates(step.step(work, machine, belief.constants(machine)).seconds)
    low, _, high = nine_in_ten(sampled * np.exp(readings.EFFICIENCY_ERROR * belief.noise))
    return banded(point, min(low, point), max(high, point), how)


def intensity(sources, _):
    """FLOPs over bytes moved of a mean stage; bytes from seconds x rate, since seconds are bytes / rate."""
    import numpy as np

    from repro.projection import step
    from repro.projection import work as works
    from repro.recipe import load

    machine = sources.projected[0]
    memory = machine.device.memory_bandwidth_gbytes * 1e9
    products, elements = (machine.constants[k].value * memory for k in ("gemm_bandwidth", "memory_efficiency"))
    found = {}
    for name in MODELS:
        work = works.of_recipes([load(name)])
        items = {key: float(value[0, 0]) for key, value in step.step(work, machine).items.items()}
        moved = items["operands of products"] * products
        moved += (items["element-wise operations"] + items["gradient accumulation"]) * elements
        each = np.sum(work.multiplicity * (work.matrix_flops + work.attention_flops)) / work.layouts.pp[0, 0]
        found[name] = float(each * work.layouts.m[0, 0] / moved)
    told = ", ".join(f"{name} {value:.0f}" for name, value in found.items())
    how = f"counted: {told}; operands of products once each, element-wise passes, what flash attention moves left out"
    return banded(min(found.values()), min(found.values()), max(found.values()), how)


def nine_in_ten(values):
    """``(low, median, high)`` of samples."""
    from repro.projection import belief as beliefs

    return tuple(float(v) for v in beliefs.band(values))
