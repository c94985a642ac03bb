"""Real ranks under the recorder that fake ones run under, and the two side by side."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

DEADLINE_SECONDS = 120.0


def measure(recipe):
    """What every rank of a recipe did in its second step on this machine: one dictionary a rank, in order.

    The fields are those of :class:`repro.tracing.rank.RankTrace`.

    Raises:
        InputError: more ranks, or weights, than this machine takes.
        RunFailed: a rank failed.
    """
    from repro.engine.host import check_machine
    from repro.engine.launch import run_ranks
    from repro.recipe import load

    recipe = load(recipe)
    check_machine(recipe)
    with tempfile.TemporaryDirectory(prefix="repro-real-", ignore_cleanup_errors=True) as folder:
        folder = Path(folder)
        run_ranks(recipe, recorded, {"into": folder}, DEADLINE_SECONDS, folder / "logs")
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(recipe.world_size)]


def recorded(recipe, place, report, into, any_dtype=False):
    """Body of a rank: two steps on real tensors under the recorder; the second goes to ``into/<rank>.json``.

    Args:
        any_dtype: let DeepSpeed take a dtype that this device is slow in or lacks.
    """
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from repro.engine.build import build_engine, quiet_deepspeed
    from repro.engine.worker import quietly
    from repro.tracing.rank import result
    from repro.tracing.recorder import Recorder

    os.environ["LOCAL_RANK"] = str(place.local_rank)
    deepspeed = quiet_deepspeed()
    if any_dtype:
        from deepspeed.accelerator import get_accelerator

        get_accelerator().is_fp16_supported = lambda: True
    dist.init_process_group(
        "gloo",
        init_method=place.init_method,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=60),
    )
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    recorder = Recorder()
    with recorder, quietly():
        engine, streams, _ = build_engine(recipe, place.rank, torch.device("cpu"))
        data = _tokens(recipe)
        for step in range(2):
            streams.reseed(step)
            with recorder.following(engine):
                engine.train_batch(data)
    found = result(recorder, engine, place.rank, recipe.layout.coordinate(place.rank), engine.micro_batches)
    (into / f"{place.rank}.json").write_text(json.dumps(asdict(found)))


def _tokens(recipe):
    """Micro-batches without end, of which the loader keeps nothing, as on a GPU where it lives on the host."""
    import torch

    size = (recipe.batch.micro, recipe.shape.seq)
    while True:
        yield tuple(torch.randint(0, recipe.shape.vocab, size) for _ in range(2))
