"""The trace of a recipe: one fake rank of a stage, or one of every stage.

The ranks of a stage do the same work on tensors of the same size, so replica 0, shard 0 speaks for
them; :mod:`repro.tracing.match` compares others with it. Counts of a step are exact for any number of
micro-batches: what the schedule does for one it does for each.
"""

from collections import Counter
from dataclasses import asdict, dataclass

from repro.errors import InputError
from repro.tracing.groups import group_name

LARGEST_WORLD = 262_144  # DeepSpeed numbers every group of the world on every rank: a minute, and growing
FEW = (3, 4)  # micro-batches in flight from which the memory of a deeper pipeline is continued


@dataclass(frozen=True)
class StageTrace:
    """One rank of a stage over one step of the recipe.

    Attributes:
        in_flight: micro-batches that have gone forward and not yet backward, at most.
        continued: the peak is continued from 3 and 4 micro-batches in flight, by equal steps; otherwise
            every micro-batch in flight was there.
        flops: ``{phase: {kind: FLOPs of the step}}``.
        transfers: ``{phase, kind, group, size, bytes, count}``; ``count`` is of the whole step.
        persistent_bytes, peak_bytes, peak_by_label, peak_phase: memory as in :class:`repro.tracing.rank.RankTrace`.
        timeline: of the traced micro-batches; empty when ``continued``.
    """

    stage: int
    rank: int
    layers: int
    parameters: int
    in_flight: int
    traced_micro_batches: int
    continued: bool
    flops: dict
    transfers: tuple
    persistent_bytes: dict
    peak_bytes: int
    peak_by_label: dict
    peak_phase: str
    timeline: tuple = ()

    @property
    def hardware_flops(self):
        """FLOPs executed in the step, recompute included."""
        return sum(sum(kinds.values()) for kinds in self.flops.values())

    @property
    def model_flops(self):
        """FLOPs executed in the step but for the recompute."""
        return self.hardware_flops - sum(self.flops["recompute"].values())

    def to_dict(self):
        return {**asdict(self), "hardware_flops": self.hardware_flops, "model_flops": self.model_flops}


def trace(recipe, rank=None, stage=None, all_stages=False, micro_batches=None, progress=None):
    """Trace one rank, one stage (the default is stage 0), or every stage of a recipe.

    Args:
        micro_batches: per step and replica, instead of the recipe's.
        progress: called with ``(done, of)`` after each stage.

    Returns:
        List of :class:`StageTrace`, in order of stage.

    Raises:
        InputError: a rank outside the world, a stage outside the pipeline, two of them at once.
    """
    from repro.recipe import load

    recipe = load(recipe)
    layout, pp = recipe.layout, recipe.parallel.pp
    if sum((rank is not None, stage is not None, all_stages)) > 1:
        raise InputError("give one of a rank, a stage, or all stages")
    if micro_batches is not None and micro_batches < 1:
        raise InputError(f"{micro_batches} micro-batches; the least is 1")
    if stage is not None and not 0 <= stage < pp:
        raise InputError(f"stage {stage} is outside the pipeline; valid are 0 to {pp - 1}")
    if recipe.world_size > LARGEST_WORLD:
        raise InputError(
            f"a world of {recipe.world_size:,} ranks takes minutes to number; the most is {LARGEST_WORLD:,}: "
            "lower parallel.dp, which changes nothing but the shares of ZeRO-1"
        )
    m = micro_batches or recipe.accumulation
    if all_stages:
        return _all_stages(recipe, m, progress)
    rank = layout.rank(stage or 0, 0, 0) if rank is None else rank
    return [_exact(recipe, rank, layout.coordinate(rank).stage, m)]


def in_flight(recipe, stage, micro_batches):
    """Micro-batches whose activations a stage holds at most: 1F1B."""
    return min(recipe.parallel.pp - stage, micro_batches)


