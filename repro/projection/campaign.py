"""What it costs to train on a number of tokens: days, node-hours, energy, and what failures add. No torch.

Daly 2006 (Future Generation Computer Systems 22, 303-312, doi 10.1016/j.future.2004.11.016). Symbols: M mean
time between failures of the job, Ts compute time, tau compute time between two checkpoints, d time to write a
checkpoint (training waits for it), R time to restart, n = Ts / tau segments. Nodes fail independently and
exponentially, also during checkpoints and restarts, and one failed node stops the job: M = node MTBF / nodes.
Expected wall time:

    T = M e^(R/M) (e^((tau+d)/M) - 1) n
      = Ts + n d  +  n (M (e^((tau+d)/M) - 1) - tau - d)  +  n (e^((tau+d)/M) - 1) M (e^(R/M) - 1)
        compute, checkpoints, lost work (also of checkpoints cut short), restarts (also those cut short)

Exact where n is whole; elsewhere it lies within a segment of it. The expected number of failures is T / M.

Not in it: the first start, queues and job limits, maintenance, evaluation. The time until a hang is noticed, and
that of reading the checkpoint back, belong into R.
"""

from dataclasses import dataclass

import numpy as np

from repro.errors import InputError, shortened, unknown
from repro.projection.counts import BYTES

DAY, HOUR = 86_400, 3_600  # seconds
# Least valid value of an argument; all others must be above 0.
AT_LEAST = {"tokens_per_step": 1, "tokens": 1, "nodes": 1, "pue": 1, "restart_seconds": 0}
MAY_BE_INFINITE = ("node_mtbf_hours", "mtbf_seconds")
SMALL = 1e-2  # below it e^x - 1 - x is summed up as a series: the difference itself would lose digits


@dataclass(frozen=True)
class Campaign:
    """A training on a number of tokens: expected values. Numbers, or arrays where an argument was one.

    Attributes:
        steps: optimizer steps, the last one full as well.
        compute_days: steps alone, no failure, no checkpoint.
        days: wall time with checkpoints and failures; ``inf`` where training never finishes, see :func:`campaign`.
        node_hours, energy_mwh: of ``days``; nodes draw ``node_watts`` all the time, the facility ``pue`` times that.
        efficiency: useful share of the wall time, ``compute_days / days``.
        interval_seconds: compute time between two checkpoints.
        checkpoint_seconds: of one checkpoint.
        system_mtbf_hours: between failures of any node of the job.
        failures: how many, those during restarts included.
        checkpoint_days, lost_days, restart_days: what ``days`` has beyond ``compute_days``.
    """

    steps: int
    compute_days: float
    days: float
    node_hours: float
    energy_mwh: float
    efficiency: float
    interval_seconds: float
    checkpoint_seconds: float
    system_mtbf_hours: float
    failures: float
    checkpoint_days: float
    lost_days: float
    restart_days: float

    @property
    def overheads(self):
        """``{item: days}``; with ``compute_days`` they add up to ``days``."""
        return {"checkpointing": self.checkpoint_days, "lost work": self.lost_days, "restarts": self.restart_days}


def campaign(
    step_seconds,
    tokens_per_step,
    tokens,
    nodes,
    *,
    node_watts,
    node_mtbf_hours,
    checkpoint_bytes,
    checkpoint_gbytes_per_second,
    restart_seconds,
    pue=1.0,
    checkpoint_interval_seconds=None,
):
    """The :class:`Campaign`. Arguments are numbers or arrays that broadcast together.

    Training never finishes (``days`` is ``inf``, ``efficiency`` 0) where a checkpoint or a restart takes as long
    as the job's MTBF or longer, so that most are cut short. Daly's expectation is still finite there, 6.3 times the
    compute time and more for the checkpoint, 2.7 times for the restart. Other points of an array stay as they are.

    Args:
        node_mtbf_hours: of one node; ``inf`` for no failures. Then a single checkpoint is left, at the end.
        checkpoint_gbytes_per_second: of the job as a whole, 1e9 bytes.
        restart_seconds: from a failure to the next step: noticed, started again, checkpoint read.
        pue: power usage effectiveness, facility over computer.
        checkpoint_interval_seconds: compute time between two checkpoints; else :func:`optimal_interval`. Either is
            taken into what is possible: at least a step, at most the whole training.

    Raises:
        InputError: an argument is not a number, too small, infinite, or the shapes do not fit together.
    """
    given = {
        "step_seconds": step_seconds,
        "tokens_per_step": tokens_per_step,
        "tokens": tokens,
        "nodes": nodes,
        "node_watts": node_watts,
        "node_mtbf_hours": node_mtbf_hours,
        "checkpoint_bytes": checkpoint_bytes,
        "checkpoint_gbytes_per_second": checkpoint_gbytes_per_second,
        "restart_seconds": restart_seconds,
        "pue": pue,
    }
    if checkpoint_interval_seconds is not None:
        given["checkpoint_interval_seconds"] = checkpoint_interval_seconds
    a = _together({name: _number(name, value) for name, value in given.items()})
    _whole("nodes", a["nodes"])

    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for a double is infinite
        step, restart = a["step_seconds"], a["restart_seconds"]
        steps = np.ceil(a["tokens"] / a["tokens_per_step"])
        compute = steps * step
        if not np.isfinite(compute).all():
            raise InputError("tokens / tokens_per_step x step_seconds is beyond 1e308 seconds; take fewer tokens")
        mtbf = a["node_mtbf_hours"] * HOUR / a["nodes"]
        write = a["checkpoint_bytes"] / (1e9 * a["checkpoint_gbytes_per_second"])
        interval = a.get("checkpoint_interval_seconds", optimal_interval(write, mtbf))
        interval = np.clip(interval, step, compute)

        segments, segment = compute / interval, interval + write
        checkpoints = segments * write
        lost = np.where(write < mtbf, segments * segment * _excess(segment / mtbf), np.inf)
        failed = segments * np.expm1(segment / mtbf)  # segments begun in vain
        one = restart * (1 + _excess(restart / mtbf))  # with its own failures
        restarts = np.where(restart < mtbf, np.where(one > 0, failed * one, 0), np.inf)
        wall = compute + checkpoints + lost + restarts
        hours = wall / HOUR * a["nodes"]
        found = Campaign(
            steps=steps,
            compute_days=compute / DAY,
            days=wall / DAY,
            node_hours=hours,
            energy_mwh=hours * a["node_watts"] * a["pue"] / 1e6,
            efficiency=compute / wall,
            interval_seconds=interval,
            checkpoint_seconds=write,
            system_mtbf_hours=mtbf / HOUR,
            failures=wall / mtbf,
            checkpoint_days=checkpoints / DAY,
            lost_days=lost / DAY,
            restart_days=restarts / DAY,
        )
    return _plain(found)


