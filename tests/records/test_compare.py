"""Two records side by side: equal but for times, or named where they part."""

import json
import shutil

import pytest

from repro import cli
from repro.engine.launch import train_local
from repro.progress import Silent
from repro.records.compare import compare
from repro.records.run_folder import RunFolder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same recipe twice, dropout on, two replicas on two shards."""
    root = tmp_path_factory.mktemp("runs")
    overrides = {"shape.layers": 2, "shape.dropout": 0.1, "steps": 3, "parallel.dp": 2, "parallel.pp": 1}
    for name in ("a", "b"):
        train_local("tiny-3d", root / name, overrides=overrides, wandb="off", progress=Silent(), deadline_seconds=60)
    return RunFolder.open(root / "a"), RunFolder.open(root / "b")


def test_the_same_recipe_twice_gives_the_same_record(runs):
    found = compare(*runs)
    assert found.equal and found.steps == 3 and found.relative == 0 and found.recipes == {}
    assert runs[0].metrics() != runs[1].metrics(), "the times do differ"


def test_the_first_difference_is_named(runs, tmp_path, capsys):
    changed = tmp_path / "changed"
    shutil.copytree(runs[1].path, changed)
    rows = RunFolder.open(changed).metrics()
    rows[1]["grad_norm"] *= 1 + 1e-15
    rows[2]["loss"] *= 1.5
    (changed / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = compare(runs[0], RunFolder.open(changed))
    assert found.first[:2] == (1, "grad_norm") and found.relative == pytest.approx(1 / 3)
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", str(runs[0].path), str(changed)])
    assert end.value.code == 3
    assert "first difference: step 1, grad_norm" in capsys.readouterr().out


def test_a_missing_step_is_a_difference(runs, tmp_path, capsys):
    short = tmp_path / "short"
    shutil.copytree(runs[1].path, short)
    RunFolder.open(short).keep_metrics_below(2)
    found = compare(runs[0], RunFolder.open(short))
    assert not found.equal and found.first is None and found.missing == (2,)
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", str(runs[0].path), str(short)])
    assert end.value.code == 3
    assert capsys.readouterr().out == "steps that one run lacks: 1, first 2\n2 common steps: equal\n"
