"""Flash against unfused attention over the sequence length: throughput, memory, and what a gain of 30 % would need.

Only attention and sequence length change; layout, batch and recompute stay. Both kinds are credited with the same
FLOPs, as the authors' formula does, so that the gain in TFLOP/s is the gain in tokens a second.
"""

from bisect import bisect_left

from repro.exhibits import points
from repro.records.table import Row, Table
from repro.report.grid import Grid

EXHIBIT = "flash attention"
FLASH, UNFUSED = "flash", "unfused"
SEQUENCES = (1024, 2048, 4096, 8192, 16384)
TINY_SEQUENCES = (64, 256)
GAIN = "gain of flash attention"
PEAK = "peak, fullest stage"
NEEDED = "needed for the published gain"
LENGTH = "sequence length from which it is reached (tokens)"
TIMES = "or unfused attention slower than projected (times)"
SHARE = "share of flash attention in a step, projected (%)"
CLAIM = "flash"  # id of the claim
LONGEST, GRAIN = 65536, 256  # sequence lengths that are searched


def _pairs(recipes, sequences):
    """``[(model, sequence, flash recipe, unfused recipe)]``."""
    from repro.recipe import load

    return [
        (r.name, seq, *(load(r, {"shape.seq": seq, "compute.attention": kind}) for kind in (FLASH, UNFUSED)))
        for r in recipes
        for seq in sequences
    ]


def table(recipes, found, tiny=False):
    """Gain and peak memory of every model at every sequence length; what the published gain would need.

    Args:
        found: a :class:`repro.exhibits.sampled.Sampled` machine.
    """
    pairs = _pairs(recipes, TINY_SEQUENCES if tiny else SEQUENCES)
    rows = _gains(pairs, found)
    for name, seq, *both in pairs:
        for kind, recipe in zip((FLASH, UNFUSED), both, strict=True):
            rows.append(_memory(f"{name}, {kind}", seq, recipe))
    rows = Table(rows)
    if tiny:
        for position, kind in enumerate((FLASH, UNFUSED)):
            series = [f"{name}, {kind}" for name, *_ in pairs]
            recipes = [pair[2 + position] for pair in pairs]
            rows += points.projected(recipes, [pair[1] for pair in pairs], series, EXHIBIT, found.machine)
        return rows
    device = found.machine.device
    source, have = f"{device.title}: {device.source}", device.memory_gib
    limit = Row(EXHIBIT, "device", device.title, "memory of a device", have, "GiB", None, None, "published", source)
    return rows + Table((limit,)) + _claim(pairs) + Table(row for r in recipes for row in _needed(r, found))


def _gains(pairs, found):
    from repro.projection.readings import EFFICIENCY_ERROR

    point, samples = found.steps([recipe for _, _, *both in pairs for recipe in both])
    point = point.seconds.reshape(-1)
    rows = []
    for i, (name, seq, *_) in enumerate(pairs):
        one, many = point[2 * i + 1] / point[2 * i], samples.seconds[:, 2 * i + 1] / samples.seconds[:, 2 * i]
        many = found.noisy(many, EFFICIENCY_ERROR)
        rows.append(found.row(EXHIBIT, name, seq, GAIN, 100 * (one - 1), 100 * (many - 1), "%"))
    return rows


def _memory(series, seq, recipe):
    value = points.rounded(points.fullest_gib(recipe))
    return Row(EXHIBIT, series, seq, PEAK, value, "GiB", None, None, "projected", "closed form of allocated memory")


def _claim(pairs):
    """The published gain; no source says at which sequence length, hence at all of them."""
    claim = _published()
    source = f"claim {CLAIM}: {claim.source}; no model or sequence length named"
    rows = {seq: Row(EXHIBIT, "any model", seq, GAIN, claim.published, "%", None, None, "published", source)
            for _, seq, *_ in pairs}  # fmt: skip
    return Table(rows.values())


def _published():
    from repro.records import claims

    return next(claim for claim in claims.read() if claim.id == CLAIM)


