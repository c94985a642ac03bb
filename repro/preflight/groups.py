"""Every group of ranks that training makes, kind by kind, in the order in which it makes them. No torch.

The order is that of :func:`repro.engine.build.build_engine` with DeepSpeed 0.19.8: tensor-parallel groups first, then
those of PipelineModule and its grid. All ranks make all groups, their own or not, or the run hangs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """All groups of one kind.

    Attributes:
        title: as a message names it.
        groups: members of each, in the order made.
        number: of this kind; transfers are tried in this order.
    """

    name: str
    title: str
    groups: tuple
    number: int

    def of(self, rank):
        """The group that holds a rank, or ``None``."""
        return next((group for group in self.groups if rank in group), None)

    @property
    def size(self):
        return max(len(group) for group in self.groups)


TITLES = {
    "world": "all ranks",
    "tensor": "tensor-parallel group",
    "module": "all ranks (group of the pipeline module)",
    "model": "group of one replica",
    "data": "data-parallel group",
    "pipeline": "pipeline group",
    "slice": "tensor-parallel group (for partitioned activations)",
    "tied": "tied-embedding group (first and last stage)",
    "message even": "pipeline pair (first stage of it even)",
    "message odd": "pipeline pair (first stage of it odd)",
}
MESSAGES = ("message even", "message odd")


def kinds(recipe):
    """Every :class:`Kind` of a recipe, the pairs of pipeline neighbours last.

    Pairs need no group of their own: DeepSpeed sends over the world's. They come in two halves, from even and from odd
    stages, so that all of one half can talk at once.
    """
    layout = recipe.layout
    world = tuple(range(layout.world_size))
    tensor = _distinct(layout.tensor_group(rank) for rank in world)
    found = [("world", (world,))]
    if layout.tp > 1:
        found.append(("tensor", tensor))
    found += [
        ("module", (world,)),
        ("model", tuple(_replica(layout, d) for d in range(layout.dp))),
        ("data", _distinct(layout.data_group(rank) for rank in world)),
        ("pipeline", _distinct(layout.pipeline_group(rank) for rank in world)),
        ("slice", tensor),
    ]
    if recipe.shape.tied and layout.pp > 1:
        found.append(("tied", _distinct(layout.tied_group(rank) for rank in world)))
    for parity, name in enumerate(MESSAGES):
        pairs = tuple(pair for pair in _pairs(layout) if layout.coordinate(pair[0]).stage % 2 == parity)
        if pairs:
            found.append((name, pairs))
    return tuple(Kind(name, TITLES[name], groups, number) for number, (name, groups) in enumerate(found))


def _distinct(groups):
    return tuple(dict.fromkeys(groups))


def _replica(layout, replica):
    return tuple(layout.rank(p, replica, t) for p in range(layout.pp) for t in range(layout.tp))


def _pairs(layout):
    ahead = layout.dp * layout.tp
    return ((rank, rank + ahead) for rank in range(layout.world_size - ahead))
