"""Where ranks sit against the site's table: right, wrong, and what cannot be known."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from repro.cluster import preflight_binding as binding
from repro.cluster.preflight_binding import Seen
from repro.cluster.site import load_site

# local rank, GCD, cores, NUMA, NIC, bus: Frontier user guide
TABLE = ((0, 4, "1-7", 0, "hsn2", "d1"), (1, 5, "9-15", 0, "hsn2", "d6"), (2, 2, "17-23", 1, "hsn1", "c9"),
         (3, 3, "25-31", 1, "hsn1", "ce"), (4, 6, "33-39", 2, "hsn3", "d9"), (5, 7, "41-47", 2, "hsn3", "de"),
         (6, 0, "49-55", 3, "hsn0", "c1"), (7, 1, "57-63", 3, "hsn0", "c6"))  # fmt: skip


def site(visible=1, buses=True):
    keys = ("local_rank", "gpu", "cores", "numa", "nic", "bus")
    rows = tuple(SimpleNamespace(**dict(zip(keys, row if buses else (*row[:5], None), strict=True))) for row in TABLE)
    return SimpleNamespace(node=SimpleNamespace(binding=rows, cores_per_task=7, visible_gpus=visible))


def as_bound(rank, tasks=8):
    """A rank of a step with one device for each task, bound as the table says."""
    local, gcd, cores, numa, nic, bus = TABLE[rank % tasks]
    return Seen(rank, f"node{rank // tasks}", local, {"ROCR_VISIBLE_DEVICES": str(gcd)}, 1, 0, f"0000:{bus}:00",
                tuple(sorted(binding.parse_cores(cores))), (numa,), (nic,))  # fmt: skip


def judged(ranks, where=None):
    rows = binding.judge(ranks, where or site())
    return rows, binding.check(rows)


@pytest.mark.parametrize("buses", [True, False])
def test_two_nodes_as_the_table_says(buses):
    rows, check = judged([as_bound(rank) for rank in range(16)], site(buses=buses))
    assert check.state == "ok"
    assert [row.gcd for row in rows[:8]] == ["4", "5", "2", "3", "6", "7", "0", "1"]
    assert rows[9].expected == "GCD 5, cores 9-15, NUMA 0, hsn2"


def test_frontiers_own_table_is_the_one_of_these_tests():
    """The shipped site against the rows here, which were written down apart from it."""
    shipped = load_site("frontier")
    rows = tuple((r.local_rank, r.gpu, r.cores, r.numa, r.nic, r.bus) for r in shipped.node.binding)
    assert rows == TABLE
    assert judged([as_bound(rank) for rank in range(16)], shipped)[1].state == "ok"
    lumi = load_site("lumi")
    assert judged([as_bound(rank) for rank in range(8)], lumi)[1].state == "failed"


def test_a_wrong_row_names_the_rank_and_what_to_change():
    ranks = [as_bound(rank) for rank in range(8)]
    ranks[3] = replace(ranks[3], cores=(1, 2), numa=(0,), nics=("hsn2",))
    rows, check = judged(ranks)
    assert [row.state for row in rows] == ["ok"] * 3 + ["wrong"] + ["ok"] * 4
    assert check.state == "failed"
    assert check.reason.startswith("rank 3 on node0: it may run on cores 1-2, the table says 25-31")
    assert "the NIC near its cores is hsn2, the table says hsn1" in check.reason
    assert "--cpu-bind=threads" in check.fix


@pytest.mark.parametrize("buses", [True, False])
def test_devices_in_rank_order_are_not_the_closest_ones(buses):
    bus = {gcd: bus for _, gcd, *_, bus in TABLE}
    ranks = [replace(as_bound(r), visible={"ROCR_VISIBLE_DEVICES": str(r)}, bus=f"0000:{bus[r]}:00") for r in range(8)]
    rows, check = judged(ranks, site(buses=buses))
    assert [row.rank for row in rows if row.state == "ok"] == [2, 3], "GCDs 2 and 3 are the closest to their ranks"
    assert check.reason == "rank 0 on node0: it sees GCD 0, the table says 4 (and 5 more ranks)"
    assert check.fix.startswith("srun --gpus-per-task=1 --gpu-bind=closest")


def test_a_second_filter_is_the_thing_to_remove():
    visible = {"ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "HIP_VISIBLE_DEVICES": "0"}
    ranks = [replace(as_bound(r), visible=visible, bus=None) for r in range(8)]
    _, check = judged(ranks, site(buses=False))
    assert check.reason.startswith("rank 0 on node0: it sees GCD 0, the table says 4")
    assert check.fix.startswith("unset HIP_VISIBLE_DEVICES")


def test_two_ranks_on_one_device_are_wrong_without_any_table():
    ranks = [replace(as_bound(0), rank=r, local_rank=r) for r in range(2)]
    rows = binding.judge(ranks, None)
    assert [row.state for row in rows] == ["not checked", "wrong"]
    assert rows[1].why == "it shares device 0000:d1:00 with rank 0"


def test_what_cannot_be_known_is_never_ok():
    no_gpu = [replace(as_bound(r), visible={}, devices=0, device=None, bus=None) for r in range(8)]
    rows, check = judged(no_gpu)
    assert {row.state for row in rows} == {"not checked"}
    assert (check.state, check.reason) == ("not checked", "there is no GPU on this node")
    by_uuid = [replace(as_bound(0), visible={"ROCR_VISIBLE_DEVICES": "GPU-1a2b"}, bus=None)]
    assert judged(by_uuid, site(buses=False))[1].state == "not checked"
    no_cores = [replace(as_bound(0), cores=())]
    assert judged(no_cores)[1].state == "not checked"
    assert binding.check(binding.judge([as_bound(0)], None)).state == "not checked"


def test_all_devices_visible_and_the_local_ranks_taken():
    """LUMI shows every task all devices, in the order of local ranks of its own table."""
    lumi = site(visible=8, buses=False)
    for row in lumi.node.binding:
        row.gpu = row.local_rank
    ranks = [replace(as_bound(r), visible={}, devices=8, device=r, bus=None) for r in range(8)]
    assert judged(ranks, lumi)[1].state == "ok"
    wrong = [replace(one, device=0) for one in ranks]
    _, check = judged(wrong, lumi)
    assert check.state == "failed"
    assert "take the one of the local rank" in check.fix


def test_fewer_cores_of_the_right_region_are_right_and_said():
    rows, check = judged([replace(as_bound(0), cores=(1, 2))])
    assert check.state == "ok"
    assert rows[0].why == "2 of the cores of its region"


def test_more_tasks_than_the_table_has():
    _, check = judged([replace(as_bound(0), local_rank=9)])
    assert "local rank 9 is not in the site's table of 8 ranks a node" in check.reason


def test_ranks_in_blocks_pass_and_others_are_explained():
    blocks = [as_bound(rank) for rank in range(16)]
    assert binding.placement(blocks).state == "ok"
    cyclic = [replace(one, host=f"node{one.rank % 2}", local_rank=one.rank // 2) for one in blocks]
    check = binding.placement(cyclic)
    assert check.state == "failed"
    assert "node0 holds ranks 0 and 2 but not all between them" in check.reason
    assert "-m block:cyclic" in check.fix
    uneven = binding.placement(blocks[:15])
    assert "nodes hold 7 or 8 ranks" in uneven.reason
    assert "its local rank is 0" in binding.placement([replace(one, local_rank=0) for one in blocks]).reason


@pytest.mark.parametrize(("text", "numbers"), [("1-7", range(1, 8)), ("0,8-9", (0, 8, 9)), ("", ()), ("3", (3,))])
def test_core_lists(text, numbers):
    assert binding.parse_cores(text) == set(numbers)
    assert binding.cores_text(numbers) == text
