"""A run that goes on in another layout: the losses of the uninterrupted one."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import rank_mains

from repro.engine.keeper import Keeping
from repro.engine.launch import run_ranks, train_local
from repro.errors import InputError, RunFailed
from repro.progress import Silent
from repro.recipe import load
from repro.records import checkpoints
from repro.records.run_folder import RunFolder

# 250 pads to 256 with tp 1 and 2, to 512 with tp 4
BASE = {"shape.layers": 4, "shape.dropout": 0.0, "shape.vocab": 250, "batch.global": 8, "batch.micro": 1, "steps": 8}
BASE |= {"data.kind": "synthetic"}
LAYOUTS = [(1, 2, 2), (2, 1, 2), (1, 1, 1), (2, 2, 2), (4, 1, 1), (1, 4, 1), (2, 2, 1, [3, 1])]


def layout(tp, pp, dp, stage_layers=None):
    return {"parallel.tp": tp, "parallel.pp": pp, "parallel.dp": dp} | (
        {"parallel.stage_layers": stage_layers} if stage_layers else {}
    )


def train(folder, overrides, **options):
    options = {"keeping": Keeping(4, keep=9), "deadline_seconds": 60, **options}
    return train_local("tiny-3d", folder, overrides=overrides, wandb="off", progress=Silent(), **options)


def whole_run(root, dtype):
    """A run at tp 2, pp 2 whose last checkpoint is that of half way; its overrides."""
    overrides = {**BASE, **layout(2, 2, 1), "precision.dtype": dtype, "precision.grad_accum": "fp32"}
    train(root / "whole", overrides)
    checkpoints.remove(checkpoints.complete(root / "whole")[-1].path)
    return root / "whole", overrides


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return whole_run(tmp_path_factory.mktemp("fp32"), "fp32")


def require_same_losses(whole, new, loss, norm):
    """``loss`` and ``norm``: relative tolerance of all losses, and of the first gradient norm."""
    expected, found = RunFolder.open(whole).metrics()[4:], RunFolder.open(new).metrics()
    assert [row["step"] for row in found] == [4, 5, 6, 7]
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in expected], rel=loss)
    assert [row["lr"] for row in found] == [row["lr"] for row in expected]
    assert found[0]["grad_norm"] == pytest.approx(expected[0]["grad_norm"], rel=norm)


@pytest.mark.parametrize("new", LAYOUTS)
def test_losses_go_on_in_another_layout(run, tmp_path, new):
    whole, overrides = run
    train(tmp_path / "new", {**overrides, **layout(*new)}, resume=str(whole))
    require_same_losses(whole, tmp_path / "new", loss=1e-5, norm=1e-4)


def test_losses_go_on_in_bf16(tmp_path):
    """bf16 keeps 8 bits, sums in another order differ in the last: seen 1.2e-5 on the loss, 2e-4 on the norm."""
    whole, overrides = whole_run(tmp_path, "bf16")
    for new in LAYOUTS[:2]:
        folder = tmp_path / "-".join(map(str, new))
        train(folder, {**overrides, **layout(*new)}, resume=str(whole))
        require_same_losses(whole, folder, loss=1e-4, norm=2e-3)


def test_there_and_back_is_where_straight_on_is(run, tmp_path):
    """Cut anew twice, a step in between: weights and moments of a run that never left its layout."""
    from repro.engine.checkpoint_io import safe_load

    whole, overrides = run
    train(tmp_path / "there", {**overrides, **layout(1, 2, 2), "steps": 5}, resume=str(whole))
    train(tmp_path / "back", {**overrides, "steps": 6}, resume=str(tmp_path / "there"))
    train(tmp_path / "on", {**overrides, "steps": 6}, resume=str(whole))
    back, on = (checkpoints.complete(tmp_path / name)[-1] for name in ("back", "on"))
    assert back.files.keys() == on.files.keys()
    name = next(n for n in back.files if "optim" in n)
    ours, theirs = (safe_load(one.path / name)["optimizer_state_dict"] for one in (back, on))
    for group in (0, 1):
        for a, b in (
            (ours["single_partition_of_fp32_groups"][group], theirs["single_partition_of_fp32_groups"][group]),
            (
                ours["base_optimizer_state"]["state"][group]["exp_avg_sq"],
                theirs["base_optimizer_state"]["state"][group]["exp_avg_sq"],
            ),
        ):
            assert (a - b).abs().max() <= 1e-3 * b.abs().max() + 1e-8
        steps = [one["base_optimizer_state"]["state"][group]["step"] for one in (ours, theirs)]
        assert float(steps[0]) == float(steps[1])


def test_the_command_line_and_the_source_untouched(run, tmp_path):
    whole, overrides = run
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    words = [f"{k}={v}" for k, v in {**overrides, **layout(1, 2, 2)}.items() if k != "steps"]
    command = [sys.executable, "-m", "repro", "train", "tiny-3d", "--run-folder", str(tmp_path / "new")]
    command += ["--resume", str(whole), "--wandb", "off", "--steps", "6", *(w for one in words for w in ("--set", one))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in RunFolder.open(tmp_path / "new").metrics()] == [4, 5]
    assert "parallel.tp: 2 -> 1" in (tmp_path / "new" / "starts.jsonl").read_text()
    assert {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()} == before


def test_without_zero_another_layout_is_refused_before_anything_is_made(tmp_path):
    train(tmp_path / "whole", {**BASE, **layout(1, 2, 1), "zero.stage": 0, "steps": 4})
    with pytest.raises(InputError, match=r"zero.stage 0.*keep tp 1, pp 2, dp 1"):
        train(tmp_path / "new", {**BASE, **layout(1, 1, 2), "zero.stage": 0}, resume=str(tmp_path / "whole"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("new", [(2, 2, 1), (1, 1, 1)])
def test_what_the_recipe_changes_is_in_force(run, tmp_path, new):
    """DeepSpeed's loading would bring back the settings of the run that wrote the checkpoint."""
    from repro.engine.checkpoint_io import safe_load
    from repro.engine.config import learning_rate

    whole, overrides = run
    changed = {"optimizer.lr": 5e-4, "optimizer.beta2": 0.9, "optimizer.weight_decay": 0.2, "optimizer.clip": 0.5}
    train(tmp_path / "new", {**overrides, **layout(*new), **changed, "steps": 5}, resume=str(whole))
    rate = learning_rate(load("tiny-3d", {**overrides, **changed}), 4)
    assert RunFolder.open(tmp_path / "new").metrics()[0]["lr"] == pytest.approx(rate, rel=1e-12)
    one = checkpoints.complete(tmp_path / "new")[-1]
    saved = safe_load(one.path / next(n for n in one.files if "optim" in n))["optimizer_state_dict"]
    matrices, vectors = saved["base_optimizer_state"]["param_groups"]
    assert (matrices["betas"][1], matrices["weight_decay"], vectors["weight_decay"]) == (0.9, 0.2, 0)
    assert saved["clip_grad"] == 0.5


