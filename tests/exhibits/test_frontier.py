"""The job at a site and its network as an exhibit: what is shown is what the job has, projected stays projected."""

from dataclasses import replace

import pytest

from repro.errors import InputError
from repro.exhibits import frontier, frontier_network
from repro.preflight.launch import Preflight
from repro.projection import machine, measured_network
from repro.records import network
from repro.records.network import Point, Setup
from repro.report.network_table import duration, size


@pytest.fixture(scope="module")
def job():
    return frontier.job("175b", "frontier")


def brought_home(folder, job, backend="nccl", slower=1.0):
    """A preflight folder as a cluster would leave it, its times those of the profile times ``slower``."""
    p, one = job.recipe.parallel, machine.load("frontier")
    setup = Setup("175b", p.tp, p.pp, p.dp, False, "frontier", job.plan.nodes, 8, backend, "2026-12-01", folder.name)
    points = [Point("all-reduce", "tensor", p.tp, 1, size, 1.0, 1.0, 1.0) for size in (2**16, 2**22, 2**26)]
    times = (slower * measured_network.seconds(one, setup, points)[0]).tolist()
    points = [
        Point(q.collective, q.group, q.size, q.stride, q.bytes, t, t, t) for q, t in zip(points, times, strict=True)
    ]
    folder.mkdir()
    network.rows(setup, points).write(folder / "network.csv")
    checks = [{"name": "transport", "state": "ok", "reason": "provider cxi", "fix": ""}]
    return Preflight(folder, {"state": "completed", "checks": checks, "binding": [], "groups": []})


def test_the_job_is_what_it_shows(job):
    assert repr(frontier.script(job)) == job.text
    asked = dict(frontier.asked(job).rows)
    assert asked["ranks"] == f"{job.recipe.world_size} on {job.plan.nodes} nodes, 8 each"
    environment = {row[0]: row[1] for row in frontier.environment(job).rows}
    for name, value in environment.items():
        if not value.startswith("("):
            assert f"export {name}={value}" in job.text.replace("'", "")
    assert environment["CUDA_VISIBLE_DEVICES"] == "(unset)"
    assert len(frontier.binding(job).rows) == 8
    changed = repr(frontier.preflight_step(job))
    assert "+#SBATCH --time=00:15:00" in changed and "srun --nodes" not in changed, "the step's flags are the same"


def test_a_rung_changes_the_environment_that_is_shown(job):
    rows = {row[0]: row for row in frontier.environment(frontier.job("175b", "frontier", rung=1)).rows}
    assert rows["NCCL_SOCKET_IFNAME"][1] == "hsn0" and rows["NCCL_SOCKET_IFNAME"][-1] == "rung 1"
    assert len(frontier.ladder(job).rows) >= 5


def test_nodes_are_filled_with_replicas(job):
    twice = frontier.job("175b", "frontier", nodes=2 * job.plan.nodes)
    assert twice.recipe.parallel.dp == 2 * job.recipe.parallel.dp
    assert twice.recipe.batch.global_ == job.recipe.batch.global_
    with pytest.raises(InputError, match="nearest valid"):
        frontier.job("175b", "frontier", nodes=3)
    with pytest.raises(InputError):
        frontier.job("175b", "frontier", nodes=-8)


def test_no_finding_is_said_and_a_finding_is_shown(job):
    fine = replace(job, text=job.text)
    fine.__dict__["findings"] = ()
    assert "nothing, by" in repr(frontier.findings(fine))
    broken = replace(job, text=job.text.replace("kdreg2", "memhooks"))
    assert any(f.severity == "error" for f in broken.findings)
    assert len(frontier.findings(broken).rows) == len(broken.findings)
    assert "memhooks" in repr(frontier.findings(broken))


def test_the_projected_network_is_marked_so_and_lies_in_its_band(job):
    found = frontier_network.expected(job)
    assert {row.provenance for row in found} == {"projected"}
    assert all(row.low < row.value < row.high for row in found)
    links = {row.series.split(", ")[1]: row.value for row in found}  # of the largest size, which comes last
    assert links["tensor"] <= 100 and links["pipeline"] <= 12.5, "GB/s of the ring of four, and of a shared NIC"


def test_what_came_home_stands_beside_the_projection(job, tmp_path):
    given = brought_home(tmp_path / "preflight-175b", job, slower=1.25)
    here = Preflight(tmp_path, {"state": "completed", "checks": [], "binding": [], "groups": []})
    found = frontier_network.table(frontier_network.expected(job), here, given)
    measured = found.select(provenance="measured")
    assert len(measured) == 3 and {row.exhibit for row in measured} == {network.EXHIBIT}
    drawn = frontier_network.site_figure(found, job, given, "tiny", tmp_path / "figures")
    assert drawn.png.name == "08_frontier_network_tiny.png"
    assert "measured" in drawn.svg.read_text() and "preflight-175b" in drawn.svg.read_text()
    rows = {row[0]: row for row in frontier_network.constants(job, given).rows}
    assert float(rows["link_efficiency"][3]) < 0.8 < float(rows["link_efficiency"][1].split()[0])
    assert frontier_network.checks(given).rows[0][:2] == ("transport", "ok")


def test_gloo_is_never_taken_for_the_sites_network(job, tmp_path):
    given = brought_home(tmp_path / "preflight-175b", job, backend="gloo")
    assert "over gloo" in repr(frontier_network.constants(job, given))
    for show in (frontier_network.checks, frontier_network.ranks, frontier_network.points):
        assert "no preflight of a cluster was given" in repr(show(None))
    assert "no preflight of a cluster was given" in repr(frontier_network.constants(job, None))


def test_a_folder_that_holds_no_preflight(tmp_path):
    assert frontier_network.brought_home("") is None
    with pytest.raises(InputError, match="holds no preflight"):
        frontier_network.brought_home(tmp_path)


def test_sizes_and_durations_are_readable():
    assert [size(n) for n in (8, 512, 4096, 3 * 2**20, 2**30)] == ["8 B", "512 B", "4 KiB", "3 MiB", "1 GiB"]
    assert [duration(t) for t in (2.5, 0.0031, 4.2e-5)] == ["2.5 s", "3.1 ms", "42 us"]