def _exact(recipe, rank, stage, m):
    from repro.tracing.rank import trace_rank

    depth = in_flight(recipe, stage, m)
    # One more than in flight: only then does a forward meet a full set of gradients, as in all later ones.
    return _as(recipe, rank, stage, m, depth, trace_rank(recipe, rank, min(m, depth + 1)))


def _as(recipe, rank, stage, m, depth, traced):
    peak = traced.peak_bytes, traced.peak_by_label, traced.peak_phase
    return _stage(recipe, traced, stage, m, depth, *peak, rank=rank)


def _all_stages(recipe, m, progress):
    found, pairs = [], {}
    for stage in range(recipe.parallel.pp):
        depth = in_flight(recipe, stage, m)
        rank = recipe.layout.rank(stage, 0, 0)
        role = (stage == 0, recipe.stage_layers[stage])  # the last stage has one in flight: never in a pair
        if depth in FEW and role in pairs:  # a stage with as many in flight was traced
            found.append(_as(recipe, rank, stage, m, depth, pairs[role][FEW.index(depth)]))
        elif depth <= FEW[1] or m <= depth:
            found.append(_exact(recipe, rank, stage, m))
        else:
            if role not in pairs:
                pairs[role] = _pair(recipe, rank)
            found.append(_continued(recipe, rank, stage, m, depth, *pairs[role]))
        if progress:
            progress(len(found), recipe.parallel.pp)
    return found


def _pair(recipe, rank):
    from repro.tracing.rank import trace_rank

    return [trace_rank(recipe, rank, depth + 2, in_flight=depth) for depth in FEW]


def _continued(recipe, rank, stage, m, depth, fewer, more):
    """Each further micro-batch in flight adds the same bytes; the reduction and the step know nothing of them."""
    further = depth - FEW[1]
    each = more.pipeline_peak_bytes - fewer.pipeline_peak_bytes
    pipeline = more.pipeline_peak_bytes + further * each
    by_label, phase, peak = more.peak_by_label, more.peak_phase, more.peak_bytes
    if pipeline >= peak:
        peak, phase = pipeline, more.pipeline_peak_phase
        by_label = {
            label: size + further * (size - fewer.pipeline_peak_by_label[label])
            for label, size in more.pipeline_peak_by_label.items()
        }
    return _stage(recipe, more, stage, m, depth, peak, by_label, phase, rank=rank, continued=True)


def _stage(recipe, traced, stage, m, depth, peak, by_label, phase, rank=None, continued=False):
    n = traced.micro_batches
    scale = {"forward": m, "recompute": m, "backward": m}  # counted over n micro-batches; the rest once a step
    flops = {
        name: {kind: _per_step(count, scale.get(name), n) for kind, count in kinds.items()}
        for name, kinds in traced.flops.items()
    }
    counts = Counter(
        (t.phase, t.kind, group_name(recipe.layout, traced.rank, t), len(t.ranks), t.bytes) for t in traced.transfers
    )
    transfers = tuple(
        {
            "phase": name,
            "kind": kind,
            "group": group,
            "size": size,
            "bytes": size_bytes,
            "count": _per_step(count, scale.get(name), n),
        }
        for (name, kind, group, size, size_bytes), count in sorted(counts.items())
    )
    return StageTrace(
        stage=stage,
        rank=traced.rank if rank is None else rank,
        layers=recipe.stage_layers[stage],
        parameters=traced.parameters,
        in_flight=depth,
        traced_micro_batches=n,
        continued=continued,
        flops=flops,
        transfers=transfers,
        persistent_bytes=traced.persistent_bytes,
        peak_bytes=peak,
        peak_by_label=by_label,
        peak_phase=phase,
        timeline=() if continued else traced.timeline,
    )


def _per_step(count, micro_batches, traced):
    if micro_batches is None:
        return count
    each, rest = divmod(count, traced)
    if rest:
        raise AssertionError(f"{count} over {traced} micro-batches are not the same for each")
    return each * micro_batches
