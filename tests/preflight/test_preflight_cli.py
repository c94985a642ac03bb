"""The commands: a preflight here, its script without torch, a projection on a measured network."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from repro.cli import main
from repro.projection import machine, measured_network
from repro.records import network
from repro.records.network import Point, Setup

SETUP = Setup("22b", 8, 1, 2, False, "frontier", 2, 8, "nccl", "2026-12-01", "preflight-22b")


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return end.value.code, *capsys.readouterr()


@pytest.fixture
def measured(tmp_path):
    """A ``network.csv`` of a slow tensor-parallel link."""
    frontier = machine.load("frontier").with_constants(link_efficiency=0.66)
    points = [Point("all-reduce", group, n, stride, size, 1.0, 1.0, 1.0) for size in (2**16, 2**24, 2**28)
              for group, n, stride in (("tensor", 8, 1), ("data", 2, 8))]  # fmt: skip
    times = measured_network.seconds(frontier, SETUP, points)[0].tolist()
    path = tmp_path / "network.csv"
    network.rows(SETUP, [replace(p, seconds=t, low=t, high=t) for p, t in zip(points, times, strict=True)]).write(path)
    return path


def test_a_preflight_here_as_json(capsys, tmp_path):
    code, out, _ = run(capsys, "job", "preflight", "tiny", "--local", "--json", "--run-folder", str(tmp_path / "run"))
    found = json.loads(out)
    assert code == 0
    assert (found["state"], found["layout"]["ranks"], found["run_folder"]) == ("completed", 2, str(tmp_path / "run"))
    assert {"placement", "binding", "transport", "groups", "network"} == {check["name"] for check in found["checks"]}


def test_the_script_needs_no_torch_and_leaves_no_folder(tmp_path):
    code = (
        "import sys; from repro.cli import main\n"
        "words = ['job', 'preflight', '1t', '--site', 'frontier', '--account', 'abc123', '--run-folder', sys.argv[1]]\n"
        "try: main(words)\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "loaded = {'torch', 'deepspeed', 'pandas'} & set(sys.modules); assert not loaded, loaded"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=384" in done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tiny",), "preflight needs --local"),
        (("tiny", "--local", "--submit"), "--local runs here"),
        (("tiny", "--site", "frontier", "--follow"), "--follow needs --submit"),
        (("tiny", "--site", "fronteer"), "did you mean 'frontier'"),
        (("tiny", "--local", "--deadline", "0"), "deadline 0 s must be above 0"),
        (("tiny", "--local", "--most-mib", "0"), "--most-mib 0 must be at least"),
        (("tiny", "--site", "frontier", "--rung", "99"), "rung 99 is not on the ladder"),
    ],
)
def test_wrong_input_is_one_line(words, message, capsys):
    code, out, err = run(capsys, "job", "preflight", *words)
    assert (code, out) == (2, "")
    assert message in err and err.rstrip().splitlines()[-1].startswith("repro: ")


def test_a_projection_on_the_measured_network(measured, capsys):
    code, out, _ = run(capsys, "project", "22b", "--machine", "frontier", "--network", str(measured), "--json")
    found = json.loads(out)
    assert code == 0
    constants = found["network"]["constants"]
    assert constants["link_efficiency"]["value"] == pytest.approx(0.66, rel=0.02)
    assert constants["link_efficiency"]["kind"] == "measured"
    assert str(measured) in constants["link_efficiency"]["source"]
    assert found["network"]["folder"] == "preflight-22b" and found["provenance"] == "projected"


def test_without_a_recipe_the_profile_is_printed_as_a_file(measured, capsys, tmp_path):
    code, out, err = run(capsys, "project", "--machine", "frontier", "--network", str(measured))
    assert code == 0 and "link_efficiency" in err
    (tmp_path / "mine.toml").write_text(out)
    again = machine.load(str(tmp_path / "mine.toml"))
    assert again.constants == measured_network.from_preflight(str(measured), "frontier").machine.constants


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("22b", "--network", "none.csv"), "project needs --machine"),
        (("22b", "--machine", "frontier", "--network", "none.csv"), "cannot read table none.csv"),
        (("--validate", "--network", "none.csv"), "--validate takes no --network"),
    ],
)
def test_a_network_asked_for_wrongly(words, message, capsys):
    code, out, err = run(capsys, "project", *words)
    assert (code, out) == (2, "") and message in err
