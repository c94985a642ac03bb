"""A small version of ``benchmarks/chaos.py``: it must find nothing broken, and must find what is."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "chaos.py"


def test_random_kills_lose_nothing():
    command = [sys.executable, BENCHMARK, "--kills", "5", "--seed", "3", "--json", "--seconds", "240"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr[-1000:]
    found = json.loads(done.stdout)
    assert found["kills"] == sum(found["victims"].values()) == sum(found["moments"].values()) == 5
    assert found["lives_resumed"] >= 1
    assert found["steps_lost_beyond_the_last_complete_checkpoint"] == found["duplicate_rows"] == 0
    assert found["equal_to_the_undisturbed_run"]
    assert found["broken"] == []


def test_a_record_that_is_not_true_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    import chaos

    from repro.recipe import load
    from repro.records import checkpoints
    from repro.records.lock import held
    from repro.records.run_folder import RunFolder

    recipe, seen = load("tiny-3d"), chaos.Seen(kills=1)
    folder = RunFolder.create(tmp_path / "run", recipe)
    for step in (0, 1, 1, 3):
        folder.append_metrics({"step": step})
    made = tmp_path / "run" / "checkpoints" / "step-000006"
    made.mkdir(parents=True)
    (made / "x").write_bytes(b"x")
    checkpoints.commit(folder.path, 6, recipe, {"x": (2, "0")}, {})
    folder.note_start({"step": 2})
    with held(folder.path):
        chaos.check_record(folder.path, seen, before=4, notes=0)
    assert (seen.duplicate_rows, seen.lost_steps, seen.resumed) == (1, 2, 1)
    words = " ".join(seen.broken)
    for found in ("status says pending", "rows are missing", "step 6 with 3 rows", "x has 1 bytes, 2 were written"):
        assert found in words