def optimal_interval(checkpoint_seconds, mtbf_seconds):
    """Compute time in seconds between two checkpoints that makes the wall time least: Daly 2006, higher order.

    sqrt(2 d M) (1 + sqrt(d/2M) / 3 + (d/2M) / 9) - d, and M where d reaches 2M; its first term alone is Young 1974
    (Communications of the ACM 17, 530). Within 2 % of the true optimum for d < M, and the wall time that it gives
    within 0.02 % of the least.
    """
    d, m = _number("checkpoint_seconds", checkpoint_seconds), _number("mtbf_seconds", mtbf_seconds)
    ratio = d / (2 * m)
    series = np.sqrt(2 * d * m) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - d
    return np.where(d < 2 * m, series, m)[()]


def checkpoint_bytes(parameters, dtype="bf16"):
    """Bytes of a checkpoint of DeepSpeed's ZeRO-1, all ranks together: 14 per parameter in 16 bit.

    The weights (2; 4 in fp32), and from the optimizer the fp32 copy of them and Adam's momentum and variance (12),
    each written once (DeepSpeed 0.19.8, ``runtime/pipe/module.py`` and ``state_dict`` of
    ``runtime/zero/stage_1_and_2.py`` and ``runtime/bf16_optimizer.py``). Gradients are not saved. Tied embeddings on
    two stages and norms on all tensor-parallel ranks are written more than once and come on top.

    The same 14 is the "14 terabytes at minimum" that the paper prints for 1T parameters (Tom's Hardware, after the
    paper; secondary), there by another sum: weights 2, gradients 4, fp32 weights 4, momentum 4 (G. Lockwood's notes).

    Args:
        parameters: how many; a number or an array.
        dtype: of the weights in training: ``bf16``, ``fp16`` or ``fp32``.
    """
    if dtype not in BYTES:
        raise unknown("dtype", dtype, BYTES)
    checked = _number("parameters", parameters)
    return (BYTES[dtype] + 12) * (parameters if isinstance(parameters, int) else checked[()])


def _excess(x):
    """(e^x - 1) / x - 1, what an exponential has over a straight line; 0 at 0."""
    x = np.minimum(x, 1e3)  # from 710 on it is infinite
    series = x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6))))
    return np.where(x < SMALL, series, np.expm1(x) / np.where(x < SMALL, 1, x) - 1)


def _number(name, value):
    """``value`` as an array of floats, each of them valid for the argument ``name``."""
    least = AT_LEAST.get(name)
    valid = "above 0" if least is None else f"at least {least}"
    valid = f"{valid}, inf for no failures" if name in MAY_BE_INFINITE else f"{valid} and finite"
    try:
        found = np.asarray(value)
        if found.dtype.kind not in "iufO":  # no text, no truth; integers beyond 64 bits are objects
            raise TypeError
        found = found.astype(float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} {shortened(value)} is not a number; it must be {valid}") from None
    good = found > 0 if least is None else found >= least  # false for nan
    if name not in MAY_BE_INFINITE:
        good &= np.isfinite(found)
    if not np.all(good):
        raise InputError(f"{name} {found[~good][0]:g} is not valid; it must be {valid}")
    return found


def _whole(name, found):
    bad = found[found % 1 != 0]
    if bad.size:
        raise InputError(f"{name} {bad[0]:g} is not a whole number; nearest valid: {max(1, round(bad[0]))}")


def _together(arrays):
    """The arrays, broadcast to one shape."""
    try:
        return dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items() if array.ndim)
        raise InputError(f"shapes do not broadcast together: {shapes}; give each one length, or one number") from None


def _plain(found):
    """Zero-dimensional arrays as Python's own numbers."""
    values = {name: value if np.ndim(value) else float(value) for name, value in vars(found).items()}
    if not np.ndim(found.steps):
        values["steps"] = int(found.steps)
    return Campaign(**values)
