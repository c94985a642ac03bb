"""What one rank does from its first line to its last, whoever started it."""

import contextlib
import io
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from repro import flops
from repro.engine.keeper import Keeping
from repro.engine.place import device_index
from repro.engine.stop import Stop
from repro.errors import InputError, RunFailed
from repro.records.environment import describe
from repro.records.lock import RECORD, held
from repro.records.metrics import summarize
from repro.records.run_folder import RunFolder, write_atomic


def run_rank(
    recipe,
    place,
    folder,
    report,
    wandb="off",
    deadline_seconds=600.0,
    timeline=False,
    keeping=None,
    sources=(),
    named=(),
    stop=None,
    done=False,
):
    """Train a recipe as one of its ranks.

    The rank that owns the loss keeps the record: environment, metrics, status, tracking.

    Args:
        place: :class:`repro.engine.place.Place`.
        folder: path of the run folder, made already; only the rank that keeps the record needs to know it.
        report: called as ``report("phase", text)`` before anything that can take long, and as
            ``report("row", row)`` after each step on the rank that owns the loss.
        deadline_seconds: the longest that one rank waits for another.
        timeline: whether to record when each instruction ran, see :mod:`repro.engine.timeline`.
        keeping: :class:`repro.engine.keeper.Keeping`.
        sources: paths of complete checkpoints to continue from, newest first; known to the recording rank.
        named: how the recipe differs from theirs, in words, for the record.
        stop: :class:`repro.engine.stop.Stop`.
        done: the run is completed already: all ranks return at once.
    """
    report("phase", "importing torch and DeepSpeed")
    from repro.engine.build import build_engine, quiet_deepspeed

    with quietly():
        deepspeed = quiet_deepspeed()
    import torch.distributed as dist

    device = pick_device(recipe, place)
    report("phase", f"meeting the other {recipe.world_size - 1} ranks")
    # PipelineModule reads nothing else. Where a launcher shows each rank one device, that is number 0.
    os.environ["LOCAL_RANK"] = str(place.local_rank if device.type == "cpu" else device.index)
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
        folder, sources, done = _from_owner(recipe, (str(folder), [str(path) for path in sources], done))
        if done:
            return
        run = Run(recipe, place, RunFolder(Path(folder)), report, keeping or Keeping(), stop or Stop())
        with held(folder, RECORD) if run.owner else contextlib.nullcontext():
            report("phase", "building the model")
            with quietly():
                engine, streams, forced = build_engine(recipe, place.rank, device)
            _train(run, wandb, device, engine, streams, forced, timeline, sources, named)
    finally:
        # A rank that failed must not wait here for ranks that wait for it.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


@dataclass(frozen=True)
class Run:
    """What stays the same over a run, as one rank sees it."""

    recipe: object
    place: object
    folder: RunFolder
    report: object
    keeping: Keeping
    stop: Stop

    @property
    def owner(self):
        return self.place.rank == self.recipe.layout.loss_rank


def _from_owner(recipe, value):
    """What the rank that keeps the record says, on every rank."""
    import torch.distributed as dist

    box = [value]
    dist.broadcast_object_list(box, src=recipe.layout.loss_rank)
    return box[0]


def _train(run, wandb, device, engine, streams, forced, timeline, sources, named):
    import torch
    import torch.distributed as dist

    from repro import devices
    from repro.engine.data import batches, dataset
    from repro.engine.keeper import Keeper, last_complete
    from repro.engine.loop import peak_memory_bytes, require_sense, train_steps
    from repro.engine.resume import require_same_data, restore

    if wandb != "off":
        from repro.records import tracking

    recipe, place, folder, report = run.recipe, run.place, run.folder, run.report
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    known = devices.recognise(name)
    report("phase", "reading data")
    data = dataset(recipe)
    keeper = Keeper(engine, recipe, place, folder, run.keeping, run.stop, report)  # also: reads without running code
    first, passed = restore(engine, recipe, place, sources, report) if sources else (0, [])
    keeper.done = first
    if run.owner and sources:
        require_same_data(sources[0], data)
    sidecar = None
    if run.owner:
        _begin_record(run, first, forced, name, known, device, data, sources, [*named, *passed])
        sidecar = tracking.start(folder, wandb) if wandb != "off" else None
    rows = []
    steps = batches(recipe, recipe.layout.coordinate(place.rank).replica, first, data)
    report("phase", f"step {first}")
    with quietly(), contextlib.ExitStack() as watching:
        if timeline:
            from repro.engine.timeline import Clock

            clock = Clock(device)
            watching.enter_context(clock.following(engine))
        stopping = keeper.after(first)
        for row in train_steps(engine, recipe, streams, steps, device, known, first) if not stopping else ():
            rows.append(row)
            if run.owner:
                folder.append_metrics(row)
                report("row", row)
            try:
                require_sense(rows)
            except RunFailed as error:
                if keeper.pending is not None and keeper.pending < row["step"]:
                    keeper.finish()  # a later step has shown that its weights make sense; all ranks are here
                raise RunFailed(f"{error}; {last_complete(folder.path)}") from None
            if stopping := keeper.after(row["step"] + 1):
                break
            report("phase", f"step {row['step'] + 1}" if row["step"] + 1 < recipe.steps else "finishing")
    run.stop.ignore()
    if timeline:
        clock.write(folder.path, place.rank, recipe.layout.coordinate(place.rank).stage)
    peaks = [None] * place.world_size
    dist.all_gather_object(peaks, peak_memory_bytes(device))  # also: every rank got here
    if run.owner:
        final = {"ranks": recipe.world_size, "peak_memory_bytes_by_rank": peaks}
        if stopping:
            final |= {"state": "interrupted", "reason": _why_stopped(run, keeper.done), "step": keeper.done}
        else:
            final |= {"state": "completed", "summary": summarize(folder.metrics())}
        folder.set_status(**final)
        report("phase", "finishing wandb")
        folder.set_status(**final, tracking=sidecar.finish() if sidecar else {"state": "off"})


def _why_stopped(run, done):
    from repro.engine.keeper import last_complete

    who = run.stop.asked or "a signal to another rank"
    return f"asked to stop by {who}, {done} steps are done; {last_complete(run.folder.path)}"


def _begin_record(run, first, forced, name, known, device, data, sources, notes):
    folder = run.folder
    folder.sweep()
    if sources or (folder.path / "metrics.jsonl").exists():
        dropped = folder.keep_metrics_below(first)
        folder.note_start({"step": first, "dropped_rows": dropped, "notes": notes})
        again = f"; {dropped} recorded steps are done again, kept in metrics-dropped.jsonl" if dropped else ""
        run.report("note", f"goes on after step {first}{again}" if first else f"begins anew{again}")
        for note in notes:
            run.report("note", note)
        write_atomic(folder.path / "recipe.toml", run.recipe.to_toml())
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
    folder.set_status("running", ranks=run.recipe.world_size, step=first)


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
