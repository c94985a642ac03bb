"""One holder at a time, whoever dies."""

import os
import subprocess
import sys
import time

import pytest

from repro.cluster.lock import held
from repro.errors import InputError

HOLD = """
import os, sys, time, subprocess
from repro.cluster.lock import held
with held(sys.argv[1]) as descriptor:
    child = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,)) if sys.argv[2] == "child" else None
    print(child.pid if child else 0, flush=True)
    time.sleep(60)
"""


def hold(path, child="alone"):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), child], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def end(process):
    process.kill()
    process.wait(10)
    process.stdout.close()


def test_a_second_one_waits_and_names_the_first(tmp_path):
    path = tmp_path / "lock"
    with held(path), pytest.raises(InputError, match=f"process {os.getpid()}"), held(path, wait_seconds=0.2):
        raise AssertionError
    assert not list(tmp_path.iterdir())
    with held(path):
        pass


def test_a_dead_holders_lock_is_taken_over_at_once(tmp_path):
    process, _ = hold(tmp_path / "lock")
    with pytest.raises(InputError), held(tmp_path / "lock", wait_seconds=0.2):
        raise AssertionError
    end(process)
    with held(tmp_path / "lock", wait_seconds=1):
        pass
    assert not list(tmp_path.iterdir())


def test_the_lock_lives_as_long_as_the_dead_holders_sbatch(tmp_path):
    process, child = hold(tmp_path / "lock", "child")
    end(process)
    with pytest.raises(InputError), held(tmp_path / "lock", wait_seconds=0.2):
        raise AssertionError
    os.kill(child, 9)
    with held(tmp_path / "lock", wait_seconds=5):
        pass


def test_another_hosts_lock_is_respected_until_it_is_old(tmp_path):
    path = tmp_path / "lock"
    path.write_text("login09 process 12\n")
    with pytest.raises(InputError, match="login09 process 12"), held(path, wait_seconds=0.2):
        raise AssertionError
    os.utime(path, (time.time() - 1000,) * 2)
    with held(path, wait_seconds=1):
        pass
