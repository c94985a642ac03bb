"""Where each rank stands: rank <-> (stage, replica, shard), groups, and layers over stages.

DeepSpeed numbers ranks along the axes (pipe, data, model), model fastest. This file is the only
place that knows it. No torch.
"""

from dataclasses import dataclass

from repro.errors import InputError, shortened


@dataclass(frozen=True)
class Coordinate:
    """Position of a rank: pipeline ``stage``, data-parallel ``replica``, tensor-parallel ``shard``."""

    stage: int
    replica: int
    shard: int


@dataclass(frozen=True)
class Layout:
    """A grid of pp x dp x tp ranks.

    Raises:
        InputError: a size below 1, or a rank or coordinate outside the grid.
    """

    pp: int
    dp: int
    tp: int

    def __post_init__(self):
        for name in ("pp", "dp", "tp"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; every parallel size is at least 1")

    @property
    def world_size(self):
        return self.pp * self.dp * self.tp

    def coordinate(self, rank):
        """The :class:`Coordinate` of a global rank."""
        if not 0 <= rank < self.world_size:
            raise InputError(f"rank {rank} is outside the world; valid ranks are 0 to {self.world_size - 1}")
        stage, rest = divmod(rank, self.dp * self.tp)
        replica, shard = divmod(rest, self.tp)
        return Coordinate(stage, replica, shard)

    def rank(self, stage, replica, shard):
        """The global rank at a coordinate."""
        for name, value, size in (("stage", stage, self.pp), ("replica", replica, self.dp), ("shard", shard, self.tp)):
            if not 0 <= value < size:
                raise InputError(f"{name} {value} is outside the layout; valid are 0 to {size - 1}")
        return (stage * self.dp + replica) * self.tp + shard

    def tensor_group(self, rank):
        """Ranks that hold the other shards of this rank's layers, in order of shard."""
        c = self.coordinate(rank)
        return tuple(self.rank(c.stage, c.replica, t) for t in range(self.tp))

    def data_group(self, rank):
        """Ranks that hold the same weights, in order of replica: ZeRO-1 shards over these."""
        c = self.coordinate(rank)
        return tuple(self.rank(c.stage, d, c.shard) for d in range(self.dp))

    def pipeline_group(self, rank):
        """Ranks that pass activations to each other, first stage to last."""
        c = self.coordinate(rank)
        return tuple(self.rank(p, c.replica, c.shard) for p in range(self.pp))

    def tied_group(self, rank):
        """First and last stage of this rank's pipeline: they share a tied embedding."""
        group = self.pipeline_group(rank)
        return (group[0], group[-1]) if self.pp > 1 else (group[0],)

    @property
    def loss_rank(self):
        """The one rank that records: last stage, first replica, first shard."""
        return self.rank(self.pp - 1, 0, 0)


def split_layers(layers, stages, explicit=None):
    """Transformer layers on each stage: as equal as possible, the longer stages first, none empty.

    Args:
        explicit: a given split, checked and returned; for runs whose software divided otherwise.

    Raises:
        InputError: more stages than layers, or an explicit split that does not add up.
    """
    if stages > layers:
        raise InputError(f"{stages} pipeline stages for {layers} layers leave a stage empty; the most is pp = {layers}")
    if explicit:
        if len(explicit) != stages or sum(explicit) != layers or min(explicit) < 1:
            raise InputError(
                f"stage_layers {shortened(list(explicit))} must be {stages} positive numbers with sum {layers}; "
                f"balanced would be {shortened(list(split_layers(layers, stages)))}"
            )
        return tuple(explicit)
    base, longer = divmod(layers, stages)
    return tuple(base + (stage < longer) for stage in range(stages))


def stage_bounds(layer_counts):
    """Bounds of each stage in the pipeline's list of layers.

    The list is: embedding, positions, the transformer blocks, final norm, head. Embedding and
    positions stand on the first stage, norm and head on the last.

    Returns:
        ``len(layer_counts) + 1`` indices; stage ``i`` holds items ``[bounds[i], bounds[i + 1])``.
    """
    bounds = [0]
    for stage, count in enumerate(layer_counts):
        extra = (2 if stage == 0 else 0) + (2 if stage == len(layer_counts) - 1 else 0)
        bounds.append(bounds[-1] + count + extra)
    return bounds
