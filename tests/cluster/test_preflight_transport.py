"""Transports told from logs of NCCL and RCCL. Lines are of the shape that the libraries print; hosts are invented."""

from types import SimpleNamespace

import pytest

from repro.cluster import preflight_transport as transports

SITE = SimpleNamespace(node=SimpleNamespace(binding=(SimpleNamespace(nic="hsn2"),)))
AT = "node1:4242:4300 [0] NCCL INFO "
INSIDE = "Channel 00/0 : 0[d1000] -> 1[d6000] via P2P/IPC comm 0x9bb nRanks 16"
FABRIC = "Channel 00/0 : 12[d1000] -> 0[d1000] [receive] via NET/AWS Libfabric/2/GDRDMA comm 0x9bb nRanks 16"
GOOD = (
    "RCCL version : 2.27.7-HEAD:1a2b3c",
    "Bootstrap : Using hsn0:10.1.2.3<0>",
    "NET/OFI Initializing aws-ofi-nccl 1.19.2",
    "NET/OFI Using Libfabric version 2.3",
    "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
    "NET/Plugin: Loaded net plugin Libfabric (v10)",
    "Using network Libfabric",
    INSIDE,
    FABRIC,
)
OLD = (
    "NET/OFI Using aws-ofi-rccl 1.4.0",
    "NET/OFI Selected Provider is cxi (found 4 nics)",
    "Using network AWS Libfabric",
    "Channel 03/0 : 0[d6000] -> 2[de000] via P2P/IPC",
    "Channel 01 : 3[de000] -> 8[c1000] [send] via NET/AWS Libfabric/1",
)


def log(*lines):
    return "\n".join(AT + line for line in lines) + "\n"


def judged(*lines, nodes=2, site=SITE):
    return transports.judge(transports.read(log(*lines)), nodes, site)


def test_a_good_log_passes_and_names_plugin_version_and_provider():
    found = transports.read(log(*GOOD))
    assert found.plugin == ("Libfabric",)
    assert found.plugin_version == ("aws-ofi-nccl 1.19.2",)
    assert (found.libfabric, found.provider, found.network, found.bootstrap) == (
        ("2.3",), ("cxi",), ("Libfabric",), ("hsn0",))  # fmt: skip
    assert found.channels == {"P2P/IPC": 1, "NET/AWS Libfabric/GDRDMA": 1}
    check = judged(*GOOD)
    assert check.state == "ok"
    for word in ("aws-ofi-nccl 1.19.2", "cxi", "P2P/IPC", "RCCL version : 2.27.7"):
        assert word in check.reason


def test_the_plugin_of_2023_passes_too_and_its_missing_rdma_is_said():
    check = judged(*OLD)
    assert check.state == "ok"
    assert "no channel with GPU-direct RDMA" in check.reason


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((*GOOD, "Channel 00/0 : 7[c6000] -> 8[d1000] [send] via NET/Socket/0 comm 0x9bb nRanks 16"), "via NET/Socket"),
        ((INSIDE, "NET/Socket : Using [0]hsn0:10.1.2.3<0>", "Using network Socket"), "Using network Socket"),
        ((INSIDE,), "transport unknown; sockets may be in use"),
        ((), "transport unknown; sockets may be in use"),
        ((INSIDE, "NET/Plugin : No plugin found (librccl-net.so)"), "transport unknown; sockets may be in use"),
        (("NET/OFI Selected provider is tcp;ofi_rxm", "Using network Libfabric", INSIDE), "provider is tcp"),
        ((*GOOD, "Channel 00/0 : 0[d1000] -> 1[d6000] via SHM/direct/direct comm 0x9bb nRanks 16"), "host memory"),
        (("Using network IB", "Channel 00/0 : 7[c6] -> 8[d1] [send] via NET/IB/0/GDRDMA"), "not libfabric"),
    ],
)
def test_what_fails_and_why(lines, words):
    check = judged(*lines)
    assert check.state == "failed"
    assert words in check.reason
    assert check.fix


def test_one_node_loads_sockets_and_does_not_use_them():
    alone = ("NET/Socket : Using [0]hsn0:10.1.2.3<0>", "Using network Socket", INSIDE)
    assert judged(*alone, nodes=1).state == "ok"
    assert judged(*alone, "Channel 00/0 : 0[d1] -> 1[d6] via NET/Socket/0", nodes=1).state == "failed"
    assert judged(nodes=1).state == "not checked"


def test_other_sites_may_have_other_networks():
    other = SimpleNamespace(node=SimpleNamespace(binding=()))
    lines = (
        "Using network IB",
        "Channel 00/0 : 7[c6] -> 8[d1] [send] via NET/IB/0(3)/GDRDMA",
        "Channel 00 : 0[0] -> 1[1] via SHM",
    )
    for site in (other, None):
        assert judged(*lines, site=site).state == "ok"
    assert transports.read(log(*lines)).channels == {"NET/IB/GDRDMA": 1, "SHM": 1}


def test_one_rank_on_sockets_among_many_is_found():
    ranks = [transports.read(log(*GOOD)) for _ in range(3)]
    ranks.append(transports.read(log(*GOOD[:-1], "Channel 01/0 : 8[d1] -> 0[d1] [receive] via NET/Socket/1")))
    merged = transports.merge(ranks)
    assert merged.channels == {"P2P/IPC": 4, "NET/AWS Libfabric/GDRDMA": 3, "NET/Socket": 1}
    assert merged.plugin == ("Libfabric",)
    assert transports.judge(merged, 2, SITE).state == "failed"


def test_it_survives_the_way_through_json():
    import json

    found = transports.read(log(*GOOD) + "node1:1:2 [0] NCCL WARN something went wrong\n")
    assert found.warnings == ("something went wrong",)
    assert transports.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_rings_that_are_listed_are_no_channels():
    assert transports.read(log("Channel 00/02 :    0   1   2   3", "Trees [0] 1/-1/-1->0->-1")).channels == {}


def test_gloo_is_no_failure_and_names_its_interface():
    check = transports.gloo(["hsn0"])
    assert check.state == "ok"
    assert "gloo over hsn0" in check.reason
