"""Fake ranks against real ones, formulas, and the authors' log."""

import json
from dataclasses import asdict, replace

import pytest

from repro import flops, parameters
from repro.engine.launch import run_ranks
from repro.errors import InputError
from repro.recipe import load
from repro.tracing.match import match, play
from repro.tracing.rank import trace_rank
from repro.tracing.real import recorded
from repro.tracing.trace import trace

EIGHT = {"tp": 2, "pp": 2, "dp": 2}
CASES = {
    "fp32, recompute, flash": {"compute": {"recompute": "full"}},
    "fp32, sequence parallel, untied, unfused, dropout": {
        "parallel": {**EIGHT, "sequence_parallel": True},
        "shape": {"tied": False, "dropout": 0.1},
        "compute": {"attention": "unfused"},
    },
    "bf16, recompute, unfused, alibi": {
        "precision": {"dtype": "bf16", "grad_accum": "fp32"},
        "shape": {"positions": "alibi", "embedding_norm": True},
        "compute": {"recompute": "full", "attention": "unfused"},
    },
    "fp16, recompute": {
        "precision": {"dtype": "fp16", "grad_accum": "fp16", "initial_loss_scale_power": 8},
        "compute": {"recompute": "full"},
    },
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_real_rank_does_what_its_fake_one_does(case, small, tmp_path):
    changes = {"parallel": EIGHT, "batch": {"micro": 2, "global": 16}, **CASES[case]}
    changes["shape"] = {"layers": 4, "hidden": 64, "ffn": 256, "seq": 64, **changes.get("shape", {})}
    recipe = small(**changes)
    options = {"into": tmp_path, "any_dtype": recipe.precision.dtype == "fp16"}
    run_ranks(recipe, recorded, options, 60, tmp_path / "logs")
    for rank in range(8):
        real = json.loads((tmp_path / f"{rank}.json").read_text())
        fake = json.loads(json.dumps(asdict(trace_rank(recipe, rank))))
        assert fake["flops"] == real["flops"]
        assert fake["transfers"] == real["transfers"]
        assert fake["parameters"] == real["parameters"]
        # gloo may still hold the scalar of the last reductions when the step has ended
        scalars = real["persistent_bytes"].pop("temporary") - fake["persistent_bytes"].pop("temporary")
        assert 0 <= scalars <= 64
        assert fake["persistent_bytes"] == real["persistent_bytes"]
        # gloo may hold the tensor of a finished transfer, an activation [64, 2, 64] or two, longer than a fake group
        assert 0 <= real["peak_bytes"] - fake["peak_bytes"] <= 2 * 64 * 2 * 64 * 4


@pytest.mark.parametrize(("attention", "backward"), [("unfused", 8), ("flash", 10)])
def test_flops_of_the_whole_model_follow_the_formula(attention, backward):
    recipe = load("175b", {"compute.attention": attention, "parallel.pp": 4, "shape.layers": 8, "batch.global": 8})
    stages = trace(recipe, all_stages=True)
    traced = sum(stage.hardware_flops for stage in stages) * recipe.parallel.tp * recipe.parallel.dp
    s = recipe.shape
    scores = recipe.batch.global_ * s.layers * (backward - 8) * s.seq**2 * s.hidden
    assert traced == pytest.approx(flops.hardware_flops(recipe) + scores, rel=1e-9)
    model = sum(stage.model_flops for stage in stages) * recipe.parallel.tp * recipe.parallel.dp
    assert model == pytest.approx(flops.model_flops(recipe) + scores, rel=1e-9)


def test_parameters_of_every_stage_of_175b():
    stages = trace("175b", all_stages=True)
    assert [stage.parameters for stage in stages] == [2899359744, *[2718480384] * 14, 2874218496]
    assert stages[0].in_flight == 16
    assert stages[15].in_flight == 1


def test_peaks_continued_from_few_micro_batches_are_the_traced_ones(small):
    recipe = small(
        parallel={"pp": 8, "tp": 2},
        shape={"layers": 8, "hidden": 64, "seq": 64, "dropout": 0.1},
        batch={"global": 64},
        compute={"recompute": "full"},
    )
    stages = trace(recipe, all_stages=True)
    assert [stage.continued for stage in stages] == [True] * 4 + [False] * 4
    for stage in stages:
        full = trace(recipe, stage=stage.stage)[0]
        assert not full.continued
        assert stage.peak_bytes == full.peak_bytes
        assert stage.peak_by_label == full.peak_by_label
        assert (stage.flops, stage.transfers) == (full.flops, full.transfers)
        assert sum(full.peak_by_label.values()) == full.peak_bytes


def test_counts_of_a_step_do_not_depend_on_how_many_micro_batches_were_traced(small):
    recipe = small(parallel={"tp": 2, "pp": 2}, batch={"global": 24}, shape={"layers": 4})
    whole = trace_rank(recipe, 0)
    scaled = trace(recipe, stage=0)[0]
    assert scaled.traced_micro_batches < whole.micro_batches
    assert scaled.flops == whole.flops
    assert sum(t["count"] for t in scaled.transfers) == len(whole.transfers)


@pytest.mark.parametrize("name", ["175b", "1t"])
def test_all_roles_of_the_papers_runs_match(name):
    found = match(load(name))
    assert found.problem is None
    assert found.ranks == load(name).parallel.pp
    assert found.transfers > 100 * found.ranks / 2


def programs(small):
    recipe = small(parallel={"tp": 2, "pp": 2}, shape={"layers": 2})
    return {rank: list(trace_rank(recipe, rank, 2).transfers) for rank in range(4)}


def test_all_ranks_of_a_small_world_match_and_each_fault_is_named(small):
    good = programs(small)
    assert play(good) is None

    missing = {**good, 1: good[1][:5] + good[1][6:]}
    assert "rank 1" in play(missing)

    number = next(i for i, t in enumerate(good[2]) if t.kind == "send")
    shorter = list(good[2])
    shorter[number] = replace(shorter[number], bytes=8)
    assert f"transfer {number}, send of 8 bytes to rank 0" in play({**good, 2: shorter})

    number = next(i for i, t in enumerate(good[0]) if t.kind == "all_reduce")
    other = list(good[0])
    other[number] = replace(other[number], kind="all_gather")
    assert "all_gather" in play({**good, 0: other})
    assert "all_reduce" in play({**good, 0: other})

    ended = {**good, 3: good[3][:-1]}
    assert "has ended" in play(ended)


def test_two_ranks_that_both_send_first_are_a_deadlock(small):
    good = programs(small)
    first = {rank: next(i for i, t in enumerate(good[rank]) if t.kind == "recv") for rank in (2, 3)}
    crossed = {rank: list(transfers) for rank, transfers in good.items()}
    for rank in (2, 3):  # the last stage sends a gradient before it has received the activation
        send = next(i for i, t in enumerate(crossed[rank]) if t.kind == "send")
        crossed[rank].insert(first[rank], crossed[rank].pop(send))
    assert "deadlock" in play(crossed)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rank": 3072}, "valid ranks are 0 to 3071"),
        ({"rank": -1}, "valid ranks are 0 to 3071"),
        ({"stage": 64}, "valid are 0 to 63"),
        ({"stage": -1}, "valid are 0 to 63"),
        ({"stage": 0, "all_stages": True}, "give one of"),
        ({"micro_batches": 0}, "the least is 1"),
    ],
)
def test_bad_input(options, text):
    with pytest.raises(InputError, match=text):
        trace("1t", **options)


def test_a_world_that_would_take_minutes_is_refused():
    with pytest.raises(InputError, match="the most is 262,144"):
        trace(load("1t", {"parallel.dp": 1024, "batch.global": 65536}), stage=0)


def test_a_world_of_a_hundred_thousand_ranks_is_answered():
    recipe = load("1t", {"parallel.dp": 192, "batch.global": 192 * 64})
    assert recipe.world_size == 98304
    found = trace(recipe, stage=63)[0]
    assert found.parameters == parameters.per_rank(recipe, 63)
