"""Numbers of the scorecard that are counted: of parameters, bytes, FLOPs, nodes. No clock, nothing fitted."""

from repro.exhibits.scorecard_sources import MODELS, banded, exact

NODES = (9408, 9472, 9856)  # of Frontier: the documents of OLCF have all three; 9,472 x 4 cards are 37,888
BYTES = (16, 18)  # a parameter, mixed-precision Adam: fp16 weight 2, gradient 2 or 4, fp32 weight and two moments 12


def peak(sources, _):
    device = sources.projected[0].device
    return exact(device.peak("fp16"), f"data sheet of {device.title}, half a card", "published")


def training_flops(sources, name):
    from repro import flops
    from repro.recipe import load

    recipe = load(name)
    value = flops.model_flops(recipe, 20e12 / recipe.shape.seq) / 1e24
    return exact(value, f"FLOPs of {name} forward and twice backward over 20e12 tokens, recompute not counted")


def size(sources, name):
    from repro import parameters
    from repro.recipe import load

    return exact(parameters.unpadded_count(load(name)) / 1e9, f"closed form of {name}, each parameter once")


def states_tb(sources, name):
    return _states(name, 1e12)


def states_gb(sources, name):
    return _states(name, 1e9)


def _states(name, unit):
    from repro import parameters
    from repro.recipe import load

    low, high = (each * parameters.true_count(load(name)) / unit for each in BYTES)
    how = (
        f"{BYTES[0]} bytes a parameter with 16-bit gradients, {BYTES[1]} with 32-bit ones, activations not counted; "
        "14 leave out Adam's second moment or the gradient, and no sum was found that gives 24"
    )
    return banded(low, low, high, how, exact=True)


def total_parameters(sources, _):
    recipe, counts, provenance = sources.counts
    tp = recipe.parallel.tp
    copied = tp * recipe.shape.seq * recipe.shape.hidden
    how = (
        f"all {tp} x {recipe.parallel.pp} ranks of a replica, {tp * sum(counts):,}, and the {copied:,} of the position "
        "table that the authors' last stage holds too and ours does not"
    )
    return exact(tp * sum(counts) + copied, how, provenance)


def unique_parameters(sources, _):
    recipe, counts, provenance = sources.counts
    tied = recipe.padded_vocab * recipe.shape.hidden
    how = "all ranks of a replica less the last stage's copy of the embedding; what shards repeat is counted as often"
    return exact(recipe.parallel.tp * sum(counts) - tied, how, provenance)


def zero_fits(sources, _):
    from repro.exhibits.points import fullest_gib
    from repro.recipe import load

    peaks = {name: fullest_gib(load(name)) for name in MODELS}
    limit = sources.projected[0].device.memory_gib
    told = ", ".join(f"{name} {peak:.0f} GiB" for name, peak in peaks.items())
    fit = sum(peak <= limit for peak in peaks.values())
    return exact(fit, f"closed form of the fullest stage's peak under ZeRO-1: {told} of {limit:g}")


def bubble(sources, name):
    """Share of a pipeline's time that it works, m / (m + pp - 1), at 16 stages over 8, as many micro-batches each."""
    from repro.recipe import load

    recipe = load(name)
    busy = []
    for stages in (8, 16):
        m = recipe.accumulation * stages // recipe.parallel.pp
        busy.append(m / (m + stages - 1))
    how = f"closed form of equal stages, {name}: {busy[0]:.2%} of 8 stages' time is work, {busy[1]:.2%} of 16 stages'"
    return exact(100 * busy[1] / busy[0], how)


def machine_share(sources, _):
    most, middle, least = (100 * 3072 / (8 * nodes) for nodes in NODES)
    how = "37,888 counts cards of two GCDs, 3,072 counts GCDs: 384 of 9,408 to 9,856 nodes"
    return banded(middle, least, most, how, exact=True)


def hidden(sources, heads):
    nearest = int(heads) * round(2114 / int(heads))
    return exact(nearest, f"nearest to 2114 that {heads} heads divide, and what the authors' script has")


def log_rate(sources, name):
    from repro.projection import belief as beliefs

    [run] = beliefs.named_runs([name])
    how = f"FLOPs of the {run.gbs} samples that the loader handed out, of 1280 counted, over the time in the log"
    return exact(run.tflops(run.seconds), how)
