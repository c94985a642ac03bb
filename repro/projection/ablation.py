"""What each effect of the model earns: held-out errors with one effect left out and all calibrated again. No torch."""

from dataclasses import dataclass

import numpy as np

from repro.projection import belief as beliefs
from repro.projection import readings, validate
from repro.projection.machine import load
from repro.records import published_runs
from repro.records.published_run import EFFICIENCIES

SAMPLES = 800  # of an ablation on Frontier: its errors are medians, compared with each other
# what may be left out: items of a step that are one effect
EFFECTS = {
    "matrix products": ("matrix products",),
    "size of products": ("operands of products",),
    "attention": ("attention",),
    "memory-bound operations": ("element-wise operations", "gradient accumulation"),
    "between kernels": ("between kernels",),
    "tensor-parallel collectives": ("tensor-parallel collectives",),
    "messages between stages": ("messages between stages",),
    "slowest device": ("slowest device",),
    "stage imbalance": ("stage imbalance",),
    "filling and draining": ("filling and draining",),
    "reduction and gathering": ("gradient reduction", "parameter gathering"),
    "fixed cost of a step": ("tied embedding", "optimizer", "rest of a step"),
    "cold first step": ("cold first step",),
}
# held-out rows that an ablation compares: those whose groups no smooth curve is known to miss
ROWS = {
    "a100-selene": lambda run: True,
    "a100-jeanzay": lambda run: run.group in ("64 heads", "176B training"),
    "lumi": lambda run: run.id.startswith("LUMI-175B"),
}


@dataclass(frozen=True)
class Ablation:
    """Mean absolute errors on held-out runs with one effect left out and everything calibrated again.

    Attributes:
        effect: one of :data:`EFFECTS`, or ``nothing``.
        errors: ``{data set: mean error}``; ``all`` is the mean over the data sets, each counting the same.
        earns: how much larger ``all`` is than with nothing left out.
    """

    effect: str
    errors: dict
    rows: dict
    earns: float


def ablation():
    """An :class:`Ablation` for nothing, then for every effect, the most valuable first."""
    whole = _errors(())
    found = [_as("nothing", whole, whole)]
    rest = [_as(effect, _errors(items), whole) for effect, items in EFFECTS.items()]
    return found + sorted(rest, key=lambda a: -a.earns)


def _as(effect, errors, whole):
    means = {name: float(np.mean(v)) for name, v in errors.items()}
    means["all"] = float(np.mean(list(means.values())))
    base = float(np.mean([np.mean(v) for v in whole.values()]))
    return Ablation(effect, means, {name: len(v) for name, v in errors.items()}, means["all"] - base)


def _errors(without):
    """``{data set: absolute errors of its held-out rows}``."""
    found = {}
    for name, keep in ROWS.items():
        _, points, errors = validate.few(name, without=without)
        named = load(name).calibration["points"]
        held = [i for i, run in enumerate(points.runs) if run.id not in named and keep(run)]
        found[name] = np.abs(errors[held])
    found["frontier"] = _frontier(without)
    return found


def _frontier(without):
    machine = load("frontier")
    named = machine.calibration["points"]
    belief = beliefs.learn(machine, beliefs.named_runs(named), SAMPLES, without=without)
    errors = []
    for run in published_runs.runs(machine="frontier"):
        if run.id not in named and "log" not in run.id and not run.id.endswith("-percent"):
            value = float(np.median(readings.predict(belief, machine, run, without)))
            errors.append(abs(value - run.value) / 100 if run.metric in EFFICIENCIES else abs(value / run.value - 1))
    return np.array(errors)
