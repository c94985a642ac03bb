"""Throughput against tensor parallelism: the paper's claim can fail here, and what is impossible is shown."""

import pytest

from repro.exhibits import tensor_parallelism as exhibit
from repro.recipe import load
from repro.records.run_folder import RunFolder

MACHINES = ["frontier", "lumi"]


@pytest.fixture(scope="module")
def tried():
    return exhibit.variants(["1.4b", "1.4b-h2048", "22b"])


@pytest.fixture(scope="module")
def table(tried):
    return exhibit.table(tried, MACHINES, "paper", [], None)


def rate(table, series, tp):
    [row] = table.select(metric="hardware TFLOP/s", series=series, x=tp).rows
    return row


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", ["1.4b-h2048", "22b"])
def test_tensor_parallelism_belongs_inside_a_node(table, model, machine):
    inside, across = (rate(table, f"{model}, {machine}", tp) for tp in (8, 16))
    assert inside.low > across.high
    assert inside.value > 2 * across.value
    values = [rate(table, f"{model}, {machine}", tp).value for tp in exhibit.TP]
    assert values == sorted(values, reverse=True)


def test_only_tp_changes(tried):
    for name in ("1.4b", "22b"):
        recipes = [v.recipe for v in tried if v.series == name and v.recipe]
        assert len({(r.parallel.pp, r.parallel.dp, r.accumulation, r.shape.hidden) for r in recipes}) == 1


def test_what_cannot_be_is_named(tried, table, tmp_path):
    [missing] = [v for v in tried if v.recipe is None]
    assert (missing.series, missing.tp) == ("1.4b", 16)
    assert "heads 24" in missing.why
    remarks = {(row[0], row[1]): row[-1] for row in exhibit.plan(tried, "frontier").rows}
    assert "heads 24" in remarks["1.4b", 16]
    assert remarks["22b", 1] == "fits barely"
    svg = exhibit.figure(table, tried, "paper", MACHINES, tmp_path).svg.read_text()
    assert "none: heads 24 is not divisible by tp 16" in svg
    claims = {row[0]: row[-1] for row in exhibit.across_nodes(table).rows}
    assert claims["1.4b, frontier"].startswith("cannot be compared")
    assert claims["22b, frontier"] == "tp 8 is faster; bands apart"


def test_two_is_fastest_then_four_and_eight(tried):
    rows = exhibit.rings(tried, MACHINES).rows
    for order in {row[1] for row in rows}:
        links = {row[2]: float(row[4]) for row in rows if row[1] == order}
        seconds = {row[2]: float(row[6]) for row in rows if row[1] == order}
        assert links[2] > links[4] == links[8]
        assert seconds[2] < seconds[4] < seconds[8] < seconds[16]
    assert len({row[1] for row in rows}) == 2, "the rank orders of Frontier and LUMI differ"


def test_figures_are_the_same_byte_for_byte(tried, table, tmp_path):
    first, second = (
        exhibit.figure(exhibit.table(tried, MACHINES, "paper", [], None), tried, "paper", MACHINES, tmp_path / name)
        for name in "ab"
    )
    assert [p.read_bytes() for p in first.files] == [p.read_bytes() for p in second.files]
    assert first.csv.read_text() == table.to_csv()


def test_a_cluster_run_becomes_a_measured_point(tried, tmp_path):
    folder = RunFolder.create(tmp_path / "run-7", load("22b", {"parallel.tp": 4, "parallel.dp": 1}))
    for step in range(4):
        rates = {"seconds": 100.0, "tokens_per_second": 1e4, "hardware_tflops": 60.0, "model_tflops": 45.0}
        flags = {"warmup": step < 2, "skipped": False, "loss": 5.0, "hfu": 0.3, "mfu": 0.2}
        folder.append_metrics({"step": step, **rates, **flags})
    folder.set_status("completed")
    table = exhibit.table(tried, ["frontier"], "paper", [str(folder.path)], None)
    [row] = table.select(metric="hardware TFLOP/s", provenance="measured").rows
    assert (row.series, row.x, row.value) == ("22b, given runs", 4, 60.0)
    [[series, tp, *_]] = exhibit.differences(table).rows
    assert (series, tp) == ("22b, given runs", 4)
    svg = exhibit.figure(table, tried, "paper", ["frontier"], tmp_path).svg.read_text()
    assert "given runs, measured" in svg
