"""Preflights on real ranks: one that passes, and ranks that stay away, hang or die, each named in time."""

import multiprocessing
import os
import time

import preflight_mains
import pytest

from repro.errors import InputError, RunInterrupted
from repro.preflight.launch import local, read
from repro.records import network
from repro.records.run_folder import RunFolder

DEADLINE = 2.0
LIMIT_SECONDS = 25  # of the whole of a failing one: start, deadline, roll call


@pytest.fixture(scope="module")
def recipe(small):
    return small(parallel={"tp": 2, "pp": 2, "dp": 2}, batch={"micro": 2, "global": 16})


@pytest.fixture(scope="module")
def passed(recipe, tmp_path_factory):
    return local(recipe, tmp_path_factory.mktemp("preflight") / "run", deadline_seconds=30)


def fails(recipe, folder, main, deadline=DEADLINE, **options):
    started = time.monotonic()
    found = local(recipe, folder, deadline_seconds=deadline, start_seconds=30, main=main, options=options)
    assert time.monotonic() - started < LIMIT_SECONDS
    assert not multiprocessing.active_children()
    assert not found.passed
    assert RunFolder.open(folder).status()["state"] == "failed"
    assert "\n" not in found.data["reason"]
    return found.data["reason"]


def test_a_preflight_that_passes_says_what_it_could_not_check(passed):
    states = {check["name"]: check["state"] for check in passed.data["checks"]}
    assert states == {"placement": "ok", "binding": "not checked", "transport": "ok", "groups": "ok", "network": "ok"}
    assert passed.data["backend"] == "gloo"
    assert "gloo over lo" in next(c["reason"] for c in passed.data["checks"] if c["name"] == "transport")
    assert {row["state"] for row in passed.data["binding"]} == {"not checked"}
    assert [row["rank"] for row in passed.data["binding"]] == list(range(8))
    assert passed.data["seconds"] < 30
    status = RunFolder.open(passed.folder).status()
    assert (status["state"], status["ranks"]) == ("completed", 8)
    assert read(passed.folder).data == passed.data


def test_every_kind_of_group_made_its_first_transfer(passed):
    groups = {g["name"]: (g["groups"], g["size"], g["state"]) for g in passed.data["groups"]}
    assert groups["tensor"] == groups["data"] == groups["tied"] == groups["message even"] == (4, 2, "ok")
    assert groups["world"] == (1, 8, "ok")
    assert groups["model"] == (2, 4, "ok")


def test_the_measured_network_reads_back_as_points(passed, recipe):
    setup, points = network.read(passed.folder / "network.csv")
    assert (setup.tp, setup.pp, setup.dp, setup.nodes, setup.ranks_per_node) == (2, 2, 2, 1, 8)
    assert (setup.backend, setup.site, setup.recipe) == ("gloo", "this machine", recipe.name)
    found = {(p.collective, p.group, p.size, p.stride) for p in points}
    assert found >= {
        ("all-reduce", "tensor", 2, 1), ("all-gather", "tensor", 2, 1), ("reduce-scatter", "tensor", 2, 1),
        ("all-reduce", "data", 2, 2), ("all-gather", "data", 2, 2), ("reduce-scatter", "data", 2, 2),
        ("all-reduce", "tied", 2, 4), ("message", "pipeline", 2, 4), ("all-reduce", "world", 8, 1),
    }  # fmt: skip
    s = recipe.shape
    assert max(p.bytes for p in points if p.group == "tensor") == s.seq * recipe.batch.micro * s.hidden * 4
    assert all(0 < p.low <= p.seconds <= p.high < 1 for p in points)
    assert {row.provenance for row in passed.table} == {"measured"}


