"""The training loop of one rank: steps, timing, and the row of each step on the rank that owns the loss."""

import math
import resource
import time

from repro.errors import RunFailed
from repro.records.metrics import step_row
from repro.records.run_folder import now

MOST_SKIPPED = 50  # a scale of 2^16 falls to 1 in 16 halvings, each after at most two skipped steps


def train_steps(engine, recipe, streams, batches, device, known_device, first_step=0):
    """Run the steps of a recipe.

    Args:
        batches: iterator of micro-batches that starts at ``first_step``.
        device: torch device of this rank.
        known_device: :class:`repro.devices.Device` with the peak, or ``None``.

    Yields:
        The row of each step, equal on every rank but for timing and memory.
    """
    for step in range(first_step, recipe.steps):
        streams.reseed(step)
        rate, scale, skipped = engine.get_lr()[0], _loss_scale(engine), engine.skipped_steps
        started = _clock(device)
        loss = float(engine.train_batch(batches))
        seconds = _clock(device) - started
        norm = engine.get_global_grad_norm()
        row = step_row(
            recipe,
            known_device,
            step=step,
            loss=loss,
            grad_norm=None if norm is None else float(norm),
            lr=rate,
            loss_scale=scale,
            skipped=engine.skipped_steps > skipped,
            seconds=seconds,
            peak_memory_bytes=peak_memory_bytes(device),
            time=now(),
            first_step=first_step,
        )
        yield row


def require_sense(rows):
    """Whether the last step left weights worth going on with.

    Raises:
        RunFailed: loss or gradient norm are not finite, or the loss scaler finds no scale.
    """
    row = rows[-1]
    if row["loss_scale"] is not None and row["skipped"]:
        # Only a loss scaler skips in order to recover: in fp32 and bf16 DeepSpeed skips every step to the end.
        if len(rows) >= MOST_SKIPPED and all(one["skipped"] for one in rows[-MOST_SKIPPED:]):
            raise RunFailed(
                f"the last {MOST_SKIPPED} steps to step {row['step']} overflowed, at loss scale {row['loss_scale']:g}"
            )
        return
    for what in ("loss", "grad_norm"):
        if row[what] is not None and not math.isfinite(row[what]):
            raise RunFailed(
                f"the {what.replace('grad_norm', 'gradient norm')} of step {row['step']} is {row[what]}; "
                "nothing after it would mean anything"
            )


def peak_memory_bytes(device):
    """Peak allocated on the device, or the peak resident size of the process on a CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _loss_scale(engine):
    return float(engine.optimizer.loss_scale) if engine.fp16_enabled() else None


def _clock(device):
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()
