"""Memory item by item: equal to traces, to Korthikanti's formulas, and to what a real run reported."""

import csv
from pathlib import Path

import pytest
from grid_sample import STAGES, differences

import repro
from repro.errors import InputError
from repro.projection import engine, states
from repro.projection.memory import memory
from repro.recipe import load
from repro.tracing.rank import trace_rank

MIB = 2**20
LUMI = Path(repro.__file__).parent / "records" / "published" / "lumi-175b-memory.csv"


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_memory_is_that_of_the_trace(name, stage):
    found = differences(name, stage)
    # what remains are scalars of some hundred bytes: Adam's step counters, losses, norms
    assert abs(found["between_percent"]) < 0.02
    assert abs(found["peak_percent"]) < 0.02
    assert abs(found["pipeline_peak_percent"]) < 0.02


@pytest.mark.parametrize("stage", [7, 15])
def test_a_large_stage_is_that_of_the_trace(stage):
    recipe = load("175b")
    traced = trace_rank(recipe, recipe.layout.rank(stage, 0, 0), 10)
    found = memory(recipe, stage, 10)
    assert found.peak_bytes == pytest.approx(traced.peak_bytes, abs=2000)
    assert found.phase == traced.peak_phase
    assert found.between_bytes == pytest.approx(sum(traced.persistent_bytes.values()), abs=2000)


def per_layer(small, **changes):
    """Activation bytes that one more layer keeps on a rank, traced, and the same projected."""
    shape = {"hidden": 1024, "heads": 8, "ffn": 4096, "seq": 256, "dropout": 0.1}
    kept, projected = [], []
    for layers in (1, 2):
        recipe = small(
            shape={**shape, "layers": layers},
            batch={"micro": 2, "global": 2},
            precision={"dtype": "fp16", "grad_accum": "fp16"},
            **changes,
        )
        trace = trace_rank(recipe, 0, 1)
        before, after = (next(live for name, live, _ in trace.timeline if name == i) for i in INSTRUCTIONS)
        kept.append(after - before)
        projected.append(after_forward(recipe))
    return kept[1] - kept[0], projected[1] - projected[0]


INSTRUCTIONS = ("LoadMicroBatch", "ForwardPass")


def after_forward(recipe):
    """Bytes that a forward pass leaves alive."""
    from repro.projection.replay import Ledger

    ledger = Ledger()
    held = states.States(recipe, 0, ledger, "0.19.8")
    stage = engine.Engine(recipe, 0, ledger, held)
    before = ledger.total
    stage._forward(0)
    return ledger.total - before


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize(("tp", "sequence"), [(1, False), (4, False), (4, True)])
def test_activations_of_a_layer_are_korthikantis(small, attention, tp, sequence):
    traced, projected = per_layer(
        small,
        parallel={"tp": tp, "sequence_parallel": sequence},
        compute={"recompute": "none", "attention": attention},
    )
    s, b, h, a, t = 256, 2, 1024, 8, tp
    scores = 5 * a * s / h if attention == "unfused" else 0  # not kept by flash attention
    # arXiv 2205.05198, equations 1 to 4, bytes of a layer in half precision
    formula = s * b * h * ((34 + scores) / t if sequence else 10 + (24 + scores) / t)
    assert traced == pytest.approx(formula, rel=2e-3)
    assert projected == pytest.approx(formula, rel=2e-3)


def lumi():
    return [
        pytest.param(int(row["dp"]), int(row["stage"]), row, id=f"dp{row['dp']}-stage{row['stage']}")
        for row in csv.DictReader(LUMI.open())
    ]


def of_2023(dp, stage):
    return memory(load("lumi-175b", {"parallel.dp": dp}), stage, deepspeed="2023")


@pytest.mark.parametrize(("dp", "stage", "row"), lumi())
def test_a_real_run_used_what_is_projected(dp, stage, row):
    """Every stage of 175B on LUMI, by one set of rules and no constant taken from the measured values.

    Two rules of 2023 (16-bit gradients dropped before each backward, scores alive until the attention
    returns) were looked up in that software after a first comparison was 2 % too high.

    Not explained: 23 MiB everywhere, 28 more on the first stage, and 108 on the last (about one fp32 copy
    of its logits, 100 MiB).
    """
    found = of_2023(dp, stage)
    peak, between = found.peak_bytes / MIB, found.between_bytes / MIB
    print(f"peak {peak:.0f}, measured {row['max_allocated_mib']}; between {between:.0f}, {row['allocated_mib']}")
    assert peak == pytest.approx(float(row["max_allocated_mib"]), rel=0.02)
    assert between == pytest.approx(float(row["allocated_mib"]), rel=0.01)


@pytest.mark.parametrize("dp", [2, 4])
def test_each_stage_of_the_real_run_held_one_micro_batch_less(dp):
    measured = {
        int(r["stage"]): float(r["max_allocated_mib"]) for r in csv.DictReader(LUMI.open()) if r["dp"] == str(dp)
    }
    for stage in range(1, 6):
        fall = (of_2023(dp, stage).peak_bytes - of_2023(dp, stage + 1).peak_bytes) / MIB
        assert fall == pytest.approx(measured[stage] - measured[stage + 1], rel=0.01)


def test_items_add_up_and_are_named():
    found = memory(load("1t"), 0)
    assert found.peak_bytes == sum(found.peak.values()) > found.between_bytes
    assert found.peak[engine.INPUTS] == 64 * 2 * 2048 * 25600 * 2 * load("1t").batch.micro


def test_what_only_deepspeed_holds_is_left_out_for_megatron():
    recipe = load("lumi-175b")
    ours, theirs = memory(recipe, 7), memory(recipe, 7, engine="megatron")
    waste = {*engine.ONLY_DEEPSPEED, *states.ONLY_DEEPSPEED}
    assert waste & set(ours.peak)
    assert not waste & set(theirs.peak)
    assert theirs.peak_bytes < ours.peak_bytes
    assert theirs.between_bytes == ours.between_bytes - ours.between[engine.LEFT]


def test_more_micro_batches_than_in_flight_change_nothing():
    recipe = load("175b")
    assert memory(recipe, 3, 15) == memory(recipe, 3, 640)


@pytest.mark.parametrize("wrong", [{"engine": "megatron-lm"}, {"deepspeed": "2022"}])
def test_an_unknown_software_is_refused(wrong):
    with pytest.raises(InputError, match="is not one of"):
        memory(load("tiny"), 0, **wrong)
