"""Bodies of ranks that go wrong on purpose; imported by the rank processes."""

import os
import signal
import time


def stand_still(recipe, place, report, rank):
    """One rank stops inside its second step; the others wait for it in a collective."""
    from repro.engine import worker

    if place.rank == rank:

        def report_then_hang(kind, value, original=report):
            original(kind, value)
            if value == "step 1":
                time.sleep(3600)

        report = report_then_hang
    _train(worker, recipe, place, report)


def kill_in_step(recipe, place, report, rank, where):
    """SIGKILL of one rank inside forward, backward, reduction or optimizer of step 1."""
    from repro.engine import pipeline, worker

    if place.rank == rank:
        armed = []

        def report_and_arm(kind, value, original=report):
            original(kind, value)
            if value == "step 1":
                armed.append(True)

        _die_in(pipeline, where, armed)
        report = report_and_arm
    _train(worker, recipe, place, report)


def _die_in(pipeline, where, armed):
    from deepspeed.runtime.pipe import schedule
    from deepspeed.runtime.pipe.engine import PipelineEngine

    instruction = {
        "forward": schedule.ForwardPass,
        "backward": schedule.BackwardPass,
        "reduction": schedule.ReduceGrads,
        "optimizer": schedule.OptimizerStep,
    }[where]
    original = PipelineEngine._INSTRUCTION_MAP[instruction]

    def die(self, *args, **kwargs):
        if armed:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *args, **kwargs)

    PipelineEngine._INSTRUCTION_MAP = {**PipelineEngine._INSTRUCTION_MAP, instruction: die}


def raise_while_building(recipe, place, report, rank):
    """One rank raises; the others are waiting for it."""
    from repro.engine import worker

    if place.rank == rank:
        raise RuntimeError("a fault of this rank alone\nwith a second line")
    _train(worker, recipe, place, report)


def raise_with_a_full_log(recipe, place, report):
    """An error of the disk that also holds the log."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    os.dup2(full, 2)
    raise OSError("No space left on device")


def disagree_with_recipe(recipe, place, report):
    """DeepSpeed gets another clipping than the recipe asks for."""
    from repro.engine import config, worker

    original = config.deepspeed_config
    config.deepspeed_config = lambda r: {**original(r), "gradient_clipping": 0.0}
    _train(worker, recipe, place, report)


def fp16_on_any_device(recipe, place, report, folder, **options):
    """fp16 where DeepSpeed's accelerator says no: slow on a CPU, but the arithmetic is there."""
    from deepspeed.accelerator import get_accelerator

    from repro.engine import worker

    get_accelerator().is_fp16_supported = lambda: True
    worker.run_rank(recipe, place, folder, report, deadline_seconds=60, **options)


def _train(worker, recipe, place, report):
    import tempfile
    from pathlib import Path

    from repro.records.run_folder import RunFolder

    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder.create(Path(root) / "run", recipe)
        worker.run_rank(recipe, place, folder.path, report, deadline_seconds=60)