def _needed(recipe, found):
    """What would have to be true for the published gain: a longer sequence, or slower unfused attention."""
    wanted, own = 1 + _published().published / 100, recipe.shape.seq
    multiple = bisect_left(range(1, LONGEST // GRAIN + 1), wanted, key=lambda n: _ratio(recipe, GRAIN * n, found)) + 1
    if GRAIN * multiple <= LONGEST:
        yield _row(found, recipe, LENGTH, GRAIN * multiple, "token")
    [(_, _, flash, unfused)] = _pairs([recipe], [own])
    with_attention = found.steps([flash, unfused])[0].seconds.reshape(-1)
    without = found.steps([unfused], without=("attention",))[0].seconds.item()
    # time is linear in what attention takes: how many times the projected one makes the wanted ratio
    times = (wanted * with_attention[0] - without) / (with_attention[1] - without)
    yield _row(found, recipe, TIMES, times, "1")
    share = 100 * (1 - found.steps([flash], without=("attention",))[0].seconds.item() / with_attention[0])
    yield _row(found, recipe, SHARE, share, "%")


def _ratio(recipe, sequence, found):
    """Projected seconds of unfused over flash attention; it grows with the sequence."""
    [(_, _, *both)] = _pairs([recipe], [sequence])
    flash, unfused = found.seconds(both)[0]
    return unfused / flash


def _row(found, recipe, what, value, unit):
    value = points.rounded(value)
    return Row(EXHIBIT, recipe.name, what, NEEDED, value, unit, None, None, "projected", found.source)


def trained(recipe, folder):
    """Both kinds of attention on one real rank.

    Returns:
        ``(Table, machine)``: measured rows, and this machine, whose speed the run with flash attention sets.
    """
    pairs = _pairs([recipe], TINY_SEQUENCES)
    recipes = [r for pair in pairs for r in pair[2:]]
    xs = [pair[1] for pair in pairs for _ in (FLASH, UNFUSED)]
    series = [f"{pair[0]}, {kind}" for pair in pairs for kind in (FLASH, UNFUSED)]
    rows, paths = points.measured(recipes, xs, series, EXHIBIT, folder / "points")
    return rows + _measured_gains(rows), points.this_machine(paths[0])


def recorded(runs):
    """Run folders as points over the sequence length; a gain wherever both kinds of attention were run."""
    rows = points.recorded(
        runs, lambda r: r.shape.seq, lambda r: f"{r.name}, given runs, {r.compute.attention}", EXHIBIT
    )
    return rows + _measured_gains(rows)


def _measured_gains(rows):
    """Measured seconds of unfused over flash; of several runs the last counts."""
    times = {(row.series, row.x): row for row in rows.select(metric="step time")}
    found = []
    for (series, seq), unfused in times.items():
        model, _, kind = series.rpartition(", ")
        flash = times.get((f"{model}, {FLASH}", seq))
        if kind == UNFUSED and flash:
            ratios = (unfused.low / flash.high, unfused.value / flash.value, unfused.high / flash.low)
            low, value, high = (points.rounded(100 * (ratio - 1)) for ratio in ratios)
            source = f"{flash.source} and {unfused.source}"
            found.append(Row(EXHIBIT, model, seq, GAIN, value, "%", low, high, "measured", source))
    return Table(found)


def numbers(found):
    """Gain and memory at every sequence length."""
    rows, grid = found.select(exhibit=EXHIBIT), []
    for row in rows.select(metric=GAIN):
        peaks = [next((f"{r.value:.3g}" for r in rows.select(metric=PEAK, series=f"{row.series}, {kind}", x=row.x)), "")
                 for kind in (FLASH, UNFUSED)]  # fmt: skip
        band = "" if row.low is None else f"{row.low:.1f} to {row.high:.1f}"
        grid.append((row.series, row.provenance, row.x, f"{row.value:.1f}", band, *peaks))
    columns = ("model", "provenance", "sequence", "gain (%)", "band (%)", "peak, flash (GiB)", "peak, unfused (GiB)")
    return Grid(columns, tuple(grid))


def needed(found):
    """What would have to be true for the published gain."""
    rows, models = found.select(metric=NEEDED), {}
    for row in rows:
        models.setdefault(row.series, {})[row.x] = f"{row.value:,.0f}" if row.unit == "token" else f"{row.value:.2g}"
    grid = [
        (model, *(values.get(what, f"none up to {LONGEST:,}") for what in (LENGTH, TIMES, SHARE)))
        for model, values in models.items()
    ]
    return Grid(("model", LENGTH, TIMES, SHARE), tuple(grid) or (("not asked at this scale", "", "", ""),))


def differences(found):
    """Measured beside projected: step times and gains, wherever a series has both at one sequence length."""
    rows, grid = found.select(exhibit=EXHIBIT, metric=("step time", GAIN)), []
    for row in rows.select(provenance="measured"):
        for other in rows.select(provenance="projected", series=row.series, x=row.x, metric=row.metric):
            unit = "s" if row.metric == "step time" else "%"
            inside = "yes" if other.low <= row.value <= other.high else "no"
            grid.append((row.series, row.x, f"{row.metric} ({unit})", f"{row.value:.3g}", f"{other.value:.3g}",
                         f"{other.low:.3g} to {other.high:.3g}", inside))  # fmt: skip
    columns = ("series", "sequence", "what", "measured", "projected", "band", "in the band")
    return Grid(columns, tuple(grid) or (("nothing was measured", *[""] * 6),))
