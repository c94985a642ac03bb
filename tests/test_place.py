"""Ranks under torchrun and srun: which one this is, where they meet, which device it takes."""

import pytest

from repro.engine.place import device_index, expand_nodes, from_environment
from repro.errors import InputError

SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "frontier[00001-00002]",
    "SLURM_SUBMIT_HOST": "login1",
    "SLURM_JOB_ID": "123456",
}


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("frontier00863", ["frontier00863"]),
        (
            "frontier[00863,00971-00973]",
            ["frontier00863", "frontier00971", "frontier00972", "frontier00973"],
        ),
        ("nid[001-003],login1", ["nid001", "nid002", "nid003", "login1"]),
        ("a[9-11]", ["a9", "a10", "a11"]),
        ("x[1-2]-ib0,y", ["x1-ib0", "x2-ib0", "y"]),
    ],
)
def test_node_lists(nodelist, names):
    assert expand_nodes(nodelist) == names


def test_srun_meets_on_the_first_node_of_the_allocation_not_on_the_login_node():
    place = from_environment(SLURM)
    assert (place.rank, place.world_size, place.local_rank) == (9, 16, 1)
    assert place.init_method == f"tcp://frontier00001:{20000 + 123456 % 20000}"


def test_two_jobs_on_a_node_get_two_ports():
    other = from_environment({**SLURM, "SLURM_JOB_ID": "123457"})
    assert other.init_method != from_environment(SLURM).init_method


def test_torchrun_comes_before_slurm():
    place = from_environment(
        {**SLURM, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    )
    assert (place.rank, place.world_size, place.local_rank, place.init_method) == (3, 4, 3, "env://")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # a batch script or salloc shell, no step
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # one task: it starts its own ranks
        {"RANK": "0"},
    ],
)
def test_no_launcher(variables):
    assert from_environment(variables) is None


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "-1", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "x"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "two"},
        {**SLURM, "SLURM_JOB_ID": "x"},
        {key: value for key, value in SLURM.items() if key != "SLURM_LOCALID"},
        {key: value for key, value in SLURM.items() if key != "SLURM_STEP_NODELIST"},
    ],
)
def test_incomplete_variables_are_named(variables):
    with pytest.raises(InputError) as error:
        from_environment(variables)
    assert "\n" not in str(error.value)
    assert "srun" in str(error.value)


def test_a_rank_outside_the_world():
    variables = {"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    with pytest.raises(InputError, match="RANK is 2 of 2 ranks"):
        from_environment(variables)


@pytest.mark.parametrize("nodelist", [",", "[[", "a[x-y]"])
def test_a_broken_node_list_is_named(nodelist):
    with pytest.raises(InputError, match="is not a Slurm node list"):
        from_environment({**SLURM, "SLURM_STEP_NODELIST": nodelist})


@pytest.mark.parametrize(("local_rank", "visible", "device"), [(5, 1, 0), (5, 8, 5), (0, 1, 0)])
def test_one_visible_device_is_device_0(local_rank, visible, device):
    assert device_index(local_rank, visible) == device


def test_more_ranks_than_devices():
    with pytest.raises(InputError, match="at most 4 ranks"):
        device_index(4, 4)
