"""Real ranks that die, hang, fail or are refused: the run ends soon, says which rank, and leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rank_mains

from repro.engine.launch import cores, record_end, run_ranks, train_local
from repro.errors import InputError, RunFailed
from repro.progress import Silent
from repro.records.run_folder import RunFolder

LIMIT_SECONDS = 15


@pytest.fixture(scope="module")
def recipe(small):
    return small(parallel={"tp": 2, "pp": 2}, steps=6)


def fails(recipe, main, tmp_path, deadline=60, **options):
    started = time.monotonic()
    with pytest.raises(RunFailed) as error:
        run_ranks(recipe, main, options, deadline, tmp_path / "logs")
    assert "\n" not in str(error.value)
    assert not ranks_alive()
    return str(error.value), time.monotonic() - started


def ranks_alive():
    import multiprocessing

    return multiprocessing.active_children()


@pytest.mark.parametrize(
    ("rank", "where", "place"),
    [
        (0, "forward", "stage 0, replica 0, shard 0"),
        (1, "backward", "stage 0, replica 0, shard 1"),
        (2, "reduction", "stage 1, replica 0, shard 0"),
        (3, "optimizer", "stage 1, replica 0, shard 1"),
    ],
)
def test_a_killed_rank_ends_the_run_and_is_named(rank, where, place, recipe, tmp_path):
    message, seconds = fails(recipe, rank_mains.kill_in_step, tmp_path, rank=rank, where=where)
    assert f"rank {rank} ({place}) was killed by SIGKILL in phase 'step 1'" in message
    assert seconds < LIMIT_SECONDS


def test_a_rank_that_raises_is_named_with_its_error(recipe, tmp_path):
    message, seconds = fails(recipe, rank_mains.raise_while_building, tmp_path, rank=3)
    assert "rank 3 (stage 1, replica 0, shard 1) failed" in message
    assert "RuntimeError: a fault of this rank alone" in message
    assert seconds < LIMIT_SECONDS
    assert "with a second line" in (tmp_path / "logs" / "rank-3.log").read_text()


def test_a_hung_rank_is_found_by_the_deadline(recipe, tmp_path):
    message, seconds = fails(recipe, rank_mains.stand_still, tmp_path, deadline=6, rank=2)
    assert "no rank reported for 6 s" in message
    assert "rank 2 (stage 1, replica 0, shard 0) in 'step 1'" in message
    assert seconds < 6 + LIMIT_SECONDS
    assert "report_then_hang" in (tmp_path / "logs" / "rank-2.log").read_text(), "the stack of the hung rank"


def test_an_error_reaches_the_launcher_though_the_log_takes_none(recipe, tmp_path):
    message, _ = fails(recipe, rank_mains.raise_with_a_full_log, tmp_path)
    assert "OSError: No space left on device" in message


def test_time_in_which_the_launcher_itself_was_stopped_is_no_silence(recipe, monkeypatch):
    from repro.engine import watch

    now = 1000.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    seen = watch.Watch(recipe.layout, deadline_seconds=60)
    now += 3600  # Ctrl-Z, lunch, fg
    assert not seen.must_stop()
    for _ in range(59):
        now += 1
        assert not seen.must_stop()
    now += 2
    assert seen.must_stop()


def test_settings_that_differ_from_the_recipe_stop_the_run(recipe, tmp_path):
    message, _ = fails(recipe, rank_mains.disagree_with_recipe, tmp_path)
    assert "gradient_clipping: asked 1.0, in force 0.0" in message


def test_failed_status_and_folder_in_the_message(small, tmp_path, monkeypatch):
    from repro.engine import launch

    monkeypatch.setattr(launch, "rank_main", lambda *a, **k: None)  # not picklable: the launch itself fails
    folder = tmp_path / "run"
    with pytest.raises(Exception, match="pickle"):
        train_local(small(steps=1), folder, wandb="off", progress=Silent())
    assert RunFolder.open(folder).status()["state"] == "failed"


def test_fp16_trains_near_fp32_and_counts_skipped_steps(small, tmp_path, train_small):
    changes = {"parallel": {"pp": 2}, "steps": 6}
    low = small(precision={"dtype": "fp16", "grad_accum": "fp16", "initial_loss_scale_power": 10}, **changes)
    folder = RunFolder.create(tmp_path / "low", low)
    run_ranks(low, rank_mains.fp16_on_any_device, {"folder": folder.path}, 60, tmp_path / "logs")
    expected = train_small(small(**changes)).metrics()
    for row, other in zip(folder.metrics(), expected, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=3e-3)
        assert row["loss_scale"] == 1024
        assert not row["skipped"]
    assert folder.environment()["in_force"]["initial_loss_scale"] == 1024

    high = small(precision={"dtype": "fp16", "grad_accum": "fp16", "initial_loss_scale_power": 32}, **changes)
    folder = RunFolder.create(tmp_path / "high", high)
    run_ranks(high, rank_mains.fp16_on_any_device, {"folder": folder.path}, 60, tmp_path / "logs2")
    rows, summary = folder.metrics(), folder.status()["summary"]
    assert all(row["skipped"] for row in rows), "a scale of 2^32 overflows at every step"
    assert rows[0]["loss_scale"] > rows[-1]["loss_scale"]
    assert rows[0]["lr"] == rows[-1]["lr"], "a skipped step does not move the schedule"
    assert summary["skipped_steps"] == len(rows)
    assert summary["seconds"] is None
    assert "skipped for overflow" in summary["throughput_invalid"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_loss_that_is_not_a_number_fails_the_run(dtype, small, tmp_path):
    wild = {"lr": 1e30, "warmup_steps": 0, "clip": 0.0}
    recipe = small(precision={"dtype": dtype, "grad_accum": "fp32"}, optimizer=wild)
    with pytest.raises(RunFailed, match=r"^the loss of step 1 is (nan|inf).*there is no complete checkpoint"):
        train_local(recipe, tmp_path / "run", wandb="off", progress=Silent())
    assert RunFolder.open(tmp_path / "run").status()["state"] == "failed"


def test_fp16_is_refused_on_this_cpu(small, tmp_path):
    from repro.engine.host import has_gpu

    if has_gpu():
        pytest.skip("a GPU has fp16")
    with pytest.raises(InputError, match="fp16 does not work on this cpu; nearest valid: bf16"):
        train_local(
            small(precision={"dtype": "fp16", "grad_accum": "fp16"}), tmp_path / "r", wandb="off", progress=Silent()
        )
    assert not (tmp_path / "r").exists(), "refused by a rank, yet nothing is left behind"


def test_an_existing_folder_is_never_overwritten(small, tmp_path, train_small):
    folder = train_small(small(steps=2))
    before = (folder.path / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match="exists; nothing is overwritten"):
        train_local(small(steps=2), folder.path, wandb="off", progress=Silent())
    assert (folder.path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"wandb": "onlin"}, "wandb"),
        ({"deadline_seconds": 0}, "deadline"),
        ({"deadline_seconds": float("nan")}, "deadline"),
        ({"deadline_seconds": 1e300}, "deadline"),
        ({"steps": 0}, "steps"),
    ],
)
def test_bad_options_write_nothing(options, text, small, tmp_path):
    with pytest.raises(InputError, match=text):
        train_local(small(), tmp_path / "run", progress=Silent(), **options)
    assert not (tmp_path / "run").exists()


def test_too_many_ranks_and_too_much_memory_are_refused_at_once(tmp_path, small):
    started = time.monotonic()
    with pytest.raises(InputError, match=r"needs 3072 ranks, this machine has \d+ cores"):
        train_local("1t", tmp_path / "a", progress=Silent())
    with pytest.raises(InputError, match="GiB for weights and optimizer"):
        train_local(
            "22b", tmp_path / "b", overrides={"parallel.pp": 1, "parallel.dp": 1, "batch.global": 1}, progress=Silent()
        )
    assert time.monotonic() - started < 2
    assert not list(tmp_path.iterdir())


def test_record_of_a_run(small, train_small):
    recipe = small(parallel={"tp": 2, "pp": 2}, steps=4, timing_warmup=1)
    folder = train_small(recipe)
    status, environment, rows = folder.status(), folder.environment(), folder.metrics()
    assert folder.recipe() == recipe
    assert status["state"] == "completed"
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [row["warmup"] for row in rows] == [True, False, False, False]
    assert len(status["peak_memory_bytes_by_rank"]) == 4
    assert environment["in_force"]["train_batch_size"] == 8
    assert environment["data"]["sha256"]
    assert "narayanan-2021" in environment["hardware_flops"]
    if environment["device"] == "cpu":
        assert environment["peak"] is None
        assert {row["hfu"] for row in rows} == {None}, "no peak, no percentage"


def test_sigint_ends_all_ranks_at_once_and_the_status_says_so(tmp_path):
    command = [sys.executable, "-m", "repro", "train", "tiny-3d", "--steps", "5000", "--wandb", "off"]
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*command, "--run-folder", str(folder)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists(), 60)
        children = descendants(process.pid)
        assert len(children) >= 4
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted by SIGINT" in errors
    assert "Traceback" not in errors
    assert RunFolder.open(folder).status()["state"] == "interrupted"
    wait_for(lambda: not any(map(alive, children)), 10)


def test_sigkill_of_the_launcher_leaves_no_rank(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "repro", "train", "tiny-3d", "--steps", "5000", "--wandb", "off"]
    process = subprocess.Popen(
        [*command, "--run-folder", str(folder)], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists(), 60)
        children = descendants(process.pid)
        assert len(children) >= 4
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not any(map(alive, children)), 10)
    status = RunFolder.open(folder).status()
    assert (status["state"], status["reason"]) == ("failed", "the launcher was killed")


def test_a_script_without_the_main_idiom_runs_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import repro\nprint('body')\nprint(repro.train('tiny', steps=1, wandb='off', run_folder='run').state)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "body\ncompleted\n", done.stderr


def test_ranks_that_cannot_be_started_are_a_failed_run(small, tmp_path, monkeypatch):
    from multiprocessing.process import BaseProcess

    def no_server(_process):
        raise EOFError("unexpected EOF")  # what multiprocessing says when the fork server has been killed

    monkeypatch.setattr(BaseProcess, "start", no_server)
    with pytest.raises(RunFailed, match="ranks cannot be started: the process that forks them has died"):
        train_local(small(), tmp_path / "run", wandb="off", progress=Silent())
    assert RunFolder.open(tmp_path / "run").status()["state"] == "failed"


def test_a_rank_whose_launcher_is_gone_does_not_wait_for_the_meeting(small, tmp_path):
    from repro.engine.place import Place
    from repro.engine.worker import run_rank

    started = time.monotonic()
    with pytest.raises(FileNotFoundError):
        run_rank(small(), Place(0, 1, 0, f"file://{tmp_path}/gone/store"), None, lambda *_: None)
    assert time.monotonic() - started < LIMIT_SECONDS


def test_an_interrupt_after_the_last_step_leaves_the_record_complete(small, tmp_path):
    folder = RunFolder.create(tmp_path / "run", small())
    folder.set_status("completed", summary={"steps": 3})
    record_end(folder, "interrupted", "interrupted by SIGINT")
    assert folder.status()["state"] == "completed"
    record_end(folder, "failed", "rank 1 failed")
    assert (folder.status()["state"], folder.status()["summary"]) == ("failed", {"steps": 3})


def test_torchrun_with_a_killed_rank_leaves_a_true_status(tmp_path):
    folder = tmp_path / "run"
    process = torchrun("--steps", "5000", "--run-folder", str(folder))
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists(), 60)
        os.kill(next(pid for pid in descendants(process.pid) if variable(pid, "RANK") == "1"), signal.SIGKILL)
        process.communicate(timeout=30)
    finally:
        process.kill()
    status = RunFolder.open(folder).status()
    assert status["state"] in ("failed", "interrupted")
    assert "rank 0" in status["reason"]
    assert "its launcher names it" in status["reason"]


def test_torchrun_with_a_hung_rank_ends_by_the_deadline(tmp_path):
    folder = tmp_path / "run"
    process = torchrun("--steps", "5000", "--run-folder", str(folder), "--deadline", "5")
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists(), 60)
        hung = next(pid for pid in descendants(process.pid) if variable(pid, "RANK") == "1")
        os.kill(hung, signal.SIGSTOP)
        wait_for(lambda: RunFolder.open(folder).status()["state"] == "failed", 5 + LIMIT_SECONDS)
        os.kill(hung, signal.SIGKILL)  # torchrun itself would give it 30 s
        process.communicate(timeout=30)
    finally:
        process.kill()
    assert "rank 0 did nothing for 5 s" in RunFolder.open(folder).status()["reason"]


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "repro"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(max(1, cores() // 2))}
    return subprocess.Popen(
        [*command, "train", "tiny", "--wandb", "off", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def variable(pid, name):
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((word.split("=", 1)[1] for word in words if word.startswith(f"{name}=")), None)


def test_torchrun(tmp_path):
    folder = tmp_path / "run"
    process = torchrun("--steps", "3", "--run-folder", str(folder), "--json")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(out)["steps"] == 3, "one object, from the rank that owns the loss"
    assert RunFolder.open(folder).status()["state"] == "completed"
    assert len(RunFolder.open(folder).metrics()) == 3


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def descendants(pid):
    found = []
    for child in subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    ).stdout.split():
        found += [int(child), *descendants(int(child))]
    return found


def alive(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
