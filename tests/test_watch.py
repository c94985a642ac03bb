"""Whose fault an end was, and where a rank stands when it hangs."""

import signal
import subprocess
import sys
import time

import pytest

from repro.engine.local_rank import DUMP
from repro.engine.stacks import main_thread, standing
from repro.engine.watch import Watch
from repro.errors import RunFailed
from repro.layout import Layout

PEER = ("RuntimeError", "Connection closed by peer", True)
OWN = ("ValueError", "a fault of this rank alone", False)
JOINT = ("RunFailed", "the loss of step 3 is nan", False)


@pytest.fixture
def watch():
    return Watch(Layout(2, 1, 2), 60)


def verdict(watch):
    with pytest.raises(RunFailed) as caught:
        watch.verdict(dict)
    return str(caught.value)


def test_a_kill_settles_it_at_once(watch):
    watch.heard(1, "error", PEER)
    assert not watch.must_stop(), "a loss of a peer may be explained in a moment"
    watch.ended(2, -signal.SIGKILL)
    assert watch.must_stop()
    assert "rank 2 (stage 1, replica 0, shard 0) was killed by SIGKILL" in verdict(watch)


def test_a_rank_that_aborts_because_another_failed_is_not_the_one_to_name(watch):
    watch.ended(0, -signal.SIGABRT)
    assert not watch.must_stop(), "its reason may come from another rank"
    watch.heard(3, "error", OWN)
    watch.ended(3, 1)
    assert "rank 3 (stage 1, replica 0, shard 1) failed" in verdict(watch)


def test_a_rank_that_aborts_alone_is_named(watch):
    watch.heard(1, "error", PEER)
    watch.ended(0, -signal.SIGABRT)
    assert "rank 0 (stage 0, replica 0, shard 0) was killed by SIGABRT" in verdict(watch)


def test_what_all_ranks_found_out_together_names_none(watch):
    for rank in range(4):
        watch.heard(rank, "error", JOINT)
    assert verdict(watch) == "the loss of step 3 is nan"


def test_what_one_rank_found_out_names_it(watch):
    watch.heard(1, "error", JOINT)
    watch.heard(2, "error", PEER)
    assert "rank 1 (stage 0, replica 0, shard 1) failed in phase 'starting': RunFailed" in verdict(watch)


RANK = f"""
import faulthandler, sys, threading, time
threading.Thread(target=lambda: time.sleep(600), daemon=True).start()
faulthandler.register({int(DUMP)}, sys.stderr)
def stand_here():
    print("ready", flush=True)
    time.sleep(600)
stand_here()
"""


def test_the_main_thread_of_a_hung_rank_is_found_among_its_threads(tmp_path):
    logs = {rank: tmp_path / f"rank-{rank}.log" for rank in (0, 1)}
    processes = {}
    try:
        for rank, log in logs.items():
            log.write_text('Thread 0x1 (most recent call first):\n  File "old.py", line 1 in an_earlier_dump\n')
            with log.open("a") as err:
                processes[rank] = subprocess.Popen(
                    [sys.executable, "-c", RANK], stdout=subprocess.PIPE, stderr=err, text=True
                )
            assert processes[rank].stdout.readline() == "ready\n"
        processes[1].send_signal(signal.SIGSTOP)
        started = time.monotonic()
        found = standing({rank: (process.pid, logs[rank]) for rank, process in processes.items()})
        assert time.monotonic() - started < 10
    finally:
        for process in processes.values():
            process.kill()
            process.wait(10)
    assert found == {
        0: "is in stand_here (<string>:7)",
        1: "does not answer: it is stopped, or holds the interpreter",
    }


def test_those_that_wait_for_others_come_last(tmp_path):
    text = (
        'Thread 0x2 (most recent call first):\n  File "/lib/threading.py", line 9 in run\n\n'
        "Current thread 0x1 (most recent call first):\n"
        '  File "/x/torch/distributed/c10d_logger.py", line 1 in wrapper\n'
        '  File "/x/torch/distributed/distributed_c10d.py", line 2799 in recv\n  File "/x/engine.py", line 5 in step\n'
    )
    assert [function for _, _, function in main_thread(text)] == ["wrapper", "recv", "step"]
    assert main_thread("nothing of the kind") == []
