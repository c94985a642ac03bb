"""Throughput against batch and stages; bubbles agree three ways; timelines follow the schedule on real ranks."""

import pytest

from repro.engine.launch import train_local
from repro.errors import InputError
from repro.exhibits import pipeline_parallelism as exhibit
from repro.exhibits import schedule
from repro.progress import Silent
from repro.projection.simulate import simulate
from repro.recipe import load
from repro.records.run_folder import RunFolder


@pytest.fixture(scope="module")
def tried():
    return exhibit.variants(["22b", "175b"])


@pytest.fixture(scope="module")
def table(tried):
    return exhibit.table(tried, ["frontier"], "paper", [], None)


def values(table, sweep, series):
    rows = table.select(exhibit=sweep, series=f"{series}, frontier", metric="hardware TFLOP/s").rows
    return [row.value for row in sorted(rows, key=lambda row: row.x)]


@pytest.mark.parametrize("model", ["22b", "175b"])
def test_the_three_trends(table, model):
    batch, stages, scaled = (values(table, sweep, model) for sweep in exhibit.SWEEPS)
    assert batch == sorted(batch)
    assert batch[-1] / batch[-2] < 1.05 < 1.2 < batch[1] / batch[0], "it levels off"
    assert stages == sorted(stages, reverse=True)
    assert stages[-1] < 0.8 * stages[0]
    assert scaled[-1] / scaled[0] > stages[-1] / stages[0], "micro-batches that grow with the stages lose less"


def test_bubbles_agree(tried):
    for row in exhibit.bubbles(tried, "frontier").rows:
        *_, filling, waiting, idle = (float(cell) for cell in row[4:])
        assert filling <= waiting
        assert waiting == pytest.approx(idle, abs=1.2), row
    for row in exhibit.bubbles(exhibit.variants([], "tiny"), "frontier", "tiny").rows:
        assert row[4] == row[-1], "equal stages and free messages: the simulation gives the closed form"


def test_what_does_not_fit_or_work_is_shown(tried, table, tmp_path):
    remarks = {row[:3]: row[-1] for row in exhibit.plan(tried, "frontier").rows}
    assert remarks["stages", "22b", 4] == "does not fit"
    assert "leave stages without work" in remarks["batch", "175b", 8]
    svg = exhibit.figure(table, "paper", ["frontier"], tmp_path).svg.read_text()
    assert "more than the device" in svg
    assert "global batch (samples)" in svg


def test_figures_are_the_same_byte_for_byte(table, tmp_path):
    pairs = []
    for name in "ab":
        drawn = exhibit.figure(table, "paper", ["frontier"], tmp_path / name)
        passes = schedule.table("22b", "frontier", "paper", None)
        timeline = schedule.figure(passes, "paper", "frontier", tmp_path / name)
        pairs.append([path.read_bytes() for path in (*drawn.files, *timeline.files)])
    assert pairs[0] == pairs[1]


def recorded(path, recipe):
    folder = RunFolder.create(path, recipe)
    for step in range(4):
        rates = {"seconds": 100.0, "tokens_per_second": 1e4, "hardware_tflops": 60.0, "model_tflops": 45.0}
        flags = {"warmup": step < 2, "skipped": False, "loss": 5.0, "hfu": 0.3, "mfu": 0.2}
        folder.append_metrics({"step": step, **rates, **flags})
    folder.set_status("completed")
    return str(path)


def test_given_runs_go_to_the_sweeps_they_belong_to(tried, tmp_path):
    run = recorded(tmp_path / "a", load("22b", {"parallel.dp": 1, "batch.global": 128}))
    table = exhibit.table(tried, ["frontier"], "paper", [run], None)
    rows = table.select(metric="step time", provenance="measured")
    assert [(row.exhibit, row.x) for row in rows] == [("batch", 128), ("stages", 8)]
    other = recorded(tmp_path / "b", load("22b", {"parallel.pp": 3, "parallel.dp": 1, "batch.global": 7}))
    with pytest.raises(InputError, match=r"b belongs to no sweep: 22b with 3 stages and 7 micro-batches"):
        exhibit.table(tried, ["frontier"], "paper", [other], None)


@pytest.fixture(scope="module")
def timed(small, tmp_path_factory):
    """A run of two stages that recorded its timeline."""
    recipe = small(parallel={"pp": 2}, steps=4, timing_warmup=1)
    path = tmp_path_factory.mktemp("runs") / "timed"
    train_local(recipe, path, wandb="off", progress=Silent(), timeline=True, threads=1)
    return recipe, path


def test_real_ranks_follow_the_simulated_schedule(timed):
    recipe, path = timed
    steps = schedule.read(path)
    assert sorted(steps) == [1, 2, 3], "warm-up is left out"
    played = simulate([1, 1], [2, 2], recipe.accumulation)
    for rows in steps.values():
        for stage in range(2):
            own = sorted((r for r in rows if r["stage"] == stage), key=lambda r: r["start"])
            assert all(r["start"] <= r["end"] for r in own)
            order = [(r["kind"], r["micro_batch"]) for r in own if r["kind"] in schedule.PASSES]
            assert order == [event[:2] for event in played.stages[stage] if event[0] in schedule.PASSES]
        ends = {(r["stage"], r["kind"], r["micro_batch"]): r for r in rows}
        for n in range(recipe.accumulation):  # clocks of the ranks compare: nothing arrives before it was made
            assert ends[0, "forward", n]["end"] <= ends[1, "forward", n]["start"]
            assert ends[1, "backward", n]["end"] <= ends[0, "backward", n]["start"]


def test_timelines_beside_each_other(timed, tmp_path):
    recipe, path = timed
    steps = schedule.read(path)
    table = schedule._measured(steps) + schedule._simulated(recipe, *schedule._medians(steps), "simulated")
    shown = schedule.figure(table, "tiny", "", tmp_path)
    svg = shown.svg.read_text()
    assert "measured: real ranks" in svg
    assert "projected: event simulation" in svg
    assert {row[0] for row in schedule.numbers(table).rows} == {"measured", "projected"}
    assert min(row.x for row in table.select(provenance="measured")) == 0


def test_no_timeline_unless_asked(train_small, small):
    folder = train_small(small(steps=2))
    assert not (folder.path / "timeline").exists()
    with pytest.raises(InputError, match="has no timeline of stage 0"):
        schedule.read(folder.path)
