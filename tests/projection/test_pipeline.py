"""Pipeline schedules: simulation against the order of DeepSpeed and Megatron, closed forms against simulation."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import InputError, RunFailed
from repro.projection import pipeline, simulate
from repro.projection.simulate import BACKWARD, FORWARD

CLOSE = {"rel": 1e-9, "abs": 1e-9}
SECONDS = st.one_of(st.just(0.0), st.sampled_from([1.0, 2.0, 10.0]), st.floats(0.01, 2))
TRANSFER = st.one_of(st.just(0.0), st.floats(0.001, 3))


@st.composite
def steps(draw, ratio=None, p2p=TRANSFER, most=7):
    """``(forward, backward, micro_batches, p2p)`` of a pipeline, with backward / forward at random or given."""
    stages, m = draw(st.integers(1, most)), draw(st.integers(1, 3 * most))
    forward = draw(st.lists(SECONDS, min_size=stages, max_size=stages))
    backward = [ratio * x for x in forward] if ratio else draw(st.lists(SECONDS, min_size=stages, max_size=stages))
    return forward, backward, m, draw(p2p)


@st.composite
def chunked(draw):
    """``(forward, backward, micro_batches, p2p, order, blocking)`` of any schedule."""
    order = draw(st.sampled_from(tuple(simulate.ORDERS)))
    stages = draw(st.integers(2, 5))
    chunks = draw(st.integers(2, 4)) if order == "interleaved" else 1
    m = stages * draw(st.integers(1, 3)) if order == "interleaved" else draw(st.integers(1, 12))
    rows = st.lists(st.lists(SECONDS, min_size=chunks, max_size=chunks), min_size=stages, max_size=stages)
    return draw(rows), draw(rows), m, draw(TRANSFER), order, draw(st.booleans())


def per_stage(forward, backward):
    """T of each stage, and the last of the slowest."""
    seconds = np.add(forward, backward)
    return seconds, int(np.flatnonzero(seconds >= seconds.max() - 1e-12)[-1])


# The simulation itself


@pytest.mark.parametrize(("stages", "m"), [(1, 1), (1, 3), (2, 1), (2, 5), (3, 2), (4, 4), (5, 3), (6, 11), (8, 20)])
def test_order_and_transfers_are_deepspeeds(stages, m):
    from deepspeed.runtime.pipe import schedule

    for stage in range(stages):
        theirs, clock = [], schedule.TrainSchedule(m, stages, stage)
        last = None
        for number, commands in enumerate(clock):
            micro_batch, is_forward = clock._step_to_micro_batch(number)
            for command in commands:
                found = {
                    "ForwardPass": (FORWARD, micro_batch, stage),
                    "BackwardPass": (BACKWARD, micro_batch, stage),
                    "RecvActivation": (("activation", micro_batch, stage - 1),),
                    "SendActivation": (("activation", last, stage),),
                    "RecvGrad": (("gradient", micro_batch, stage + 1),),
                    "SendGrad": (("gradient", last, stage),),
                }.get(type(command).__name__)
                if found:
                    assert is_forward or found[0] != FORWARD
                    theirs.append(found)
            last = micro_batch
        assert simulate.one_f_one_b(stages, stage, m) == theirs


@pytest.mark.parametrize(("stages", "chunks", "groups"), [(2, 2, 1), (2, 3, 4), (3, 2, 2), (4, 2, 3), (4, 4, 1)])
def test_interleaved_order_is_megatrons(stages, chunks, groups):
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    m = stages * groups
    table = schedules.get_schedule_table(m, chunks, stages)
    for stage in range(stages):
        group = SimpleNamespace(size=lambda: stages, rank=lambda stage=stage: stage)
        ring = SimpleNamespace(pp_group=group, virtual_pipeline_model_parallel_size=chunks)
        total, _, lead, rest = schedules.get_pp_rank_microbatches(m, chunks, stages, p2p_communicator=ring)
        forward = [(FORWARD, j, chunk * stages + stage) for j, chunk in table]
        backward = [(BACKWARD, j, (chunks - 1 - chunk) * stages + stage) for j, chunk in table]
        theirs = forward[:lead]
        for k in range(rest):
            theirs += [forward[lead + k], backward[k]]
        theirs += backward[rest:total]
        mine = simulate.interleaved(stages, stage, m, chunks)
        assert [step for step in mine if step[0] in (FORWARD, BACKWARD)] == theirs


@settings(max_examples=60, deadline=None)
@given(chunked())
def test_a_timeline_is_one_that_can_happen(given):
    forward, backward, m, p2p, order, blocking = given
    timeline = simulate.simulate(forward, backward, m, p2p, order, blocking)
    stages, chunks = len(forward), len(forward[0])
    parts, ends, starts = stages * chunks, {}, {}
    for stage, events in enumerate(timeline.stages):
        assert [e[3] for e in events] == sorted(e[3] for e in events)
        computed = [(start, end) for kind, _, _, start, end in events if kind in (FORWARD, BACKWARD)]
        assert all(a[1] <= b[0] for a, b in pairwise(computed))
        assert len(computed) == 2 * m * chunks
        for kind, j, chunk, start, end in events:
            if kind in (FORWARD, BACKWARD):
                seconds = (forward if kind == FORWARD else backward)[stage][chunk]
                assert end - start == pytest.approx(seconds, **CLOSE)
                starts[kind, j, chunk * stages + stage], ends[kind, j, chunk * stages + stage] = start, end
            elif p2p:  # it occupies: no computing meanwhile
                assert blocking and all(b <= start + 1e-9 or a >= end - 1e-9 or a == b for a, b in computed)
    for kind, j, part in starts:
        source = part + simulate.SOURCE[kind]
        if 0 <= source < parts:
            assert starts[kind, j, part] >= ends[kind, j, source] + p2p - 1e-9
        elif kind == BACKWARD:
            assert starts[kind, j, part] >= ends[FORWARD, j, part]
    assert timeline.total == max(events[-1][4] for events in timeline.stages)
    for stage in range(stages):
        work = m * (sum(forward[stage]) + sum(backward[stage]))
        if timeline.total:
            assert timeline.compute[stage] == pytest.approx(work / timeline.total, **CLOSE)
            assert -1e-9 <= timeline.idle[stage] <= 1 - timeline.compute[stage] + 1e-9


def test_shares_and_events_of_a_small_timeline():
    timeline = simulate.simulate([1, 1], [2, 2], 2, p2p=0.5)
    assert timeline.stages[1] == [
        ("activation", 0, 0, 1, 1.5),
        ("forward", 0, 0, 1.5, 2.5),
        ("backward", 0, 0, 2.5, 4.5),
        ("gradient", 0, 0, 4.5, 5),
        ("activation", 1, 0, 5, 5.5),
        ("forward", 1, 0, 5.5, 6.5),
        ("backward", 1, 0, 6.5, 8.5),
        ("gradient", 1, 0, 8.5, 9),
    ]
    assert timeline.total == 11
    assert timeline.compute == (6 / 11, 6 / 11)
    assert timeline.idle == pytest.approx((3 / 11, 3 / 11))


def test_a_deadlock_is_named():
    with pytest.raises(RunFailed, match=r"deadlock of 2 stages.*stage 0 at \(\('gradient', 0, 1\),\)"):
        # the first stage wants a gradient before it has sent the activation
        first = [(FORWARD, 0, 0), (("gradient", 0, 1),), (("activation", 0, 0),), (BACKWARD, 0, 0)]
        simulate.play([first, simulate.one_f_one_b(2, 1, 1)], [1, 1], [1, 1])
    with pytest.raises(RunFailed, match="deadlock"):
        backward_first = [(BACKWARD, 0, 0), (FORWARD, 0, 0)]
        simulate.play([backward_first, simulate.one_f_one_b(2, 1, 1)], [1, 1], [1, 1], blocking=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 1], [1, 1], 2, 0, "1f2b"), "did you mean '1f1b'"),
        (([1, 1], [1], 2), "same stages"),
        (([], [], 2), "same stages"),
        (([1, 1], [1, -1], 2), "negative"),
        (([1, 1], [1, 1], 0), "at least 1"),
        (([[1, 1]], [[1, 1]], 2), "2 chunks"),
        (([[1, 1]] * 2, [[1, 1]] * 2, 3, 0, "interleaved"), "multiple"),
    ],
)
def test_input_is_checked(arguments, message):
    with pytest.raises(InputError, match=message):
        simulate.simulate(*arguments)


# 1F1B in closed form


@settings(max_examples=300, deadline=None)
@given(steps())
def test_stagewise_is_exact_for_blocking_transfers(given):
    forward, backward, m, p2p = given
    simulated = simulate.simulate(forward, backward, m, p2p).total
    assert pipeline.stagewise(forward, backward, m, p2p) == pytest.approx(simulated, **CLOSE)


@settings(max_examples=100, deadline=None)
@given(steps(p2p=st.just(0.0)))
def test_waiting_for_the_receiver_costs_nothing_by_itself(given):
    assert simulate.simulate(*given).total == pytest.approx(simulate.simulate(*given, blocking=False).total, **CLOSE)


@settings(max_examples=200, deadline=None)
@given(steps(ratio=2, p2p=st.just(0.0)))
def test_short_form_is_exact_if_the_last_stage_is_slowest_and_else_bounded(given):
    forward, backward, m, _ = given
    seconds, slowest = per_stage(forward, backward)
    over = pipeline.one_f_one_b(seconds.sum(), seconds.max(), m) - simulate.simulate(forward, backward, m).total
    after = seconds[slowest + 1 :]
    assert -1e-9 <= over <= min(after.sum(), (seconds.max() - after).sum()) + 1e-9


def test_longest_forward_and_backward_on_different_stages_break_the_short_form():
    assert pipeline.one_f_one_b(6, 3, 2) == 9
    assert simulate.simulate([0, 3, 0], [3, 0, 0], 2).total == pipeline.stagewise([0, 3, 0], [3, 0, 0], 2) == 12


@settings(max_examples=200, deadline=None)
@given(steps(ratio=2), st.booleans())
def test_blocking_transfers_lengthen_the_stages(given, together):
    forward, backward, m, p2p = given
    seconds, _ = per_stage(forward, backward)
    stages = len(seconds)
    ends, interior = max(seconds[0], seconds[-1]), max(seconds[1:-1], default=0)
    total, slowest = pipeline.blocking(seconds.sum(), ends, interior, stages, p2p, together)
    simulated = simulate.simulate(forward, backward, m, p2p, "1f1b-megatron" if together else "1f1b").total
    over = pipeline.one_f_one_b(total, slowest, m) - simulated
    neighbours = (np.arange(stages) > 0) * 1 + (np.arange(stages) < stages - 1)
    longer = seconds + (1 if together else 2) * p2p * neighbours
    assert slowest == pytest.approx(longer.max(), **CLOSE)
    after = longer[np.flatnonzero(longer >= longer.max() - 1e-9)[-1] + 1 :]
    assert -2 * p2p - 1e-9 <= over <= (slowest - after).sum() + 1e-9
    if not after.size:
        assert over == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 30])
def test_equal_stages_exactly(stages, m):
    f, b, c = 1.0, 2.0, 0.25
    for order, together, over in (("1f1b", False, 2 * c), ("1f1b-megatron", True, c)):
        blocked = simulate.simulate([f] * stages, [b] * stages, m, c, order).total
        total, slowest = pipeline.blocking(stages * 3.0, 3.0, 3.0, stages, c, together)
        assert pipeline.one_f_one_b(total, slowest, m) - blocked == pytest.approx(over * (stages > 2 and m > 1))
    late = simulate.simulate([f] * stages, [b] * stages, m, c, blocking=False).total
    assert late == pytest.approx((m + stages - 1) * 3 + 2 * c * (m + stages - 2 - -(-(m - 1) // stages)))


@settings(max_examples=200, deadline=None)
@given(steps(ratio=2))
def test_latency_is_never_too_short_and_its_excess_bounded(given):
    forward, backward, m, p2p = given
    seconds, _ = per_stage(forward, backward)
    total, slowest = pipeline.latency(seconds, p2p)
    over = pipeline.one_f_one_b(total, slowest, m) - simulate.simulate(forward, backward, m, p2p, blocking=False).total
    runs = [(i, j) for i in range(len(seconds)) for j in range(i + 1, len(seconds) + 1)]
    means = [(seconds[i:j].sum() + 2 * p2p * (j - i - 1)) / (j - i) for i, j in runs]
    assert slowest == pytest.approx(max(means), **CLOSE)
    last = max(j for (_, j), mean in zip(runs, means, strict=True) if mean >= slowest - 1e-9)
    assert -1e-8 <= over <= 2 * p2p + (slowest - seconds[last:] - 2 * p2p).sum() + 1e-8


def test_a_stage_slower_by_two_transfers_hides_latency():
    seconds = np.array([3, 3, 3, 3.2])
    assert pipeline.latency(seconds, 0.1)[1] == pytest.approx(3.2)
    assert pipeline.latency(seconds, 0.2)[1] == pytest.approx((12.2 + 6 * 0.2) / 4)


def test_a_trillion_parameters_worth_of_micro_batches():
    timeline = simulate.simulate([1.0] * 64, [2.0] * 64, 1600, 0.1)
    assert timeline.total == pytest.approx(1663 * 3 + 0.2 * 63 + 0.4 * 1599 - 0.2)
    assert pipeline.stagewise([1.0] * 64, [2.0] * 64, 1600, 0.1) == pytest.approx(timeline.total)


def test_arrays_broadcast():
    m, c = np.array([[1], [4], [9]]), np.array([0, 0.5])
    forward, backward = np.array([1.0, 2, 1]), np.array([2.0, 3, 4])
    found = pipeline.stagewise(forward, backward, m, c)
    assert found.shape == (3, 2)
    for i, j in np.ndindex(3, 2):
        assert found[i, j] == pytest.approx(simulate.simulate(forward, backward, m[i, 0], c[j]).total)
    total, slowest = pipeline.blocking(13.0, np.array([3.0, 5]), 5.0, np.array([[1], [2], [3]]), 0.5)
    assert slowest.tolist() == [[3, 5], [4, 6], [7, 7]]
    assert total.tolist() == [[13], [14], [15]]
    assert pipeline.latency(np.ones((4, 5, 6)), 0.1)[1].shape == (4, 5)
    assert pipeline.latency(np.ones((4, 6)), np.full(4, 0.1))[0].shape == (4,)


# Other schedules


def interleaved_both(p, v, m, f, b, first=(0, 0), last=(0, 0), c=0.0, overlapped=False):
    """Simulated seconds, and those of the closed form."""
    forward, backward = ([[x] * v for _ in range(p)] for x in (f, b))
    for side, number in ((forward, 0), (backward, 1)):
        side[0][0] += first[number]
        side[-1][-1] += last[number]
    simulated = simulate.simulate(forward, backward, m, c, "interleaved", not overlapped).total
    return simulated, pipeline.interleaved(f + b, m, p, v, sum(first), sum(last), c, overlapped)


INTERLEAVED = st.tuples(st.integers(2, 6), st.integers(2, 4), st.integers(1, 4), st.floats(0.3, 1), st.floats(0.3, 2))


@settings(max_examples=150, deadline=None)
@given(INTERLEAVED, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_interleaved_is_exact_with_equal_chunks_or_a_head(sizes, forward, backward, share, overlapped):
    p, v, groups, f, b = sizes
    c = share * min(f, b)
    simulated, closed = interleaved_both(p, v, p * groups, f, b, last=(forward, backward), c=c, overlapped=overlapped)
    if overlapped or groups > 1:
        assert closed == pytest.approx(simulated, **CLOSE)
    else:
        assert closed - 1e-9 <= simulated <= closed + c + 1e-9


@settings(max_examples=150, deadline=None)
@given(INTERLEAVED, *[st.floats(0, 1)] * 4, st.sampled_from([0, 0.3]), st.booleans())
def test_interleaved_with_both_ends_longer(sizes, f0, b0, f1, b1, share, overlapped):
    p, v, groups, f, b = sizes
    simulated, closed = interleaved_both(p, v, p * groups, f, b, (f0, b0), (f1, b1), share * min(f, b), overlapped)
    if overlapped:
        assert closed >= simulated - 1e-9
        if not share and f1 + b1 >= f0 + b0:
            assert closed == pytest.approx(simulated, **CLOSE)
    assert -0.2 < closed / simulated - 1 < 0.25


def test_bubble_of_the_interleaved_schedule_is_the_papers():
    simulated, closed = interleaved_both(4, 2, 8, 1, 2)
    assert simulated == closed == 8 * 6 * (1 + 3 / (2 * 8))


def test_interleaved_input_is_checked():
    for m, p, v in ((6, 4, 2), (4, 1, 2), (4, 2, 1)):
        with pytest.raises(InputError, match="interleaved needs"):
            pipeline.interleaved(1.0, np.array([m, 8]), p, v)


@settings(max_examples=100, deadline=None)
@given(steps(), st.booleans())
def test_gpipe_is_exact(given, blocking):
    forward, backward, m, p2p = given
    stages = len(forward)
    neighbours = (np.arange(stages) > 0) * 1 + (np.arange(stages) < stages - 1)
    f, b = ((np.array(side) + blocking * p2p * neighbours).max() for side in (forward, backward))
    closed = pipeline.gpipe(sum(forward) + sum(backward), f, b, m, stages, p2p)
    assert closed == pytest.approx(simulate.simulate(forward, backward, m, p2p, "gpipe", blocking).total, **CLOSE)
