"""The shipped recipes side by side, with exact parameter counts and the weakest evidence behind each."""

from repro.parameters import one_replica, per_rank, true_count, unpadded_count
from repro.recipe import fields, load, names

WEAKEST_FIRST = ("unconfirmed", "derived", "secondary", "confirmed")
UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"))


def rows():
    """One dictionary for each shipped recipe, smallest model first."""
    recipes = [load(name) for name in names()]
    return [row(recipe) for recipe in sorted(recipes, key=lambda r: (unpadded_count(r), r.name))]


def row(recipe):
    """The table's row of a recipe; a rank's parameters are ``None`` where there is no stage between first and last."""
    shape, parallel, stages = recipe.shape, recipe.parallel, recipe.parallel.pp
    return {
        "name": recipe.name,
        "title": recipe.title,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "seq": shape.seq,
        "padded_vocab": recipe.padded_vocab,
        "tp": parallel.tp,
        "pp": stages,
        "dp": parallel.dp,
        "ranks": recipe.world_size,
        "micro": recipe.batch.micro,
        "global": recipe.batch.global_,
        "accumulation": recipe.accumulation,
        "precision": recipe.precision.dtype,
        "true_parameters": true_count(recipe),
        "one_replica_parameters": one_replica(recipe),
        "first_rank_parameters": per_rank(recipe, 0),
        "middle_rank_parameters": per_rank(recipe, stages // 2) if stages > 2 else None,
        "last_rank_parameters": per_rank(recipe, stages - 1),
        "least_confidence": least_confidence(recipe),
    }


def least_confidence(recipe):
    """The weakest confidence behind a field in force; ``ours`` only where every field is our own choice."""
    found = {source.confidence for source in map(recipe.source_of, fields()) if source}
    return next((level for level in WEAKEST_FIRST if level in found), "ours" if found else "none")


def decimal_count(number):
    """A count in decimal units, never powers of 2: ``174.57 B``; under a million in full: ``220,544``."""
    for unit, letter in UNITS:
        if round(number / unit, 2) >= 1:
            return f"{number / unit:.2f} {letter}"
    return f"{number:,}"
