"""Seconds of a step's forwards and backwards over a pipeline, in closed form. No torch.

All arguments are numbers or numpy arrays that broadcast together, in seconds. What is said to be exact or bounded holds
against the event simulation of :mod:`repro.projection.simulate` wherever it was tried at random
(``tests/projection/test_pipeline.py``); other deviations are the largest found there.

Letters: p stages, m micro-batches, v chunks of a stage, c seconds of one transfer, f and b seconds of a forward
and a backward (recomputation included) of one micro-batch on one stage, T = f + b.
"""

import numpy as np

from repro.errors import InputError


def one_f_one_b(total, slowest, micro_batches):
    """1F1B: total + (m - 1) slowest.

    With free transfers exact if the last stage is a slowest one, for any m, also m < p (equal stages:
    (m + p - 1) T; arXiv 2104.04473 sec. 2.2). If stage s is, the last of the slowest, it is too long, by at most
    min(sum of T after s, sum of (slowest - T) after s): after the last micro-batch has left s, its way to the end and
    back is all that remains. All this supposes that one stage has both the longest forward and the longest
    backward, as where b / f is the same on all; otherwise :func:`stagewise` is exact and this off on either side.

    Args:
        total: sum of T over the stages, of one micro-batch; from :func:`blocking` or :func:`latency` with transfers.
        slowest: the largest T; likewise.
    """
    return total + (np.asarray(micro_batches) - 1) * slowest


def blocking(total, ends, interior, stages, p2p, together=False):
    """``total`` and ``slowest`` of :func:`one_f_one_b` where a transfer occupies both ranks, as with DeepSpeed.

    total + 2 c (p - 1), and the larger of ends + 2 c and interior + 4 c. Between two neighbours a gradient
    and an activation cross one after the other, and neither computes: an interior stage spends 4 c on every
    micro-batch, the first and the last 2 c. No waiting comes on top, as every cycle of dependences is that of one
    stage. Where both cross together, it is 2 c and c.

    Exact if the last stage is slowest, transfers counted. Equal stages: 2 c (together c) too long for p > 2 and m > 1,
    else exact; otherwise as :func:`one_f_one_b` with T of the stages so lengthened, but too long by at most the sum
    of (slowest - T) after s, and up to 2 c too short. Not together, :func:`stagewise` is always exact.

    Args:
        ends: the larger T of the first and last stage.
        interior: the largest T of the others; without meaning for p < 3.
        stages: p.
        together: gradient and activation in one exchange, both ways at once: Megatron.
    """
    ends, stages = np.asarray(ends), np.asarray(stages)
    meeting = p2p * np.where(together, 1, 2)
    occupied = np.where(stages > 1, ends + meeting, ends)
    slowest = np.where(stages > 2, np.maximum(occupied, interior + 2 * meeting), occupied)
    return total + 2 * p2p * (stages - 1), slowest


def latency(seconds, p2p):
    """``total`` and ``slowest`` of :func:`one_f_one_b` where transfers occupy nobody and data only come c later.

    total + 2 c (p - 1), and the largest, over runs of n neighbouring stages, of (sum of their T + 2 c (n - 1)) / n:
    a stage has no more micro-batches in flight than stages follow, which cannot hide a way there and back.
    Equal stages: T + 2 c (p - 1) / p. A stage slower by 2 c or more hides it: then the slowest T alone.

    Never too short; too long by at most 2 c and, for stages k after the slowest run, the sum of
    (slowest - T_k - 2 c). Equal stages exactly: (m + p - 1) T + 2 c (m + p - 2 - ceil((m - 1) / p)).

    Args:
        seconds: T of the stages on the last axis.
    """
    seconds, c = np.asarray(seconds, float), np.asarray(p2p, float)
    stages = seconds.shape[-1]
    summed = np.cumsum(seconds, axis=-1)
    slowest = seconds.max(axis=-1)
    for n in range(2, stages + 1):
        runs = summed[..., n - 1 :].copy()
        runs[..., 1:] -= summed[..., :-n]
        slowest = np.maximum(slowest, (runs.max(axis=-1) + 2 * c * (n - 1)) / n)
    return summed[..., -1] + 2 * c * (stages - 1), slowest


