"""Names of groups: which of the layout's groups a transfer ran over. No torch."""


def group_name(layout, rank, transfer):
    """``tensor``, ``data``, ``pipeline``, ``tied``, ``model``, ``world``, or ``next`` and ``previous`` for a peer."""
    if transfer.kind in ("send", "recv"):
        mine, other = layout.coordinate(rank).stage, layout.coordinate(transfer.ranks[0]).stage
        return {1: "next", -1: "previous"}.get(other - mine, f"stage {other}")
    ranks = tuple(sorted(transfer.ranks))
    named = [("tensor", layout.tensor_group(rank)), ("data", layout.data_group(rank))]
    # with two stages the tied group is the pipeline's: only the reduction sums tied gradients
    pair = [("tied", layout.tied_group(rank)), ("pipeline", layout.pipeline_group(rank))]
    named += pair if transfer.phase == "reduction" else pair[::-1]
    named += [("model", model_group(layout, rank)), ("world", tuple(range(layout.world_size)))]
    for name, members in named:
        if len(members) == len(ranks) and tuple(sorted(members)) == ranks:
            return name
    return f"{len(ranks)} ranks"


def model_group(layout, rank):
    """All ranks of this rank's replica: every stage and shard."""
    replica = layout.coordinate(rank).replica
    return tuple(layout.rank(p, replica, t) for p in range(layout.pp) for t in range(layout.tp))
