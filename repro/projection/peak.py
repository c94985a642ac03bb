"""Peak memory of the fullest stage for many layouts at once: a closed form of :mod:`repro.projection.memory`. No torch.

Arrays ``[n, 3]``: the first stage, the one behind it, the last. Stages between hold no more layers and fewer
micro-batches than the second. A stage's peak is the highest of a few moments: the top block's backward, the loss, the
bottom of the stage, the reduction, the optimizer step. Bytes; letters as in :mod:`repro.projection.layers`.
"""

from functools import reduce
from types import SimpleNamespace

import numpy as np

from repro.projection.zero import ALIGNMENT, REDUCE_AT_ONCE

INT = 8  # bytes of a token or a size
ERROR = 0.01  # of the exact peak, either way, where that is 1 GiB or more; 0.03 below (tests/projection/test_sweep.py)


def fullest(columns):
    """``(bytes, stage)`` of the fullest stage of each layout, stages balanced.

    Args:
        columns: arrays as in :func:`repro.projection.work.layout`, and ``reduce_bucket``, in elements.
    """
    c = SimpleNamespace(**{key: np.asarray(value, float)[:, None] for key, value in columns.items()})
    stages = np.concatenate([0 * c.pp, np.minimum(1, c.pp - 1), c.pp - 1], axis=1)
    peaks = _peaks(c, stages)
    kind = np.argmax(peaks, axis=1)[:, None]
    return np.take_along_axis(peaks, kind, 1)[:, 0], np.take_along_axis(stages, kind, 1)[:, 0].astype(int)


def _peaks(c, stages):
    k = _kinds(c, stages)
    a = _sizes(c)
    w = _weights(c, k)
    block = _block(c, a)
    live = _live(c, k, a, w, block)
    return _most(*_blocks(c, k, a, block, live), *_ends(c, k, a, w, live), *_after(c, w, live))


def _kinds(c, stages):
    depth = np.minimum(c.pp - stages, c.m)
    return SimpleNamespace(
        first=1.0 * (stages == 0),
        last=1.0 * (stages == c.pp - 1),
        layers=np.floor_divide(c.layers, c.pp) + (stages < np.mod(c.layers, c.pp)),
        depth=depth,  # micro-batches in flight
        steady=c.m > depth,  # as many are when gradients of an earlier one are there
    )


def _most(*values):
    return reduce(np.maximum, values)


def _sizes(c):
    """Bytes of tensors on one rank."""
    tokens = c.seq * c.micro
    whole = tokens * c.hidden * c.element
    parted = (c.tp > 1) & (c.sequence_parallel == 0)
    outer = np.where(c.sequence_parallel > 0, whole / c.tp, whole)
    return SimpleNamespace(
        tokens=tokens,
        whole=whole,
        outer=outer,  # outside the sharded regions
        context=whole / c.tp,
        inner=tokens * c.ffn * c.element / c.tp,
        scores=tokens * c.seq * c.heads * c.element / c.tp,
        statistics=2 * outer / c.hidden,
        logits=tokens * c.vocab * c.element / c.tp,
        table=c.vocab * c.hidden * c.element / c.tp,
        parted=parted,
        part=np.where(parted, whole / c.tp, outer),  # of what goes between stages
        shapes=np.where(parted, INT * (c.tp + 7), 0),
        gathered=np.where(c.sequence_parallel > 0, whole, 0),
        masked=c.dropout * outer / c.element,  # a dropout mask
    )


