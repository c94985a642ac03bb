"""Submission and following on a real Slurm, with jobs that only play training: quick, and wrong in every way."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from repro.cluster import follow, slurm, submit
from repro.cluster.submit import read_record
from repro.errors import InputError, RunInterrupted
from repro.records.run_folder import RunFolder

HURRY = follow.Patience(deadline=60, outage=20, gone=1, settle=0.5)
HEADER = """\
#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --time={minutes}
#SBATCH --account={account}
#SBATCH --partition={partition}
#SBATCH --output={folder}/job-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
cd {folder} || exit 1
state() {{
    date -u +'{{"state": "'"$1"'", "reason": "'"$2"'", "time": "%FT%T.%3N+00:00"}}' > .status && mv .status status.json
}}
state running
"""
DONE = "echo 'all is well'; state completed\n"


def script(folder, body=DONE, nodes=2, minutes=5, account="abc123", partition="batch"):
    header = HEADER.format(nodes=nodes, minutes=minutes, account=account, partition=partition, folder=folder)
    return header + body


@pytest.fixture
def send(small, tmp_path, slurm):
    """Submits a body as the job of ``tmp_path/run``."""

    def send(body=DONE, path=None, again=False, **options):
        path = path or tmp_path / "run"
        return submit.submit(small(), path, script(path, body, **options), site="test", again=again)

    return send


def followed(submission, show=None):
    return follow.follow(submission.folder, submission.record, show, HURRY, sleep=quick)


def quick(seconds):
    threading.Event().wait(min(seconds, 0.1))


def queue_length():
    return len(slurm._squeue("--me", "--states=PENDING,RUNNING"))


def test_a_job_is_submitted_recorded_and_followed_to_its_end(send, tmp_path):
    views = []
    sent = send()
    assert sent.how == "submitted"
    verdict = followed(sent, views.append)
    assert (verdict.state, verdict.job.state) == ("completed", "COMPLETED")
    assert "all is well" in [line for view in views for line in view.lines]
    record = json.loads((tmp_path / "run" / "job.json").read_text())
    assert record["job"] == sent.job
    assert record["log"] == str(tmp_path / "run" / f"job-{sent.job}.log")
    assert (tmp_path / "run" / record["script"]).read_text() == script(tmp_path / "run")
    again = send(body="state failed\n")
    assert (again.how, again.job) == ("completed", sent.job)
    assert not list(tmp_path.glob(".*")), "no lock is left"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"account": "xyz"}, "account xyz is not one of yours: abc123; Invalid account"),
        ({"partition": "nowhere"}, "invalid partition specified: nowhere"),
        ({"minutes": 10_000}, "Requested time limit is invalid"),
        ({"nodes": 9}, "Node count specification invalid"),
        ({"partition": "extended"}, "Node count specification invalid"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_nothing(send, tmp_path, options, words):
    path = tmp_path / "runs" / "deep" / "run"
    with pytest.raises(InputError) as refused:
        send(path=path, **options)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
    assert queue_length() == 0


def test_a_refused_second_submission_leaves_the_record_as_it_was(send, tmp_path):
    sent = send("sleep 60\n")
    slurm.cancel(sent.job)
    assert followed(sent).state == "interrupted"
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(InputError, match="account xyz"):
        send(account="xyz")
    after = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    status, old = (json.loads(found.pop("status.json")) for found in (after, before))
    assert after == before
    assert (status["state"], status["reason"]) == (old["state"], old["reason"])


def test_a_second_call_finds_the_job_while_it_waits_or_runs(send, tmp_path):
    first = send("sleep 60\n")
    for _ in range(2):
        again = send("sleep 60\n")
        assert (again.how, again.job, again.note) == ("found", first.job, None)
    assert "other options" in send("sleep 61\n").note
    assert queue_length() == 1


def test_two_submissions_at_once_give_one_job(small, tmp_path, slurm):
    path, barrier, found = tmp_path / "run", threading.Barrier(4), []

    def one():
        barrier.wait(10)
        found.append(submit.submit(small(), path, script(path, "sleep 60\n")))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(one.how for one in found) == ["found", "found", "found", "submitted"]
    assert len({one.job for one in found}) == 1
    assert queue_length() == 1


DIE = """
import os, sys
from repro.cluster import slurm, submit
from repro.recipe import from_toml
sent = slurm.submit
def die(*arguments):
    if sys.argv[3] == "after":
        sent(*arguments)
    os.kill(os.getpid(), 9)
