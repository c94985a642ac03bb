"""What one rank does from its first line to its last, whoever started it."""

import contextlib
import io
import os
from datetime import timedelta
from pathlib import Path

from repro.engine.place import device_index
from repro.errors import InputError
from repro.records.environment import describe
from repro.records.metrics import summarize
from repro.records.run_folder import RunFolder


def run_rank(recipe, place, folder, report, wandb="off", deadline_seconds=600.0, timeline=False):
    """Train a recipe as one of its ranks.

    The rank that owns the loss keeps the record: environment, metrics, status, tracking.

    Args:
        place: :class:`repro.engine.place.Place`.
        folder: path of the run folder, made already.
        report: called as ``report("phase", text)`` before anything that can take long, and as
            ``report("row", row)`` after each step on the rank that owns the loss.
        deadline_seconds: the longest that one rank waits for another.
        timeline: whether to record when each instruction ran, see :mod:`repro.engine.timeline`.
    """
    report("phase", "importing torch and DeepSpeed")
    from repro.engine.build import build_engine, quiet_deepspeed

    with quietly():
        deepspeed = quiet_deepspeed()
    import torch.distributed as dist

    device = pick_device(recipe, place)
    report("phase", f"meeting the other {recipe.world_size - 1} ranks")
    os.environ["LOCAL_RANK"] = str(place.local_rank)  # PipelineModule reads nothing else
    if place.init_method.startswith("file://"):
        # Gone when the launcher was stopped in between. torch would look for the folder for five minutes, with
        # Python's lock in hand, so that no other thread could end this process.
        Path(place.init_method.removeprefix("file://")).touch()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        init_method=place.init_method,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=deadline_seconds),
    )
    deepspeed.init_distributed(backend, auto_mpi_discovery=False)
    try:
        report("phase", "building the model")
        with quietly():
            engine, streams, forced = build_engine(recipe, place.rank, device)
        _train(recipe, place, RunFolder(folder), report, wandb, device, engine, streams, forced, timeline)
    finally:
        # A rank that failed must not wait here for ranks that wait for it.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _train(recipe, place, folder, report, wandb, device, engine, streams, forced, timeline):
    import torch
    import torch.distributed as dist

    from repro import devices, flops
    from repro.engine.data import batches, dataset
    from repro.engine.loop import peak_memory_bytes, train_steps

    if wandb != "off":
        from repro.records import tracking

    owner = place.rank == recipe.layout.loss_rank
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    known = devices.recognise(name)
    report("phase", "reading data")
    data = dataset(recipe)
    sidecar = None
    if owner:
        folder.write_environment(
            {
                **describe(),
                "device": name,
                "peak": known.name if known else None,
                "in_force": forced,
                "data": data.describe(),
                "hardware_flops": flops.HARDWARE_FORMULA,
                "model_flops": flops.MODEL_FORMULA,
                "peak_memory": "allocated on the device" if device.type == "cuda" else "resident size of the process",
            }
        )
        folder.set_status("running", ranks=recipe.world_size)
        sidecar = tracking.start(folder, wandb) if wandb != "off" else None
    rows = []
    steps = batches(recipe, recipe.layout.coordinate(place.rank).replica, data=data)
    report("phase", "step 0")
    with quietly(), contextlib.ExitStack() as watching:
        if timeline:
            from repro.engine.timeline import Clock

            clock = Clock(device)
            watching.enter_context(clock.following(engine))
        for row in train_steps(engine, recipe, streams, steps, device, known):
            rows.append(row)
            if owner:
                folder.append_metrics(row)
                report("row", row)
            report("phase", f"step {row['step'] + 1}" if row["step"] + 1 < recipe.steps else "finishing")
    if timeline:
        clock.write(folder.path, place.rank, recipe.layout.coordinate(place.rank).stage)
    peaks = [None] * place.world_size
    dist.all_gather_object(peaks, peak_memory_bytes(device))  # also: every rank got here
    if owner:
        final = {"ranks": recipe.world_size, "summary": summarize(rows), "peak_memory_bytes_by_rank": peaks}
        folder.set_status("completed", **final)
        report("phase", "finishing wandb")
        folder.set_status("completed", **final, tracking=sidecar.finish() if sidecar else {"state": "off"})


def pick_device(recipe, place):
    """The torch device of this rank.

    Raises:
        InputError: fewer devices than ranks, or a precision that the device does not have.
    """
    import torch
    from deepspeed.accelerator import get_accelerator

    if torch.cuda.is_available():
        device = torch.device("cuda", device_index(place.local_rank, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    accelerator, dtype = get_accelerator(), recipe.precision.dtype
    if dtype == "fp16" and not accelerator.is_fp16_supported():
        raise InputError(f"precision.dtype fp16 does not work on this {device.type}; nearest valid: bf16, or fp32")
    if dtype == "bf16" and not accelerator.is_bf16_supported():
        raise InputError(f"precision.dtype bf16 does not work on this {device.type}; nearest valid: fp32")
    return device


@contextlib.contextmanager
def quietly():
    """Swallow what DeepSpeed prints with bare ``print``; errors are raised, not printed."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