@pytest.mark.parametrize(
    ("name", "rank", "group"),
    [
        ("data", 3, "data-parallel group of ranks 1, 3"),
        ("message even", 6, "pipeline pair (first stage of it even) of ranks 2, 6"),
    ],
)
def test_a_rank_that_never_enters_is_named_with_its_group(name, rank, group, recipe, tmp_path):
    reason = fails(recipe, tmp_path / "run", preflight_mains.stay_away, rank=rank, name=name)
    assert f"of the {group} stalled for 2 s" in reason
    missing = reason.partition("not arrived: ")[2].partition("; arrived")[0]
    assert missing.startswith(f"rank {rank} on ")
    assert missing.count("rank ") == 1, "one rank is missing, no other"
    assert "is past " in missing, "the process lives and says where it is"


def test_a_rank_that_hangs_inside_leaves_all_arrived(recipe, tmp_path):
    reason = fails(recipe, tmp_path / "run", preflight_mains.hang_inside, rank=2, name="data")
    assert "data-parallel group of ranks 0, 2 stalled" in reason
    assert "all 2 arrived, 0 came through" in reason
    assert "network" in reason


def test_a_rank_that_does_not_start_is_named(recipe, tmp_path):
    started = time.monotonic()
    found = local(recipe, tmp_path / "run", deadline_seconds=30, start_seconds=4, main=preflight_mains.never_start,
                  options={"rank": 5})  # fmt: skip
    assert time.monotonic() - started < LIMIT_SECONDS
    assert "meeting of ranks 0, 1, 2, 3, 4, 5, 6, 7 stalled for 4 s" in found.data["reason"]
    assert "not arrived: rank 5, which gives no sign of life" in found.data["reason"]


def test_a_rank_that_stops_while_groups_are_made_is_named(recipe, tmp_path):
    reason = fails(recipe, tmp_path / "run", preflight_mains.leave_out_a_group, rank=6)
    assert "making of the groups" in reason
    assert "stalled" in reason


def test_a_hang_in_the_measurement_names_the_group_not_those_that_wait_for_it(recipe, tmp_path):
    reason = fails(
        recipe, tmp_path / "run", preflight_mains.hang_while_measured, rank=3, collective="all-gather", name="tensor"
    )
    assert "all-gather of the tensor-parallel group of ranks 2, 3 stalled for 2 s" in reason


def test_a_killed_rank_is_named(recipe, tmp_path):
    reason = fails(recipe, tmp_path / "run", preflight_mains.die_inside, deadline=30, rank=5, name="pipeline")
    assert "rank 5 (stage 1, replica 0, shard 1) was killed by SIGKILL" in reason
    assert "first transfer of the pipeline group" in reason


def test_a_launcher_that_is_told_to_stop_stops(recipe, tmp_path):
    with pytest.raises(RunInterrupted):
        local(recipe, tmp_path / "run", deadline_seconds=60, main=preflight_mains.ask_the_launcher_to_stop,
              options={"pid": os.getpid()})  # fmt: skip
    assert RunFolder.open(tmp_path / "run").status()["state"] == "interrupted"
    assert not multiprocessing.active_children()


def test_an_error_of_one_rank_is_told_not_that_of_its_peers(recipe, tmp_path):
    reason = fails(recipe, tmp_path / "run", preflight_mains.raise_inside, deadline=30, rank=3, name="data")
    assert "rank 3 (stage 0, replica 1, shard 1) failed" in reason
    assert "ValueError: a fault of this rank alone" in reason


def test_a_wrong_sum_is_a_failure(recipe, tmp_path):
    reason = fails(recipe, tmp_path / "run", preflight_mains.spoil_a_result, deadline=30, rank=2, name="data")
    assert "data-parallel group: rank 0 got 5 instead of 4" in reason


@pytest.mark.parametrize("seconds", [0, -1, 1e9])
def test_a_deadline_that_is_none(seconds, recipe, tmp_path):
    with pytest.raises(InputError, match="deadline"):
        local(recipe, tmp_path / "run", deadline_seconds=seconds)
    assert not (tmp_path / "run").exists()


def test_more_ranks_than_the_machine_can_start(tmp_path):
    with pytest.raises(InputError, match="at most"):
        local("1t", tmp_path / "run")
