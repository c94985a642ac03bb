"""Measured network points through the tidy table and back."""

from dataclasses import replace

import pytest

from repro.errors import InputError
from repro.records import network, table
from repro.records.network import Point, Setup

SETUP = Setup("tiny-3d", 2, 2, 1, False, "this machine", 1, 4, "gloo", "2026-12-01", "preflight-tiny-3d-1")
POINTS = (
    Point("all-reduce", "tensor", 2, 1, 1_000_000, 1e-3, 0.5e-3, 2e-3),
    Point("all-gather", "data", 4, 2, 1_000_000, 1e-3, 1e-3, 1e-3),
    Point("reduce-scatter", "data", 4, 2, 1_000_000, 1e-3, 1e-3, 1e-3),
    Point("message", "pipeline", 2, 4, 1_000_000, 1e-3, 1e-3, 1e-3),
)


def test_points_come_back_with_their_setup(tmp_path):
    other = replace(SETUP, sequence_parallel=True, nodes=16, ranks_per_node=8, site="my site, two", recipe="a b")
    for setup in (SETUP, other):
        network.rows(setup, POINTS).write(tmp_path / "network.csv")
        assert network.read(tmp_path / "network.csv") == (setup, POINTS)


def test_bandwidths_follow_the_convention_of_the_nccl_tests():
    found = network.rows(SETUP, POINTS)
    bus = {r.series.split(",")[0]: r.value for r in found.select(metric="bus bandwidth")}
    assert bus == pytest.approx({"all-reduce": 1.0, "all-gather": 0.75, "reduce-scatter": 0.75, "message": 1.0})
    first = found.select(metric="algorithm bandwidth").rows[0]
    assert (first.low, first.value, first.high) == pytest.approx((0.5, 1.0, 2.0))
    assert {(r.provenance, r.source) for r in found} == {("measured", SETUP.source)}
    assert "tp 2 x pp 2 x dp 1" in SETUP.source and "this machine" in SETUP.source and "2026-12-01" in SETUP.source


def test_what_is_no_preflight_is_refused(tmp_path):
    path = tmp_path / "network.csv"
    table.Table().write(path)
    with pytest.raises(InputError, match="holds no time of a preflight"):
        network.read(path)
    (network.rows(SETUP, POINTS[:1]) + network.rows(replace(SETUP, folder="other"), POINTS[1:])).write(path)
    with pytest.raises(InputError, match="rows of 2 preflights"):
        network.read(path)
    series = "all-to-all, tensor, 2 ranks, stride 1"
    table.Table(replace(row, series=series) for row in network.rows(SETUP, POINTS[:1])).write(path)
    with pytest.raises(InputError, match="no row of a preflight"):
        network.read(path)
