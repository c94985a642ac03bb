"""What is believed about a machine: samples of everything that is not known, after learning calibration runs. No torch.

A sample is one set of constants, one meaning of the words that a source leaves open, one error of the model.
Learning keeps the samples that explain the runs; a band is what the samples left over give, nine in ten.
"""

from dataclasses import dataclass
from math import lgamma, log, pi

import numpy as np

from repro.errors import unknown
from repro.projection import calibrate, readings, step
from repro.projection.machine import load
from repro.records import published_runs

SAMPLES = 2000
DRAWN = 20_000  # samples from the priors, of which learning keeps the likely ones
SEED = 2312
ROUNDS = 3  # of proposals, each around what the one before has found
FREEDOM = 10  # of Student's t, from which proposals come
UNLEARNED = 0.2  # of the proposals come from the priors, so that no sample far out weighs too much
KEPT = 0.1  # of the first proposals' covariance in all later ones, however few samples a round was left
STEPS_AVERAGED = (1, 2, 3, 5, 10)  # steps in a printed mean, the cold first among them, where a source is silent


@dataclass(frozen=True)
class Belief:
    """Equally likely samples.

    Attributes:
        deviations: ``{constant: standard deviations [samples]}`` from the machine's values.
        noise: error of the model, in standard deviations ``[samples]``.
        per_replica, steps: how an open source is meant: a batch is each replica's, a mean is over so many steps.
        points: ids of the runs learned.
        effective: how many independent samples the learning left; few mean that a band is rough.
    """

    deviations: dict
    noise: np.ndarray
    per_replica: np.ndarray
    steps: np.ndarray
    points: tuple = ()
    effective: float = float("inf")

    def constants(self, machine):
        """The machine's constants in every sample, as :func:`repro.projection.step.constants`."""
        return step.constants(machine, self.deviations)

    def central(self, machine):
        """The machine in the middle of the samples: its time of the runs learned is the samples' mean.

        Every constant stands at its mean over the samples on the scale of its range. Times are convex in them, so
        these means together would be a little too fast; the GEMM ceiling takes that up.
        """
        if not self.points:
            return machine
        moved = {}
        for name, z in self.deviations.items():
            constant = machine.constants[name]
            if constant.low < constant.high:
                moved[name] = constant.at(float(np.mean(z)))
        source = "fitted on " + ", ".join(self.points)
        work = calibrate.work_of(named_runs(self.points))
        wanted = np.log(np.mean(step.step(work, machine, self.constants(machine)).seconds, axis=0))
        for _ in range(20):
            found = machine.moved(moved, source)
            off = np.mean(np.log(step.step(work, found).seconds) - wanted)
            if abs(off) < 1e-9:
                break
            # matrix products are most of a step; what they are not is left to the next round
            moved["gemm_ceiling"] = min(moved["gemm_ceiling"] * float(np.exp(off / 0.7)), 1.0)
        return found

    def take(self, index, points=None, effective=None):
        """The samples of ``index``."""
        return Belief(
            {name: z[index] for name, z in self.deviations.items()},
            self.noise[index],
            self.per_replica[index],
            self.steps[index],
            self.points if points is None else points,
            self.effective if effective is None else effective,
        )


def band(values, share=0.9):
    """``(low, median, high)`` of values ``[samples, ...]``: the middle ``share`` of them."""
    # between two samples without end there is no number
    method = "linear" if np.all(np.isfinite(values)) else "nearest"
    return np.quantile(values, [(1 - share) / 2, 0.5, (1 + share) / 2], axis=0, method=method)


def prior(machine, samples=SAMPLES, seed=SEED):
    """The :class:`Belief` that the machine's file states."""
    draw = np.random.default_rng(seed)
    return Belief(
        {name: draw.standard_normal(samples) for name in machine.constants},
        draw.standard_normal(samples),
        draw.random(samples) < 0.5,
        draw.choice(STEPS_AVERAGED, samples).astype(float),
    )


