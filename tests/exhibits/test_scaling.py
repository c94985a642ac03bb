"""Scaling, what explains it, and cost: claims that can fail, and what a published value may change."""

import shutil
from pathlib import Path

import nbformat
import pytest

from repro.errors import InputError
from repro.exhibits import cost, explanations, sampled
from repro.exhibits import scaling as exhibit
from repro.recipe import load
from repro.records import published_runs
from repro.records.run_folder import RunFolder

NODES = {"175b": [16, 32, 64, 128], "1t": [128, 256, 384]}
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07_scaling.ipynb"


@pytest.fixture(scope="module")
def tried():
    return exhibit.variants(list(NODES), NODES, "frontier")


@pytest.fixture(scope="module")
def table(tried):
    return exhibit.table(tried, "frontier", "paper", [], None)


@pytest.fixture(scope="module")
def why():
    return explanations.table()


@pytest.fixture(scope="module")
def spent():
    return cost.table(list(NODES), NODES, [20e12], "frontier")


def one(table, **wanted):
    [row] = table.select(**wanted).rows
    return row


def efficiency(table, mode, series, devices):
    return one(table, exhibit=mode, series=series, x=devices, metric=exhibit.EFFICIENCY)


def test_only_replicas_change(tried):
    for model in NODES:
        for mode in (exhibit.WEAK, exhibit.STRONG):
            own = [v.recipe for v in tried if (v.series, v.mode) == (model, mode)]
            assert len({(r.parallel.tp, r.parallel.pp, r.shape.seq, r.batch.micro) for r in own}) == 1
            fixed = {r.batch.global_ if mode == exhibit.STRONG else r.accumulation for r in own}
            assert len(fixed) == 1
    assert {v.recipe.batch.global_ for v in tried if v.mode == exhibit.STRONG} == {8000, 8016}
    assert [v.devices for v in tried if v.base] == [128, 128, 1024, 1024]


@pytest.mark.parametrize(("model", "devices"), [("175b", 1024), ("1t", 3072)])
def test_printed_efficiencies_lie_in_the_band_of_all_readings_but_strong_ones_not_in_steady_state(
    table, model, devices
):
    for mode in (exhibit.WEAK, exhibit.STRONG):
        printed = efficiency(table, mode, f"{model}, printed", devices)
        ours = efficiency(table, mode, f"{model}, all readings", devices)
        steady = efficiency(table, mode, f"{model}, steady state", devices)
        assert (printed.provenance, ours.provenance) == ("published", "projected")
        assert ours.low <= printed.value <= ours.high
        assert (steady.low <= printed.value <= steady.high) == (mode == exhibit.WEAK)


def test_the_likely_reading_is_the_recipe(table):
    """The mechanism table reads published runs, the curves read recipes: with a cold start alone both agree."""
    found = sampled.sampled("frontier")
    runs = [run for run in published_runs.runs(machine="frontier") if run.id == "FR-1T-strong"]
    wanted = load("1t", {"batch.global": 8016})
    recipe = runs[0].recipe()
    assert found.seconds([wanted])[0].item() == pytest.approx(found.seconds([recipe])[0].item(), rel=1e-9)


def test_total_is_rate_times_devices(table):
    for row in table.select(metric=exhibit.TOTAL):
        rate = one(table, exhibit=row.exhibit, series=row.series, x=row.x, metric=exhibit.RATE)
        assert row.value == pytest.approx(rate.value * row.x / 1e3, rel=1e-5)
    rates = table.select(exhibit=exhibit.STRONG, series="1t, steady state", metric=exhibit.RATE).rows
    share = 100 * rates[-1].value / rates[0].value
    assert efficiency(table, exhibit.STRONG, "1t, steady state", 3072).value == pytest.approx(share, rel=1e-4)


def test_of_measured_sizes_only_the_cold_first_step_alone_explains_all_four(why):
    rows = {row[0]: row for row in explanations.numbers(why).rows}
    alone = {name for name, row in rows.items() if row[-2] == "4 of 4"}
    assert alone == {"cold first step", "fill and drain x 4.5", "all but slow RCCL and x 4.5"}
    assert rows["slow RCCL"][-1] == "FR-175B-weak"
    assert rows["printed"][2:6] == ("100", "100", "89", "87")
    seconds = {row[0]: float(row[1]) for row in explanations.cold_start().rows}
    assert seconds["for each of 16 stages"] == 1.76
    broken = {row[0]: row for row in explanations.broken().rows}
    assert broken["175b"][2].endswith("(-9 %)")
    assert broken["1t"][2].endswith("(+0 %)")


def test_predictions_are_the_ledger_s(tmp_path):
    folder = _run(tmp_path / "run", load("175b", {"parallel.dp": 4, "batch.global": 640}))
    rows = {row[0]: row for row in explanations.predictions(["175b"], "frontier", [folder]).rows}
    assert len(rows) == 6
    assert rows["175b@frontier-32"][-1] == "100"
    assert [row[-1] for name, row in rows.items() if name != "175b@frontier-32"] == [""] * 5
    for row in rows.values():
        assert float(row[4]) == pytest.approx(float(row[6]), rel=0.02), "written down and today's"


