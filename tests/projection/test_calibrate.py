"""Calibration: constants that are known come back, and the fit is the least of what it minimises."""

from dataclasses import replace

import numpy as np
import pytest

from repro.errors import InputError
from repro.projection import calibrate, machine, step
from repro.projection.belief import named_runs
from repro.records import published_runs

SELENE, JEAN_ZAY = machine.load("a100-selene"), machine.load("a100-jeanzay")
TABLE = [run for run in published_runs.runs("SC21 Table 1") if run.seconds]


def measured_on(points, where):
    """The runs as if they had been measured on a machine, without noise."""
    return replace(points, seconds=points.predict(where)[0])


def objective(points, where, z):
    """What a fit minimises at deviations ``{name: z}``, written without the step's arrays of samples."""
    moved = where.with_constants(**{name: where.constants[name].at(d) for name, d in z.items()})
    off = np.log(points.predict(moved)[0] / points.seconds) / calibrate.CALIBRATION_ERROR
    return np.sum(off**2) + sum(d**2 for d in z.values())


@pytest.mark.parametrize(
    "truth",
    [
        {"gemm_ceiling": 0.82},
        {"gemm_ceiling": 0.9},
        {"gemm_ceiling": 0.84, "gemm_bandwidth": 0.55},
        {"memory_efficiency": 0.7},
        {"step_seconds": 0.1},
    ],
)
def test_known_constants_come_back(truth):
    made = measured_on(calibrate.points(TABLE), SELENE.with_constants(**truth))
    found = calibrate.fit(SELENE, made, list(truth))
    for name, value in truth.items():
        constant = found.constants[name]
        # the range in the profile pulls a little; what these runs hardly feel it holds more
        assert abs(constant.value / value - 1) < 0.2 * abs(SELENE.constants[name].value / value - 1) + 0.002, name
        assert constant.low == constant.high == constant.value and constant.kind == "fitted"
    assert "SC21-T1-1.7B" in found.constants[next(iter(truth))].source
    untouched = set(SELENE.constants) - set(truth)
    assert all(found.constants[name] == SELENE.constants[name] for name in untouched)
    assert made.predict(found)[0] == pytest.approx(made.seconds, rel=0.003)


def test_one_run_and_one_constant_by_bisection():
    """Of one run the fit lies between the run and the profile; here found in another way."""
    points = calibrate.points(named_runs(["LUMI-175B-16n"]))
    lumi = machine.load("lumi")
    low, high = -6.0, 6.0
    for _ in range(60):
        z, small = (low + high) / 2, 1e-5
        rising = objective(points, lumi, {"gemm_ceiling": z + small}) > objective(
            points, lumi, {"gemm_ceiling": z - small}
        )
        low, high = (low, z) if rising else (z, high)
    found = calibrate.most_likely(lumi, points, ["gemm_ceiling"])[0]
    assert found[0] == pytest.approx(z, abs=1e-3)
    value = calibrate.fit(lumi, points, ["gemm_ceiling"]).constants["gemm_ceiling"].value
    assert value == pytest.approx(lumi.constants["gemm_ceiling"].at(float(found[0])))


def test_no_constants_nearby_explain_the_runs_better():
    names = JEAN_ZAY.calibration["constants"]
    points = calibrate.points(named_runs(JEAN_ZAY.calibration["points"]))
    z, factor = calibrate.most_likely(JEAN_ZAY, points, names)
    least = objective(points, JEAN_ZAY, dict(zip(names, z, strict=True)))
    draw = np.random.default_rng(3)
    for scale in (0.01, 0.1, 1.0):
        for move in scale * draw.standard_normal((20, len(names))):
            assert objective(points, JEAN_ZAY, dict(zip(names, z + move, strict=True))) > least
    # of steps drawn from the covariance given with it, each direction costs one on average: their sum as many as names
    rises = [
        objective(points, JEAN_ZAY, dict(zip(names, z + 0.2 * factor @ unit, strict=True))) - least
        for unit in draw.standard_normal((200, len(names)))
    ]
    assert np.mean(rises) / 0.04 == pytest.approx(len(names), rel=0.2)


