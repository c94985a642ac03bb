"""``repro trace`` as a user meets it."""

import json
import time

import pytest

from repro import cli, devices
from repro.projection.memory import memory
from repro.recipe import load
from repro.report.trace_table import GIB, closed_form


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return done.value.code, out, err


def test_what_cannot_fit_is_answered_at_once_with_what_would(capsys):
    started = time.monotonic()
    code, out, _ = call(capsys, "trace", "175b", "--set", "parallel.tp=1", "--set", "parallel.pp=1", "--json")
    answer = json.loads(out)
    assert time.monotonic() - started < 10
    assert code == 0
    assert not answer["fits"]
    assert answer["provenance"] == "projected"
    assert -answer["spare_gib"] == pytest.approx(answer["peak_bytes"] / GIB - 64)
    assert sum(answer["items"].values()) == answer["peak_bytes"]
    assert answer["nearest_layouts"]
    for layout in answer["nearest_layouts"]:
        sizes = {"parallel.tp": layout["tp"], "parallel.pp": layout["pp"]}
        fitting = load("175b", sizes)
        assert closed_form(fitting, devices.get("mi250x-gcd"))["fits"]
        peaks = [memory(fitting, stage).peak_bytes for stage in range(layout["pp"])]
        assert max(peaks) <= 64 * GIB, "no stage in between may be fuller than the three that are looked at"


def test_a_device_with_more_memory_takes_more(capsys):
    _, out, _ = call(capsys, "trace", "175b", "--set", "parallel.pp=4", "--json")
    assert not json.loads(out)["fits"]
    assert closed_form(load("175b", {"parallel.pp": 4}), devices.get("h200"))["fits"]


def test_a_stage_as_json_and_as_a_table(capsys):
    code, out, err = call(capsys, "trace", "tiny-3d", "--stage", "1", "--match", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["match"]["problem"] is None
    (stage,) = answer["stages"]
    assert stage["rank"] == 2
    assert stage["fits"]
    assert stage["hardware_flops"] > stage["model_flops"] > 0
    assert sum(stage["peak_by_label"].values()) == stage["peak_bytes"]
    code, out, _ = call(capsys, "trace", "tiny-3d", "--all-stages")
    assert code == 0
    assert out.count("fits") >= 2
    assert "fragmentation" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["1t", "--rank", "3072"], "valid ranks are 0 to 3071"),
        (["1t", "--stage", "64"], "valid are 0 to 63"),
        (["1t", "--stage", "1", "--rank", "1"], "give one of"),
        (["1t", "--device", "mi300x"], "unknown device"),
        (["1t", "--micro-batches", "0"], "the least is 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, text, capsys):
    code, out, err = call(capsys, "trace", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert text in err
