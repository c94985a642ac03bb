"""Published runs predicted over everything that their sources leave open. No torch.

A source may leave open how many GPUs ran, what a batch counts, how many steps a mean holds. Each reading of a run
is projected; each sample of a :class:`repro.projection.calibrate.Belief` also draws one reading, so that a band
holds what is unknown about the machine and about the words. What one source leaves open is drawn once for all of
its runs: a paper does not change its idea of a batch between two tables.
"""

from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np

from repro.projection import calibrate, step
from repro.records.published_run import EFFICIENCIES

LIKELY = 0.8  # of the reading that the records put first in each open cell; the others share the rest

# of a ratio of two runs: what the model is off by is mostly the same in both, their day-to-day noise is not
EFFICIENCY_ERROR = 0.01


@dataclass(frozen=True)
class Open:
    """One published run in all its readings."""

    run: object

    @cached_property
    def readings(self):
        return tuple(self.run.readings())

    @cached_property
    def points(self):
        """All readings as work, then, of an efficiency, the base of each."""
        bases = [r.base() for r in self.readings] if self.run.metric in EFFICIENCIES else []
        return calibrate.Points(self.readings, calibrate.work_of([*self.readings, *bases]), np.zeros(0), np.zeros(0))

    @property
    def silent(self):
        """Whether the source does not say how many steps its number is a mean of."""
        return self.run.exhibit.startswith("Frontier") and "log" not in self.run.id

    @property
    def ambiguous(self):
        """Whether anything is left to read in more than one way."""
        return self.silent or len(self.readings) > 1

    @cached_property
    def totals(self):
        """Of each reading: whether its batch is a total; nothing to choose from where none is per replica."""
        printed = min(r.gbs for r in self.readings)
        return np.array([not (r.gbs == printed * r.dp and r.dp > 1) for r in self.readings])

    @cached_property
    def weights(self):
        """Of each reading, the meaning of the batch apart: every cell read otherwise makes it less likely."""
        return np.array([((1 - LIKELY) / LIKELY) ** _otherwise(r.choice) for r in self.readings])

    def choose(self, belief):
        """Index of a reading for every sample."""
        draw = np.random.default_rng(crc32(self.run.id.encode()))  # the same for a run wherever it is asked for
        uniform = draw.random(len(belief.steps))
        index = np.zeros(len(belief.steps), int)
        both = self.totals.any() and not self.totals.all()
        for total in (True, False):
            of = self.totals == total if both else np.ones(len(self.readings), bool)
            which = (belief.per_replica != total) if both else np.full(len(uniform), total)
            share = np.where(of, self.weights, 0)
            edges = np.cumsum(share / share.sum())
            index[which] = np.minimum(np.searchsorted(edges, uniform[which]), len(edges) - 1)
        return index

    def values(self, machine, given, cold=0.0, without=()):
        """The metric of every reading ``[samples, readings]``; efficiencies in percent."""
        cold = np.asarray(cold) if self.silent else np.array(calibrate.cold_share(self.run))
        seconds = step.step(self.points.work, machine, given, without, cold).seconds
        seconds = np.atleast_2d(seconds)
        count = len(self.readings)
        if self.run.metric in EFFICIENCIES:
            bases = [r.base() for r in self.readings]
            rate = [r.step_flops / r.gpus for r in self.readings]
            base = [b.step_flops / b.gpus for b in bases]
            return 100 * (rate / seconds[:, :count]) / (base / seconds[:, count:])
        if self.run.metric == "seconds":
            return seconds
        rate = np.array([r.tflops(1) for r in self.readings]) / seconds
        return rate if self.run.metric == "tflops" else 100 * rate / self.run.peak_tflops


FOLLOW = {"gbs", "dp", "pp", "vocab"}  # drawn apart, or changed because another cell is


def _otherwise(choice):
    return sum(part.split("=")[0] not in FOLLOW for part in choice.split(", ") if part)


def predict(belief, machine, run, without=(), exact=False):
    """The metric of a published run ``[samples]``, with a reading and the model's own error drawn for each sample.

    Args:
        belief: a :class:`repro.projection.belief.Belief` about ``machine``.
        exact: without the model's own error.
    """
    one = Open(run)
    values = one.values(machine, belief.constants(machine), (1 / belief.steps)[:, None], without)
    picked = values[np.arange(len(values)), one.choose(belief)]
    return picked if exact else picked * np.exp(error(run) * belief.noise)


def closeness(run):
    """How closely a calibration wants the run."""
    return EFFICIENCY_ERROR if run.metric in EFFICIENCIES else calibrate.CALIBRATION_ERROR


def error(run):
    """What the model is off by, of the logarithm of the run's metric."""
    return EFFICIENCY_ERROR if run.metric in EFFICIENCIES else calibrate.MODEL_ERROR