def test_without_runs_near_a_constant_it_stays_in_the_middle_of_its_range():
    """Runs on one device each know nothing of the network."""
    alone = [run for run in TABLE if run.tp * run.pp == 1]
    points = calibrate.points(alone)
    z, factor = calibrate.most_likely(SELENE, points, ["gemm_ceiling", "nic_message", "hop_seconds"])
    assert z[1:] == pytest.approx([0, 0], abs=1e-9)
    assert (factor @ factor.T)[1:, 1:] == pytest.approx(np.eye(2), abs=1e-6)
    assert (factor @ factor.T)[0, 0] < 0.6  # what they do know


def test_a_constant_stays_below_its_bound():
    points = calibrate.points(TABLE)
    fast = replace(points, seconds=points.seconds / 3)
    found = calibrate.fit(SELENE, fast, ["link_efficiency", "gemm_ceiling"])
    assert found.constants["gemm_ceiling"].value <= 1 and found.constants["link_efficiency"].value <= 1


def test_an_item_left_out_is_made_up_for():
    points = calibrate.points(TABLE)
    whole = calibrate.fit(SELENE, points, ["gemm_ceiling"])
    less = calibrate.fit(SELENE, points, ["gemm_ceiling"], without=("operands of products",))
    assert less.constants["gemm_ceiling"].value < whole.constants["gemm_ceiling"].value


@pytest.mark.parametrize(
    ("names", "told"),
    [(["gemm_celing"], "did you mean 'gemm_ceiling'"), (["gemm_bandwidth", "gemm_ceiling"], "has no range")],
)
def test_what_cannot_be_fitted_is_refused(names, told):
    known = SELENE.with_constants(gemm_ceiling=0.87)
    with pytest.raises(InputError, match=told):
        calibrate.fit(known, calibrate.points(TABLE), names)


def test_nothing_to_fit_leaves_the_machine_as_it_is():
    assert calibrate.fit(SELENE, calibrate.points(TABLE), []).constants == SELENE.constants


def test_points_are_the_runs_as_they_ran():
    ids = ["SC21-T1-76B", "LUMI-175B-16n", "FR-22B-tflops"]
    runs = named_runs(ids)
    points = calibrate.points(runs)
    layouts = points.work.layouts
    assert layouts.interleave.ravel().tolist() == [3, 1, 1]
    assert layouts.deepspeed.ravel().tolist() == [0, 1, 1]  # Megatron-LM without ZeRO
    assert layouts.sharded.ravel().tolist() == [0, 1, 1]
    assert layouts.m.ravel().tolist() == [run.micro_batches for run in runs]
    assert points.seconds.tolist() == [run.seconds for run in runs]
    assert runs[0].tflops(points.seconds[0]) == pytest.approx(runs[0].value)
    assert points.work.layers[1, :3].tolist() == [9, 7, 9]


def test_the_first_iteration_of_the_log_is_cold_and_no_other_run():
    shares = {run.id: calibrate.cold_share(run) for run in published_runs.runs()}
    cold = [name for name, share in shares.items() if share]
    assert len(cold) == 1 and cold[0].endswith("log-405287-1") and shares[cold[0]] == 1
    points = calibrate.points(named_runs(cold))
    warm = replace(points, cold_share=np.zeros(1))
    where = machine.load("frontier")
    more = points.predict(where) - warm.predict(where)
    assert more.item() == pytest.approx(where.constants["cold_stage_seconds"].value * points.runs[0].pp)


def test_a_run_without_a_time_is_no_point():
    efficiency = next(run for run in published_runs.runs() if run.seconds is None)
    with pytest.raises(InputError, match=efficiency.id):
        calibrate.fit(machine.load("frontier"), calibrate.points([efficiency]), ["gemm_ceiling"])


def test_predictions_are_those_of_the_step():
    points = calibrate.points(TABLE)
    assert points.predict(SELENE)[0] == pytest.approx(step.step(points.work, SELENE).seconds[0])
    some = points.predict(SELENE, step.constants(SELENE, {"gemm_ceiling": np.array([-1.0, 0.0, 1.0])}))
    assert some.shape == (3, len(TABLE))
    assert np.all(np.diff(some, axis=0) < 0)
