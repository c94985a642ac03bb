"""FLOPs against the closed formulas and against the numbers that the authors' log printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.flops import forward_head, forward_layers, hardware_flops, model_flops
from repro.recipe import Shape, load, names

PAPER = [name for name in names() if not name.startswith("tiny")]


def closed(recipe, samples, factor, head):
    s, layers, h, vocab = recipe.shape.seq, recipe.shape.layers, recipe.shape.hidden, recipe.padded_vocab
    return factor * samples * s * layers * h**2 * (1 + s / (6 * h) + vocab / (head * layers * h))


@pytest.mark.parametrize("name", PAPER)
def test_hardware_flops_are_narayanans_formula(name):
    recipe = load(name, {"compute.recompute": "full"})
    batch = recipe.batch.global_
    assert hardware_flops(recipe) == pytest.approx(closed(recipe, batch, 96, 16), rel=1e-14)


@pytest.mark.parametrize("name", PAPER)
def test_model_flops_leave_the_recompute_out(name):
    recipe = load(name)
    assert model_flops(recipe) == pytest.approx(closed(recipe, recipe.batch.global_, 72, 12), rel=1e-14)


def test_flops_are_exact_integers():
    assert isinstance(hardware_flops(load("1t")), int)
    assert isinstance(model_flops(load("1t")), int)


def test_175b_per_sample_in_the_old_and_the_new_formula():
    # Later versions of Megatron-DeepSpeed count the output projection four times instead of three.
    recipe = load("175b")
    old = hardware_flops(recipe, samples=1)
    new = old + forward_head(recipe.shape, recipe.padded_vocab, 1)
    assert f"{old:.4e}" == "2.9368e+15"
    assert f"{new:.4e}" == "2.9393e+15"


@pytest.mark.parametrize(
    ("milliseconds", "logged"),
    [(224_626.6, 130.74), (196_496.4, 149.46), (196_681.1, 149.32), (280_235.6, 104.80), (195_081.8, 150.54)],
)
def test_the_logged_tflops_follow_from_the_batch_asked_for(milliseconds, logged):
    recipe = load("175b-log")
    per_rank = hardware_flops(recipe) / (milliseconds / 1e3) / recipe.world_size / 1e12
    assert per_rank == pytest.approx(logged, abs=0.01)


def test_the_log_corrected_for_the_batch_executed():
    recipe = load("175b-log-executed")
    assert hardware_flops(recipe) / 196.4964 / recipe.world_size / 1e12 == pytest.approx(37.4, abs=0.05)


def test_recompute_is_one_more_forward_pass_of_the_blocks():
    full, none = load("tiny"), load("tiny", {"compute.recompute": "none"})
    assert hardware_flops(none) == model_flops(none) == model_flops(full)
    assert hardware_flops(full) - hardware_flops(none) == forward_layers(full.shape, full.batch.global_)


def test_flops_do_not_depend_on_pipeline_or_replicas():
    assert hardware_flops(load("tiny", {"parallel.pp": 2})) == hardware_flops(load("tiny"))
    assert hardware_flops(load("tiny", {"parallel.dp": 4})) == hardware_flops(load("tiny"))


def test_flops_follow_the_samples():
    recipe = load("175b")
    assert hardware_flops(recipe, 7) == 7 * hardware_flops(recipe, 1)
    assert hardware_flops(recipe) == hardware_flops(recipe, recipe.batch.global_)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_forward_is_two_flops_per_weight_and_token_plus_attention(layers, heads, ffn, seq):
    hidden = 8 * heads
    shape = Shape(layers=layers, hidden=hidden, heads=heads, ffn=ffn, seq=seq, vocab=256)
    weights = 4 * hidden * hidden + 2 * hidden * ffn
    scores_and_values = 2 * (2 * seq * seq * hidden)
    assert forward_layers(shape, 3) == 3 * layers * (2 * seq * weights + scores_and_values)
