"""One row of metrics per step, and what a whole run amounts to. No torch."""

import math
from statistics import fmean

from repro import flops
from repro.errors import InputError, shortened

RATES = ("seconds", "tokens_per_second", "hardware_tflops", "model_tflops")


def step_row(
    recipe, device, *, step, loss, grad_norm, lr, loss_scale, skipped, seconds, peak_memory_bytes, time, first_step=0
):
    """The row of a step.

    Args:
        device: :class:`repro.devices.Device` or ``None``; without one, or without its peak for the
            recipe's precision, ``hfu`` and ``mfu`` are ``None``: there is no default peak.
        seconds: wall time of the step, all micro-batches and the optimizer.
        first_step: with which this start of the run began; the steps after it warm up.

    Returns:
        Throughputs in TFLOP/s per device by the formulas of :mod:`repro.flops`; HFU and MFU as fractions.
    """
    per_device = seconds * recipe.world_size * 1e12
    hardware, model = flops.hardware_flops(recipe) / per_device, flops.model_flops(recipe) / per_device
    peak = device.peak(recipe.precision.dtype) if device else None
    return {
        "step": step,
        "loss": loss,
        "grad_norm": grad_norm,
        "lr": lr,
        "loss_scale": loss_scale,
        "skipped": skipped,
        "warmup": step < first_step + recipe.timing_warmup,
        "seconds": seconds,
        "tokens_per_second": recipe.batch.global_ * recipe.shape.seq / seconds,
        "hardware_tflops": hardware,
        "model_tflops": model,
        "hfu": hardware / peak if peak else None,
        "mfu": model / peak if peak else None,
        "peak_memory_bytes": peak_memory_bytes,
        "time": time,
    }


def checked(rows):
    """Rows as read from a file: they may have been written by something else.

    Raises:
        InputError: a column of :func:`step_row` is missing or holds what it cannot.
    """
    for row in rows:
        for column in ("warmup", "skipped"):
            if type(row.get(column)) is not bool:
                raise _broken(row, column)
        for column in (*RATES, "loss", "hfu", "mfu"):
            value = row.get(column)
            if value is None and column in row and column not in RATES:
                continue
            if type(value) not in (int, float) or not math.isfinite(value) or (column in RATES and value <= 0):
                raise _broken(row, column)
    return rows


def _broken(row, column):
    return InputError(f"metrics of step {row['step']} are broken: {column} is {shortened(row.get(column))}")


def summarize(rows):
    """Numbers of a run: first and last loss, and means over the timed steps.

    A timed step that the loss scaler skipped did not update the weights, so the means would not be
    those of training: they are withheld and ``throughput_invalid`` says why. So they are where steps are
    missing from the record, or stand in it twice.
    """
    timed = [row for row in rows if not row["warmup"]]
    steps = {row["step"] for row in rows}
    skipped = [row["step"] for row in timed if row["skipped"]]
    found = {
        "steps": len(rows),
        "skipped_steps": sum(row["skipped"] for row in rows),
        "first_loss": rows[0]["loss"] if rows else None,
        "last_loss": rows[-1]["loss"] if rows else None,
        "timed_steps": len(timed),
        "throughput_invalid": None,
    }
    if not timed:
        found["throughput_invalid"] = "no step beyond the warm-up"
    elif len(steps) < len(rows):
        found["throughput_invalid"] = f"{len(rows) - len(steps)} steps stand twice in the record"
    elif missing := max(steps) - min(steps) + 1 - len(steps):
        found["throughput_invalid"] = f"{missing} steps are missing from the record"
    elif skipped:
        found["throughput_invalid"] = (
            f"{len(skipped)} of {len(timed)} timed steps were skipped for overflow (first: step {skipped[0]})"
        )
    valid = found["throughput_invalid"] is None
    for key in (*RATES, "hfu", "mfu"):
        values = [row[key] for row in timed]
        found[key] = _mean(key, timed, values) if valid and None not in values else None
    return found


def _mean(key, timed, values):
    # Rates are averaged over time, not over steps: total work by total seconds.
    if key == "seconds":
        return fmean(values)
    return sum(v * row["seconds"] for v, row in zip(values, timed, strict=True)) / sum(r["seconds"] for r in timed)