def learn(machine, runs, samples=SAMPLES, seed=SEED, without=()):
    """The :class:`Belief` after learning published runs.

    Runs that say everything narrow the constants a lot: samples are drawn around the most likely ones. Runs with
    open readings are weighed against samples from the priors.
    """
    runs = tuple(runs)
    if not runs:
        return prior(machine, samples, seed)
    if any(run.seconds is None or readings.Open(run).ambiguous for run in runs):
        drawn = prior(machine, DRAWN, seed)
        logs = np.zeros(DRAWN)
        for run in runs:
            off = np.log(readings.predict(drawn, machine, run, without, exact=True) / run.value) / readings.closeness(
                run
            )
            logs -= 0.5 * off**2
    else:
        drawn, logs = _around(machine, calibrate.points(runs), DRAWN, seed, without)
    weights = _weights(logs)
    places = (np.arange(samples) + 0.5) / samples  # systematic: a sample of weight w comes w x samples times
    index = np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)
    index = np.random.default_rng(seed).permutation(index)  # noise and readings are paired with samples at random
    return drawn.take(index, tuple(run.id for run in runs), float(1 / np.sum(weights**2)))


def _around(machine, used, samples, seed, without):
    """Samples around the likely constants, and the logarithms of their weights: adaptive importance sampling.

    A range has two unlike sides, so that slopes at the most likely constants do not tell how far the likely ones
    reach: proposals start from there, and take mean and covariance of what was found.
    """
    names = [name for name, c in machine.constants.items() if c.low < c.high]
    middle, first = calibrate.most_likely(machine, used, names, without)
    spread = first
    for number in range(ROUNDS):
        drawn = prior(machine, samples // ROUNDS, (seed, number))
        draw = np.random.default_rng((seed, number, ROUNDS))
        moved = np.stack([drawn.deviations[name] for name in names], axis=-1)
        stretched = moved / np.sqrt(draw.chisquare(FREEDOM, len(moved)) / FREEDOM)[:, None]
        around = draw.random(len(moved)) >= UNLEARNED
        moved[around] = (middle + stretched @ spread.T)[around]
        deviations = drawn.deviations | dict(zip(names, moved.T, strict=True))
        found = Belief(deviations, drawn.noise, drawn.per_replica, drawn.steps)
        times = used.predict(machine, found.constants(machine), without)
        off = np.log(times / used.seconds) / calibrate.CALIBRATION_ERROR
        # posterior over proposal: likelihood x prior / (a share of the prior + Student's t)
        student = _student(moved, middle, spread) - _normal(moved)
        logs = -0.5 * (off**2).sum(axis=-1) - np.log(UNLEARNED + (1 - UNLEARNED) * np.exp(student))
        weights = _weights(logs)
        middle = weights @ moved
        away = moved - middle
        spread = np.linalg.cholesky((1 - KEPT) * (weights * away.T) @ away + KEPT * first @ first.T)
    return found, logs


def _weights(logs):
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def _normal(x):
    """Logarithm of the standard normal density of rows."""
    return -0.5 * (x**2).sum(axis=-1) - x.shape[-1] / 2 * log(2 * pi)


def _student(x, middle, spread):
    """Logarithm of Student's t density of rows, with scale ``spread spread'``."""
    k = len(middle)
    far = (np.linalg.solve(spread, (x - middle).T) ** 2).sum(axis=0)
    scale = lgamma((FREEDOM + k) / 2) - lgamma(FREEDOM / 2) - k / 2 * log(FREEDOM * pi)
    return scale - np.log(np.diag(spread)).sum() - (FREEDOM + k) / 2 * np.log1p(far / FREEDOM)


def calibrated(name, samples=SAMPLES, seed=SEED):
    """``(machine, belief)``: a machine, and what is believed after learning the runs that its file names."""
    machine = load(name)
    return machine, learn(machine, named_runs(machine.calibration.get("points", ())), samples, seed)


def named_runs(ids):
    """Published runs by id.

    Raises:
        InputError: no such run.
    """
    known = {run.id: run for run in published_runs.runs()}
    for one in ids:
        if one not in known:
            raise unknown("published run", one, known)
    return [known[one] for one in ids]
