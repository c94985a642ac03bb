"""Exact integers: the authors' 175B log is the reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro import parameters
from repro.recipe import Shape, load
from repro.report.recipes_table import decimal_count, least_confidence, row, rows

POSITIONS = 2048 * 12288  # the table that the authors' tied last stage copies to each of its 4 shards


def test_one_layer_of_175b():
    assert parameters.layer(load("175b").shape) == 12 * 12288**2 + 13 * 12288 == 1_812_099_072


def test_175b_per_rank_as_in_the_authors_log():
    recipe = load("175b-log")
    got = [parameters.per_rank(recipe, stage) for stage in range(16)]
    assert got[0] == 2_899_359_744
    assert set(got[1:15]) == {2_718_480_384}
    assert got[15] == 2_874_218_496
    assert got[15] + POSITIONS == 2_899_384_320  # the log's last rank


def test_175b_totals_as_in_the_authors_log():
    recipe = load("175b-log")
    assert parameters.true_count(recipe) == 174_609_555_456
    assert parameters.one_replica(recipe) == 175_329_214_464 == 175_429_877_760 - 4 * POSITIONS
    assert parameters.all_ranks(recipe) == 2 * 175_329_214_464


@pytest.mark.parametrize(("name", "billions"), [("22b", 22.07), ("1t", 1008.04), ("1.4b", 1.40), ("1.4b-h2064", 1.34)])
def test_sizes_of_the_other_models(name, billions):
    assert round(parameters.true_count(load(name)) / 1e9, 2) == billions


def test_1t_is_1008_billion():
    assert round(parameters.true_count(load("1t")) / 1e9, 1) == 1008.0


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_unpadded_count_does_not_depend_on_the_layout(tp):
    recipe = load("175b", {"parallel.tp": tp})
    padding = recipe.padded_vocab - recipe.shape.vocab
    assert parameters.unpadded_count(recipe) == parameters.unpadded_count(load("175b"))
    assert parameters.true_count(recipe) - parameters.unpadded_count(recipe) == padding * 12288


def test_without_parallelism_all_counts_are_the_same():
    recipe = load("tiny", {"parallel.dp": 1})
    assert parameters.true_count(recipe) == parameters.one_replica(recipe) == parameters.all_ranks(recipe)


@pytest.mark.parametrize("pp", [1, 2])
def test_an_untied_head_adds_one_table(pp):
    tied = load("tiny", {"parallel.pp": pp})
    untied = load("tiny", {"parallel.pp": pp, "shape.tied": False})
    table = 256 * 64
    assert parameters.true_count(untied) - parameters.true_count(tied) == table
    # Across stages the tied head is a copy, so memory is the same.
    assert parameters.one_replica(untied) - parameters.one_replica(tied) == (table if pp == 1 else 0)


def test_stages_follow_an_explicit_split():
    recipe = load("tiny-3d", {"parallel.stage_layers": [1, 3]})
    balanced = load("tiny-3d")
    layer = parameters.layer_per_rank(recipe.shape, 2)
    assert parameters.per_rank(recipe, 0) == parameters.per_rank(balanced, 0) - layer
    assert parameters.per_rank(recipe, 1) == parameters.per_rank(balanced, 1) + layer


@given(st.integers(1, 8), st.integers(1, 64), st.sampled_from([1, 2, 4, 8]))
def test_shards_of_a_layer_exceed_it_by_what_is_replicated(layers, width, tp):
    hidden = 8 * width
    shape = Shape(layers=layers, hidden=hidden, heads=8, ffn=4 * hidden, seq=8, vocab=256)
    extra = tp * parameters.layer_per_rank(shape, tp) - parameters.layer(shape)
    assert extra == (tp - 1) * 6 * hidden  # two norms and the biases of the two row-parallel layers


# The table of recipes


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (174_571_401_216, "174.57 B"),
        (1_008_038_758_400, "1.01 T"),
        (2**30, "1.07 B"),
        (999_999_999, "1.00 B"),
        (1_000_000, "1.00 M"),
        (220_544, "220,544"),
        (0, "0"),
    ],
)
def test_counts_are_decimal(number, text):
    assert decimal_count(number) == text


def test_table_row_of_175b():
    got = row(load("175b"))
    assert (got["ranks"], got["accumulation"], got["padded_vocab"]) == (128, 320, 50688)
    assert got["true_parameters"] == 174_609_555_456
    assert got["one_replica_parameters"] == 175_329_214_464
    ranks = [got[f"{place}_rank_parameters"] for place in ("first", "middle", "last")]
    assert ranks == [2_899_359_744, 2_718_480_384, 2_874_218_496]


def test_table_has_every_recipe_smallest_first():
    from repro.recipe import names

    table = rows()
    assert sorted(r["name"] for r in table) == names()
    assert [r["name"] for r in table][:2] == ["tiny", "tiny-3d"]
    assert table[-1]["name"].startswith("1t")


def test_a_middle_rank_exists_only_between_two_others():
    assert row(load("tiny-3d"))["middle_rank_parameters"] is None
    assert row(load("1.4b"))["middle_rank_parameters"] is None


@pytest.mark.parametrize(("name", "level"), [("1t", "unconfirmed"), ("175b", "derived"), ("tiny", "ours")])
def test_least_confidence(name, level):
    assert least_confidence(load(name)) == level


def test_a_source_that_was_replaced_does_not_count():
    # 1t-2024-01 takes layout and batch from a script, so nothing unconfirmed of 1t is left.
    assert least_confidence(load("1t-2024-01")) == "derived"
