"""What a step has to do, as arrays: of one recipe, of many layouts at once, or of counts that a trace took. No torch.

Shapes: ``[n]`` layouts, ``[n, k]`` layouts by kind of stage. Stages that do the same are one kind, with a
multiplicity; kind 0 is the first stage, kind 1 the last (of multiplicity 0 where the first is the last).

Formulas are those of :mod:`repro.projection.counts`, here for many layouts at once; a test holds them equal.
"""

from collections import Counter
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import numpy as np

from repro.projection import counts
from repro.projection.zero import ALIGNMENT


@dataclass(frozen=True)
class Work:
    """Per kind of stage ``[n, k]``; FLOPs and bytes of one rank, for one micro-batch where not said otherwise.

    Attributes:
        layouts: the input, as arrays ``[n, 1]``: shape, sizes, micro-batch, ``m`` micro-batches, switches.
        layers, multiplicity, first, last: transformer layers, how many stages of this kind, which ends it is.
        matrix_flops, attention_flops: of forward, recompute and backward.
        attention_forward: the part of ``attention_flops`` that runs forward, recompute included.
        ring_bytes: what this rank passes on around the tensor-parallel ring.
        ring_calls, ring_hops: collectives of the tensor-parallel group, and the steps of their rings.
        message_bytes, messages: to and from other stages.
        reduce_bytes, gather_bytes: passed on around the data-parallel ring, per step.
        tied_bytes: exchanged by first and last stage, per step.
    """

    layouts: SimpleNamespace
    layers: np.ndarray
    multiplicity: np.ndarray
    first: np.ndarray
    last: np.ndarray
    matrix_flops: np.ndarray
    attention_flops: np.ndarray
    attention_forward: np.ndarray
    ring_bytes: np.ndarray
    ring_calls: np.ndarray
    ring_hops: np.ndarray
    message_bytes: np.ndarray
    messages: np.ndarray
    reduce_bytes: np.ndarray
    gather_bytes: np.ndarray
    tied_bytes: np.ndarray
    parameters: np.ndarray


COUNTED = ("matrix_flops", "attention_flops", "attention_forward", "ring_bytes", "ring_calls", "ring_hops",
           "message_bytes", "messages", "reduce_bytes", "gather_bytes", "tied_bytes")  # fmt: skip


def layout(recipe, interleave=1, engine="deepspeed"):
    """A recipe as the dictionary of numbers that :func:`of_layouts` takes, its own stages included.

    Args:
        interleave: model chunks on each stage (arXiv 2104.04473 sec. 2.2); 1 is plain 1F1B.
        engine: ``megatron`` reduces 16-bit gradients without ZeRO's copies and exchanges shards of activations.
    """
    s, p = recipe.shape, recipe.parallel
    return {
        "seq": s.seq, "hidden": s.hidden, "ffn": s.ffn, "heads": s.heads, "vocab": recipe.padded_vocab,
        "layers": s.layers, "tp": p.tp, "pp": p.pp, "dp": p.dp, "micro": recipe.batch.micro, "m": recipe.accumulation,
        "sequence_parallel": p.sequence_parallel, "recompute": recipe.compute.recompute == "full",
        "flash": recipe.compute.attention == "flash", "dropout": s.dropout > 0, "tied": s.tied,
        "positions": s.positions == "learned", "embedding_norm": s.embedding_norm,
        "element": counts.dtype_bytes(recipe), "accumulate": counts.BYTES[recipe.precision.grad_accum],
        "sharded": recipe.zero.stage > 0, "interleave": interleave, "deepspeed": engine == "deepspeed",
        "stages": recipe.stage_layers,
    }  # fmt: skip


def of_recipes(recipes, interleave=1, engine="deepspeed"):
    """The :class:`Work` of a list of recipes; ``interleave`` one number or one each."""
    many = np.broadcast_to(interleave, len(recipes))
    return of_rows([layout(r, int(v), engine) for r, v in zip(recipes, many, strict=True)])


