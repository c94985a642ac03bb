"""The template that Frontier gets, unchanged but for the site file, on a real Slurm with real ranks."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.cluster import run
from repro.cluster.follow import Patience, follow
from repro.cluster.job import Options
from repro.cluster.site import load_site
from repro.engine.launch import train_local
from repro.errors import InputError
from repro.progress import Silent
from repro.recipe import load
from repro.records import checkpoints
from repro.records.run_folder import RunFolder

SITE = load_site(Path(__file__).parent / "site-here.toml")
TIMES = ("seconds", "tokens_per_second", "hardware_tflops", "model_tflops", "peak_memory_bytes", "time", "warmup")
SMALL = {"shape.layers": 2, "shape.dropout": 0.1, "batch.global": 4}
LONG = 400  # steps that no test waits for


def recipe(**overrides):
    return load("tiny-3d", {**SMALL, "steps": 6, **overrides})


def send(made, folder, **options):
    options = {"account": "abc123", "env": sys.prefix, "checkpoint_every": 2, "wandb": "off", **options}
    plan, text = run.prepare(made, SITE, folder, Options(**options))
    return run.send(made, plan, text)


def essence(folder, most=None):
    rows = RunFolder.open(folder).metrics()[:most]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def wait(done, seconds, what, folder=None):
    end = time.monotonic() + seconds
    while not done():
        log = "\n".join(p.read_text() for p in Path(folder).glob("job-*.log")) if folder else ""
        assert time.monotonic() < end, f"waited {seconds} s for {what}\n{log}"
        time.sleep(0.1)


def steps_done(folder):
    try:
        return len(RunFolder.open(folder).metrics())
    except InputError:
        return 0


def end(sent):
    return follow(sent.folder, sent.record, patience=Patience(deadline=150, gone=5, settle=1))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an uninterrupted run of the long recipe begins with, on local ranks."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train_local(
        recipe(steps=40, **{"optimizer.decay_steps": 1000}), folder, wandb="off", progress=Silent(), deadline_seconds=60
    )
    return folder


def test_two_nodes_of_two_ranks_train_to_the_end(slurm, tmp_path):
    folder = tmp_path / "a run"  # a blank in the path
    sent = send(recipe(), folder)
    assert send(recipe(), folder).how == "found", "a second call finds the first job"
    verdict = end(sent)
    log = (folder / f"job-{sent.job}.log").read_text()
    assert verdict.state == "completed", log
    assert [row["step"] for row in RunFolder.open(folder).metrics()] == list(range(6))
    assert "meeting at frontier00001:" in log
    environment = RunFolder.open(folder).environment()
    assert environment["variables"]["MASTER_ADDR"] == "frontier00001"
    assert environment["variables"]["SLURM_STEP_NUM_TASKS"] == "4"
    assert checkpoints.complete(folder)[-1].step == 6
    assert send(recipe(), folder).how == "completed", "nothing is submitted for a completed run"


def test_the_warning_ends_in_a_checkpoint_and_the_requeued_job_goes_on(slurm, tmp_path, whole):
    folder, made = tmp_path / "run", recipe(steps=LONG, **{"optimizer.decay_steps": 1000})
    sent = send(made, folder)
    wait(lambda: steps_done(folder) >= 3, 90, "three steps", folder)
    slurm.call("scancel", "--batch", "--signal=USR1", str(sent.job))
    wait(lambda: (folder / "starts.jsonl").exists(), 90, "the second start", folder)
    first = checkpoints.complete(folder)
    done = steps_done(folder)
    wait(lambda: steps_done(folder) > done, 60, "a step after it", folder)
    slurm.call("scancel", str(sent.job))
    verdict = end(sent)
    assert verdict.state == "interrupted"
    rows = RunFolder.open(folder).metrics()
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert first, "a checkpoint of the step in progress"
    assert essence(folder, 40) == essence(whole, min(40, len(rows)))
    assert "start 2" in (folder / f"job-{sent.job}.log").read_text()


def test_a_killed_node_brings_the_job_back_elsewhere(slurm, tmp_path, whole):
    folder, made = tmp_path / "run", recipe(steps=LONG, **{"optimizer.decay_steps": 1000})
    sent = send(made, folder)
    wait(lambda: checkpoints.complete(folder), 90, "a checkpoint", folder)
    slurm.kill_node("frontier00002")
    try:
        wait(lambda: (folder / "starts.jsonl").exists(), 120, "the second start", folder)
        done = steps_done(folder)
        wait(lambda: steps_done(folder) > done, 60, "a step after it", folder)
    finally:
        slurm.boot_node("frontier00002")
    slurm.call("scancel", str(sent.job))
    assert end(sent).state == "interrupted"
    rows = RunFolder.open(folder).metrics()
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert essence(folder, 40) == essence(whole, min(40, len(rows)))
    assert "frontier[00001,00003]" in (folder / f"job-{sent.job}.log").read_text()


def test_a_crashing_rank_fails_the_job_and_following_shows_its_error(slurm, tmp_path):
    folder = tmp_path / "run"
    sent = send(recipe(steps=LONG), folder)
    wait(lambda: steps_done(folder) >= 1, 90, "a step", folder)
    os.kill(process_of(sent.job, 1), signal.SIGSEGV)
    verdict = end(sent)
    assert verdict.state == "failed"
    assert re.search(r"[Ss]egmentation fault|signal 11|SIGSEGV", verdict.reason), verdict.reason
    assert RunFolder.open(folder).status()["state"] == "failed"
    with pytest.raises(InputError, match="--again"):
        send(recipe(steps=LONG), folder)


def test_a_loss_that_is_no_number_fails_the_job_with_the_ranks_own_words(slurm, tmp_path):
    folder = tmp_path / "run"
    verdict = end(send(recipe(**{"optimizer.lr": 1e30, "parallel.pp": 1, "optimizer.clip": 0.0}), folder))
    assert verdict.state == "failed"
    assert re.search("the (loss|gradient norm) of step", verdict.reason)


def test_papermill_submits_and_follows(slurm, tmp_path):
    notebook = Path(__file__).parents[2] / "notebooks" / "02_train.ipynb"
    command = [str(Path(sys.executable).parent / "papermill"), str(notebook), str(tmp_path / "x.ipynb")]
    parameters = {
        "recipe": "tiny-3d",
        "mode": "slurm",
        "site": str(Path(__file__).parent / "site-here.toml"),
        "run_folder": str(tmp_path / "run"),
        "figures": str(tmp_path / "figures"),
        "wandb": "off",
        "steps": 4,
    }
    words = [word for key, value in parameters.items() for word in ("-p", key, str(value))]
    job = "{account: abc123, env: '" + sys.prefix + "'}"
    done = subprocess.run(
        [*command, *words, "-y", f"job: {job}"], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert RunFolder.open(tmp_path / "run").status()["state"] == "completed"
    assert (tmp_path / "figures" / "02_train.png").exists()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"account": "xyz999"}, "account"),
        ({"partition": "nowhere"}, "partition"),
        ({"hours": 30}, "time limit"),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words_and_nothing_is_left(slurm, tmp_path, options, words):
    folder = tmp_path / "runs" / "run"
    with pytest.raises(InputError, match=f"(?i){words}") as refused:
        send(recipe(), folder, **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()
    assert slurm.call("squeue", "-h") == ""


def test_a_dry_run_asks_slurm_and_submits_nothing(slurm, tmp_path):
    plan, text = run.prepare(recipe(), SITE, tmp_path / "run", Options(account="abc123", env=sys.prefix))
    assert "to start at" in run.dry_run(plan, text)
    with pytest.raises(InputError, match="account"):
        run.dry_run(*run.prepare(recipe(), SITE, tmp_path / "run", Options(account="xyz999", env=sys.prefix)))
    assert slurm.call("squeue", "-h") == "" and not (tmp_path / "run").exists()


def process_of(job, rank):
    """The process of a rank; nodes share this machine's process table from outside."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            program = (path / "cmdline").read_bytes()
        except OSError:
            continue
        wanted = (b"SLURM_JOB_ID=%d" % job, b"SLURM_PROCID=%d" % rank)
        if b"repro\0train" in program and all(one in variables for one in wanted):
            return int(path.name)
    raise AssertionError(f"no process of rank {rank}")
