"""Thousands of layouts of one recipe at once: which are valid, and what each would do on a machine. No torch.

:func:`grid` names layouts as columns, :func:`sweep` projects them, :func:`overrides` leads from a row back to a
recipe. Columns are equally long numpy arrays; ``pandas.DataFrame(sweep(...))`` is a table.
"""

from math import gcd, isqrt, prod
from types import SimpleNamespace

import numpy as np

from repro import flops
from repro.errors import InputError, shortened, unknown
from repro.projection import peak, step, work
from repro.projection.machine import load

GIB = 2**30
MOST = 10**9  # of an axis
MOST_ROWS = 5_000_000
CHUNK = 2048  # rows at once: their arrays stay in the cache
NAMES = ("devices", "tp", "pp", "dp", "micro", "m", "global_batch", "recompute", "flash")  # of a row
CHOICES = {"recompute": ("none", "full"), "attention": ("unfused", "flash")}  # the columns' 0 and 1


def grid(
    recipe, devices=None, tp=None, pp=None, dp=None, micro=None, global_batch=None, recompute=None, attention=None
):
    """Every valid combination of the values given, as columns; layers are balanced over stages.

    Each axis is one value or several, by default the recipe's own. With ``devices``, those of tp, pp and dp that are
    not given are free: all valid values for which tp x pp x dp is one of ``devices``.

    Returns:
        Columns of :func:`repro.projection.work.layout`, and ``devices``, ``global_batch``, ``reduce_bucket``.

    Raises:
        InputError: a value of a wrong type, or no valid combination, with the nearest valid value.
    """
    p, b = recipe.parallel, recipe.batch
    own = {"tp": p.tp, "pp": p.pp, "dp": p.dp} if devices is None else {}
    axes = {"tp": tp, "pp": pp, "dp": dp}
    axes = {name: _numbers(name, own.get(name) if given is None else given) for name, given in axes.items()}
    axes["micro"] = _numbers("micro", b.micro if micro is None else micro)
    axes["global_batch"] = _numbers("global_batch", b.global_ if global_batch is None else global_batch)
    axes["recompute"] = _choices("recompute", recipe.compute.recompute if recompute is None else recompute)
    axes["flash"] = _choices("attention", recipe.compute.attention if attention is None else attention)
    devices = _numbers("devices", devices)
    rows = _rows(axes | _free(recipe, axes), devices, dp_follows=devices is not None and dp is None)
    rows = _taken(rows, valid(recipe, rows))
    if not len(rows["tp"]):
        raise _nothing(recipe, axes, devices)
    return _columns(recipe, rows)


def valid(recipe, rows):
    """Whether :mod:`repro.recipe_rules` allow each of ``rows``: ``tp, pp, dp, micro, global_batch, flash``."""
    return np.all(_kept(recipe, rows), axis=0)


def _kept(recipe, rows):
    """Which rules each row keeps: those of :mod:`repro.recipe_rules` that a layout can break."""
    r, s = SimpleNamespace(**rows), recipe.shape
    unit = r.micro * r.dp
    parted = (r.tp > 1) & (s.seq % r.tp == 0) if recipe.parallel.sequence_parallel else r.tp > 0
    return [
        (s.heads % r.tp == 0) & (s.hidden % r.tp == 0) & (s.ffn % r.tp == 0),
        parted,
        (r.flash == 0) | (s.positions != "alibi"),
        r.pp <= s.layers,
        r.global_batch % unit == 0,
        r.global_batch // unit >= r.pp,
    ]


def overrides(columns, row):
    """What makes a recipe of a row: ``repro.recipe.load(recipe, overrides(columns, row))``."""
    r = {name: int(columns[name][row]) for name in NAMES if name in columns}
    return {
        "parallel.tp": r["tp"],
        "parallel.pp": r["pp"],
        "parallel.dp": r["dp"],
        "parallel.stage_layers": None,
        "batch.micro": r["micro"],
        "batch.global": r["global_batch"],
        "compute.recompute": CHOICES["recompute"][r["recompute"]],
        "compute.attention": CHOICES["attention"][r["flash"]],
    }


