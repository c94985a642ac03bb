"""Whether the ranks of a step fit together: a fake rank never waits, so a deadlock must be looked for.

The transfers of all ranks are played against each other, each rank stopping at its next one until all
partners have come to it. Sends wait for their receive, the strictest reading. What does not fit is named.
"""

from dataclasses import dataclass, replace

from repro.tracing.groups import group_name, model_group

FEW_MICRO_BATCHES = 3


@dataclass(frozen=True)
class Match:
    """Outcome of a check: ``problem`` is ``None`` when every transfer found its partners."""

    ranks: int
    transfers: int
    traced_ranks: tuple
    problem: str | None


def match(recipe, micro_batches=FEW_MICRO_BATCHES, progress=None):
    """Trace every distinct role of a recipe and play one pipeline of it, all stages.

    Roles differ by place in the pipeline, layers, stages behind (beyond the micro-batches they make no
    difference) and parity, by which DeepSpeed orders sends and receives. The
    ranks of other shards and replicas must issue the same as shard 0 of replica 0: the farthest is traced.
    """
    from repro.tracing.rank import trace_rank

    layout, pp = recipe.layout, recipe.parallel.pp
    m = min(micro_batches, recipe.accumulation)
    roles, programs, traced = {}, {}, []
    for stage in range(pp):
        role = (stage == 0, stage == pp - 1, recipe.stage_layers[stage], min(pp - stage, m + 1), stage % 2)
        rank = layout.rank(stage, 0, 0)
        if role not in roles:
            roles[role] = trace_rank(recipe, rank, m)
            traced.append(rank)
            far = layout.rank(stage, layout.dp - 1, layout.tp - 1)
            if far != rank:
                other = trace_rank(recipe, far, m)
                traced.append(far)
                if problem := differ(layout, roles[role], other):
                    return Match(layout.world_size, 0, tuple(traced), problem)
        programs[rank] = at_rank(layout, roles[role], rank)
        if progress:
            progress(stage + 1, pp)
    return Match(pp, sum(map(len, programs.values())), tuple(traced), play(programs))


def at_rank(layout, trace, rank):
    """The transfers of a traced rank as the rank in the same role at another stage would issue them."""
    c = layout.coordinate(rank)
    members = {
        "tensor": layout.tensor_group(rank),
        "data": layout.data_group(rank),
        "pipeline": layout.pipeline_group(rank),
        "tied": layout.tied_group(rank),
        "model": model_group(layout, rank),
        "world": tuple(range(layout.world_size)),
    }
    moved = []
    for t in trace.transfers:
        name = group_name(layout, trace.rank, t)
        if name in ("next", "previous"):
            ranks = (layout.rank(c.stage + (1 if name == "next" else -1), c.replica, c.shard),)
        else:
            ranks = members[name]
        moved.append(replace(t, ranks=ranks))
    return moved


def differ(layout, one, other):
    """What two ranks of a stage issue differently, or ``None``."""
    mine, theirs = ([(t.kind, group_name(layout, r.rank, t), t.bytes) for t in r.transfers] for r in (one, other))
    for number, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            return f"rank {one.rank} and rank {other.rank} differ at transfer {number}: {_say(a)} against {_say(b)}"
    if len(mine) != len(theirs):
        return f"rank {one.rank} issues {len(mine)} transfers, rank {other.rank} of the same stage {len(theirs)}"
    return None


def _say(transfer):
    kind, group, size = transfer
    return f"{kind} of {size:,} bytes ({group})"


def play(programs):
    """Run the programs of several ranks against each other.

    Args:
        programs: ``{rank: [Transfer]}``; members of groups that are not among the ranks are taken as willing.

    Returns:
        ``None``, or the transfer that can never happen and what its partners wait for instead.
    """
    position = dict.fromkeys(programs, 0)
    waiting = set(programs)
    while waiting:
        rank = waiting.pop()
        while position[rank] < len(programs[rank]):
            partners, problem = _partners(programs, position, rank)
            if problem:
                return problem
            if partners is None:
                break  # someone has not come to it yet; whoever comes last goes on for all
            for partner in partners:
                position[partner] += 1
            waiting |= partners - {rank}
    stuck = [rank for rank in programs if position[rank] < len(programs[rank])]
    if not stuck:
        return None
    heads = "; ".join(_head(programs, position, rank) for rank in stuck[:4])
    return f"deadlock of {len(stuck)} ranks: {heads}"


def _partners(programs, position, rank):
    """Ranks that take part in this rank's next transfer, ``None`` while one of them is elsewhere."""
    mine = programs[rank][position[rank]]
    if mine.kind in ("send", "recv"):
        peer = mine.ranks[0]
        if peer not in programs:
            return {rank}, None
        theirs = _next(programs, position, peer)
        opposite = {"send": "recv", "recv": "send"}[mine.kind]
        if theirs is None:
            return None, f"{_head(programs, position, rank)}, but rank {peer} has ended"
        if theirs.kind != opposite or theirs.ranks != (rank,):
            return None, None
        if theirs.bytes != mine.bytes:
            return None, f"{_head(programs, position, rank)}, but {_head(programs, position, peer)}"
        return {rank, peer}, None
    present = {member for member in mine.ranks if member in programs}
    for member in present - {rank}:
        theirs = _next(programs, position, member)
        if theirs is None:
            return None, f"{_head(programs, position, rank)}, but rank {member} has ended"
        if theirs.ranks != mine.ranks:
            return None, None
        if (theirs.kind, theirs.bytes) != (mine.kind, mine.bytes):
            return None, f"{_head(programs, position, rank)}, but {_head(programs, position, member)}"
    return present, None


def _next(programs, position, rank):
    return programs[rank][position[rank]] if position[rank] < len(programs[rank]) else None


def _head(programs, position, rank):
    t = programs[rank][position[rank]]
    if t.kind == "send":
        where = f"to rank {t.ranks[0]}"
    elif t.kind == "recv":
        where = f"from rank {t.ranks[0]}"
    else:
        where = f"over {len(t.ranks)} ranks"
    return f"rank {rank} waits in {t.phase} at transfer {position[rank]}, {t.kind} of {t.bytes:,} bytes {where}"