def test_the_loss_scale_goes_on_in_another_layout(tmp_path):
    precision = {"precision.dtype": "fp16", "precision.grad_accum": "fp16", "precision.initial_loss_scale_power": 20}
    base = {**BASE, "shape.layers": 2, **precision}
    recipe = load("tiny-3d", {**base, **layout(1, 2, 1)})
    folder = RunFolder.create(tmp_path / "whole", recipe)
    options = {"folder": folder.path, "keeping": Keeping(4, keep=9)}
    run_ranks(recipe, rank_mains.fp16_on_any_device, options, 60, tmp_path / "whole.logs")
    source = checkpoints.complete(folder.path)[0]
    other = load("tiny-3d", {**base, **layout(2, 1, 1)})
    continued = RunFolder.create(tmp_path / "new", other)
    options = {"folder": continued.path, "sources": [source.path]}
    run_ranks(other, rank_mains.fp16_on_any_device, options, 60, tmp_path / "new.logs")
    rows = folder.metrics()
    assert any(row["skipped"] for row in rows[:4]) and not rows[4]["skipped"]
    for key in ("step", "loss_scale", "skipped", "lr"):
        assert [row[key] for row in continued.metrics()] == [row[key] for row in rows[4:]]
    expected = [row["loss"] for row in rows[4:]]
    assert [row["loss"] for row in continued.metrics()] == pytest.approx(expected, rel=5e-4)


def forged(whole, tmp_path, change):
    """A copy of the run's last checkpoint whose optimizer files are changed, with sums that fit."""
    import torch

    from repro.engine.checkpoint_io import safe_load

    path = tmp_path / "step-000004"
    shutil.copytree(checkpoints.complete(whole)[-1].path, path)
    manifest = json.loads((path / checkpoints.MANIFEST).read_text())
    for name in [n for n in manifest["files"] if "optim" in n]:
        torch.save(change(safe_load(path / name)), path / name)
        size = (path / name).stat().st_size
        manifest["files"][name] = {"bytes": size, "blake2b": checkpoints.checksum(path / name)}
    (path / checkpoints.MANIFEST).write_text(json.dumps(manifest))
    return path


class Evil:
    def __reduce__(self):
        return (os.system, ("touch executed",))


def test_code_in_a_checkpoint_is_not_run(run, tmp_path, monkeypatch):
    whole, overrides = run
    monkeypatch.chdir(tmp_path)
    path = forged(whole, tmp_path, lambda state: {"optimizer_state_dict": Evil()})
    with pytest.raises(RunFailed, match="UnpicklingError"):
        train(tmp_path / "new", {**overrides, **layout(1, 1, 1)}, resume=str(path))
    assert not list(tmp_path.rglob("executed"))


def test_a_checkpoint_that_lacks_a_parameter_is_refused(run, tmp_path):
    whole, overrides = run

    def without_the_embedding(state):
        for names in state["optimizer_state_dict"]["param_slice_mappings"]:
            names.pop("tied_modules.embedding.weight", None)
        return state

    path = forged(whole, tmp_path, without_the_embedding)
    with pytest.raises(RunFailed, match=r"holds no parameter tied_modules\.embedding"):
        train(tmp_path / "new", {**overrides, **layout(1, 1, 1)}, resume=str(path))
