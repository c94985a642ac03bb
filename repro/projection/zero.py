"""Gradient reduction and optimizer step as DeepSpeed 0.19.8 issues them: which tensors travel together. No torch.

Three ways, chosen by DeepSpeed's engine from ZeRO stage and dtypes:

* ``bf16``: ``runtime/bf16_optimizer.py``, bf16 weights with fp32 accumulation. Gradients of all local weights
  in two flat fp32 buffers, reduced in bf16.
* ``zero1``: ``runtime/zero/stage_1_and_2.py``, accumulation in the dtype of the weights.
* ``plain``: ZeRO stage 0, fp32; ``runtime/engine.py``.
"""

from itertools import pairwise

from repro.parameters import tensors

REDUCE_AT_ONCE = 500_000_000  # MEMORY_OPT_ALLREDUCE_SIZE; zero.reduce_bucket counts for zero1 only
ALIGNMENT = 2  # nccl_start_alignment_factor: a shard starts on 4 bytes


def way(recipe):
    """``bf16``, ``zero1`` or ``plain``."""
    if recipe.zero.stage == 0:
        return "plain"
    return "bf16" if (recipe.precision.dtype, recipe.precision.grad_accum) == ("bf16", "fp32") else "zero1"


def groups(recipe, stage):
    """Tensors of the two parameter groups, matrices and vectors, each in order."""
    held = tensors(recipe, stage)
    return [t for t in held if t.matrix], [t for t in held if not t.matrix]


def padded(recipe, stage):
    """Elements of each flat parameter group, padded so that all replicas get equal aligned shards."""
    unit = ALIGNMENT * recipe.parallel.dp
    return tuple(-(-sum(t.elements for t in group) // unit) * unit for group in groups(recipe, stage))


def joined(sizes, most):
    """Consecutive sizes joined until their sum exceeds ``most``, as ``[how many, sum]``: ``allreduce_no_retain``."""
    found, fresh = [], True
    for size in sizes:
        if fresh:
            found.append([0, 0])
        found[-1][0] += 1
        found[-1][1] += size
        fresh = found[-1][1] > most
    return found


def buckets(sizes, most):
    """The sums of :func:`joined`."""
    return [total for _, total in joined(sizes, most)]


def reductions(recipe, stage):
    """Elements of each all-reduce over the replicas, in order."""
    kind = way(recipe)
    if kind == "bf16":
        return buckets(padded(recipe, stage), REDUCE_AT_ONCE)
    if kind == "plain":
        return buckets((t.elements for t in tensors(recipe, stage)), REDUCE_AT_ONCE)
    most, found, current = recipe.zero.reduce_bucket, [], 0
    for size, group in zip(padded(recipe, stage), groups(recipe, stage), strict=True):
        share, offset = size // recipe.parallel.dp, 0
        for tensor in group:
            if current and current + tensor.elements > most:
                found.append(current)
                current = 0
            if tensor.elements > most:  # alone, cut where the shards of two replicas meet
                found += buckets(pieces(offset, tensor.elements, share)[1], most)
            else:
                current += tensor.elements
            offset += tensor.elements
    return [*found, current] if current else found


def pieces(offset, elements, share):
    """A tensor at ``offset`` of its flat group, cut where shards meet: owning replicas, and elements of each piece."""
    end = offset + elements
    cuts = [offset, *range((offset // share + 1) * share, end, share), end]
    return [cut // share for cut in cuts[:-1]], [b - a for a, b in pairwise(cuts)]


def reduction(recipe, stage):
    """``(phase, kind, group, bytes)`` of each all-reduce of gradients, in order."""
    element = 4 if recipe.precision.dtype == "fp32" else 2  # communication_data_type: that of the weights
    for elements in reductions(recipe, stage):
        yield "reduction", "all_reduce", "data", element * elements


def step(recipe, stage):
    """``(phase, kind, group, bytes)`` of each transfer of the optimizer step, in order."""
    p, kind = recipe.parallel, way(recipe)
    element = 4 if recipe.precision.dtype == "fp32" else 2
    if kind == "plain":
        if recipe.optimizer.clip > 0:
            yield "step", "all_reduce", "model", 4
            yield "step", "all_reduce", "data", 4
        return
    if kind == "bf16":
        yield "step", "all_reduce", "model", 4
    else:
        if recipe.precision.dtype != "fp32":  # the overflow flag, one byte
            yield "step", "all_reduce", "data", 1
            if p.tp * p.pp > 1:
                yield "step", "all_reduce", "model", 1
        for _ in range(2):  # the norm of each parameter group
            yield "step", "all_reduce", "data", 4
            if p.tp * p.pp > 1:
                yield "step", "all_reduce", "model", 4
    if p.dp > 1:
        for size in padded(recipe, stage):
            yield "step", "all_gather", "data", element * size // p.dp
