"""A network measured by a preflight: known constants come back, and LUMI's published times give its profile."""

from dataclasses import replace

import numpy as np
import pytest

from repro.errors import InputError
from repro.projection import machine, machine_file, measured_network
from repro.projection import step as steps
from repro.projection import work as works
from repro.projection.project import project
from repro.recipe import load
from repro.records import network
from repro.records.network import Point, Setup

FRONTIER, LUMI = machine.load("frontier"), machine.load("lumi")
MIB = 2**20
LARGE = {"parallel.tp": 8, "parallel.pp": 8, "parallel.dp": 16, "batch.global": 1024}


def setup_of(tp, pp, dp, **more):
    ranks = tp * pp * dp
    given = {"recipe": "175b", "tp": tp, "pp": pp, "dp": dp, "sequence_parallel": True, "site": "frontier",
             "nodes": -(-ranks // 8), "ranks_per_node": min(8, ranks), "backend": "nccl", "date": "2026-12-01",
             "folder": "preflight-175b"}  # fmt: skip
    return Setup(**{**given, **more})


def point(collective, group, size, stride, bytes_, seconds=1.0, spread=1.0):
    return Point(collective, group, size, stride, int(bytes_), seconds, seconds / spread, seconds * spread)


def points_of(setup):
    """What a preflight of that layout measures."""
    found = []
    for size in (64, MIB, 16 * MIB, 256 * MIB):
        for group, ranks, stride in (("tensor", setup.tp, 1), ("data", setup.dp, setup.tp)):
            if ranks > 1:
                found += [point(c, group, ranks, stride, size) for c in ("all-reduce", "all-gather", "reduce-scatter")]
        if setup.pp > 1:
            ahead = setup.tp * setup.dp
            found.append(point("message", "pipeline", 2, ahead, size))
            found.append(point("all-reduce", "tied", 2, ahead * (setup.pp - 1), size))
    return found


def timed(setup, points, truth, noise=0.0, seed=1):
    """The points as if a machine with constants ``truth`` had been measured."""
    seconds = measured_network.seconds(FRONTIER.with_constants(**truth), setup, points)[0]
    seconds = seconds * np.exp(noise * np.random.default_rng(seed).standard_normal(len(seconds)))
    return [replace(p, seconds=s, low=0.9 * s, high=1.2 * s) for p, s in zip(points, seconds.tolist(), strict=True)]


def written(path, setup, points):
    network.rows(setup, points).write(path)
    return path


TRUTH = {"link_efficiency": 0.72, "hop_seconds": 6e-6, "call_seconds": 2.2e-5, "nic_collective": 0.5,
         "nic_decline": 0.2, "nic_hop_seconds": 4e-5, "nic_message": 0.65, "message_seconds": 1.5e-4}  # fmt: skip


def test_known_constants_come_back_through_the_file(tmp_path):
    setup = setup_of(8, 8, 16)
    path = written(tmp_path / "network.csv", setup, timed(setup, points_of(setup), TRUTH))
    found = measured_network.from_preflight(path, "frontier")
    assert set(found.changed) == set(TRUTH)
    for name, value in TRUTH.items():
        constant = found.machine.constants[name]
        assert constant.value == pytest.approx(value, rel=0.02), name
        assert constant.low <= value <= constant.high or constant.value == pytest.approx(value, rel=0.005), name
        assert constant.kind == "measured"
        assert constant.source.startswith(str(path)) and "preflight of 175b" in constant.source
    assert found.error < 0.005 and not found.at_bound
    untouched = set(FRONTIER.constants) - set(TRUTH)
    assert all(found.machine.constants[name] == FRONTIER.constants[name] for name in untouched)


def test_rows_that_scatter_give_wider_ranges_and_still_the_constants(tmp_path):
    setup = setup_of(8, 8, 16)
    exact, noisy = (
        measured_network.from_preflight(written(tmp_path / f"{n}.csv", setup, rows), "frontier")
        for n, rows in ((n, timed(setup, points_of(setup), TRUTH, n)) for n in (0.0, 0.1))
    )
    for name, value in TRUTH.items():
        near, far = exact.machine.constants[name], noisy.machine.constants[name]
        assert far.high / far.low > near.high / near.low, name
        if name not in ("nic_decline", "call_seconds"):
            assert far.value == pytest.approx(value, rel=0.2), name
    assert noisy.error == pytest.approx(0.1, rel=0.4)


def test_what_no_row_tells_stays_as_it_was(tmp_path):
    inside = setup_of(8, 1, 1)
    path = written(tmp_path / "network.csv", inside, timed(inside, points_of(inside), TRUTH))
    found = measured_network.from_preflight(path, FRONTIER)
    assert set(found.changed) == {"link_efficiency", "hop_seconds", "call_seconds"}
    assert found.machine.constants["nic_collective"] == FRONTIER.constants["nic_collective"]
    few = setup_of(8, 2, 4)
    path = written(tmp_path / "few.csv", few, timed(few, points_of(few), TRUTH))
    found = measured_network.from_preflight(path, FRONTIER)
    assert "nic_decline" not in found.changed, "a ring over four nodes does not tell how it falls beyond four"


@pytest.mark.parametrize(("dp", "reduction", "gather"), [(2, 0.61, 0.155), (4, 0.90, 0.232)])
def test_lumis_published_times_give_its_profile(dp, reduction, gather, tmp_path):
    """lumi-llm-scaling, June 2023: collective times of 175B on 16 and 32 nodes, fitted from a profile that is wrong."""
    setup = setup_of(8, 8, dp, sequence_parallel=False, site="lumi", recipe="lumi-175b")
    shard, table = 2048 * 2 * 14336 * 2 // 8, 51200 * 14336 // 8 * 4
    piece = {2: 698e6, 4: 349e6}[dp]
    rows = [
        point("all-gather", "tensor", 8, 1, 8 * shard, 1.19e-3),
        point("message", "pipeline", 2, 8 * dp, shard, 2.28e-3),
        point("message", "pipeline", 2, 8 * dp, 120, 0.23e-3),
        point("all-reduce", "data", dp, 8, 2.73 * 2**30, reduction),
        point("all-gather", "data", dp, 8, dp * piece * 1.048576, gather),
        point("all-reduce", "tied", 2, 8 * dp * 7, table, 78e-3),
    ]
    values = {"nic_collective": 0.25, "nic_message": 0.8, "link_efficiency": 0.6, "message_seconds": 5e-4}
    wrong = {n: replace(LUMI.constants[n], value=v, low=v / 3, high=min(3 * v, 1.0)) for n, v in values.items()}
    start = replace(LUMI, constants={**LUMI.constants, **wrong})
    found = measured_network.from_preflight(written(tmp_path / "network.csv", setup, rows), start).machine.constants
    assert found["nic_collective"].value == pytest.approx(0.38, abs=0.02)
    assert found["nic_message"].value == pytest.approx(0.515, abs=0.005)
    assert found["link_efficiency"].value == pytest.approx(0.87, abs=0.03)
    assert found["message_seconds"].value == pytest.approx(0.23e-3, rel=0.05)


def test_the_model_is_the_steps_own():
    """A tensor-parallel all-reduce, a message and a gradient reduction as the projection of a step has them."""
    recipe = load("175b", {**LARGE, "parallel.sequence_parallel": True})
    setup = setup_of(8, 8, 16)
    work = works.of_recipes([recipe])
    step = steps.step(work, FRONTIER)
    middle = 2  # kind of stage: neither first nor last
    rings, hops, calls = (getattr(work, f"ring_{name}")[0, middle] for name in ("bytes", "hops", "calls"))
    # of so many calls of a reduce-scatter: the bytes of one, seven steps each
    one = point("reduce-scatter", "tensor", 8, 1, rings / calls * 8 / 7)
    assert hops == pytest.approx(7 * calls)
    micro = step.items["tensor-parallel collectives"][0, 0] / recipe.accumulation
    mean_calls = np.sum(work.multiplicity[0] * work.ring_calls[0]) / recipe.parallel.pp
    assert micro == pytest.approx(mean_calls * measured_network.seconds(FRONTIER, setup, [one])[0, 0], rel=0.03)
    reduced = work.reduce_bytes[0].max() / (2 * 15 / 16)
    data = measured_network.seconds(FRONTIER, setup, [point("all-reduce", "data", 16, 8, reduced)])[0, 0]
    assert step.items["gradient reduction"][0, 0] == pytest.approx(data, rel=1e-3)


def test_a_projection_uses_it_and_only_when_asked(tmp_path):
    setup = setup_of(8, 8, 16)
    slow = {**TRUTH, "nic_collective": 0.26, "link_efficiency": 0.66, "nic_message": 0.36}
    path = written(tmp_path / "network.csv", setup, timed(setup, points_of(setup), slow))
    recipe = load("175b", LARGE)
    plain, found = project(recipe, "frontier"), measured_network.from_preflight(path, "frontier")
    measured = project(recipe, found.machine)
    assert measured.items["tensor-parallel collectives"].kind == "measured"
    assert measured.items["gradient reduction"].seconds.value > plain.items["gradient reduction"].seconds.value
    assert project(recipe, "frontier").seconds == plain.seconds


def test_the_profile_written_as_a_file_is_the_same_machine(tmp_path):
    setup = setup_of(8, 8, 16)
    path = written(tmp_path / "network.csv", setup, timed(setup, points_of(setup), TRUTH))
    found = measured_network.from_preflight(path, "frontier").machine
    for one in (found, LUMI, machine.load("a100-selene"), machine.load("h200")):
        file = tmp_path / "mine.toml"
        file.write_text(machine_file.to_toml(one), "utf-8")
        assert machine.load(str(file)) == replace(one, name="mine")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "gloo"}, "over gloo, which says nothing about the network of frontier"),
        ({"nodes": 256, "ranks_per_node": 4}, "256 nodes x 4 ranks, machine frontier has 8 devices a node"),
    ],
)
def test_rows_of_another_network_are_refused(changes, words, tmp_path):
    setup = setup_of(8, 8, 16, **changes)
    path = written(tmp_path / "network.csv", setup, timed(setup, points_of(setup), TRUTH))
    with pytest.raises(InputError, match=words):
        measured_network.from_preflight(path, "frontier")


def test_rows_that_tell_nothing_are_refused(tmp_path):
    setup = setup_of(1, 1, 8)
    path = written(tmp_path / "network.csv", setup, [point("all-reduce", "world", 8, 1, 16, 1e-4)])
    with pytest.raises(InputError, match="no row that tells anything"):
        measured_network.from_preflight(path, "frontier")
    with pytest.raises(InputError, match="cannot read table"):
        measured_network.from_preflight(tmp_path / "none.csv", "frontier")


def test_a_network_unlike_the_profile_is_said(tmp_path):
    setup = setup_of(8, 8, 16)
    sockets = {**TRUTH, "nic_collective": 0.005, "nic_message": 0.01}
    path = written(tmp_path / "network.csv", setup, timed(setup, points_of(setup), sockets))
    assert "nic_collective" in measured_network.from_preflight(path, "frontier").at_bound
