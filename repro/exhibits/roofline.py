"""Operations of one layer on one device: FLOPs, bytes, their ratio, and the rate that the projection has them reach.

Counted for one micro-batch through one transformer layer, forward, recompute and backward, by the formulas of
:mod:`repro.projection.step`: an operand is read or written once. Element-wise operations have no FLOPs in any
published counting, so they count bytes and time here and are no point under the roof.
"""

from dataclasses import dataclass

import numpy as np

from repro.exhibits import points
from repro.projection import step as steps
from repro.records.table import Row, Table
from repro.report.grid import Grid

EXHIBIT = "roofline"
LAYER, ROOF = "whole layer", "roof"
BELIEVED = 180  # FLOP a byte, believed of the paper's text and not found in print
FLASH_FORWARD, FLASH_BACKWARD = 4, 8  # tensors [s, b, h] that move: q k v o; q k v o, its gradient, theirs


@dataclass(frozen=True)
class Operation:
    """FLOPs and bytes of one operation in a layer; ``seconds`` of a constants namespace."""

    name: str
    flops: float
    bytes: float
    seconds: object


def operations(recipe, device):
    """Every :class:`Operation` of one layer of a recipe."""
    from repro.projection import counts

    s, t = recipe.shape, recipe.parallel.tp
    e, again = counts.dtype_bytes(recipe), 1 + (recipe.compute.recompute == "full")
    tokens, passes = s.seq * recipe.batch.micro, 2 + again
    # of the formulas in step: products have the peak of bf16
    peak, memory = device.peak("bf16") * 1e12, device.memory_bandwidth_gbytes * 1e9
    found = []
    for name, a, b in (("q, k, v", s.hidden, 3 * s.hidden / t), ("attention output", s.hidden / t, s.hidden),
                       ("MLP up", s.hidden, s.ffn / t), ("MLP down", s.ffn / t, s.hidden)):  # fmt: skip
        work, moved = passes * 2 * tokens * a * b, passes * e * (tokens * a + a * b + tokens * b)
        found.append(Operation(name, work, moved, _product(work / peak, moved / memory)))
    found += _attention(recipe, e, again, tokens, peak, memory)
    outer = 1 / t if recipe.parallel.sequence_parallel else 1
    moved = tokens * s.hidden * e * (
        again * (steps.FORWARD[0] * outer + steps.FORWARD[1] / t) + steps.BACKWARD[0] * outer + steps.BACKWARD[1] / t
    )  # fmt: skip
    found.append(Operation("element-wise operations", 0.0, moved, _elements(moved / memory)))
    weights = (4 * s.hidden**2 + 2 * s.hidden * s.ffn) / t + (3 * s.hidden + s.ffn) / t + 6 * s.hidden
    wide = counts.BYTES[recipe.precision.grad_accum]
    moved = weights * (16 if wide > e else 3 * e)
    found.append(Operation("gradient accumulation", 0.0, moved, _elements(moved / memory)))
    return found


def _attention(recipe, e, again, tokens, peak, memory):
    s, t = recipe.shape, recipe.parallel.tp
    scores = 2 * tokens * s.seq * s.hidden / t  # FLOPs of one product
    tensor = tokens * s.hidden / t * e
    forward = again * 2 * scores
    if recipe.compute.attention == "flash":
        backward = 5 * scores
        lse = 4 * tokens * s.heads / t
        yield Operation("flash attention, forward", forward, again * (FLASH_FORWARD * tensor + lse),
                        lambda k: forward / (k.flash_forward * peak))  # fmt: skip
        yield Operation("flash attention, backward", backward, FLASH_BACKWARD * tensor + 2 * lse,
                        lambda k: backward / (k.flash_backward * peak))  # fmt: skip
        return
    written = recipe.batch.micro * s.heads / t * s.seq**2 * e
    work = forward + 4 * scores
    moved = (2 * again + 4) * (written + 2 * tensor)
    moved += (again * steps.SCORES_FORWARD + steps.SCORES_BACKWARD) / 2 * written
    yield Operation("unfused attention", work, moved,
                    lambda k: work / (k.gemm_ceiling * peak) + moved / (k.memory_efficiency * memory))  # fmt: skip


def _product(busy, moving):
    return lambda k: busy / k.gemm_ceiling + moving / k.gemm_bandwidth


