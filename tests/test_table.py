"""The tidy table: valid rows only, from a run folder, and a CSV that keeps its bytes."""

import numpy as np
import pytest

from repro.errors import InputError
from repro.records.run_folder import RunFolder
from repro.records.table import COLUMNS, Row, Table, from_run, read

GOOD = {
    "exhibit": "throughput",
    "series": "22B, tp 8",
    "x": 8,
    "metric": "HFU",
    "value": 0.38,
    "unit": "1",
    "low": None,
    "high": None,
    "provenance": "published",
    "source": "paper, table 5",
}


def row(**changes):
    return Row(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"provenance": "mesured"}, "unknown provenance 'mesured'; did you mean 'measured'"),
        ({"value": float("nan")}, "value = nan is not finite"),
        ({"value": None}, "value = None is not a number"),
        ({"value": True}, "not a number"),
        ({"high": float("inf")}, "high = inf is not finite"),
        ({"low": 2, "high": 1}, "low 2 is above high 1"),
        ({"unit": ""}, "unit = ''"),
        ({"source": None}, "source = None"),
        ({"x": None}, "x = None"),
    ],
)
def test_invalid_row_is_refused(changes, match):
    with pytest.raises(InputError, match=match):
        row(**changes)


def test_csv_round_trip_keeps_rows_and_bytes(tmp_path):
    table = Table(
        [
            row(),
            row(value=1e-9, low=1e-10, high=np.float64(0.1) + 0.2),
            row(x="7e5", value=np.int64(3), series='quo"ted,\nand broken'),
            row(x=0.5, value=10**15, provenance="projected"),
        ]
    )
    table.write(tmp_path / "a.csv")
    again = read(tmp_path / "a.csv")
    assert again == table
    again.write(tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert (tmp_path / "a.csv").read_bytes().startswith(b"exhibit,series,x,metric,value,unit,low,high,")


def test_unreadable_csv_is_named_by_line(tmp_path):
    path = tmp_path / "a.csv"
    header = ",".join(COLUMNS)
    for text, match in (
        ("a,b\n", "first line must be"),
        (f"{header}\na,b\n", "line 2: 2 cells"),
        (f"{header}\ne,s,1,m,much,1,,,measured,s\n", "line 2: 'much' is not a number"),
        (f"{header}\ne,s,1,m,1,1,,,guessed,s\n", "line 2: unknown provenance"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=match):
            read(path)
    with pytest.raises(InputError, match="cannot read table"):
        read(tmp_path / "none.csv")


def test_select_and_add():
    table = Table([row()]) + Table([row(x=16), row(x=32, provenance="projected")])
    assert [r.x for r in table.select(provenance="published")] == [8, 16]
    assert [r.x for r in table.select(x=[16, 32])] == [16, 32]
    with pytest.raises(InputError, match="unknown column 'provenence'; did you mean 'provenance'"):
        table.select(provenence="published")
    assert list(table.frame().columns) == list(COLUMNS)


def test_measured_rows_of_a_run(tmp_path, small):
    folder = RunFolder.create(tmp_path / "run-1", small())
    folder.append_metrics({"step": 0, "loss": 5.5, "seconds": 2.0, "mfu": None, "warmup": True, "skipped": False})
    folder.append_metrics(
        {"step": 1, "loss": float("nan"), "seconds": 1.0, "peak_memory_bytes": 2**30, "warmup": False, "skipped": True}
    )
    found = [(r.x, r.metric, r.value, r.unit) for r in from_run(folder)]
    assert found == [
        (0, "loss", 5.5, "nat/token"),
        (0, "step time", 2.0, "s"),
        (0, "warmup", 1, "flag"),
        (1, "step time", 1.0, "s"),
        (1, "peak memory", 1.0, "GiB"),
        (1, "skipped", 1, "flag"),
    ]
    assert {(r.series, r.provenance, r.source) for r in from_run(folder)} == {("small", "measured", "run-1")}
