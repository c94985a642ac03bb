"""A few recipes of ``benchmarks/grid.py``, each stage traced once for all tests that look at it."""

import functools
import importlib.util
from pathlib import Path

_PATH = Path(__file__).parents[1] / "benchmarks" / "grid.py"
_spec = importlib.util.spec_from_file_location("grid", _PATH)
grid = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(grid)

RECIPES = {r.name: r for r in grid.recipes(100, seed=1)}
MOST_STAGES = 18


def traits(recipe):
    """What of a recipe takes another way through the projection, alone and in pairs that meet in one place."""
    s, p = recipe.shape, recipe.parallel
    reduction = (recipe.precision.dtype, recipe.precision.grad_accum, recipe.zero.stage)
    shards = "sequence" if p.sequence_parallel else "tensor" if p.tp > 1 else "whole"
    return {
        ("reduction", reduction, p.dp > 1),
        ("block", shards, recipe.compute.recompute, recipe.compute.attention),
        ("between stages", shards, min(p.pp, 3)),
        ("ends", s.tied, min(p.pp, 2)),
        ("entry", s.positions, s.embedding_norm),
        ("dropout", s.dropout),
        ("bucket", reduction[0], recipe.zero.reduce_bucket),
        ("uneven", p.stage_layers is not None),
    }


def chosen():
    """Stages of those recipes that add most traits for each stage to be traced."""
    seen, stages, left = set(), [], dict(RECIPES)
    while left:
        name = max(left, key=lambda n: len(traits(left[n]) - seen) / len(grid.stages(left[n])))
        recipe = left.pop(name)
        more = [(name, stage) for stage in grid.stages(recipe)]
        if not traits(recipe) - seen or len(stages) + len(more) > MOST_STAGES:
            break
        seen |= traits(recipe)
        stages += more
    return stages


STAGES = chosen()


@functools.cache
def differences(name, stage):
    return grid.compare(RECIPES[name], stage)
