"""A preflight as a job of a real Slurm: two nodes of two ranks, the same template as training."""

import sys
from pathlib import Path

import pytest

from repro.cluster import preflight_job, run
from repro.cluster.follow import Patience, follow
from repro.cluster.job import Options
from repro.errors import InputError
from repro.preflight.launch import read
from repro.recipe import load
from repro.records import network

SITE = Path(__file__).parent / "site-here.toml"
OPTIONS = Options(account="abc123", env=sys.prefix, hours=0.1)


def recipe():
    return load("tiny-3d", {"shape.layers": 2, "batch.global": 4})


def test_two_nodes_pass_and_bring_the_measured_network_home(slurm, tmp_path):
    folder = tmp_path / "a preflight"  # a blank in the path
    made, text = preflight_job.prepare(recipe(), SITE, folder, OPTIONS, deadline_seconds=30, start_seconds=90)
    sent = run.send(recipe(), made, text)
    verdict = follow(sent.folder, sent.record, patience=Patience(deadline=150, gone=5, settle=1))
    log = (folder / f"job-{sent.job}.log").read_text()
    assert verdict.state == "completed", log
    found = read(folder)
    assert found.passed and len(found.data["hosts"]) == 2
    states = {check["name"]: check["state"] for check in found.data["checks"]}
    assert states == {"placement": "ok", "binding": "not checked", "transport": "ok", "groups": "ok", "network": "ok"}
    assert [row["local_rank"] for row in found.data["binding"]] == [0, 1, 0, 1]
    setup, points = network.read(folder / "network.csv")
    assert (setup.site, setup.nodes, setup.ranks_per_node) == ("here", 2, 2)
    assert {p.group for p in points} == {"world", "tensor", "pipeline", "tied"}
    assert "Preflight of tiny-3d" in log
    assert run.send(recipe(), made, text).how == "completed", "a second call has nothing to do"


def test_slurm_judges_the_script_without_submitting_it(slurm, tmp_path):
    made, text = preflight_job.prepare(recipe(), SITE, tmp_path / "run", OPTIONS)
    assert run.dry_run(made, text)
    made, text = preflight_job.prepare(recipe(), SITE, tmp_path / "run", Options(account="xyz999", env=sys.prefix))
    with pytest.raises(InputError):
        run.dry_run(made, text)
    assert not (tmp_path / "run").exists()
