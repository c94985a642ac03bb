"""Work as arrays: the closed forms of counts for many layouts at once, and the same from a trace."""

from dataclasses import replace

import numpy as np
import pytest
from any_recipe import recipes
from grid_sample import RECIPES
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.layout import split_layers
from repro.parameters import per_rank
from repro.projection import machine, step, work
from repro.projection.counts import Transfer
from repro.recipe import load, names

FRONTIER = machine.load("frontier")
EXACT = 1e-12


def differences(recipe):
    """Counts of the arrays against the sums over counts.py's rows, the largest of all."""
    rows = work.counted(recipe, work.from_closed_forms(recipe))
    return work.same(work.of_recipes([recipe]), rows)


@pytest.mark.parametrize("name", names())
def test_work_of_shipped_recipes_is_that_of_the_closed_forms(name):
    found = differences(load(name))
    assert set(found) == set(work.COUNTED)
    assert max(found.values()) < EXACT, found


def test_work_of_the_grid_is_that_of_the_closed_forms():
    for recipe in RECIPES.values():
        found = differences(recipe)
        assert max(found.values()) < EXACT, (recipe.name, found)


@settings(max_examples=80, deadline=None)
@given(recipes())
def test_work_of_any_recipe_is_that_of_the_closed_forms(recipe):
    found = differences(recipe)
    assert max(found.values()) < EXACT, found


def test_a_count_that_differs_is_seen():
    recipe = load("tiny-3d", {"parallel.dp": 2, "batch.global": 16})
    counts = work.from_closed_forms(recipe)
    flops, transfers = counts[1]
    for number, one in enumerate(transfers):
        changed = [*transfers]
        changed[number] = replace(one, bytes=3 * one.bytes)
        found = work.same(work.of_recipes([recipe]), work.counted(recipe, {**counts, 1: (flops, changed)}))
        few_bytes = one.phase == "step" and one.kind != "all_gather"  # norms and losses: no item of their own
        assert (max(found.values()) > 1e-6) != few_bytes, one


@settings(max_examples=80, deadline=None)
@given(recipes())
def test_parameters_are_those_of_the_model(recipe):
    found = work.of_recipes([recipe])
    for stage, layers in enumerate(recipe.stage_layers):
        last = recipe.parallel.pp - 1
        inner = [k for k in range(2, found.layers.shape[1]) if found.layers[0, k] == layers]
        kind = 0 if stage == 0 else 1 if stage == last else inner[0]
        assert found.parameters[0, kind] == per_rank(recipe, stage)


@settings(max_examples=60, deadline=None)
@given(recipes())
def test_kinds_of_stages_are_all_stages(recipe):
    found = work.of_recipes([recipe])
    kinds = zip(found.layers[0], found.multiplicity[0], strict=True)
    assert sorted(layers for layers, times in kinds for _ in range(int(times))) == sorted(recipe.stage_layers)
    for ends in (found.first, found.last):
        assert np.sum(ends * found.multiplicity) == 1


def columns(many):
    rows = [work.layout(recipe) for recipe in many]
    return {key: np.array([row[key] for row in rows], float) for key in rows[0] if key != "stages"}


@settings(max_examples=40, deadline=None)
@given(st.lists(recipes(balanced=True), min_size=1, max_size=4))
def test_balanced_layouts_are_recipes(many):
    """Kinds of stages stand in another order there, so sums and times are compared."""
    arrays, one_by_one = work.of_layouts(columns(many)), [work.of_recipes([recipe]) for recipe in many]
    times = step.step(arrays, FRONTIER).seconds.ravel()
    for n, one in enumerate(one_by_one):
        for name in (*work.COUNTED, "layers", "parameters"):
            total = np.sum(arrays.multiplicity[n] * getattr(arrays, name)[n])
            assert total == pytest.approx(np.sum(one.multiplicity * getattr(one, name)), rel=EXACT), name
        assert times[n] == pytest.approx(step.step(one, FRONTIER).seconds.item(), rel=EXACT)


def test_balanced_layouts_of_a_shape_are_all_splits():
    many = [load("175b", {"parallel.pp": pp, "batch.global": 1280}) for pp in (1, 2, 3, 5, 7, 16, 64, 96)]
    found = work.of_layouts(columns(many))
    for n, recipe in enumerate(many):
        kinds = zip(found.layers[n], found.multiplicity[n], strict=True)
        held = sorted(layers for layers, times in kinds for _ in range(int(times)))
        assert held == sorted(split_layers(96, recipe.parallel.pp))


@settings(max_examples=30, deadline=None)
@given(st.lists(recipes(), min_size=2, max_size=4))
def test_recipes_together_are_recipes_alone(many):
    together = step.step(work.of_recipes(many), FRONTIER)
    for n, recipe in enumerate(many):
        alone = step.step(work.of_recipes([recipe]), FRONTIER)
        assert together.seconds[0, n] == pytest.approx(alone.seconds.item(), rel=EXACT)


# Counts of a trace

TRACED = {
    "tiny": {},
    "tiny-3d": {},
    # stages of 2, 1 and 1 layers
    "175b": {"parallel.pp": 3, "shape.layers": 4, "batch.global": 8},
    "1t": {
        "parallel.pp": 2,
        "parallel.tp": 4,
        "parallel.sequence_parallel": True,
        "parallel.dp": 3,
        "shape.layers": 3,
        "batch.global": 9,
        "precision.dtype": "bf16",
        "precision.grad_accum": "fp32",
    },
}


@pytest.fixture(scope="module")
def traced():
    """``{name: (recipe, stage counts)}`` of one fake rank of each kind of stage."""
    from repro.tracing.trace import trace

    found = {}
    for name, overrides in TRACED.items():
        recipe = load(name, overrides)
        last = recipe.parallel.pp - 1
        kinds = {(s == 0, s == last, layers): s for s, layers in reversed(list(enumerate(recipe.stage_layers)))}
        rows = {stage: trace(recipe, stage=stage)[0] for stage in kinds.values()}
        found[name] = recipe, {s: (t.flops, tuple(Transfer(**row) for row in t.transfers)) for s, t in rows.items()}
    return found


@pytest.mark.parametrize("name", TRACED)
def test_traced_counts_and_closed_forms_give_the_same_projection(name, traced):
    recipe, counts = traced[name]
    formulas, given_counts = work.of_recipes([recipe]), work.counted(recipe, counts)
    assert max(work.same(formulas, given_counts).values()) < EXACT, work.same(formulas, given_counts)
    one, other = (step.step(w, FRONTIER) for w in (formulas, given_counts))
    assert other.seconds.item() == pytest.approx(one.seconds.item(), rel=EXACT)
    for item, seconds in one.items.items():
        assert other.items[item] == pytest.approx(seconds, rel=EXACT, abs=1e-15), item