def _elements(moving):
    return lambda k: moving / k.memory_efficiency


def table(recipes, found):
    """Rows of every operation of one layer of each model, of the layer as a whole, and of the device's roof.

    Args:
        found: a :class:`repro.exhibits.sampled.Sampled` machine.
    """
    device, rows = found.machine.device, []
    point, sampled = steps.constants(found.central), found.constants
    for recipe in recipes:
        many = operations(recipe, device)
        one = [float(np.ravel(o.seconds(point))[0]) for o in many]
        each = [np.ravel(o.seconds(sampled)) for o in many]
        whole = Operation(LAYER, sum(o.flops for o in many), sum(o.bytes for o in many), None)
        for o, seconds, samples in zip((*many, whole), (*one, sum(one)), (*each, sum(each)), strict=True):
            rows += _rows(recipe.name, o, seconds, samples, found)
    kind = "judged" if found.local else "published"
    for x, metric, value, unit in (
        ("peak", "rate", device.peak("bf16"), "TFLOP/s"),
        ("memory", "bandwidth", device.memory_bandwidth_gbytes, "GB/s"),
        ("balance", "intensity", device.peak("bf16") * 1e3 / device.memory_bandwidth_gbytes, "FLOP/byte"),
    ):
        value, how = points.rounded(value), "projected" if kind == "judged" else "published"
        rows.append(Row(EXHIBIT, ROOF, x, metric, value, unit, None, None, how, f"{device.title}: {device.source}"))
    return Table(rows)


def _rows(series, operation, seconds, samples, found):
    def exact(metric, value, unit):
        source = "closed forms: an operand is read or written once"
        value = points.rounded(value)
        return Row(EXHIBIT, series, operation.name, metric, value, unit, None, None, "projected", source)

    yield exact("FLOPs", operation.flops, "FLOP")
    yield exact("bytes", operation.bytes, "B")
    yield found.row(EXHIBIT, series, operation.name, "time", 1e6 * seconds, 1e6 * samples, "us")
    if operation.flops:
        yield exact("intensity", operation.flops / operation.bytes, "FLOP/byte")
        rate = operation.flops / 1e12
        yield found.row(EXHIBIT, series, operation.name, "rate", rate / seconds, rate / samples, "TFLOP/s")


def numbers(found):
    """Every operation of one layer in numbers."""
    rows = found.select(exhibit=EXHIBIT)
    grid = []
    for series, x in dict.fromkeys((row.series, row.x) for row in rows if row.series != ROOF):
        own = {row.metric: row for row in rows.select(series=series, x=x)}
        whole = rows.select(series=series, x=LAYER, metric="time").rows[0].value
        intensity, rate = (own.get(m, "") for m in ("intensity", "rate"))
        grid.append((
            series, x, f"{own['FLOPs'].value / 1e9:.4g}", f"{own['bytes'].value / 1e6:.4g}",
            intensity and f"{intensity.value:.0f}",
            rate and f"{rate.value:.3g} ({rate.low:.3g} to {rate.high:.3g})",
            f"{100 * own['time'].value / whole:.1f}",
        ))  # fmt: skip
    columns = ("model", "operation", "GFLOP", "MB", "FLOP/byte", "TFLOP/s reached (band)", "of the layer's time (%)")
    return Grid(columns, tuple(grid))


def verdict(found):
    """The believed claim, and the device's balance, beside the whole layer."""
    rows = found.select(exhibit=EXHIBIT, metric="intensity")
    balance = rows.select(series=ROOF).rows[0].value
    grid = []
    for row in rows.select(x=LAYER):
        products = [r.value for r in rows.select(series=row.series) if "attention," not in r.x and r.x != LAYER]
        span = f"{min(products):.0f} to {max(products):.0f}"
        claim = "above" if row.value > BELIEVED else "below"
        side = "above" if row.value > balance else "below"
        grid.append((row.series, f"{row.value:.0f}", span, f"{balance:.0f}", side, f"{BELIEVED}: {claim}"))
    columns = ("model", "whole layer (FLOP/byte)", "its products (FLOP/byte)", "balance of the device (FLOP/byte)",
               "layer to balance", "believed of the paper")  # fmt: skip
    return Grid(columns, tuple(grid))
