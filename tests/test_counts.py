"""FLOPs and transfers in closed form: equal to traces, and to the published formulas."""

import pytest
from grid_sample import STAGES, differences, grid

from repro.flops import hardware_flops
from repro.parameters import per_rank, tensors
from repro.projection import zero
from repro.projection.counts import flops, transfers
from repro.recipe import load, names


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_flops_and_transfers_are_those_of_the_trace(name, stage):
    found = differences(name, stage)
    assert (found["flops"], found["transfers"]) == (0, 0)


def test_a_transfer_too_many_would_be_seen(monkeypatch):
    recipe = load("tiny-3d")
    monkeypatch.setattr(grid, "transfers", lambda *arguments: transfers(*arguments)[1:])
    monkeypatch.setattr(grid, "flops", lambda r, stage: {**flops(r, stage), "recompute": {}})
    found = grid.compare(recipe, 0)
    assert found["transfers"] == 1
    assert found["flops"] == 2


def whole_model(recipe):
    """FLOPs of one micro-batch over all ranks of a replica."""
    stages = (flops(recipe, stage) for stage in range(recipe.parallel.pp))
    return recipe.parallel.tp * sum(sum(kinds.values()) for phases in stages for kinds in phases.values())


@pytest.mark.parametrize("name", names())
def test_unfused_with_full_recompute_is_narayanans_formula(name):
    recipe = load(name, {"compute.attention": "unfused", "compute.recompute": "full"})
    s, b = recipe.shape, recipe.batch.micro
    closed = 96 * b * s.seq * s.layers * s.hidden**2
    closed *= 1 + s.seq / (6 * s.hidden) + recipe.padded_vocab / (16 * s.layers * s.hidden)
    assert whole_model(recipe) == pytest.approx(closed, rel=1e-12)
    assert whole_model(recipe) == hardware_flops(recipe, samples=b)


@pytest.mark.parametrize("name", ["175b", "1t", "22b"])
def test_flash_adds_the_scores_that_its_backward_computes_again(name):
    recipe = load(name)
    s = recipe.shape
    again = 2 * recipe.batch.micro * s.seq**2 * s.hidden * s.layers
    assert whole_model(recipe) == hardware_flops(recipe, samples=recipe.batch.micro) + again


@pytest.mark.parametrize("name", names())
def test_listed_tensors_are_the_counted_parameters(name):
    recipe = load(name)
    for stage in range(recipe.parallel.pp):
        assert sum(t.elements for t in tensors(recipe, stage)) == per_rank(recipe, stage)


def test_flat_groups_are_padded_to_equal_aligned_shards():
    recipe = load("175b", {"parallel.dp": 5, "batch.global": 640})
    for size in zero.padded(recipe, 3):
        assert size % 10 == 0


def test_buckets_close_only_when_their_limit_is_passed():
    assert zero.buckets([3, 2, 5, 4], 5) == [10, 4]
    assert zero.buckets([], 5) == []


def test_a_tensor_is_cut_where_shards_meet():
    assert zero.pieces(8, 20, 10) == ([0, 1, 2], [2, 10, 8])


def test_sequence_parallelism_moves_as_much_as_all_reduces_do():
    # Korthikanti et al. 2022 (arXiv 2205.05198, sec. 4.2.2): an all-reduce is a reduce-scatter and an all-gather.
    plain = load("175b")
    split = load("175b", {"parallel.sequence_parallel": True})
    one = sum(2 * t.bytes * t.count for t in transfers(plain, 3) if (t.phase, t.kind) == ("forward", "all_reduce"))
    gathered = sum(t.bytes * t.size * t.count for t in transfers(split, 3) if (t.phase, t.kind) == FORWARD_GATHER)
    scattered = sum(t.bytes * t.count for t in transfers(split, 3) if (t.phase, t.kind) == FORWARD_SCATTER)
    assert gathered + scattered == one


FORWARD_GATHER = ("forward", "all_gather")
FORWARD_SCATTER = ("forward", "reduce_scatter")
