"""Ranks that another launcher started, over TCP: nobody waits for them but themselves."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.engine.place import Place
from repro.errors import InputError
from repro.preflight.launch import as_rank, read
from repro.records.run_folder import RunFolder

MAIN = Path(__file__).with_name("as_rank_main.py")
LIMIT_SECONDS = 60  # imports of four processes on a busy machine, and a deadline


@pytest.fixture
def start(small, tmp_path):
    """Starts some of four ranks; returns their exit codes, the result and what they said."""
    recipe = small(parallel={"dp": 4}, batch={"micro": 2, "global": 8})
    (tmp_path / "small.toml").write_text(recipe.to_toml())

    def start(ranks, *fault, start_seconds=20):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, MAIN, tmp_path / "small.toml", tmp_path / "run", str(start_seconds), *fault]
        variables = {**os.environ, "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                     "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}  # fmt: skip
        processes = []
        try:
            for rank in ranks:
                env = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                pipe = subprocess.PIPE
                processes.append(subprocess.Popen(command, env=env, text=True, stdout=pipe, stderr=pipe))
            until = time.monotonic() + LIMIT_SECONDS
            said = [p.communicate(timeout=max(1.0, until - time.monotonic())) for p in processes]
        finally:
            for process in processes:
                process.kill()
        return [p.returncode for p in processes], read(tmp_path / "run"), said

    return start


def test_four_ranks_pass(start, tmp_path):
    codes, found, _ = start(range(4))
    assert codes == [0, 0, 0, 0]
    assert found.passed and found.data["layout"]["ranks"] == 4
    assert RunFolder.open(tmp_path / "run").status()["state"] == "completed"
    assert (tmp_path / "run" / "recipe.toml").is_file() and (tmp_path / "run" / "environment.json").is_file()


def test_a_hung_rank_ends_all_with_its_group_named(start, tmp_path):
    codes, found, said = start(range(4), "hang", "2")
    assert codes == [3, 3, 3, 3]
    assert "first all-reduce of the data-parallel group of ranks 0, 1, 2, 3 stalled for 3 s" in found.data["reason"]
    assert any("stalled" in error for _, error in said)
    assert RunFolder.open(tmp_path / "run").status()["reason"] == found.data["reason"]


@pytest.mark.parametrize("rank", [2, 0])
def test_a_killed_rank_is_named_by_the_others(rank, start):
    codes, found, _ = start(range(4), "die", str(rank))
    assert codes[rank] == -9 and set(codes) == {-9, 3}
    assert found.data["state"] == "failed"
    assert f"rank {rank}" in found.data["reason"]
    assert "has ended" in found.data["reason"]


def test_a_rank_that_was_not_started_is_named(start):
    codes, found, _ = start((0, 1, 2), start_seconds=8)
    assert codes == [3, 3, 3]
    assert "meeting of ranks 0, 1, 2, 3 stalled for 8 s" in found.data["reason"]
    assert "not arrived: rank 3, which gives no sign of life" in found.data["reason"]


def test_another_number_of_ranks_and_a_missing_folder_are_input_errors(small):
    with pytest.raises(InputError, match="the launcher started 3 ranks, recipe small needs 1"):
        as_rank(small(), Place(0, 3, 0, "env://"), "run")
    with pytest.raises(InputError, match="need --run-folder"):
        as_rank(small(), Place(0, 1, 0, "env://"), None)
