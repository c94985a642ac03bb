"""The environment of a job: pairs whole or absent, one node without the fabric, the ladder."""

import pytest

from repro.cluster.rccl import environment, rows
from repro.cluster.site import load_site, names
from repro.errors import InputError

FRONTIER = load_site("frontier")
ALT_READ = ("FI_CXI_RDZV_PROTO", "FI_CXI_RDZV_THRESHOLD", "FI_CXI_RDZV_EAGER_SIZE", "FI_CXI_RDZV_GET_MIN")


@pytest.mark.parametrize("nodes", [1, 2, 384])
@pytest.mark.parametrize("rung", range(6))
def test_alt_read_and_its_option_come_together_or_not_at_all(nodes, rung):
    found = environment(FRONTIER, nodes, rung)
    wanted = nodes > 1 and rung < 4
    assert ("--network=disable_rdzv_get" in found.sbatch) == wanted
    assert [found[name] is not None for name in ALT_READ] == [wanted] * 4


def test_one_node_names_no_network_and_several_demand_the_plugin():
    assert environment(FRONTIER, 1)["NCCL_NET"] is None
    assert environment(FRONTIER, 1, 5)["NCCL_NET"] is None
    assert environment(FRONTIER, 2)["NCCL_NET"] == "OFI"


@pytest.mark.parametrize(
    "rung, name, value",
    [
        (0, "NCCL_SOCKET_IFNAME", "hsn0,hsn1,hsn2,hsn3"),
        (1, "NCCL_SOCKET_IFNAME", "hsn0"),
        (1, "FI_MR_CACHE_MONITOR", "kdreg2"),
        (2, "FI_MR_CACHE_MONITOR", "userfaultfd"),
        (2, "NCCL_NET_GDR_LEVEL", "PHB"),
        (3, "NCCL_NET_GDR_LEVEL", None),
        (4, "NCCL_NET", "OFI"),
        (5, "NCCL_NET", "Socket"),
        (5, "NCCL_SOCKET_IFNAME", "hsn0"),
    ],
)
def test_rungs_add_up(rung, name, value):
    assert environment(FRONTIER, 16, rung)[name] == value


def test_only_the_last_resort_is_loud():
    assert [bool(environment(FRONTIER, 16, rung).loud) for rung in range(6)] == [False] * 5 + [True]


@pytest.mark.parametrize("rung", [-1, 6, 99])
def test_a_rung_that_is_not_there_is_refused_with_those_that_are(rung):
    with pytest.raises(InputError, match="valid are 0 to 5"):
        environment(FRONTIER, 16, rung)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("nodes", [1, 64])
def test_nothing_is_set_that_must_stay_unset_and_every_row_has_a_source(name, nodes):
    site = load_site(name)
    for rung in range(len(site.ladder) + 1):
        found = environment(site, nodes, rung)
        assert not {one.name for one in found.settings} & {one.name for one in found.unset}
        assert all(row["source"] and row["why"] for row in rows(site, nodes, rung))


def test_memhooks_never():
    for name in names():
        site = load_site(name)
        values = [environment(site, 64, rung)["FI_MR_CACHE_MONITOR"] for rung in range(len(site.ladder) + 1)]
        assert "memhooks" not in values and "disabled" not in values


def test_lumi_leaves_the_gpu_nic_distance_alone():
    assert "NCCL_NET_GDR_LEVEL" in {one.name for one in environment(load_site("lumi"), 16).unset}


@pytest.mark.parametrize("nodes, rung", [(1, 0), (16, 4), (16, 5)])
def test_half_a_pair_is_taken_out_of_what_a_module_sets(nodes, rung):
    found = environment(FRONTIER, nodes, rung)
    assert set(ALT_READ) <= {one.name for one in found.dropped} and not found.sbatch


def test_on_one_node_the_plugin_is_not_asked_for_even_where_a_module_does():
    assert "NCCL_NET" in {one.name for one in environment(FRONTIER, 1).dropped}
    assert not environment(FRONTIER, 16).dropped


@pytest.mark.parametrize("nodes", [1, 16])
@pytest.mark.parametrize("rung", range(6))
def test_the_table_names_every_variable_of_the_site_once(nodes, rung):
    table = rows(FRONTIER, nodes, rung)
    names_in_table = [row["name"] for row in table]
    assert sorted(names_in_table) == sorted({v.name for v in (*FRONTIER.variables, *FRONTIER.unset)})
    changed = {row["name"]: (row["value"], row["origin"]) for row in table if row["origin"].startswith("rung")}
    if rung >= 3:
        assert changed["NCCL_NET_GDR_LEVEL"] == ("(unset)", "rung 3")
    if rung >= 2:
        assert changed["FI_MR_CACHE_MONITOR"] == ("userfaultfd", "rung 2")
    if rung == 4 and nodes > 1:
        assert changed["FI_CXI_RDZV_PROTO"] == ("(unset)", "rung 4")
    assert (rung > 0) == bool(changed)
