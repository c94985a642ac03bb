"""Projection against published runs: calibrated on a few named ones, held against the rest. No torch."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from repro.errors import InputError
from repro.projection import belief as beliefs
from repro.projection import calibrate, readings
from repro.projection.machine import load
from repro.records import published_runs
from repro.records.published_run import EFFICIENCIES


@dataclass(frozen=True)
class Check:
    """One published number beside the projection.

    Attributes:
        error: projected over published, less 1; of an efficiency, the difference in points of a percent, over 100.
        constant_mfu_error: the same, had every run the mean share of peak of the calibration runs.
        inside: whether the published value is in the 90 % band.
        group: rows to be told apart; ``calibration`` for the runs learned.
    """

    id: str
    metric: str
    published: float
    projected: float
    low: float
    high: float
    error: float
    constant_mfu_error: float | None
    inside: bool
    group: str

    @property
    def width(self):
        return (self.high - self.low) / self.projected


@dataclass(frozen=True)
class Validation:
    """A machine's runs: calibrated on ``points``, all others predicted.

    Attributes:
        skipped: ``{id: why}`` of runs that could not be projected.
    """

    title: str
    machine: str
    points: tuple
    checks: tuple
    skipped: dict

    def held_out(self, group=None):
        """The checks that were not calibrated on, all or of one group."""
        return [c for c in self.checks if c.group != "calibration" and group in (None, c.group)]

    def groups(self):
        return list(dict.fromkeys(c.group for c in self.held_out()))


def summary(checks):
    """Mean and worst error, those of constant MFU, share inside the band, median width of it."""
    if not checks:
        raise InputError("no published run to validate against")
    errors = np.abs([c.error for c in checks])
    constant = [abs(c.constant_mfu_error) for c in checks if c.constant_mfu_error is not None]
    return {
        "rows": len(checks),
        "mean_error": float(errors.mean()),
        "worst_error": float(errors.max()),
        "constant_mfu_mean_error": float(np.mean(constant)) if constant else None,
        "inside_band": float(np.mean([c.inside for c in checks])),
        "median_width": float(np.median([c.width for c in checks])),
    }


def validate(machine, points=None, title=None, runs=None, samples=beliefs.SAMPLES, seed=beliefs.SEED):
    """The :class:`Validation` of a machine's published runs.

    Args:
        points: ids of the runs to calibrate on, instead of those in the machine's file.
        runs: published runs to predict, instead of all of that machine; rows that repeat another are left out.
    """
    machine = load(machine)
    learned = beliefs.named_runs(machine.calibration.get("points", ()) if points is None else points)
    belief = beliefs.learn(machine, learned, samples, seed)
    checks, skipped = [], {}
    for run in _once(published_runs.runs(machine=machine.name) if runs is None else runs):
        try:
            checks.append(_check(belief, machine, run, learned))
        except InputError as error:
            skipped[run.id] = str(error)
    return Validation(title or machine.title, machine.name, belief.points, tuple(checks), skipped)


def _once(runs):
    """Runs without the percentages that repeat a throughput of the same run."""
    rates = {run.id.removesuffix("-tflops") for run in runs if run.id.endswith("-tflops")}
    return [run for run in runs if not (run.id.endswith("-percent") and run.id.removesuffix("-percent") in rates)]


def _check(belief, machine, run, learned):
    low, mid, high = (float(v) for v in beliefs.band(readings.predict(belief, machine, run)))
    points = run.metric in EFFICIENCIES
    error = (mid - run.value) / 100 if points else mid / run.value - 1
    group = "calibration" if run.id in belief.points else run.group or run.exhibit
    return Check(
        run.id, run.metric, run.value, mid, low, high, error, _constant(run, learned), low <= run.value <= high, group
    )


def _constant(run, learned):
    """The error of assuming the calibration runs' mean share of peak; None for an efficiency, which it makes 100 %."""
    shares = [r.step_flops / r.gpus / r.seconds for r in learned if r.seconds]
    if not shares:
        return None
    if run.metric in EFFICIENCIES:
        return (100 - run.value) / 100
    seconds = run.step_flops / run.gpus / float(np.mean(shares))
    return seconds / run.seconds - 1 if run.metric == "seconds" else run.seconds / seconds - 1