def _weights(c, k):
    """What stays between steps, and counts of parameters; the three ways of :mod:`repro.projection.zero`."""
    h, f, t = c.hidden, c.ffn, c.tp
    layers, first, last = k.layers, k.first, k.last
    table = c.vocab * h / t
    tables = np.where(c.tied > 0, np.maximum(first, last), first + last)
    positions = first * c.positions * c.seq * h
    matrices = layers * (4 * h * h + 2 * h * f) / t + table * tables + positions
    vectors = layers * ((3 * h + f) / t + 6 * h) + last * 2 * h + first * c.embedding_norm * 2 * h
    unit = ALIGNMENT * c.dp
    shards = [np.ceil(part / unit) * ALIGNMENT for part in (matrices, vectors)]
    flat = c.dp * sum(shards)
    plain, bf16 = c.sharded == 0, (c.sharded > 0) & (c.accumulate > c.element)
    count = matrices + vectors
    copy = last * (1 - first) * c.tied  # its norm is not taken
    largest = np.maximum(np.maximum(3 * h * h, h * f) / t, positions)
    ends = [layers, table * np.maximum(first, last * c.tied), positions, matrices]
    bucketed = _boundaries(c, *ends, c.reduce_bucket)[0]  # of ZeRO-1's first bucket
    owned = _boundaries(c, *ends, matrices / c.dp)[1]  # whole tensors that a shard has a part of
    unfused = c.flash == 0
    return SimpleNamespace(
        states=np.where(plain, (c.element + 8) * count, c.element * flat + 12 * sum(shards) + bf16 * 4 * flat),
        mask=unfused * (c.seq**2 + (1 - c.positions) * c.micro * c.heads / t * c.seq * c.element),
        bucket=np.where(plain | bf16, 0, c.element * c.reduce_bucket),
        count=count,
        flat=flat,
        shards=shards,
        largest=np.maximum(largest, table * (tables > 0)),
        largest_normed=np.maximum(largest, table * (tables > copy)),
        bucketed=np.where(count <= c.reduce_bucket, count, bucketed),
        owned=owned + vectors / c.dp,
        plain=plain,
        bf16=bf16,
        matrices=matrices,
    )


def _boundaries(c, layers, table, positions, matrices, at):
    """Where tensors of the matrices end that lie around element ``at``: not after it, not before it."""
    h, f, t = c.hidden, c.ffn, c.tp
    inner = np.cumsum([0 * h, 3 * h * h / t, h * h / t, f * h / t, f * h / t], axis=0)
    block, start = inner[-1], table + positions
    blocks = start + layers * block
    inside = np.clip(at - start, 0, layers * block)
    whole = np.floor(inside / block) * block
    below = whole + _most(*(np.where(end <= inside - whole, end, 0) for end in inner))
    above = whole - _most(*(np.where(end >= inside - whole, -end, -block) for end in inner))
    below = np.where(at < start, (at >= table) * table, np.where(at < blocks, start + below, blocks))
    above = np.where(at > start, np.where(at > blocks, matrices, start + above), np.where(at > table, start, table))
    return np.where(at >= matrices, matrices, below), above


def _block(c, a):
    """A block's backward.

    Returns:
        ``kept`` by its forward, its input apart; ``moments``, bytes beyond what is kept at the highest points;
        ``grown``, gradients of its own weights that a first backward holds by then; ``weights``, of all.
    """
    h, f, t, e = c.hidden, c.ffn, c.tp, c.element
    up, out = e * h * f / t, e * h * h / t
    flash = c.flash > 0
    lse = 4 * a.tokens * c.heads / t
    scores = np.where(flash, lse, a.scores * (1 + c.dropout * (1 + 1 / e)))
    kept = 3 * a.outer + 2 * a.statistics + 4 * a.context + scores + 2 * a.inner + 2 * a.masked
    branch = np.where(a.gathered > 0, a.whole, c.dropout * a.outer)  # the gradient of a residual's branch
    down = branch + a.inner + up - a.masked
    rows = np.where(a.gathered > 0, a.whole + a.outer, a.whole)  # the gradient of a column's input
    columns = rows + np.maximum(up, a.gathered) - a.inner - a.masked
    # of the MLP branch nothing is left, but the sum of both gradients is new
    attention = a.outer - a.masked - 2 * a.inner - 2 * a.outer - a.statistics
    row = attention + branch - a.masked + a.context + out
    flashed = 4 * a.context
    unfused = np.maximum(a.context + a.scores, (2 - c.dropout) * a.scores)
    core = attention - a.masked + np.where(flash, flashed, unfused)
    forward = c.recompute * np.where(a.gathered > 0, a.whole - a.masked, a.outer)  # the end of the second forward
    return SimpleNamespace(
        kept=kept,
        moments=[forward, down, columns, row, core],
        grown=[0, 0, up, 2 * up, 2 * up + out],
        weights=4 * out + 2 * up,
    )


