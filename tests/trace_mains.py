"""Body of a real rank that is recorded as a fake one is; imported by the rank processes."""

import json
import os
from dataclasses import asdict


def tokens(recipe):
    """Micro-batches without end, of which the loader keeps nothing, as on a GPU where it lives on the host."""
    import torch

    size = (recipe.batch.micro, recipe.shape.seq)
    while True:
        yield tuple(torch.randint(0, recipe.shape.vocab, size) for _ in range(2))


def recorded(recipe, place, report, folder, any_dtype=False):
    """Two steps on real tensors under the recorder; the second goes to ``folder/<rank>.json``."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from repro.engine.build import build_engine, quiet_deepspeed
    from repro.engine.worker import quietly
    from repro.trace.rank import result
    from repro.trace.recorder import Recorder

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
        data = tokens(recipe)
        for step in range(2):
            streams.reseed(step)
            with recorder.following(engine):
                engine.train_batch(data)
    found = result(recorder, engine, place.rank, recipe.layout.coordinate(place.rank), engine.micro_batches)
    (folder / f"{place.rank}.json").write_text(json.dumps(asdict(found)))
