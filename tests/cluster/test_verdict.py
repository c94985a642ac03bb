"""The truth about a run from two witnesses, neither of which knows everything."""

from datetime import UTC, datetime, timedelta

import pytest

from repro.cluster.job_log import Tail, culprit, last_lines
from repro.cluster.queue import Job
from repro.cluster.verdict import judge

START = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
PEERS = "rank 0 failed in phase 'step 2': RuntimeError: closed (another rank ended first; its launcher names it)"


def job(state, **more):
    start = START.astimezone().replace(tzinfo=None).isoformat()
    return Job(7, state, start=start, **more)


def status(state, reason=None, seconds=60):
    return {"state": state, "reason": reason, "time": (START + timedelta(seconds=seconds)).isoformat()}


@pytest.mark.parametrize(
    ("job", "status", "state", "words"),
    [
        # the run has the last word on its own completion
        (job("COMPLETED"), status("completed"), "completed", None),
        (job("CANCELLED"), status("completed"), "completed", None),
        (job("TIMEOUT"), status("completed"), "completed", None),
        (None, status("completed"), "completed", None),
        # Slurm has the last word where the run could not say one
        (job("NODE_FAIL"), status("running"), "interrupted", "a node failed"),
        (job("CANCELLED"), status("running"), "interrupted", "cancelled"),
        (job("CANCELLED"), status("pending"), "interrupted", "cancelled"),
        (job("TIMEOUT"), status("running"), "interrupted", "wall time"),
        (job("OUT_OF_MEMORY"), status("running"), "failed", "out of memory"),
        (job("FAILED", exit_code="1:0"), status("pending"), "failed", "exit code 1: ModuleNotFoundError: torch"),
        (job("COMPLETED"), status("running"), "failed", "did not complete"),
        (job("COMPLETED"), status("pending"), "failed", "did not complete"),
        (job("FAILED"), {}, "failed", "ModuleNotFoundError"),
        (None, status("running"), "interrupted", "no longer knows"),
        # both have spoken
        (job("FAILED"), status("failed", "rank 3 failed: ValueError: x"), "failed", "rank 3 failed: ValueError: x"),
        (job("CANCELLED"), status("interrupted", "SIGTERM, step 4"), "interrupted", "SIGTERM, step 4"),
        (job("COMPLETED"), status("interrupted", "warned, step 4"), "interrupted", "warned, step 4"),
        (job("CANCELLED"), status("failed", "rank 3 hangs"), "failed", "rank 3 hangs"),
        (job("NODE_FAIL"), status("failed", PEERS), "interrupted", "a node failed"),
        (job("NODE_FAIL"), status("failed", "rank 0: RuntimeError: timeout"), "interrupted", "a node failed"),
        (job("FAILED"), status("failed", PEERS), "failed", "ModuleNotFoundError"),
        (job("FAILED"), status("interrupted", "if another rank died first, ..."), "failed", "ModuleNotFoundError"),
        # what an earlier start of a requeued job wrote says nothing about the last one
        (job("FAILED"), status("interrupted", "warned", seconds=-60), "failed", "ModuleNotFoundError"),
        (job("CANCELLED"), status("interrupted", "warned", seconds=-60), "interrupted", "cancelled"),
        # not over
        (job("RUNNING"), status("running"), "running", "running"),
        (job("PENDING", reason="Priority"), status("pending"), "pending", "pending (Priority)"),
        (job("PENDING", reason="BeginTime"), status("interrupted", "warned"), "pending", "BeginTime"),
        (job("COMPLETING"), status("interrupted", "warned"), "pending", "completing"),
        (job("TELEPORTING"), status("running"), "pending", "teleporting"),
    ],
)
def test_two_witnesses(job, status, state, words):
    found = judge(job, status, culprit="ModuleNotFoundError: torch")
    assert found.state == state
    assert found.reason == words if words is None else words in found.reason


def test_a_silent_slurm_proves_nothing():
    assert judge(None, status("running"), known=False).state == "running"


def test_the_rank_that_failed_is_named_and_not_those_that_saw_it():
    lines = [
        "frontier: modules loaded",
        "2: [W] error: something harmless",
        "1: repro: rank 1 failed in phase 'step 2': RuntimeError: closed (another rank ended first)",
        "0: Traceback (most recent call last):",
        "0: ValueError: loss is 7",
        "0: repro: rank 0 failed in phase 'step 2': ValueError: loss is 7",
        "srun: error: frontier00001: task 0: Exited with exit code 3",
    ]
    assert culprit(lines) == "rank 0 failed in phase 'step 2': ValueError: loss is 7"
    assert culprit(lines[:2] + lines[4:5]) == "ValueError: loss is 7"
    assert culprit(lines[-1:]) == lines[-1]
    assert culprit(["all is well"]) is None


def test_only_the_last_start_of_a_requeued_job_counts():
    lines = [
        "repro: rank 0 failed: the first",
        "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-12-01T03:36:25 DUE TO JOB REQUEUE ***",
        "repro: rank 0 failed: the second",
    ]
    assert culprit(lines) == "repro: rank 0 failed: the second".removeprefix("repro: ")
    assert culprit(lines[:2]) is None


def test_the_tail_of_a_growing_log(tmp_path):
    log = tmp_path / "job.log"
    tail = Tail(log)
    assert tail.new() == []
    log.write_bytes(b"one\ntw")
    assert tail.new() == ["one"]
    log.write_bytes(b"one\ntwo\n10%\r20%\r\n\x1b[31mred\x1b[0m\n")
    assert tail.new() == ["two", "20%", "red"]
    assert tail.new() == []
    log.write_bytes(b"again\n")  # a requeued job whose log starts over
    assert tail.new() == ["again"]
    with log.open("ab") as file:
        file.write(b"".join(b"line %d\n" % n for n in range(100_000)))
    lines = tail.new(most=3)
    assert lines[1:] == ["line 99997", "line 99998", "line 99999"]
    assert "left out" in lines[0]
    assert last_lines(log, most=2) == ["line 99998", "line 99999"]
    assert last_lines(tmp_path / "absent") == []
