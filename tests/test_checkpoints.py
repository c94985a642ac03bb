"""Checkpoints: complete or absent, resumed bit for bit, refused where they do not fit."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import rank_mains
from test_launch import wait_for

from repro.engine.keeper import Keeping
from repro.engine.launch import run_ranks, train_local
from repro.errors import InputError, RunFailed
from repro.progress import Silent
from repro.recipe import load
from repro.records import checkpoints
from repro.records.run_folder import RunFolder

TIMES = ("seconds", "tokens_per_second", "hardware_tflops", "model_tflops", "peak_memory_bytes", "time", "warmup")
SMALL = {"shape.layers": 2, "shape.dropout": 0.1, "batch.global": 4}


def train(folder, recipe="tiny-3d", every=2, overrides=None, **options):
    return train_local(
        recipe,
        folder,
        overrides={**SMALL, "steps": 6, **(overrides or {})},
        wandb="off",
        progress=Silent(),
        deadline_seconds=60,
        keeping=Keeping(every, keep=9),
        **options,
    )


def essence(folder):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in RunFolder.open(folder).metrics()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run, dropout on, with a checkpoint after every second step."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(folder)
    return folder


def copied(whole, tmp_path, last=None):
    """A copy of the run as it was after the checkpoint of step ``last``, two more rows written since."""
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    run = RunFolder.open(folder)
    run.set_status("running")
    for one in checkpoints.complete(folder):
        if last is not None and one.step > last:
            checkpoints.remove(one.path)
    return folder


def test_a_checkpoint_lists_every_file_with_its_size_and_sum(whole):
    found = checkpoints.complete(whole)
    assert [one.step for one in found] == [2, 4, 6]
    for one in found:
        on_disk = {path.name for path in one.path.iterdir()} - {checkpoints.MANIFEST}
        assert on_disk == set(one.files), "nothing else lies there, no programs above all"
        assert one.damaged() == []
    assert (whole / "checkpoints" / "latest").read_text().strip() == "step-000006"


@pytest.mark.parametrize("last", [2, 4])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(whole, tmp_path, last):
    folder = copied(whole, tmp_path, last)
    train(folder, resume="auto")
    assert essence(folder) == essence(whole)
    note = json.loads((folder / "starts.jsonl").read_text())
    assert (note["step"], note["dropped_rows"]) == (last, 6 - last)
    assert RunFolder.open(folder).status()["summary"]["throughput_invalid"] is None


@pytest.mark.parametrize("recipe, overrides", [
    ("tiny", {"parallel.dp": 2, "batch.micro": 1, "precision.dtype": "bf16"}),
    ("tiny", {"zero.stage": 0}),
    ("tiny", {"parallel.pp": 2, "parallel.dp": 2, "zero.stage": 0, "batch.micro": 1}),
])  # fmt: skip
def test_other_optimizers_of_deepspeed_resume_bit_for_bit(tmp_path, recipe, overrides):
    train(tmp_path / "whole", recipe, overrides=overrides)
    folder = copied(tmp_path / "whole", tmp_path, 4)
    train(folder, recipe, overrides=overrides, resume="auto")
    assert essence(folder) == essence(tmp_path / "whole")


def test_the_loss_scale_and_its_hysteresis_go_on(tmp_path):
    """fp16 that overflows at first: the scale, its window and the skipped steps are part of a checkpoint."""
    precision = {"precision.dtype": "fp16", "precision.grad_accum": "fp16", "precision.initial_loss_scale_power": 20}
    recipe = load("tiny-3d", {**SMALL, **precision, "parallel.tp": 1, "steps": 8})
    for name in ("whole", "copy"):
        folder = RunFolder.create(tmp_path / name, recipe)
        options = {"folder": folder.path, "keeping": Keeping(2, keep=9)}
        run_ranks(recipe, rank_mains.fp16_on_any_device, options, 60, tmp_path / f"{name}.logs")
    rows = RunFolder.open(tmp_path / "whole").metrics()
    assert any(row["skipped"] for row in rows) and not rows[-1]["skipped"], [row["loss_scale"] for row in rows]
    for last in (2, 4):
        source = next(one for one in checkpoints.complete(tmp_path / "whole") if one.step == last)
        options = {"folder": folder.path, "keeping": Keeping(0), "sources": [source.path]}
        run_ranks(recipe, rank_mains.fp16_on_any_device, options, 60, tmp_path / f"{last}.logs")
        assert essence(folder.path)[last:] == essence(tmp_path / "whole")[last:]


def test_auto_begins_a_run_and_leaves_a_completed_one(whole, tmp_path):
    summary = train(tmp_path / "new", recipe="tiny", overrides={"steps": 2}, resume="auto")
    assert summary.state == "completed"
    before = (tmp_path / "new" / "metrics.jsonl").read_bytes()
    assert train(tmp_path / "new", recipe="tiny", overrides={"steps": 2}, resume="auto").numbers == summary.numbers
    assert (tmp_path / "new" / "metrics.jsonl").read_bytes() == before


def test_more_steps_continue_a_completed_run(whole, tmp_path):
    folder = copied(whole, tmp_path)
    RunFolder.open(folder).set_status("completed")
    train(folder, resume="auto", overrides={"steps": 7})
    assert essence(folder)[:6] == essence(whole)
    assert [row["step"] for row in essence(folder)] == list(range(7))
    assert RunFolder.open(folder).recipe().steps == 7
    assert json.loads((folder / "starts.jsonl").read_text())["notes"] == ["steps: 6 -> 7"]


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_and_named(whole, tmp_path, harm):
    folder = copied(whole, tmp_path, 4)
    newest = checkpoints.complete(folder)[-1]
    name = next(n for n in newest.files if "optim" in n)
    path = newest.path / name
    if harm == "flip":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif harm == "truncate":
        os.truncate(path, path.stat().st_size // 2)
    elif harm == "remove":
        path.unlink()
    else:
        (newest.path / checkpoints.MANIFEST).write_text("{")
    train(folder, resume="auto")
    assert essence(folder) == essence(whole)
    note = json.loads((folder / "starts.jsonl").read_text())
    assert note["step"] == 2
    if harm != "manifest":
        assert name in note["notes"][0] and "step 4" in note["notes"][0]


def test_all_checkpoints_damaged_fails_before_a_row_is_touched(whole, tmp_path):
    folder = copied(whole, tmp_path, 4)
    for one in checkpoints.complete(folder):
        os.truncate(one.path / next(iter(one.files)), 10)
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(RunFailed, match=r"no checkpoint is sound: checkpoint of step 4 .*checkpoint of step 2"):
        train(folder, resume="auto")
    assert (folder / "metrics.jsonl").read_bytes() == before


class Evil:
    def __reduce__(self):
        return (os.system, ("touch executed",))


def test_a_checkpoint_that_would_run_code_is_refused(whole, tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    folder = copied(whole, tmp_path, 2)
    checkpoint = checkpoints.complete(folder)[-1]
    name = next(n for n in checkpoint.files if n.startswith("layer_00-model_00"))
    torch.save({"weight": Evil()}, checkpoint.path / name)
    manifest = json.loads((checkpoint.path / checkpoints.MANIFEST).read_text())
    size = (checkpoint.path / name).stat().st_size
    manifest["files"][name] = {"bytes": size, "blake2b": checkpoints.checksum(checkpoint.path / name)}
    (checkpoint.path / checkpoints.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(RunFailed, match="UnpicklingError"):
        train(folder, resume="auto")
    assert not list(tmp_path.rglob("executed"))


@pytest.mark.parametrize("name", ["../recipe.toml", "/etc/passwd", "a/b", ".."])
def test_a_manifest_cannot_name_files_elsewhere(whole, tmp_path, name):
    checkpoint = checkpoints.complete(copied(whole, tmp_path, 2))[-1]
    manifest = json.loads((checkpoint.path / checkpoints.MANIFEST).read_text())
    manifest["files"][name] = {"bytes": 1, "blake2b": "0"}
    (checkpoint.path / checkpoints.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="is no file of that folder"):
        checkpoints.open_checkpoint(checkpoint.path)


@pytest.mark.parametrize("overrides, words", [
    ({"shape.hidden": 128}, "shape.hidden was 64, is 128"),
    ({"seed": 5}, "seed was"),
    ({"batch.global": 8}, "batch.global was 4, is 8"),
    ({"precision.dtype": "bf16"}, "precision.dtype was"),
    ({"parallel.tp": 1, "parallel.dp": 2, "batch.micro": 1}, "parallel.tp was 2, is 1.*--resume FOLDER"),
    ({"steps": 3}, "of step 4, the recipe ends at steps 3"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_touched(whole, tmp_path, overrides, words):
    folder = copied(whole, tmp_path, 4)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(InputError, match=words):
        train(folder, resume="auto", overrides=overrides)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("resume", ["auto", "other"])
def test_other_data_under_the_same_name_are_refused(whole, tmp_path, resume):
    folder = copied(whole, tmp_path, 4)
    environment = json.loads((folder / "environment.json").read_text())
    environment["data"]["sha256"] = "0" * 64
    (folder / "environment.json").write_text(json.dumps(environment))
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"not those that the checkpoint was trained on: .*sha256 000000000000 then"):
        train(folder, resume="auto") if resume == "auto" else train(tmp_path / "new", resume=str(folder))
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_what_kills_left_of_files_is_swept(whole, tmp_path):
    folder = copied(whole, tmp_path, 4)
    for name in (".status.json.123", ".metrics.jsonl.99", "checkpoints/.latest.7"):
        (folder / name).write_text("half")
    train(folder, resume="auto")
    assert {path.name for path in folder.rglob(".*")} <= {".run.lock", ".record.lock"}


def test_a_changed_schedule_is_named(whole, tmp_path):
    folder = copied(whole, tmp_path, 4)
    train(folder, resume="auto", overrides={"optimizer.clip": 0.5})
    assert json.loads((folder / "starts.jsonl").read_text())["notes"] == ["optimizer.clip: 1.0 -> 0.5"]
    assert essence(folder)[:4] == essence(whole)[:4]


def test_lost_checkpoints_are_no_reason_to_begin_anew(whole, tmp_path):
    """The record of a run that had come to a checkpoint is not written over because the checkpoints are gone."""
    folder = copied(whole, tmp_path, 4)
    for one in checkpoints.complete(folder):
        (one.path / checkpoints.MANIFEST).write_text("[]")
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"6 recorded steps and no complete checkpoint.*copy-2"):
        train(folder, resume="auto")
    shutil.rmtree(folder / "checkpoints")
    RunFolder.open(folder).set_status("completed")
    with pytest.raises(InputError, match="no complete checkpoint"):
        train(folder, resume="auto", overrides={"steps": 7})
    (folder / "checkpoints").write_text("")
    with pytest.raises(InputError, match="is no folder"):
        train(folder, resume="auto", overrides={"steps": 7})
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_rows_that_are_written_again_are_kept_aside_and_said(whole, tmp_path, capfd):
    folder = copied(whole, tmp_path, 2)
    train(folder, resume="auto")
    kept = [json.loads(line)["step"] for line in (folder / "metrics-dropped.jsonl").read_text().splitlines()]
    assert kept == [2, 3, 4, 5]
    assert "goes on after step 2; 4 recorded steps are done again" in capfd.readouterr().err


def test_only_the_newest_are_kept(tmp_path):
    train_local(
        "tiny", tmp_path / "run", overrides={"steps": 5}, wandb="off", progress=Silent(), keeping=Keeping(1, keep=2)
    )
    assert [one.step for one in checkpoints.complete(tmp_path / "run")] == [4, 5]
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "latest",
        "step-000004",
        "step-000005",
    ]


@contextlib.contextmanager
def running(folder, *options):
    command = [sys.executable, "-m", "repro", "train", "tiny-3d", "--wandb", "off", "--run-folder", str(folder)]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists(), 60)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_step_and_leaves_a_checkpoint_of_it(tmp_path, number):
    folder = tmp_path / "run"
    with running(folder, "--steps", "5000") as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert f"asked to stop by {number.name}" in errors and "Traceback" not in errors
    status, rows = RunFolder.open(folder).status(), RunFolder.open(folder).metrics()
    assert status["state"] == "interrupted"
    assert [one.step for one in checkpoints.complete(folder)] == [len(rows)] == [status["step"]]


def test_two_runs_cannot_share_a_folder(tmp_path):
    folder = tmp_path / "run"
    with running(folder, "--steps", "5000") as process:
        started = time.monotonic()
        with pytest.raises(InputError, match=f"in use by process {process.pid}"):
            train_local("tiny-3d", folder, overrides={"steps": 5000}, wandb="off", progress=Silent(), resume="auto")
        assert time.monotonic() - started < 15
        assert RunFolder.open(folder).status()["state"] == "running", "the other run's record is not touched"
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=30)
    assert process.returncode == 0
