"""The training loop of one rank: steps, timing, and the row of each step on the rank that owns the loss."""

import math
import resource
import time

from repro.errors import RunFailed
from repro.records.metrics import step_row
from repro.records.run_folder import now


def train_steps(engine, recipe, streams, batches, device, known_device, first_step=0):
    """Run the steps of a recipe.

    Args:
        batches: iterator of micro-batches that starts at ``first_step``.
        device: torch device of this rank.
        known_device: :class:`repro.devices.Device` with the peak, or ``None``.

    Yields:
        The row of each step, equal on every rank but for timing and memory.

    Raises:
        RunFailed: the loss is not finite, and not because the loss scaler is still looking for its scale.
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
        )
        yield row
        # Only a loss scaler skips in order to recover: in fp32 and bf16 DeepSpeed skips every step to the end.
        if not math.isfinite(loss) and (scale is None or not row["skipped"]):
            raise RunFailed(f"the loss of step {step} is {loss}; nothing after it would mean anything")


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