def stagewise(forward, backward, micro_batches, p2p=0.0):
    """1F1B with any times on any stage and blocking transfers: exact (with p2p = 0, for free ones).

    The longest chain of dependences turns at one stage s. It gets there by forwards, waiting at the slowest of
    them while the warm-up's micro-batches pass, and by the first gradient; it stays at s for as many micro-batches
    as are not in warm-up there; its end is its beginning in reverse, with f and b exchanged. With
    w_s = min(p - 1 - s, m - 1) and e_s the neighbours of s::

        begin_s = max over k >= s of  f_0 + .. + f_k + k c + w_k max(f_i + e_i c, i <= k) + 2 c [k < p - 1]
                                      + (b_i and its transfers, s < i <= k)
        seconds = max over s of  begin_s + (m - 1 - w_s) (T_s + 2 e_s c) - 2 c [s < p - 1] + end_s

    where a first gradient's transfer takes 2 c, as an activation crosses it, or c if m is too small for that. Where
    m - 1 = w_s, s does all forwards before its first backward: the chain is begin_s and then all backwards in a row
    from s to the first stage, or that in reverse.

    Args:
        forward: f of the stages on the last axis.
        backward: likewise.
        micro_batches: over the other axes.
        p2p: over the other axes.
    """
    f, b = np.broadcast_arrays(np.asarray(forward, float), np.asarray(backward, float))
    m, c = np.asarray(micro_batches)[..., None], np.asarray(p2p, float)[..., None]
    stage, stages = np.arange(f.shape[-1]), f.shape[-1]
    after = stages - 1 - stage
    neighbours, inner = (stage > 0) * 1 + (after > 0), 1 * (after > 0)
    wait = np.minimum(after, m - 1)
    stay = m - 1 - wait
    hop = np.where(after < m, 2 * c, c) * inner  # of the first gradient from the stage that follows
    hops = np.cumsum(hop, axis=-1) - hop

    def side(f, b):
        """The chain's beginning at each stage; from the first stage to it, all passes f in a row."""
        there, back = np.cumsum(f, axis=-1) + stage * c, np.cumsum(b, axis=-1) + hops
        longest = np.maximum.accumulate(f + neighbours * c, axis=-1)
        begin = there + wait * longest + 2 * c * inner + back
        return np.maximum.accumulate(begin[..., ::-1], axis=-1)[..., ::-1] - back, there + (m - 1) * longest

    (begin, forwards), (end, backwards) = side(f, b), side(b, f)
    turning = begin + stay * (f + b + 2 * neighbours * c) - 2 * c * inner + end
    in_a_row = np.maximum(begin + backwards, forwards + end)
    return np.where(stay > 0, turning, in_a_row).max(axis=-1)


def interleaved(chunk, micro_batches, stages, chunks, first=0.0, last=0.0, p2p=0.0, overlapped=False):
    """Megatron's interleaved 1F1B: (m v + p - 1) t + m max(first, last) + p min(first, last) + transfers.

    t is the T of one chunk: a bubble of (p - 1) t beside m v t of work, (p - 1) / (v m) of it (arXiv 2104.04473
    sec. 2.2). There are v times as many transfers as without interleaving. Not overlapped they go once in an
    iteration, all four of a rank together, and take (m v + p v + p - 3) c. Overlapped they are hidden but in the
    first and last passage, 2 (p v - 1) c, if c is no longer than a chunk's f and its b.

    Exact with equal chunks or a longer last one for m >= 2 p; at m = p, not overlapped, up to c too short. With both
    ends longer exact if last >= first and transfers are free and overlapped, else found from 10 % too short to 19 % too
    long for ends up to twice as long as their chunk, and within 6 % for a fifth longer: overlapped never too short,
    too long where the slow first stage hides the bubble; not overlapped too short, as either end delays all.

    Args:
        chunk: t, the same for all chunks but for the two ends.
        chunks: v, at least 2.
        first: what the first chunk of the first stage takes longer, the embedding.
        last: what the last chunk of the last stage takes longer, the head.
        overlapped: whether transfers occupy nobody (``overlap_p2p_comm``).
    """
    m, p, v = np.asarray(micro_batches), np.asarray(stages), np.asarray(chunks)
    if np.any(p < 2) or np.any(m % p) or np.any(v < 2):
        raise InputError("interleaved needs at least 2 stages and 2 chunks, and micro-batches in a multiple of stages")
    ends = m * np.maximum(first, last) + p * np.minimum(first, last)
    exposed = np.where(overlapped, 2 * (p * v - 1), m * v + p * v + p - 3)
    return (m * v + p - 1) * chunk + ends + exposed * p2p


def gpipe(total, slowest_forward, slowest_backward, micro_batches, stages=1, p2p=0.0):
    """All forwards, then all backwards: total + 2 c (p - 1) + (m - 1) (slowest forward + slowest backward). Exact.

    Args:
        slowest_forward: the largest f; with blocking transfers the largest f + 2 c, or f + c for the ends.
        slowest_backward: likewise.
    """
    steady = slowest_forward + slowest_backward
    return total + 2 * p2p * (np.asarray(stages) - 1) + (np.asarray(micro_batches) - 1) * steady
