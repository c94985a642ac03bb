"""Run training steps as one fake rank, by the engine's own code, and record the second."""

from dataclasses import dataclass

from repro.layout import Coordinate
from repro.tracing.recorder import LABELS, PHASES, Recorder


@dataclass(frozen=True)
class RankTrace:
    """One step of one rank.

    Attributes:
        micro_batches: how many the step had.
        flops: ``{phase: {kind: FLOPs}}``.
        transfers: every :class:`repro.tracing.recorder.Transfer` in order.
        persistent_bytes: ``{label: bytes}`` after the step; what is alive between steps.
        peak_bytes, peak_by_label, peak_phase: the highest point of the step.
        pipeline_peak_bytes, pipeline_peak_by_label, pipeline_peak_phase: the highest point before the reduction;
            it alone depends on the micro-batches in flight.
        timeline: ``(instruction, live bytes after it, peak bytes within it)``.
    """

    rank: int
    coordinate: Coordinate
    micro_batches: int
    parameters: int
    flops: dict
    transfers: tuple
    persistent_bytes: dict
    peak_bytes: int
    peak_by_label: dict
    peak_phase: str
    pipeline_peak_bytes: int
    pipeline_peak_by_label: dict
    pipeline_peak_phase: str
    timeline: tuple


def trace_rank(recipe, rank, micro_batches=None, in_flight=None):
    """The :class:`RankTrace` of a fake rank.

    Args:
        micro_batches: of the step, instead of the recipe's. Fewer than stages are allowed: no rank waits here.
        in_flight: micro-batches that have gone forward and not yet backward, instead of the stage's own
            ``min(pp - stage, m)``: the schedule of a pipeline of that depth behind this stage.
    """
    from repro.engine.build import build_engine
    from repro.tracing.fake_world import fake_world

    with fake_world(recipe, rank) as device:
        recorder = Recorder()
        with recorder:
            engine, streams, _ = build_engine(recipe, rank, device)
            count = micro_batches or engine.micro_batches
            if in_flight is not None:
                from deepspeed.runtime.pipe.schedule import TrainSchedule

                stage = engine.stage_id
                engine._train_schedule = lambda: TrainSchedule(engine.micro_batches, stage + in_flight, stage)
            size = (recipe.batch.micro, recipe.shape.seq)
            for step, micro in enumerate((min(count, 2), count)):
                # The first makes moments and buffers (the last stage fills two); the second is like all later ones.
                engine.micro_batches = micro
                streams.reseed(step)
                with recorder.following(engine):
                    engine.train_batch(_batches(size, micro))
        return result(recorder, engine, rank, recipe.layout.coordinate(rank), count)


def result(recorder, engine, rank, coordinate, micro_batches):
    """What a recorder has seen of a rank, real or fake, as a :class:`RankTrace`."""
    flops = {phase: {} for phase in PHASES if phase != "build"}
    for (phase, kind), count in recorder.flops.items():
        if phase != "build":
            flops[phase][kind] = int(count)
    memory = recorder.memory
    return RankTrace(
        rank=rank,
        coordinate=coordinate,
        micro_batches=micro_batches,
        parameters=sum(p.numel() for p in engine.module.parameters()),
        flops=flops,
        transfers=tuple(t for t in recorder.transfers if t.phase != "build"),
        persistent_bytes={label: memory.now[label] for label in LABELS},
        **_peak("peak", memory.peak),
        **_peak("pipeline_peak", recorder.pipeline_peak),
        timeline=tuple(recorder.timeline),
    )


def _peak(name, peak):
    by_label = {label: peak.by_label.get(label, 0) for label in LABELS}
    return {f"{name}_bytes": peak.bytes, f"{name}_by_label": by_label, f"{name}_phase": peak.phase}


def _batches(size, count):
    """Tokens and labels, made when the engine asks for them as a loader would."""
    import torch

    for _ in range(count):
        yield torch.zeros(size, dtype=torch.long), torch.zeros(size, dtype=torch.long)
