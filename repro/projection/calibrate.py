"""Calibration: a few constants of a machine moved until named runs come out, from the ranges of its profile.

Every constant has a prior, the range in the machine's file. Calibrating means the most likely constants given the
runs (a MAP estimate): residuals of the runs over what a model of this kind is off by, and deviations from the
priors, squared and added. No torch.
"""

from dataclasses import dataclass

import numpy as np

from repro.errors import InputError, unknown
from repro.projection import step as steps
from repro.projection import work as works
from repro.projection.machine import CONSTANTS

# of the logarithm of a time: how closely a calibration wants its runs, and what the model is off by elsewhere.
# Identical jobs differ by 1 to 3 %. Held-out rows are off by 1.6 % (SC21) and 3 % (Jean Zay) in the mean, which is
# 2 and 4 % of standard deviation: bands are made for the worse of the two.
CALIBRATION_ERROR, MODEL_ERROR = 0.015, 0.04


@dataclass(frozen=True)
class Points:
    """Published runs as work, each in one reading.

    Attributes:
        seconds: what was measured ``[n]``.
        cold_share: of the cold first step in each measurement ``[n]``.
    """

    runs: tuple
    work: works.Work
    seconds: np.ndarray
    cold_share: np.ndarray

    def predict(self, machine, given=None, without=()):
        """Seconds of a step of every run ``[samples, n]``."""
        return steps.step(self.work, machine, given, without, self.cold_share).seconds


def points(runs):
    """The :class:`Points` of published runs in their likely reading.

    Raises:
        InputError: a run that is no recipe, or an efficiency, which has no time of its own.
    """
    runs = tuple(runs)
    for run in runs:
        if run.seconds is None:
            raise InputError(f"published run {run.id} is of metric {run.metric}: it has no time to calibrate on")
    seconds = np.array([run.seconds for run in runs])
    return Points(runs, work_of(runs), seconds, np.array([cold_share(run) for run in runs]))


def work_of(runs):
    """The :class:`repro.projection.work.Work` of published runs."""
    recipes = [run.recipe() for run in runs]
    rows = [
        works.layout(recipe, run.interleave, "megatron" if run.zero == 0 else "deepspeed")
        | {"sharded": run.zero > 0, "m": run.micro_batches}
        for run, recipe in zip(runs, recipes, strict=True)
    ]
    return works.of_rows(rows)


def cold_share(run):
    """Share of the cold first step in a printed time: iteration 1 of a log is one; means over later steps have none."""
    return 1.0 if run.id.endswith("-log-405287-1") else 0.0


def fit(machine, used, names, without=()):
    """The machine with ``names`` calibrated on the runs ``used`` (:class:`Points`).

    Raises:
        InputError: a constant without a range to move in.
    """
    for name in names:
        constant = machine.constants.get(name)
        if constant is None:
            raise unknown("machine constant", name, machine.constants)
        if constant.low == constant.high:
            raise InputError(f"constant {name} of machine {machine.name} has no range to calibrate in")
    if not names:
        return machine
    z, _ = most_likely(machine, used, names, without)
    source = "fitted on " + ", ".join(run.id for run in used.runs)
    values = {name: machine.constants[name].at(float(d)) for name, d in zip(names, z, strict=True)}
    return machine.with_constants(source=source, **{n: min(v, CONSTANTS[n][2]) for n, v in values.items()})


def most_likely(machine, used, names, without=()):
    """Deviations of ``names`` that explain the runs best, and the factor of their covariance there.

    Returns:
        ``z [names]`` in standard deviations of the priors, and ``C [names, names]`` with covariance ``C C'``.
    """
    z = np.zeros(len(names))
    observed = np.log(used.seconds)
    step_size = 1e-4
    for _ in range(30):  # Gauss-Newton; the model is smooth in the logarithms
        trial = np.vstack([z, z + step_size * np.eye(len(names))])
        given = steps.constants(machine, dict(zip(names, trial.T, strict=True)))
        residual = (np.log(used.predict(machine, given, without)) - observed) / CALIBRATION_ERROR
        slope = (residual[1:] - residual[0]).T / step_size
        lean = np.vstack([slope, np.eye(len(names))])
        move = np.linalg.lstsq(lean, -np.concatenate([residual[0], z]), rcond=None)[0]
        z = np.clip(z + np.clip(move, -2, 2), -6, 6)
        if np.abs(move).max() < 1e-7:
            break
    covariance = np.linalg.inv(lean.T @ lean)
    return z, np.linalg.cholesky(covariance)
