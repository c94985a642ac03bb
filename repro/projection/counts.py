"""FLOPs and transfers of a stage in closed form: equal, to the last byte, to what a traced rank does. No torch.

All ranks of a stage do the same. FLOPs are those of matrix products and attention, twice the multiply-adds;
causal attention is counted in full, as :mod:`repro.flops` does.

Shape legend: s sequence, b micro-batch, h hidden, f ffn, t tensor-parallel size, V padded vocabulary.
"""

from dataclasses import dataclass

from repro.projection import zero

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
GROUPS = ("tensor", "data", "pipeline", "tied", "model", "next", "previous")


@dataclass(frozen=True)
class Transfer:
    """A collective or one half of a message, ``count`` times in a step.

    Attributes:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``send`` or ``recv``.
        group: ``tensor``, ``data``, ``pipeline``, ``tied`` (first and last stage), ``model`` (all ranks of a
            replica); the peer's place, ``next`` or ``previous``, for a message.
        size: ranks of the group; 1 for a message, and where the group is this rank alone.
        bytes: of the tensor that this rank puts in, or gets from a ``recv``.
    """

    phase: str
    kind: str
    group: str
    size: int
    bytes: int
    count: int


def dtype_bytes(recipe):
    """Bytes of a parameter, an activation and its gradient."""
    return BYTES[recipe.precision.dtype]


def flops(recipe, stage):
    """``{phase: {kind: FLOPs}}`` of one rank for one micro-batch.

    The flash kernel computes the scores again in its backward: 10 b s^2 h / t against 8.
    """
    s, p = recipe.shape, recipe.parallel
    tokens, layers = s.seq * recipe.batch.micro, recipe.stage_layers[stage]
    matrix = layers * 2 * tokens * (4 * s.hidden**2 + 2 * s.hidden * s.ffn) // p.tp
    scores = layers * 2 * tokens * s.seq * s.hidden // p.tp  # one of the two products of attention
    head = 2 * tokens * s.hidden * recipe.padded_vocab // p.tp if stage == p.pp - 1 else 0
    again = recipe.compute.recompute == "full"
    backward = 5 if recipe.compute.attention == "flash" else 4
    return {
        "forward": {"matrix": matrix + head, "attention": 2 * scores},
        "recompute": {"matrix": matrix, "attention": 2 * scores} if again else {},
        "backward": {"matrix": 2 * (matrix + head), "attention": backward * scores},
    }


def transfers(recipe, stage, micro_batches=None):
    """Every :class:`Transfer` of one rank in a step that is not the first, which also exchanges shapes.

    Args:
        micro_batches: of the step, instead of the recipe's.
    """
    p = recipe.parallel
    size = {"tensor": p.tp, "data": p.dp, "pipeline": p.pp, "tied": 2, "model": p.tp * p.pp}
    m = micro_batches or recipe.accumulation
    found = [(*row, m * count) for *row, count in (*_tensor(recipe, stage), *_messages(recipe, stage))]
    found += [(*row, 1) for row in (*_partial(recipe, stage), *zero.reduction(recipe, stage))]
    found += [(*row, 1) for row in (*zero.step(recipe, stage), *_loss(recipe, stage))]
    counts = {}
    for *row, count in found:
        counts[tuple(row)] = counts.get(tuple(row), 0) + count
    return tuple(
        Transfer(phase, kind, group, size.get(group, 1), size_bytes, count)
        for (phase, kind, group, size_bytes), count in counts.items()
    )


def _tensor(recipe, stage):
    """Tensor-parallel transfers of one micro-batch (arXiv 1909.08053 sec. 3; with sequence parallelism 2205.05198)."""
    s, p = recipe.shape, recipe.parallel
    if p.tp == 1:
        return
    tokens, layers = s.seq * recipe.batch.micro, recipe.stage_layers[stage]
    whole = tokens * s.hidden * dtype_bytes(recipe)
    first, last = stage == 0, stage == p.pp - 1
    passes = [("forward", 1)] + ([("recompute", 0)] if recipe.compute.recompute == "full" else [])
    for phase, ends in passes:
        if p.sequence_parallel:  # gathered before qkv and up (and the head), summed and split after out and down
            yield phase, "all_gather", "tensor", whole // p.tp, 2 * layers + ends * last
            yield phase, "reduce_scatter", "tensor", whole, 2 * layers + ends * first
        else:
            yield phase, "all_reduce", "tensor", whole, 2 * layers + ends * first
    if p.sequence_parallel:  # qkv and up keep the local part only and gather it again
        yield "backward", "all_gather", "tensor", whole // p.tp, 4 * layers + first + last
        yield "backward", "reduce_scatter", "tensor", whole, 2 * layers + last
    else:
        yield "backward", "all_reduce", "tensor", whole, 2 * layers + last
    if last:  # the loss in fp32: the largest logit of each token, then its target and its sum of exponentials
        yield "forward", "all_reduce", "tensor", 4 * tokens, 1
        yield "forward", "all_reduce", "tensor", 8 * tokens, 1


def _messages(recipe, stage):
    """Activations and their gradients between stages, for one micro-batch.

    Whole, or with tensor parallelism as DeepSpeed's ``PartitionedTensor``: a shard, with a message that says
    how it was cut (int64: 1 + 3 dimensions + 2 + t + 1), gathered where it is used. The sender gathers its
    own output again for backward, where only the graph behind it is needed.
    """
    s, p = recipe.shape, recipe.parallel
    part = s.seq * recipe.batch.micro * s.hidden * dtype_bytes(recipe) // p.tp
    parted = p.tp > 1 and not p.sequence_parallel
    sizes = [8 * (p.tp + 7), part] if parted else [part]
    if stage < p.pp - 1:
        for size in sizes:
            yield "forward", "send", "next", size, 1
            yield "backward", "recv", "next", size, 1
        if parted:
            yield "backward", "all_gather", "tensor", part, 2
    if stage > 0:
        for size in sizes:
            yield "forward", "recv", "previous", size, 1
            yield "backward", "send", "previous", size, 1
        if parted:
            yield "forward", "all_gather", "tensor", part, 1


def _partial(recipe, stage):
    """Gradients summed before the data-parallel reduction: the tied table, and what saw a part of the sequence."""
    p = recipe.parallel
    element = BYTES[recipe.precision.grad_accum]
    for tensor in zero.tensors(recipe, stage):
        if tensor.name == "embedding" and recipe.shape.tied and p.pp > 1:
            yield "reduction", "all_reduce", "tied", element * tensor.elements
        if tensor.replicated and p.sequence_parallel:
            yield "reduction", "all_reduce", "tensor", element * tensor.elements


def _loss(recipe, stage):
    """The mean over replicas, then the replica's own and the mean to all stages; fp32."""
    p = recipe.parallel
    if stage == p.pp - 1 and p.dp > 1:
        yield "step", "all_reduce", "data", 4
    if p.pp > 1:
        yield "step", "broadcast", "pipeline", 8