def of_rows(rows):
    """The :class:`Work` of a list of :func:`layout` dictionaries."""
    rows = [dict(row) for row in rows]
    kinds = [_kinds(row.pop("stages")) for row in rows]
    width = max(len(k) for k in kinds)
    padded = [k + [(0, 0)] * (width - len(k)) for k in kinds]
    columns = {key: np.array([row[key] for row in rows], float) for key in rows[0]}
    stages = np.array(padded, float)
    return _work(columns, stages[..., 0], stages[..., 1])


def _kinds(stages):
    """``[(layers, how many)]``: first, last, then what lies between, longest first."""
    if len(stages) == 1:
        return [(stages[0], 1), (0, 0)]
    return [(stages[0], 1), (stages[-1], 1), *sorted(Counter(stages[1:-1]).items(), reverse=True)]


def of_layouts(columns):
    """The :class:`Work` of many layouts with balanced stages: equally long arrays, named as in :func:`layout`."""
    columns = {key: np.asarray(value, float) for key, value in columns.items()}
    pp, layers = columns["pp"], columns["layers"]
    base, longer = np.floor_divide(layers, pp), np.mod(layers, pp)
    between = np.maximum(pp - 2, 0)
    long = np.minimum(np.maximum(longer - 1, 0), between)
    held = np.stack([base + (longer > 0), np.where(pp > 1, base, 0), base + 1, base], axis=-1)
    count = np.stack([np.ones_like(pp), pp > 1, long, between - long], axis=-1)
    return _work(columns, held * (count > 0), count)


def _work(columns, layers, multiplicity):
    c = SimpleNamespace(**{key: value[:, None] for key, value in columns.items()})
    kind = np.arange(layers.shape[1])
    first = np.broadcast_to(kind == 0, layers.shape).astype(float)
    last = np.where(c.pp == 1, kind == 0, kind == 1).astype(float)
    t, e = c.tp, c.element
    tokens = c.seq * c.micro
    whole = tokens * c.hidden * e
    passes = 3 + c.recompute
    matrix = layers * 2 * tokens * (4 * c.hidden**2 + 2 * c.hidden * c.ffn) / t
    scores = layers * 2 * tokens * c.seq * c.hidden / t  # one of the two products of attention
    head = last * 2 * tokens * c.hidden * c.vocab / t
    forward = 2 * scores * (1 + c.recompute)
    ring = _ring(c, layers, first, last, tokens, whole)
    inner, ends = c.pp > 1, (1 - first) + (1 - last)
    parted = (t > 1) * (1 - c.sequence_parallel)
    parameters, padded = _parameters(c, layers, first, last)
    wide = np.where(e < 4, 2, 4)
    reduced = np.where(c.sharded * c.deepspeed * (c.accumulate > e), padded, parameters)
    return Work(
        layouts=c,
        layers=layers,
        multiplicity=multiplicity,
        first=first,
        last=last,
        matrix_flops=passes * matrix + 3 * head,
        attention_flops=forward + np.where(c.flash, 5, 4) * scores,
        attention_forward=forward,
        message_bytes=inner * 2 * ends * (whole / t + parted * c.deepspeed * 8 * (t + 7)),
        messages=inner * 2 * ends * (1 + parted * c.deepspeed),
        reduce_bytes=2 * (c.dp - 1) / c.dp * wide * reduced,
        gather_bytes=c.sharded * (c.dp - 1) / c.dp * wide * padded,
        tied_bytes=inner * c.tied * np.clip(first + last, 0, 1) * c.accumulate * c.vocab * c.hidden / t,
        parameters=parameters,
        **ring,
    )


def _ring(c, layers, first, last, tokens, whole):
    """Tensor-parallel collectives of a micro-batch: bytes passed on, calls, steps."""
    t, many = c.tp, c.tp > 1
    once = (t - 1) / t * whole  # a gather or a scatter of whole activations; an all-reduce is two of them
    halves = (1 + c.recompute) * 4 * layers + 2 * first + 4 * layers + 2 * last  # without sequence parallelism
    # with it: 2 + 2 a layer forward, 4 + 2 backward, and as many at the ends
    parts = (1 + c.recompute) * 4 * layers + (last + first) + 6 * layers + first + 2 * last
    joined = (1 - first) + (1 + c.deepspeed) * (1 - last)  # shards from other stages; DeepSpeed its own output again
    joined = (1 - c.sequence_parallel) * (c.pp > 1) * joined
    moved = np.where(c.sequence_parallel, parts, halves) + joined
    calls = np.where(c.sequence_parallel, parts, halves / 2) + joined + 2 * last
    loss = 2 * (t - 1) / t * 12 * tokens * last
    return {
        "ring_bytes": many * (moved * once + loss),
        "ring_calls": many * calls,
        "ring_hops": many * (t - 1) * (moved + 4 * last),
    }