slurm.submit = die
submit.submit(from_toml(open(sys.argv[1]).read()), sys.argv[2], sys.stdin.read())
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_submitter_that_dies_around_sbatch_makes_no_second_job(small, send, tmp_path, moment):
    (tmp_path / "small.toml").write_text(small().to_toml())
    path = tmp_path / "run"
    died = subprocess.run(
        [sys.executable, "-c", DIE, str(tmp_path / "small.toml"), str(path), moment],
        input=script(path, "sleep 60\n"),
        text=True,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    assert not (path / "job.json").exists()
    found = send("sleep 60\n")
    assert found.how == ("found" if moment == "after" else "resumed")
    assert queue_length() == 1
    assert read_record(found.folder)["job"] == found.job
    assert send("sleep 60\n").how == "found"


def test_a_job_whose_run_folder_was_removed_is_not_joined_by_another(send, tmp_path):
    sent = send("sleep 60\n")
    slurm.call("scontrol", "hold", str(sent.job))
    shutil.rmtree(sent.folder.path)
    with pytest.raises(InputError, match=f"scancel {sent.job}"):
        send()
    assert queue_length() == 1


def test_an_interrupted_run_is_resumed_and_a_failed_one_only_when_asked(send):
    first = send("sleep 60\n")
    slurm.cancel(first.job)
    assert followed(first).state == "interrupted"
    second = send("echo 'repro: rank 1 failed: ValueError: seven'; exit 3\n")
    assert second.how == "resumed"
    assert "cancelled" in second.note
    verdict = followed(second)
    assert verdict.state == "failed"
    assert "exit code 3: rank 1 failed: ValueError: seven" in verdict.reason
    with pytest.raises(InputError, match=r"ValueError: seven.*--again"):
        send()
    third = send(again=True)
    assert third.how == "resumed"
    assert followed(third).state == "completed"
    assert [entry["job"] for entry in third.record["earlier"]] == [first.job, second.job]
    assert third.record["script"] == "job-3.sh"


def test_another_recipe_or_another_folders_content_is_refused(small, send, tmp_path):
    sent = send()
    path = tmp_path / "run"
    with pytest.raises(InputError, match=r"steps is 10 there and 11 here; free name: .*run-2"):
        submit.submit(small(steps=11), path, script(path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="nothing is overwritten"):
        send(path=tmp_path / "other")
    assert followed(sent).state == "completed"


@pytest.mark.parametrize(
    ("body", "state", "words"),
    [
        ("state failed 'rank 2 failed: NaN'; exit 1\n", "failed", "rank 2 failed: NaN"),
        ("exit 0\n", "failed", "exit code 0, but the run did not complete"),
        ("kill -9 $$\n", "failed", "signal 9"),
        (
            "state interrupted 'rank 0 was ended by SIGTERM; if another rank died first, ...'; exit 1\n",
            "failed",
            "code 1",
        ),
        ("state interrupted 'warned'; exit 0\n", "interrupted", "warned"),
        (
            "module() { echo 'Lmod has detected the following error: rocm/5.4'; false; }; module || exit 1\n",
            "failed",
            "Lmod",
        ),
    ],
)
def test_how_a_job_ends_is_told_by_both(send, body, state, words):
    verdict = followed(send(body))
    assert verdict.state == state
    assert words in verdict.reason


def test_a_requeued_job_is_followed_to_its_second_end(send):
    views = []
    body = '[ -n "$SLURM_RESTART_COUNT" ] && { state completed; exit 0; }; state interrupted warned; sleep .5\n'
    sent = send(body + "scontrol requeue $SLURM_JOB_ID; sleep 20\n")
    assert followed(sent, views.append).state == "completed"
    assert any("was requeued" in line for view in views for line in view.lines)


def test_scancel_while_waiting_and_while_running(send, slurm):
    from repro.cluster.slurm import call, cancel

    running = send("sleep 60\n")
    verdict = []
    thread = threading.Thread(target=lambda: verdict.append(followed(running)))
    thread.start()
    cancel(running.job)
    thread.join(30)
    assert verdict[0].state == "interrupted"
    assert RunFolder.open(running.folder.path).status()["state"] == "interrupted"
    cancel(running.job)  # a second time is no error
    call("scontrol", "update", "PartitionName=batch", "State=DOWN")
    try:
        waiting = send("sleep 60\n")
        assert follow.look(waiting.folder, waiting.record).reason == "pending (PartitionDown)"
        cancel(waiting.job)
        assert followed(waiting).state == "interrupted"
    finally:
        call("scontrol", "update", "PartitionName=batch", "State=UP")


def test_following_outlives_slurmctld(send, slurm):
    sent, views = send("sleep 1; " + DONE), []

    def show(view):
        views.append(view.text)
        if len(views) == 1:
            slurm.stop_controller()
        elif len(views) == 2:
            slurm.start_controller()

    assert followed(sent, show).state == "completed"
    assert "still following" in views[1]


def test_ctrl_c_leaves_the_job_alone_and_says_how_to_go_on(send):
    sent = send("sleep 60\n")

    def interrupt(view):
        raise KeyboardInterrupt

    with pytest.raises(RunInterrupted, match=f"repro job follow {sent.folder.path}"):
        followed(sent, interrupt)
    assert queue_length() == 1
    assert sent.folder.status()["state"] in ("pending", "running")


def test_the_deadline_of_following(send):
    sent = send("sleep 60\n")
    patience = follow.Patience(deadline=0.5)
    with pytest.raises(RunInterrupted, match="repro job follow"):
        follow.follow(sent.folder, sent.record, patience=patience, sleep=quick)
    assert queue_length() == 1


def test_slurm_is_asked_what_it_would_do_without_a_job(tmp_path, slurm):
    from repro.cluster.slurm import test_only

    path = tmp_path / "job.sh"
    path.write_text(script(tmp_path))
    assert "to start at" in test_only(path)
    path.write_text(script(tmp_path, account="xyz"))
    with pytest.raises(InputError, match="account xyz is not one of yours"):
        test_only(path)
    assert queue_length() == 0


def test_variables_of_the_users_shell_change_nothing(send, monkeypatch):
    for name, value in {
        "SBATCH_PARTITION": "nowhere",
        "SBATCH_ACCOUNT": "xyz",
        "SQUEUE_PARTITION": "extended",
        "SQUEUE_FORMAT": "%j",
        "SQUEUE_STATES": "FAILED",
        "SLURM_TIME_FORMAT": "relative",
    }.items():
        monkeypatch.setenv(name, value)
    assert followed(send()).state == "completed"


CLUSTER = """
import os, sys
from throwaway_slurm import Cluster
cluster = Cluster(1).start()
print(*[process.pid for process in cluster.processes.values()], cluster.root, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_cluster_dies_with_the_process_that_started_it(slurm_cluster):
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", CLUSTER], cwd=here, capture_output=True, text=True, timeout=60)
    *pids, root = done.stdout.split()
    shutil.rmtree(root)
    assert len(pids) == 3
    end = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        quick(0.05)
    assert not [pid for pid in pids if alive(pid)]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