def sweep(columns, machine, items=False):
    """What every row would do on a machine, as columns behind those that name the row.

    The machine's constants are taken as they are: of a calibrated one give
    :meth:`repro.projection.belief.Belief.central`. Memory is the estimate of :mod:`repro.projection.peak`, of today's
    DeepSpeed, within :data:`repro.projection.peak.ERROR` of the exact form; ``fits`` may be wrong by no more.

    Args:
        items: also the seconds of each of :data:`repro.projection.step.ITEMS`, by name.

    Returns:
        ``seconds``; ``hardware_tflops`` and ``model_tflops`` of one device; ``hfu``, ``mfu`` (NaN where the device
        has no such peak); ``tokens_per_second``; ``bubble_share``, filling and draining over the step; ``peak_gib`` of
        the fullest stage, and which that is, ``peak_stage``; ``fits``.
    """
    machine = load(machine)
    columns = {name: np.asarray(column, float) for name, column in columns.items()}
    parts = []
    for start in range(0, max(len(columns["tp"]), 1), CHUNK):
        part = {name: column[start : start + CHUNK] for name, column in columns.items()}
        parts.append(_sweep(part, machine, items))
    named = {name: columns[name].astype(int) for name in NAMES}
    return named | {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _sweep(columns, machine, items):
    c = SimpleNamespace(**columns)
    found = step.step(work.of_layouts(columns), machine)
    seconds = found.seconds[0]
    layers = flops.forward_layers(c, c.global_batch)
    model = 3 * (layers + flops.forward_head(c, c.vocab, c.global_batch))
    model, hardware = (f / seconds / c.devices / 1e12 for f in (model, model + c.recompute * layers))
    device = machine.device
    of = np.where(c.element < 4, *(device.peak(dtype) or np.nan for dtype in ("bf16", "fp32")))
    peak_bytes, stage = peak.fullest(columns)
    rows = {
        "seconds": seconds,
        "hardware_tflops": hardware,
        "model_tflops": model,
        "hfu": hardware / of,
        "mfu": model / of,
        "tokens_per_second": c.global_batch * c.seq / seconds,
        "bubble_share": found.items["filling and draining"][0] / seconds,
        "peak_gib": peak_bytes / GIB,
        "peak_stage": stage,
        "fits": peak_bytes <= device.memory_gib * GIB,
    }
    return rows | ({name: value[0] for name, value in found.items.items()} if items else {})


# The axes of a grid


def _numbers(name, given):
    """The values of an axis, each once and in order; ``None`` where it is free."""
    if given is None:
        return None
    values = np.unique(np.asarray(given))
    whole = values.dtype.kind in "iu" and values.size
    if not whole or values[0] < 1 or values[-1] > MOST:
        raise InputError(f"{name} {shortened(given)}: input should be whole numbers from 1 to {MOST:,}, at least one")
    return values.astype(int)


def _choices(name, given):
    values, known = [given] if isinstance(given, str) else list(given), CHOICES[name]
    if not values:
        raise InputError(f"{name} is empty; nearest valid: {' or '.join(known)}")
    for value in values:
        if value not in known:
            raise unknown(name, value, known)
    return np.unique([known.index(value) for value in values])


def _free(recipe, axes):
    """Of free axes every value that may be valid."""
    s = recipe.shape
    every = {
        "tp": lambda: _divisors(gcd(s.heads, s.hidden, s.ffn)),
        "pp": lambda: np.arange(1, s.layers + 1),
        "dp": lambda: np.unique(np.concatenate([_divisors(int(batch)) for batch in axes["global_batch"]])),
    }
    return {name: values() for name, values in every.items() if axes[name] is None}


def _divisors(number):
    small = np.arange(1, isqrt(number) + 1)
    small = small[number % small == 0]
    return np.unique(np.concatenate([small, number // small]))


def _rows(axes, devices, dp_follows=False):
    """All combinations, those that fill other numbers of devices left out.

    Args:
        dp_follows: dp is what tp and pp leave of the devices.
    """
    axes = {name: values for name, values in axes.items() if not (dp_follows and name == "dp")}
    axes |= {} if devices is None else {"devices": devices}
    count = prod(len(values) for values in axes.values())
    if count > MOST_ROWS:
        raise InputError(f"a grid of {count:,} combinations; the most is {MOST_ROWS:,}: give fewer values")
    found = np.meshgrid(*axes.values(), indexing="ij")
    rows = {name: column.ravel() for name, column in zip(axes, found, strict=True)}
    if dp_follows:
        rows["dp"] = rows["devices"] // (rows["tp"] * rows["pp"])
    filled = rows["tp"] * rows["pp"] * rows["dp"]
    return rows | {"devices": filled} if devices is None else _taken(rows, filled == rows["devices"])


def _taken(rows, mask):
    return {name: column[mask] for name, column in rows.items()}


def _columns(recipe, rows):
    same = work.layout(recipe)
    del same["stages"]
    same["reduce_bucket"] = recipe.zero.reduce_bucket
    columns = {name: np.full(len(rows["tp"]), value) for name, value in same.items()} | rows
    unit = recipe.shape.vocab_multiple * rows["tp"]
    columns["vocab"] = -(-recipe.shape.vocab // unit) * unit
    columns["m"] = rows["global_batch"] // (rows["micro"] * rows["dp"])
    return columns


def _nothing(recipe, axes, devices):
    """Why no row is valid: the nearest number of devices of one that is, or the rule that the nearest row breaks."""
    from repro.recipe import load as load_recipe

    rows = _rows(axes | _free(recipe, axes), None)
    kept = np.array(_kept(recipe, rows))
    allowed = np.unique(rows["devices"][kept.all(axis=0)])
    if allowed.size:  # devices were asked for
        apart = np.abs(allowed[:, None] - devices)
        near, far = np.unravel_index(np.argmin(apart), apart.shape)
        return InputError(
            f"no layout of {recipe.name} fills {devices[far]} devices with what is given; "
            f"nearest valid: devices {allowed[near]}"
        )
    try:
        load_recipe(recipe, overrides(rows, int(np.argmax(kept.sum(axis=0)))))
    except InputError as error:
        return error
    raise AssertionError("the mask refuses what the rules of recipes allow")
