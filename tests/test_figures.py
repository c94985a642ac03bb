"""Figures: the same table gives the same bytes, another table does not, and provenances never mix unseen."""

import re
import subprocess
import sys

import pytest

from repro.records.run_folder import RunFolder
from repro.records.table import Row, Table, read
from repro.report import figures, training


def row(x, value, metric="throughput", provenance="measured", series="22b", **changes):
    unit = {"throughput": "token/s", "loss": "nat/token", "step time": "s"}.get(metric, "flag")
    values = {"low": None, "high": None, "source": "run-1", **changes}
    return Row("e", series, x, metric, value, unit, values["low"], values["high"], provenance, values["source"])


def run_table(loss=5.0):
    rows = [row(0, 1, "warmup"), row(2, 1, "skipped")]
    for step in range(4):
        rows += [row(step, loss - step / 10, "loss"), row(step, 1.0 + step, "step time")]
    return Table(rows)


def saved(folder, table, name="a"):
    return [path.read_bytes() for path in figures.save(training.curves(table), table, name, folder).files]


def drawn(table):
    with figures.style():
        figure, [[axis]] = figures.canvas()
        figures.draw(axis, table)
    return figure, axis


def test_two_saves_are_equal_byte_for_byte(tmp_path):
    first, second = saved(tmp_path / "1", run_table()), saved(tmp_path / "2", run_table())
    assert first == second
    assert read(tmp_path / "1" / "a.csv") == run_table()
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["a.csv", "a.png", "a.svg"]
    # Another process has other hash seeds, and an empty cache.
    code = f"import sys; sys.path.insert(0, {str(tmp_path.parent)!r}); from repro.records.table import read\n"
    code += "from repro.report import figures, training\nt = read(sys.argv[1])\n"
    code += "figures.save(training.curves(t), t, 'a', sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, tmp_path / "1" / "a.csv", tmp_path / "3"], check=True, timeout=60)
    assert [(tmp_path / "3" / f"a.{kind}").read_bytes() for kind in ("png", "svg", "csv")] == first


def test_another_value_changes_all_three_files(tmp_path):
    before, after = saved(tmp_path, run_table()), saved(tmp_path, run_table(loss=5.01))
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert b"<dc:date>" not in before[1]


def test_provenances_show_as_markers_and_legend(tmp_path):
    table = Table(
        [
            row(8, 1.0),
            row(16, 1.9),
            row(8, 1.1, provenance="projected", low=0.9, high=1.3),
            row(16, 2.2, provenance="projected", low=1.8, high=2.6),
            row(8, 1.05, provenance="published"),
        ]
    )
    figure, axis = drawn(table)
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["22b, published", "22b, measured", "22b, projected"]
    lines = [line for line in axis.get_lines() if line.get_label() in labels]
    assert len({line.get_marker() for line in lines}) == 3
    assert len({line.get_linestyle() for line in lines}) == 3
    projected = lines[2]
    assert projected.get_markerfacecolor() == "white", "a projected point must not look measured"
    assert len(axis.containers) == 1, "the band of the projected points"
    assert axis.get_ylabel() == "throughput (token/s)"
    svg = figures.save(figure, table, "mixed", tmp_path).svg.read_text()
    assert "22b, projected" in svg
    markers = set(re.findall(r'<use xlink:href="#(m\w+)"', svg))
    assert len(markers) >= 3


def test_no_provenance_lacks_a_look_of_its_own():
    from repro.records.table import PROVENANCES

    assert tuple(figures.LOOK) == PROVENANCES
    assert len({marker for marker, _, _ in figures.LOOK.values()}) == len(PROVENANCES)


def test_one_axis_takes_one_metric():
    with pytest.raises(ValueError, match="one axis shows one metric"):
        drawn(Table([row(1, 1.0), row(1, 1.0, "loss")]))


def test_curves_mark_warm_up_and_skipped_steps():
    loss, seconds = training.curves(run_table()).axes
    assert loss.get_ylabel() == "loss (nat/token)"
    assert seconds.get_ylabel() == "step time (s)"
    assert {"warm-up, not in the means", "skipped (overflow)"} <= {t.get_text() for t in loss.get_legend().get_texts()}
    plain = training.curves(Table(r for r in run_table() if r.unit != "flag"))
    assert [t.get_text() for t in plain.axes[0].get_legend().get_texts()] == ["22b, measured"]
    assert "1 warm-up steps and 1 skipped steps. Measured: run-1." in " ".join(
        training.curves(run_table())._supxlabel.get_text().split()
    )


def test_style_leaves_nothing_behind():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    drawn(Table([row(1, 1.0)]))
    assert dict(mpl.rcParams) == before


def test_numbers_withhold_means_that_would_mislead(tmp_path, small):
    folder = RunFolder.create(tmp_path / "run-1", small())
    full = dict.fromkeys(("tokens_per_second", "hardware_tflops", "model_tflops"), 3.0) | {"hfu": None, "mfu": None}
    for step in range(4):
        folder.append_metrics({"step": step, "loss": 5.0, "seconds": 1.5, "warmup": step < 2, "skipped": False, **full})
    found = {name: value for name, value, _, _ in training.numbers(folder).rows}
    assert found["mean step time"] == "1.5"
    assert "HFU" not in found
    assert found["state"] == "pending: no reason recorded", "numbers of a run that has not completed say so"
    folder.set_status("completed")
    assert "state" not in {name for name, *_ in training.numbers(folder).rows}
    folder.append_metrics({"step": 4, "loss": 5.0, "seconds": 1.5, "warmup": False, "skipped": True, **full})
    found = {name: value for name, value, _, _ in training.numbers(folder).rows}
    assert "mean step time" not in found
    assert "skipped for overflow" in found["means withheld"]


def test_exhibit_and_plan_show_in_a_notebook(tmp_path, small):
    folder = RunFolder.create(tmp_path / "run-1", small())
    folder.append_metrics({"step": 0, "loss": 5.5, "seconds": 2.0, "warmup": True, "skipped": False})
    shown = training.exhibit(folder, "x", tmp_path / "figures")
    assert shown._repr_png_().startswith(b"\x89PNG")
    plan = training.plan(small(parallel={"tp": 2, "dp": 2}))
    assert ("ranks", "4 = tp 2 x pp 1 x dp 2") in plan.rows
    assert "4 = tp 2 x pp 1 x dp 2" in plan._repr_html_()
    assert "ranks" in repr(plan)