def test_cost_is_days_times_nodes(spent):
    for series in dict.fromkeys(row.series for row in spent):
        own = {row.metric: row for row in spent.select(series=series, provenance="projected")}
        nodes = own["wall time"].x
        assert own["node-hours"].value == pytest.approx(own["wall time"].value * 24 * nodes / 1e6, rel=1e-4)
        parts = sum(own[m].value for m in ("compute", "lost work", "writing checkpoints", "restarts"))
        assert parts == pytest.approx(own["wall time"].value, rel=1e-4)
        assert own["energy"].low < own["node-hours"].value * 2.0 * 1.05 < own["energy"].high
    [work] = [row for row in cost.work(["1t"], [20e12]).rows if row[2] == "2e+13"]
    assert float(work[3]) == pytest.approx(120, rel=0.02), "120 million exaflop in the abstract"
    printed = one(spent, series="1t, 20T tokens", provenance="published")
    assert printed.value == pytest.approx(float(work[5]) * 1e24 / (61.2e12 * 3072) / 86400, rel=0.01)


def test_figures_are_the_same_byte_for_byte(tried, table, why, spent, tmp_path):
    again = exhibit.table(tried, "frontier", "paper", [], None)
    for draw in (exhibit.figure, exhibit.total_figure):
        first, second = (draw(t, "paper", "frontier", tmp_path / n) for t, n in ((table, "a"), (again, "b")))
        assert [p.read_bytes() for p in first.files] == [p.read_bytes() for p in second.files]
    first, second = (explanations.figure(t, tmp_path / n) for t, n in ((why, "a"), (explanations.table(), "b")))
    assert [p.read_bytes() for p in first.files] == [p.read_bytes() for p in second.files]
    more = cost.table(list(NODES), NODES, [20e12], "frontier")
    first, second = (cost.figure(t, "frontier", tmp_path / n) for t, n in ((spent, "a"), (more, "b")))
    assert [p.read_bytes() for p in first.files] == [p.read_bytes() for p in second.files]


def test_a_published_value_changes_its_own_rows_alone(tried, table, why, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(published_runs.RUNS, tmp_path / "runs"))
    text = (folder / "frontier.csv").read_text()
    assert text.count(",strong_efficiency,89,%") == 1
    (folder / "frontier.csv").write_text(text.replace(",strong_efficiency,89,%", ",strong_efficiency,93,%"))
    monkeypatch.setattr(published_runs.runs, "__defaults__", (None, None, folder))
    changed = exhibit.table(tried, "frontier", "paper", [], None), explanations.table()
    different = [b for old, new in zip((table, why), changed, strict=True) for a, b in zip(old, new, strict=True)
                 if a != b]  # fmt: skip
    assert [(row.provenance, row.value) for row in different] == [("published", 93.0)] * 2
    assert [row[-2] for row in explanations.numbers(changed[1]).rows if row[0] == "cold first step"] == ["3 of 4"]


def _run(path, recipe, seconds=100.0):
    folder = RunFolder.create(path, recipe)
    for number in range(4):
        rates = {"seconds": seconds, "tokens_per_second": 1e4, "hardware_tflops": 60.0, "model_tflops": 45.0}
        flags = {"warmup": number < 2, "skipped": False, "loss": 5.0, "hfu": 0.3, "mfu": 0.2}
        folder.append_metrics({"step": number, **rates, **flags})
    folder.set_status("completed")
    return str(folder.path)


def test_cluster_runs_find_their_scaling(tried, tmp_path):
    runs = [_run(tmp_path / str(n), load("175b", {"parallel.dp": n, "batch.global": 320 * n})) for n in (2, 4)]
    found = exhibit.table(tried, "frontier", "paper", runs, None)
    measured = found.select(provenance="measured")
    assert {(row.exhibit, row.x) for row in measured} == {(exhibit.WEAK, 128), (exhibit.WEAK, 256)}
    assert [row.value for row in measured.select(metric=exhibit.EFFICIENCY)] == [100.0, 100.0]
    assert len(exhibit.differences(found).rows) == 4
    assert "given runs, measured" in exhibit.figure(found, "paper", "frontier", tmp_path).svg.read_text()
    other = _run(tmp_path / "other", load("175b", {"batch.global": 1000}))
    with pytest.raises(InputError, match="belongs to neither scaling"):
        exhibit.table(tried, "frontier", "paper", [other], None)


def test_what_cannot_be_is_named():
    odd = exhibit.variants(["175b", "1t"], {"175b": [16, 96], "1t": [100, 128]}, "frontier")
    refused = {(v.mode, v.series, v.devices): v.why for v in odd if v.recipe is None}
    assert "no multiple of the 512" in refused[exhibit.WEAK, "1t", 800]
    assert "8000" in refused[exhibit.STRONG, "175b", 768]
    assert (exhibit.WEAK, "175b", 768) not in refused
    for wrong in ({}, {"175b": []}, {"175b": "16"}, {"175b": [0]}, {"175b": [True]}):
        with pytest.raises(InputError, match="every recipe needs a list"):
            exhibit.variants(["175b"], wrong, "frontier")


def test_the_words_of_the_notebook_hold(table, spent):
    words = " ".join(c.source for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "markdown")
    for model, devices in (("175b", 1024), ("1t", 3072)):
        for mode in (exhibit.WEAK, exhibit.STRONG):
            row = efficiency(table, mode, f"{model}, all readings", devices)
            assert f"{row.value:.1f} % ({row.low:.0f} to {row.high:.0f})" in words
        row = efficiency(table, exhibit.STRONG, f"{model}, steady state", devices)
        assert f"{row.value:.1f}" in words
        assert f"({row.low:.0f} to {row.high:.0f})" in words
    days = one(spent, series="1t, 20T tokens", metric="wall time")
    assert f"{round(days.value, -1):,.0f} days ({round(days.low, -1):,.0f} to {round(days.high, -1):,.0f})" in words
