"""Days, node-hours and energy of a training with bands: a projected step x a machine's operation. No torch."""

from dataclasses import dataclass

import numpy as np

from repro import parameters
from repro.errors import unknown
from repro.projection import belief as beliefs
from repro.projection import step as steps
from repro.projection.campaign import campaign, checkpoint_bytes
from repro.projection.machine import OPERATION

TOKENS_PER_PARAMETER = 20  # where no tokens are given: arXiv 2203.15556


@dataclass(frozen=True)
class Estimate:
    """A projected number: the central machine's value, and where nine in ten samples lie."""

    value: float
    low: float
    high: float
    unit: str


def estimate(value, samples, unit):
    low, _, high = beliefs.band(samples)
    # the central machine lies within its own samples' band; where an item is skewed, rounding may say otherwise
    return Estimate(float(value), float(min(low, value)), float(max(high, value)), unit)


def given_tokens(tokens, recipe):
    """``tokens``, or 20 for each parameter."""
    if tokens is None:
        return float(TOKENS_PER_PARAMETER * parameters.true_count(recipe))
    return float(tokens)


def cost(recipe, machine, point, seconds, nodes, tokens, operation):
    """``{name: Estimate}`` of training on ``tokens``: see :class:`repro.projection.campaign.Campaign`.

    Args:
        point, seconds: time of a step, and samples of it.
        operation: values for :data:`repro.projection.machine.OPERATION` instead of the machine's.
    """
    for name in operation:
        if name not in OPERATION:
            raise unknown("operation value", name, OPERATION)
    draw = np.random.default_rng(beliefs.SEED)
    values, sampled = {}, {}
    for name, constant in machine.operation.items():
        z = draw.standard_normal(len(seconds))
        if name in operation:
            values[name] = sampled[name] = operation[name]
        else:
            values[name] = constant.value
            sampled[name] = steps.at(constant, z)
    saved = checkpoint_bytes(parameters.true_count(recipe), recipe.precision.dtype)
    step_tokens = recipe.batch.global_ * recipe.shape.seq

    def run(step_seconds, given):
        return campaign(
            step_seconds,
            step_tokens,
            tokens,
            nodes,
            node_watts=given["node_watts"],
            node_mtbf_hours=given["node_mtbf_hours"],
            checkpoint_bytes=saved,
            checkpoint_gbytes_per_second=given["checkpoint_gbytes"],
            restart_seconds=given["restart_seconds"],
            pue=given["pue"],
        )

    one, many = run(point, values), run(seconds, sampled)
    units = {
        "compute_days": "d",
        "days": "d",
        "node_hours": "node h",
        "energy_mwh": "MWh",
        "efficiency": "1",
        "failures": "1",
        "interval_seconds": "s",
        "checkpoint_seconds": "s",
        "checkpoint_days": "d",
        "lost_days": "d",
        "restart_days": "d",
    }
    return {name: estimate(getattr(one, name), np.asarray(getattr(many, name)), unit) for name, unit in units.items()}