def _parameters(c, layers, first, last):
    """Parameters of a rank, plain and padded to equal aligned shards as :func:`repro.projection.zero.padded`."""
    h, f, t = c.hidden, c.ffn, c.tp
    table = c.vocab * h / t
    own_head = last * np.where(c.tied, 1 - first, 1)
    matrices = layers * (4 * h * h + 2 * h * f) / t + table * (first + own_head) + first * c.positions * c.seq * h
    vectors = layers * ((3 * h + f) / t + 6 * h) + last * 2 * h + first * c.embedding_norm * 2 * h
    unit = ALIGNMENT * c.dp
    return matrices + vectors, sum(np.ceil(part / unit) * unit for part in (matrices, vectors))


def counted(recipe, stage_counts):
    """The :class:`Work` of one recipe with counts taken elsewhere in place of the formulas.

    Args:
        stage_counts: ``{stage: (flops, transfers)}`` of one step, ``flops`` as ``{phase: {kind: FLOPs}}`` and
            transfers with ``phase, kind, group, size, bytes, count``; a stage of every kind has to be there.
            From :func:`repro.tracing.trace.trace` or :mod:`repro.projection.counts`.
    """
    work = of_recipes([recipe])
    stages = recipe.stage_layers
    wanted = [(0, stages[0]), (len(stages) - 1, stages[-1])]
    wanted += [(1 + stages[1:-1].index(n), n) for n in sorted(set(stages[1:-1]), reverse=True)]
    found = {name: np.zeros_like(work.layers) for name in COUNTED}
    for kind, (stage, _) in enumerate(wanted if len(stages) > 1 else wanted[:1]):
        for name, value in _summary(*stage_counts[stage], recipe.accumulation).items():
            found[name][0, kind] = value
    return replace(work, **found)


def _summary(flops, transfers, m):
    found = dict.fromkeys(COUNTED, 0.0)
    for phase, kinds in flops.items():
        found["matrix_flops"] += kinds.get("matrix", 0) / m
        found["attention_flops"] += kinds.get("attention", 0) / m
        if phase in ("forward", "recompute"):
            found["attention_forward"] += kinds.get("attention", 0) / m
    for x in transfers:
        n, kind = x.size, x.kind
        moved = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1, "reduce_scatter": (n - 1) / n}.get(
            kind, 1
        ) * x.bytes
        if x.group == "tensor" and x.phase in ("forward", "recompute", "backward"):
            found["ring_bytes"] += moved * x.count / m
            found["ring_calls"] += x.count / m
            found["ring_hops"] += (n - 1) * (1 + (kind == "all_reduce")) * x.count / m
        elif kind in ("send", "recv"):
            found["message_bytes"] += x.bytes * x.count / m
            found["messages"] += x.count / m
        elif x.group == "data" and x.phase == "reduction":
            found["reduce_bytes"] += moved * x.count
        elif x.group == "data" and kind == "all_gather":
            found["gather_bytes"] += moved * x.count
        elif x.group == "tied":
            found["tied_bytes"] += moved * x.count
    return found


def from_closed_forms(recipe):
    """``stage_counts`` of :func:`counted` from :mod:`repro.projection.counts`."""
    m, stages = recipe.accumulation, range(recipe.parallel.pp)
    return {
        stage: (
            {ph: {k: v * m for k, v in kinds.items()} for ph, kinds in counts.flops(recipe, stage).items()},
            counts.transfers(recipe, stage),
        )
        for stage in stages
    }


def same(a, b):
    """The largest relative difference of two works' counts, by name."""
    pairs = {f.name: (getattr(a, f.name), getattr(b, f.name)) for f in fields(Work) if f.name in COUNTED}
    return {n: float(np.max(np.abs(x - y) / np.maximum(np.abs(x), 1e-30), initial=0)) for n, (x, y) in pairs.items()}
