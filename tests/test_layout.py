"""Rank numbering against its own inverse and against DeepSpeed's, and the split of layers over stages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import InputError
from repro.layout import Coordinate, Layout, split_layers, stage_bounds

SIZES = st.integers(1, 6)
LAYOUTS = st.builds(Layout, pp=SIZES, dp=SIZES, tp=SIZES)
GROUPS = ("tensor_group", "data_group", "pipeline_group")


@given(LAYOUTS)
def test_rank_and_coordinate_are_inverse(layout):
    for rank in range(layout.world_size):
        c = layout.coordinate(rank)
        assert layout.rank(c.stage, c.replica, c.shard) == rank


@given(LAYOUTS)
def test_groups_partition_the_world(layout):
    for name, size in zip(GROUPS, (layout.tp, layout.dp, layout.pp), strict=True):
        groups = {getattr(layout, name)(rank) for rank in range(layout.world_size)}
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        assert {len(group) for group in groups} == {size}


@given(LAYOUTS)
def test_a_rank_shares_one_rank_with_itself_across_axes(layout):
    for rank in range(layout.world_size):
        tensor, data, pipeline = (set(getattr(layout, name)(rank)) for name in GROUPS)
        assert tensor & data == tensor & pipeline == data & pipeline == {rank}


def test_tensor_shards_are_neighbours():
    layout = Layout(pp=16, dp=2, tp=4)
    assert layout.tensor_group(5) == (4, 5, 6, 7)
    assert layout.data_group(5) == (1, 5)
    assert layout.pipeline_group(5)[:3] == (5, 13, 21)
    assert layout.coordinate(127) == Coordinate(stage=15, replica=1, shard=3)


@given(LAYOUTS)
def test_tied_group_is_both_ends_of_the_pipeline(layout):
    for rank in range(layout.world_size):
        stages = [layout.coordinate(r).stage for r in layout.tied_group(rank)]
        assert stages == ([0, layout.pp - 1] if layout.pp > 1 else [0])


def test_loss_is_recorded_on_the_last_stage():
    assert Layout(pp=16, dp=2, tp=4).loss_rank == 120
    assert Layout(pp=1, dp=4, tp=2).loss_rank == 0


@pytest.mark.parametrize(("pp", "dp", "tp"), [(1, 1, 1), (2, 3, 4), (4, 1, 2), (3, 5, 1), (16, 2, 4)])
def test_numbering_is_deepspeeds(pp, dp, tp):
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    topology = PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp)
    layout = Layout(pp, dp, tp)
    assert topology.world_size() == layout.world_size
    for rank in range(layout.world_size):
        theirs, ours = topology.get_coord(rank), layout.coordinate(rank)
        assert (theirs.pipe, theirs.data, theirs.model) == (ours.stage, ours.replica, ours.shard)
    for axis, name in (("model", "tensor_group"), ("data", "data_group"), ("pipe", "pipeline_group")):
        ours = {getattr(layout, name)(rank) for rank in range(layout.world_size)}
        theirs = {tuple(group) for group in topology.get_axis_comm_lists(axis)}
        # DeepSpeed lists no groups for an axis of size 1.
        assert theirs == ours or (not theirs and {len(group) for group in ours} == {1})


@pytest.mark.parametrize("rank", [-1, 24])
def test_rank_outside_the_world(rank):
    with pytest.raises(InputError, match=f"rank {rank} .* 0 to 23"):
        Layout(2, 3, 4).coordinate(rank)


@pytest.mark.parametrize(("place", "name"), [((2, 0, 0), "stage"), ((0, 3, 0), "replica"), ((0, 0, -1), "shard")])
def test_coordinate_outside_the_grid(place, name):
    with pytest.raises(InputError, match=f"{name} .* valid are 0 to"):
        Layout(2, 3, 4).rank(*place)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_sizes_are_at_least_one(sizes):
    with pytest.raises(InputError, match="at least 1"):
        Layout(*sizes)


def test_five_layers_over_four_stages():
    # DeepSpeed before PR #4312 returned 2, 2, 1, 0 here.
    assert split_layers(5, 4) == (2, 1, 1, 1)


@given(st.integers(1, 200), st.data())
def test_split_is_complete_balanced_and_never_empty(layers, data):
    stages = data.draw(st.integers(1, layers))
    counts = split_layers(layers, stages)
    assert len(counts) == stages
    assert sum(counts) == layers
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1
    assert list(counts) == sorted(counts, reverse=True)


def test_more_stages_than_layers():
    with pytest.raises(InputError, match="pp = 4"):
        split_layers(4, 5)


def test_an_explicit_split_stands():
    assert split_layers(70, 8, (9, 9, 9, 9, 9, 9, 9, 7)) == (9, 9, 9, 9, 9, 9, 9, 7)


@pytest.mark.parametrize("explicit", [(9, 9), (4, 4, 1), (10, 0), (11, -1)])
def test_an_explicit_split_must_add_up(explicit):
    with pytest.raises(InputError, match=r"balanced would be \[5, 5\]"):
        split_layers(10, 2, explicit)


def test_stage_bounds_hold_embedding_positions_norm_and_head():
    assert stage_bounds([2, 1, 1, 1]) == [0, 4, 5, 6, 9]
    assert stage_bounds([3]) == [0, 7]


@given(st.integers(1, 60), st.data())
def test_stage_bounds_cover_the_list_once(layers, data):
    counts = split_layers(layers, data.draw(st.integers(1, layers)))
    bounds = stage_bounds(counts)
    assert bounds[0] == 0
    assert bounds[-1] == layers + 4
    assert all(low < high for low, high in pairwise(bounds))
