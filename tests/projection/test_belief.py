"""Beliefs: learning against plain importance sampling, bands that narrow, readings of open sources."""

from dataclasses import fields, replace

import numpy as np
import pytest

from repro.errors import InputError
from repro.projection import belief, calibrate, machine, readings, step, work
from repro.projection.belief import named_runs
from repro.recipe import load
from repro.records import published_runs

CALIBRATED = [name for name in machine.names() if machine.load(name).calibration.get("points")]


@pytest.fixture(scope="module")
def learned():
    """``{name: (machine, belief)}`` of the shipped machines."""
    return {name: belief.calibrated(name) for name in machine.names()}


def times(recipe, where, what):
    """Seconds of a step ``[samples]``."""
    return step.step(work.of_recipes([load(recipe)]), where, what.constants(where)).seconds[:, 0]


def equal(one, other):
    for field in fields(belief.Belief):
        a, b = (getattr(x, field.name) for x in (one, other))
        if isinstance(a, dict):
            assert a.keys() == b.keys()
            assert all(np.array_equal(a[name], b[name]) for name in a)
        else:
            assert np.array_equal(a, b), field.name


# Learning


def weighed(where, runs, samples, seed):
    """Samples from the priors and their weights, the plain way: nothing is proposed, all is weighed."""
    drawn = belief.prior(where, samples, seed)
    points = calibrate.points(runs)
    off = np.log(points.predict(where, drawn.constants(where)) / points.seconds)
    weights = np.exp(-0.5 * ((off / calibrate.CALIBRATION_ERROR) ** 2).sum(axis=1))
    return drawn, weights / weights.sum()


def quantiles(values, weights, shares):
    order = np.argsort(values)
    return values[order][np.searchsorted(np.cumsum(weights[order]), shares)]


@pytest.mark.parametrize(
    ("name", "ids", "recipe"),
    [
        ("lumi", ["LUMI-175B-16n"], "lumi-175b"),
        ("lumi", ["LUMI-175B-16n"], "22b"),
        ("a100-selene", ["SC21-T1-1.7B", "SC21-T1-1T"], "175b"),
        ("a100-jeanzay", ["JZA-052", "JZA-090"], "1t"),
    ],
)
def test_learning_around_the_likely_constants_is_plain_importance_sampling(name, ids, recipe):
    where, runs = machine.load(name), named_runs(ids)
    drawn, weights = weighed(where, runs, 60_000, seed=11)
    assert 1 / np.sum(weights**2) > 1000  # enough to compare with
    plain = quantiles(times(recipe, where, drawn), weights, [0.05, 0.5, 0.95])
    found = belief.learn(where, runs)
    width = plain[2] - plain[0]
    assert belief.band(times(recipe, where, found)) == pytest.approx(plain, abs=0.08 * width)
    for constant, z in drawn.deviations.items():  # and what the runs teach of each constant
        mean = np.sum(weights * z)
        assert np.mean(found.deviations[constant]) == pytest.approx(mean, abs=0.15), constant


def test_runs_learned_come_out(learned):
    """Within the closeness that learning wants, and what is left of the priors."""
    for name in CALIBRATED:
        where, found = learned[name]
        for run in named_runs(where.calibration["points"]):
            low, middle, high = belief.band(readings.predict(found, where, run, exact=True))
            assert low <= run.value <= high or middle == pytest.approx(run.value, rel=2 * calibrate.CALIBRATION_ERROR)