def pairs(machine, ids):
    """Mean error on all other runs for every pair of ``ids`` as the calibration runs, few constants fitted."""
    machine = load(machine)
    runs = published_runs.runs(machine=machine.name)
    everything = calibrate.points(runs)
    places = {run.id: i for i, run in enumerate(runs)}
    found = {}
    for pair in combinations(ids, 2):
        used = calibrate.points(runs[places[one]] for one in pair)
        fitted = calibrate.fit(machine, used, machine.calibration["constants"])
        error = np.abs(everything.predict(fitted)[0] / everything.seconds - 1)
        found[pair] = float(np.delete(error, [places[one] for one in pair]).mean())
    return found


def table_1_pairs():
    """:func:`pairs` of the ten rows of arXiv 2104.04473 Table 1."""
    rows = [run.id for run in published_runs.runs(machine="a100-selene") if "-T1-" in run.id]
    return pairs("a100-selene", rows)


def few(machine, points=None, names=None, without=()):
    """``(fitted machine, Points, errors)``: the machine's few constants fitted, every run with a time predicted.

    Errors are relative ``[n]`` in likely readings; this is what an ablation compares.
    """
    machine = load(machine)
    names = machine.calibration["constants"] if names is None else names
    wanted = machine.calibration["points"] if points is None else points
    runs = [r for r in published_runs.runs(machine=machine.name) if r.metric not in EFFICIENCIES and _possible(r)]
    everything = calibrate.points(runs)
    used = calibrate.points(beliefs.named_runs(wanted))
    fitted = calibrate.fit(machine, used, names, without)
    return fitted, everything, everything.predict(fitted, None, without).reshape(-1) / everything.seconds - 1


def _possible(run):
    try:
        run.recipe()
    except InputError:
        return False
    return True


def everything():
    """Every validation that is reported, in order."""
    frontier = published_runs.runs(machine="frontier")
    quiet = [run for run in frontier if "log" not in run.id]
    log = [run for run in frontier if run.id == "FR-log-405287-2"]
    return [
        validate("frontier", title="Frontier, calibrated on 22B alone", runs=quiet),
        validate(
            "frontier", ("FR-22B-tflops", "FR-175B-strong"), "Frontier, 22B and 175B strong scaling", _strong(quiet)
        ),
        validate("frontier", ("FR-22B-tflops", "FR-1T-strong"), "Frontier, 22B and 1T strong scaling", _strong(quiet)),
        validate("frontier", title="Frontier, the authors' log of Crusher (other software)", runs=log),
        replace(_lumi_from_frontier(), title="LUMI, calibrated on Frontier's 22B alone"),
        validate("lumi", title="LUMI, calibrated on 16 nodes"),
        validate("a100-jeanzay", title="Jean Zay, six rows and four constants"),
        validate("a100-selene", title="SC21, smallest and largest row, two constants"),
    ]


def _strong(runs):
    return [run for run in runs if run.metric == "strong_efficiency"]


def _lumi_from_frontier():
    """LUMI's 175B with what was learned on Frontier: the two have one kind of node, and ranks in another order."""
    frontier, belief = beliefs.calibrated("frontier")
    lumi = load("lumi")
    shared = all(frontier.constants[name] == lumi.constants[name] for name in frontier.constants)
    if not shared:
        raise InputError(
            "frontier and lumi no longer share their constants: what one learns does not hold for the other"
        )
    runs = [run for run in published_runs.runs(machine="lumi") if run.id.startswith("LUMI-175B")]
    checks = tuple(_check(belief, lumi, run, beliefs.named_runs(belief.points)) for run in runs)
    return Validation("", "lumi", belief.points, checks, {})