def _live(c, k, a, w, block):
    """What is alive beside the work at hand.

    Returns:
        ``base`` between steps and ``running`` in one, gradients apart; ``gradients``; ``held`` by a micro-batch in
        flight; ``old``, what the pipe buffers of the last stage keep of one; ``beside`` a block's backward.
    """
    blocks = k.layers * (a.outer + (1 - c.recompute) * block.kept)
    entry = a.masked + c.embedding_norm * (a.outer + a.statistics) + np.where(c.tp > 1, 17, 16) * a.tokens
    received = np.where(a.parted, 0, a.outer)  # a second time
    sent = np.where(a.parted, a.part + a.shapes, a.outer)
    several = c.pp > 1
    buffers = several * (a.part + a.shapes * (2 - np.maximum(k.first, k.last)))
    old = k.last * (a.logits + several * 2 * a.outer)  # logits, input and its gradient
    base = w.states + w.mask + buffers + (c.m > 1) * old  # of two slots, the one not in work
    waiting = k.first * k.last * c.tied * a.table
    return SimpleNamespace(
        base=base,
        running=base + w.bucket,
        gradients=c.element * w.count,
        held=blocks + k.first * entry + (1 - k.first) * received + (1 - k.last) * sent,
        old=old,
        beside=np.where(k.last > 0, a.logits + a.outer + waiting, np.where(a.parted, 2 * a.whole, 0)),
    )


def _blocks(c, k, a, block, live):
    """The top block's backward; in a first micro-batch's the one below and the bottom one too, as gradients grow."""
    work = live.beside + c.recompute * (block.kept + a.outer)  # a block run again, with its output
    flying = np.where(k.steady, k.depth, k.depth - 1)
    full = flying * live.held + np.where(flying > 0, work + _most(*block.moments), 0)
    growing = _most(*(moment + grown for moment, grown in zip(block.moments, block.grown, strict=True)))
    step = block.weights - a.outer - (1 - c.recompute) * block.kept  # from one block to the one below
    lower = np.where(k.layers > 1, _most(0, a.outer + step, a.outer + (k.layers - 1) * step), 0)
    head = k.first * k.last * (1 - c.tied) * a.table
    first = k.depth * live.held + work + growing + lower + head
    return [live.running + live.gradients + full, np.where(k.steady, 0, live.running + first)]


def _ends(c, k, a, w, live):
    """The head with its loss, the embedding, and bf16 gradients cast one by one."""
    e = c.element
    normed = 2 * a.outer + a.statistics + a.logits  # the last output, its norm, the logits
    forward = normed + live.old + a.gathered
    loss = normed + (4 / e + (e < 4)) * a.logits
    head = normed + a.logits + a.gathered + np.where(a.gathered > 0, a.outer, a.whole) + a.table
    earlier = k.steady * (live.gradients + w.bucket)  # of an earlier micro-batch
    head = live.base + earlier + live.held + _most(forward, loss, head)
    done = live.running + live.gradients + (k.depth - 1) * live.held + live.beside + a.outer
    tables = k.steady + k.first * k.last * c.tied  # beside the new gradient: the earlier one, that of the head
    entry = done + (c.tp > 1) * a.whole + a.gathered + tables * a.table
    return [k.last * head, k.first * entry, w.bf16 * (done + 4 * w.largest)]


def _after(c, w, live):
    """Reduction and optimizer step, when no micro-batch is in flight; see :mod:`repro.projection.states`."""
    e, base, gradients = c.element, live.base + live.old, live.gradients
    shard, matrices = e * w.owned, w.shards[0]
    moved = np.maximum(0, shard - e * w.bucketed)  # the shard is allocated when a first bucket is full
    zero1 = gradients + 2 * w.bucket + moved
    joined = w.matrices <= REDUCE_AT_ONCE
    bf16 = gradients + np.where(joined, 6 * w.flat, 2 * w.matrices)
    plain = gradients + 4 * np.minimum(w.count, REDUCE_AT_ONCE)
    reduction = base + np.where(w.plain, plain, np.where(w.bf16, bf16, zero1))
    normed = 8 * np.minimum(w.largest_normed, matrices)
    step = base + shard + np.maximum(normed, (e + np.where(e < 4, 4, 0)) * matrices)
    return [reduction, np.where(w.plain | w.bf16, 0, step)]