@pytest.mark.parametrize("name", CALIBRATED)
def test_learning_narrows_the_band_and_leaves_enough_samples(name, learned):
    where, found = learned[name]
    assert found.points == tuple(where.calibration["points"])
    assert found.effective > 1000
    for recipe in ("22b", "175b"):
        before = belief.band(times(recipe, where, belief.prior(where)))
        after = belief.band(times(recipe, where, found))
        assert (after[2] - after[0]) / after[1] < 0.7 * (before[2] - before[0]) / before[1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_learning_is_as_good_with_any_seed(seed):
    """Proposals around the slopes at the most likely constants alone once left 18 samples here."""
    runs = named_runs(["JZA-052", "JZA-090"])
    assert belief.learn(machine.load("a100-jeanzay"), runs, seed=seed).effective > 250


def test_a_machine_without_runs_is_believed_as_its_file_says(learned):
    where, found = learned["h200"]
    equal(found, belief.prior(where))
    assert found.effective == float("inf")
    assert found.central(where) is where


@pytest.mark.parametrize("name", ["lumi", "frontier"])
def test_the_same_seed_gives_the_same_numbers_and_another_almost(name, learned):
    where, found = learned[name]
    equal(belief.calibrated(name)[1], found)
    _, other = belief.calibrated(name, seed=1)
    assert not np.array_equal(other.noise, found.noise)
    one, two = (belief.band(times("175b", where, what)) for what in (found, other))
    assert two == pytest.approx(one, rel=0.02)


@pytest.mark.parametrize("name", CALIBRATED)
def test_the_central_machine_stands_in_the_middle(name, learned):
    where, found = learned[name]
    central = found.central(where)
    for recipe in ("22b", "175b", "1t"):
        seconds = times(recipe, where, found)
        point = step.step(work.of_recipes([load(recipe)]), central).seconds.item()
        assert point == pytest.approx(np.median(seconds), rel=0.02)
    # a constant that runs were to teach counts as fitted on them, the others keep where they come from
    for constant, now in central.constants.items():
        if constant in where.calibration["constants"]:
            assert now.kind == "fitted" and where.calibration["points"][0] in now.source
        else:
            assert (now.kind, now.source) == (where.constants[constant].kind, where.constants[constant].source)


def test_what_is_learned_without_an_item_differs():
    where, runs = machine.load("lumi"), named_runs(["LUMI-175B-16n"])
    whole, less = (
        np.mean(belief.learn(where, runs, without=without).deviations["gemm_ceiling"])
        for without in ((), ("operands of products",))
    )
    assert less < whole


def test_an_efficiency_can_be_learned():
    """It has no time of its own, so it is weighed and not proposed around."""
    runs = [run for run in published_runs.runs() if run.metric == "strong_efficiency"][:1]
    where = machine.load("frontier")
    found = belief.learn(where, runs)
    # to expect more of it than the profile does is to expect less of what does not shrink with more devices
    before = np.median(readings.predict(belief.prior(where), where, runs[0], exact=True))
    after = np.median(readings.predict(found, where, runs[0], exact=True))
    assert abs(after - runs[0].value) < abs(before - runs[0].value)


def test_unknown_points_are_refused():
    with pytest.raises(InputError, match="did you mean 'LUMI-175B-16n'"):
        named_runs(["LUMI-175B-16"])


# Priors, bands


def test_a_prior_is_normal_in_every_constant_and_even_in_what_is_open():
    where = machine.load("frontier")
    drawn = belief.prior(where, 20_000)
    assert set(drawn.deviations) == set(where.constants)
    for values in (*drawn.deviations.values(), drawn.noise):
        assert np.mean(values) == pytest.approx(0, abs=0.03)
        assert np.std(values) == pytest.approx(1, abs=0.03)
    assert np.mean(drawn.per_replica) == pytest.approx(0.5, abs=0.02)
    for steps in belief.STEPS_AVERAGED:
        assert np.mean(drawn.steps == steps) == pytest.approx(1 / len(belief.STEPS_AVERAGED), abs=0.02)
    pairs = np.corrcoef(list(drawn.deviations.values()))
    assert np.abs(pairs - np.eye(len(pairs))).max() < 0.03


def test_a_band_is_the_middle_nine_of_ten():
    low, middle, high = belief.band(np.random.default_rng(0).standard_normal(100_000))
    assert (low, middle, high) == pytest.approx((-1.645, 0, 1.645), abs=0.02)
    assert belief.band(np.arange(101.0)[:, None])[:, 0] == pytest.approx([5, 50, 95])


# Open sources


def test_a_source_that_says_everything_leaves_one_reading():
    (run,) = named_runs(["LUMI-175B-16n"])
    one = readings.Open(run)
    assert not one.ambiguous and not one.silent
    assert one.choose(belief.prior(machine.load("lumi"))).tolist() == [0] * belief.SAMPLES


def test_readings_are_drawn_as_likely_as_they_are():
    """Likely cells four times in five; what a batch means is drawn once for all runs of a source."""
    drawn = belief.prior(machine.load("frontier"), 20_000)
    checked = 0
    for run in published_runs.runs(machine="frontier"):
        one = readings.Open(run)
        index = one.choose(drawn)
        assert index.min() >= 0 and index.max() < len(one.readings)
        if one.totals.any() and not one.totals.all():
            assert np.array_equal(one.totals[index], ~drawn.per_replica)
            checked += 1
        for total in {True, False} & set(one.totals.tolist()):
            among = np.flatnonzero(one.totals == total)
            here = one.totals[index] == total
            shares = one.weights[among] / one.weights[among].sum()
            counted = np.array([np.mean(index[here] == i) for i in among])
            assert counted == pytest.approx(shares, abs=0.02), run.id
    assert checked >= 2


def test_a_value_of_one_meaning_is_learned_as_that():
    """Made-up values: the projection's own of a batch in all, and of a batch for each replica."""
    where, (run,) = machine.load("frontier"), named_runs(["FR-22B-tflops"])
    one = readings.Open(run)
    assert one.totals.any() and not one.totals.all()
    # few micro-batches in 8 stages make the two meanings differ
    few = tuple(replace(r, gbs=r.gbs // 40) for r in one.readings)
    few = replace(few[0], others=few[1:])
    sure = where.with_constants(**{name: c.value for name, c in where.constants.items()})
    open_run = readings.Open(few)
    # a single, cold step of the smaller batch is slow as no other reading, ten steps of the larger one fast
    for total, steps in ((True, 1), (False, 10)):
        value = open_run.values(sure, None, cold=1 / steps)[0, open_run.totals == total].item()
        found = belief.learn(sure, [replace(few, value=value)])
        assert np.all(found.per_replica != total)
        assert np.all(found.steps == steps)


def test_metrics_of_a_run_say_the_same():
    where = machine.load("frontier")
    drawn = belief.prior(where, 50)
    (run,) = named_runs(["FR-22B-tflops"])
    run = replace(run, others=())
    printed = {"tflops": "TFLOP/s per GPU", "percent_of_peak": "% of 191.5 TFLOP/s", "seconds": "s"}
    rate, percent, seconds = (
        readings.predict(drawn, where, replace(run, metric=metric, unit=unit), exact=True)
        for metric, unit in printed.items()
    )
    assert percent == pytest.approx(100 * rate / 191.5)
    assert rate == pytest.approx([run.tflops(s) for s in seconds])


def test_an_efficiency_is_a_ratio_of_rates():
    """Strong scaling of the same batch: 100 t(base) n(base) / (t n), from two projections."""
    where = machine.load("frontier")
    run = next(r for r in published_runs.runs() if r.metric == "strong_efficiency")
    alone = replace(run, others=())
    found = readings.Open(alone).values(where, None).item()
    small, large = (calibrate.work_of([r]) for r in (alone.base(), alone))
    base, more = (step.step(w, where, cold_share=0.0).seconds.item() for w in (small, large))
    assert found == pytest.approx(100 * base * alone.base_gpus / (more * alone.gpus))


def test_the_models_own_error_widens_a_prediction():
    where = machine.load("lumi")
    drawn = belief.prior(where, 4000)
    (run,) = named_runs(["LUMI-175B-32n"])
    exact, with_error = (readings.predict(drawn, where, run, exact=exact) for exact in (True, False))
    ratio = np.log(with_error / exact)
    assert np.std(ratio) == pytest.approx(calibrate.MODEL_ERROR, rel=0.05)
    assert ratio == pytest.approx(calibrate.MODEL_ERROR * drawn.noise)
