"""What to measure: the recipe's own transfers, at their own sizes and at smaller ones. No torch."""

from dataclasses import dataclass

from repro.projection import counts

SMALLER = (512, 64, 8, 1)  # a transfer's own size over these; and the smallest possible, for the latency


@dataclass(frozen=True)
class Item:
    """A collective over all groups of a kind at once.

    Attributes:
        kind: name of the :class:`repro.preflight.groups.Kind` whose groups are used.
        group: as the record calls it (:mod:`repro.records.network`).
        elements: sizes of the whole tensor, rising, each a multiple of the group's ranks.
        capped_bytes: the recipe's own size where the largest of ``elements`` is smaller; else 0.
    """

    collective: str
    kind: str
    group: str
    elements: tuple
    capped_bytes: int


def own_bytes(recipe):
    """``{group: bytes}`` of the largest whole tensor that each group moves in a step, over all stages.

    Stages differ by embedding and head. All groups of a kind are measured at the largest of their sizes.
    """
    found = {}
    for stage in sorted({0, min(1, recipe.parallel.pp - 1), recipe.parallel.pp - 1}):
        for t in counts.transfers(recipe, stage):
            name = {"next": "pipeline"}.get(t.group, t.group if t.group in ("tensor", "data", "tied") else None)
            if name is None or (name != "pipeline" and t.size == 1):
                continue
            whole = t.bytes * t.size if t.kind == "all_gather" else t.bytes
            found[name] = max(found.get(name, 0), whole)
    return found


def items(recipe, most_bytes):
    """Every :class:`Item` of a recipe; ``most_bytes`` of one tensor keep the job short."""
    layout, own, element = recipe.layout, own_bytes(recipe), counts.dtype_bytes(recipe)
    found = [_item("all-reduce", "world", "world", layout.world_size, element, 0, most_bytes)]
    for group, size in (("tensor", layout.tp), ("data", layout.dp)):
        if group in own:
            for collective in ("all-reduce", "all-gather", "reduce-scatter"):
                found.append(_item(collective, group, group, size, element, own[group], most_bytes))
    if "tied" in own:
        found.append(_item("all-reduce", "tied", "tied", 2, element, own["tied"], most_bytes))
    for kind, stages in (("message even", 2), ("message odd", 3)):
        if layout.pp >= stages:
            found.append(_item("message", kind, "pipeline", 2, element, own["pipeline"], most_bytes))
    return tuple(found) if layout.world_size > 1 else ()


def _item(collective, kind, group, ranks, element, own, most):
    largest = min(own, most)
    elements = {max(ranks, round(largest / part / element / ranks) * ranks) for part in SMALLER}
    return Item(collective, kind, group, tuple(sorted({ranks} | elements)), own if own > most else 0)
