"""The preflight's groups against those that the engine makes, and its sizes against a trace."""

import pytest

from repro.preflight import sizes
from repro.preflight.groups import MESSAGES, kinds
from repro.recipe import load

LAYOUTS = [dict(zip(("tp", "pp", "dp"), sizes, strict=True)) for sizes in
           ((2, 2, 2), (1, 4, 2), (2, 1, 3), (1, 1, 2), (2, 3, 1))]  # fmt: skip


def recipe(layout, tied=True):
    sizes = {f"parallel.{name}": size for name, size in layout.items()}
    return load("tiny", {**sizes, "batch.global": 48, "shape.layers": 6, "shape.tied": tied})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_groups_and_their_order_are_the_engines(layout, tied, monkeypatch):
    import torch.distributed as dist

    from repro.engine.build import build_engine
    from repro.tracing.fake_world import fake_world

    made, original = [], dist.new_group

    def new_group(ranks=None, **more):
        made.append(tuple(ranks))
        return original(ranks, **more)

    monkeypatch.setattr(dist, "new_group", new_group)
    one = recipe(layout, tied)
    with fake_world(one, 0) as device:
        build_engine(one, 0, device)
    ours = [group for kind in kinds(one) if kind.name not in ("world", *MESSAGES) for group in kind.groups]
    assert ours == made


def test_pairs_cover_every_neighbour_once_and_no_rank_talks_to_two_at_once():
    one = recipe({"tp": 2, "pp": 3, "dp": 2})
    by_name = {kind.name: kind for kind in kinds(one)}
    pairs = [pair for name in MESSAGES for pair in by_name[name].groups]
    assert sorted(pairs) == [(rank, rank + 4) for rank in range(8)]
    for name in MESSAGES:
        ranks = [rank for pair in by_name[name].groups for rank in pair]
        assert len(ranks) == len(set(ranks))


def test_sizes_are_the_recipes_own():
    one = load("175b")
    s, p, own = one.shape, one.parallel, sizes.own_bytes(one)
    activation = s.seq * one.batch.micro * s.hidden * 2
    assert own["tensor"] == activation
    assert own["pipeline"] == activation // p.tp  # DeepSpeed sends each shard's part
    assert own["tied"] == one.padded_vocab * s.hidden // p.tp * (4 if one.precision.grad_accum == "fp32" else 2)
    assert own["data"] >= 2 * 500_000_000  # a full bucket


def test_items_stay_below_the_cap_and_say_so():
    most = 2**24
    found = sizes.items(load("175b"), most)
    for item in found:
        size = load("175b").world_size if item.group == "world" else None
        assert all(a < b for a, b in zip(item.elements, item.elements[1:], strict=False))
        assert item.elements[-1] * 2 <= most or size
    assert {i.group for i in found if i.capped_bytes} == {"data", "tied", "tensor"}
    uncapped = sizes.items(load("tiny-3d"), 2**30)
    assert not any(i.capped_bytes for i in uncapped)
    assert {i.collective for i in uncapped} == {"all-reduce", "all-gather", "reduce-scatter", "message"}


def test_every_size_divides_among_the_ranks_of_its_group():
    one = load("175b", {"parallel.tp": 8, "parallel.pp": 12, "parallel.dp": 3, "batch.global": 288})
    for item in sizes.items(one, 2**26):
        ranks = {"tensor": 8, "data": 3, "world": 288}.get(item.group, 2)
        assert all(elements % ranks == 0 for elements in item.elements)


def test_one_rank_has_nothing_to_measure():
    assert sizes.items(load("tiny", {"parallel.dp": 1}), 2**20) == ()
