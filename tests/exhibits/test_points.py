"""Points of a sweep: the same numbers as the single call gives, real runs found again, and nothing broken let in."""

import json
import re

import pytest

from repro.errors import InputError
from repro.exhibits import points
from repro.projection import local
from repro.projection.project import project
from repro.recipe import load
from repro.records.run_folder import RunFolder


@pytest.fixture(scope="module")
def alone(small, tmp_path_factory):
    """A measured run of one rank: recipe, table, run folder."""
    recipe = small(steps=5, timing_warmup=2)
    table, [path] = points.measured([recipe], [1], "small", "e x", tmp_path_factory.mktemp("runs"), steps=5)
    return recipe, table, path


def test_projected_is_what_project_says():
    recipe = load("22b")
    table = points.projected([load("1t"), recipe], [1, 2], ["1t", "22b"], "e", "frontier")
    rates = project(recipe, "frontier").rates
    for row in table.select(series="22b"):
        wanted = rates[row.metric]
        assert (row.value, row.low, row.high) == pytest.approx((wanted.value, wanted.low, wanted.high), rel=1e-5)
        assert row.provenance == "projected"
        assert "Frontier" in row.source
        assert "FR-22B-tflops" in row.source
    assert len(table) == 2 * len(points.UNITS)


def test_projected_is_the_same_byte_for_byte_and_short():
    first, second = (points.projected([load("22b")], [1], "s", "e", "frontier").to_csv() for _ in range(2))
    assert first == second
    for row in points.projected([load("22b")], [1], "s", "e", "frontier"):
        assert all(len(re.sub(r"\D", "", repr(v)).strip("0")) <= points.DIGITS for v in (row.value, row.low, row.high))


def test_what_does_not_fit_says_so_in_its_source():
    [row, *_] = points.projected([load("22b", {"parallel.pp": 4})], [1], "s", "e", "frontier").rows
    assert re.search(r"does not fit: \d+\.\d of 64 GiB", row.source)
    [row, *_] = points.projected([load("22b")], [1], "s", "e", "frontier").rows
    assert "does not fit" not in row.source


def test_a_dtype_without_a_peak_is_refused(small):
    with pytest.raises(InputError, match="no peak for fp32"):
        points.projected([small()], [1], "s", "e", "frontier")


def test_measured_and_recorded_are_the_same_rows(alone):
    recipe, table, path = alone
    assert {row.provenance for row in table} == {"measured"}
    assert path.name == "e-x-00"
    again = points.recorded([path], lambda r: r.parallel.tp, lambda r: r.name, "e x")
    assert again == table
    assert RunFolder.open(path).recipe().shape == recipe.shape
    rows = [row for row in RunFolder.open(path).metrics() if not row["warmup"]]
    [seconds] = table.select(metric="step time").rows
    assert seconds.low <= seconds.value <= seconds.high
    assert seconds.value == pytest.approx(sum(r["seconds"] for r in rows) / len(rows), rel=1e-5)


def test_folders_that_hold_no_completed_run_are_refused(alone, small, tmp_path):
    def refused(path, text):
        with pytest.raises(InputError, match=text) as error:
            points.recorded([alone[2], path], lambda r: 1, lambda r: "s", "e")
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)

    refused(tmp_path / "nothing", "not a run folder")
    folder = RunFolder.create(tmp_path / "run", small())
    refused(folder.path, "is pending, not completed")
    folder.set_status("failed", "rank 3 died")
    refused(folder.path, r"is failed \(rank 3 died\)")
    folder.set_status("completed")
    refused(folder.path, "no step beyond the warm-up")
    (folder.path / "metrics.jsonl").write_text(json.dumps({"step": 1, "warmup": False, "skipped": "no"}) + "\n")
    refused(folder.path, "broken")


def test_this_machine_explains_the_run_that_it_knows(alone):
    recipe, table, path = alone
    machine = points.this_machine(path)
    [found] = points.projected([recipe], [1], "small", "e x", machine).select(metric="step time").rows
    [measured] = table.select(metric="step time").rows
    assert found.value == pytest.approx(measured.value, rel=0.05)
    assert path.name in found.source
    assert local.believed(machine).effective > 100, "few samples explain the run: the band would be luck"
    rows = points.projected([recipe], [1], "small", "e x", machine) + table
    [[*_, off, inside]] = points.differences(rows, "tp").rows
    assert abs(int(off)) <= 5
    assert inside == "yes"


def test_a_slower_machine_is_slower_throughout_and_cores_are_shared(small):
    import numpy as np

    from repro.projection import work as works

    recipe, two = small(), small(parallel={"dp": 2})
    fast, slow = (local.calibrated(recipe, seconds, "run", 2) for seconds in (0.01, 0.1))
    work = works.of_recipes([recipe, two])
    a, b = (local.seconds(work, machine)[0] for machine in (fast, slow))
    assert np.allclose(b, 10 * a)
    one = local.calibrated(recipe, 0.01, "run", 1)
    assert local.seconds(work, one)[0, 1] > 1.5 * a[1], "two ranks on one core do not run at once"
    assert local.seconds(work, one)[0, 0] == pytest.approx(a[0])


def test_this_machine_wants_a_run_of_one_rank(small):
    with pytest.raises(InputError, match="2 ranks"):
        local.calibrated(small(parallel={"dp": 2}), 1.0, "run x", 2)


def test_shares_are_those_of_project():
    recipe = load("22b", {"parallel.tp": 8, "parallel.dp": 1})
    name = "tensor-parallel collectives"
    [row] = points.shares([recipe], [8], "s", "e", "frontier", (name,), "share").rows
    assert row.value == pytest.approx(100 * project(recipe, "frontier").items[name].share, rel=1e-4)
    assert row.low < row.value < row.high
