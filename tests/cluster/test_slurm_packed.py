"""An environment packed, broadcast and unpacked by a real Slurm, as on a site with storage in its nodes."""

import stat
import sys
import tarfile
from pathlib import Path

from repro.cluster import run
from repro.cluster.follow import Patience, follow
from repro.cluster.job import Options
from repro.cluster.site import load_site
from repro.recipe import load

SITE = """\
extends = "{here}"
name = "packed"
environment = "packed"
unset = [{{ name = "NCCL_ALGO", why = "w", source = "s" }}]
sbatch = ["--network=disable_rdzv_get", "--gpus-per-node=8"]
srun = ["-c", "{{cores}}", "--gpus-per-node=8", "--gpus-per-task=1", "--gpu-bind=closest", "--cpu-bind=threads", "-m",
    "block:cyclic"]
[local_storage]
path = "{local}/$USER"
constraint = "nvme"
unpack_cores = 2
source = "one node: here all nodes see the same folders"
"""
# What conda-pack would put there: this interpreter, and a script that is to run once on every node.
PYTHON = '#!/bin/bash\nexec {python} "$@"\n'
UNPACK = 'import pathlib\nwith pathlib.Path(r"{mark}").open("a") as file:\n    file.write("unpacked\\n")\n'


def archive(folder, mark):
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text(PYTHON.format(python=sys.executable))
    (folder / "bin" / "python").chmod(0o755 | stat.S_IXUSR)
    (folder / "bin" / "conda-unpack").write_text(UNPACK.format(mark=mark))
    with tarfile.open(folder / "env.tar.gz", "w:gz") as file:
        file.add(folder / "bin", "bin")
    return folder / "env.tar.gz"


def test_ranks_run_from_the_unpacked_environment(slurm, tmp_path, monkeypatch):
    local, mark = tmp_path / "bb", tmp_path / "mark"
    (local / "someone").mkdir(parents=True)
    monkeypatch.setenv("USER", "someone")
    monkeypatch.setenv("NCCL_ALGO", "Tree")  # exported into the job, and not wanted there
    path = tmp_path / "site.toml"
    path.write_text(SITE.format(here=Path(__file__).parent / "site-here.toml", local=local))
    recipe = load("tiny", {"steps": 2, "shape.layers": 1})
    options = Options(account="abc123", env=str(archive(tmp_path / "env", mark)), wandb="off")
    made, text = run.prepare(recipe, load_site(path), tmp_path / "run", options)
    assert made.nodes == 1
    sent = run.send(recipe, made, text)
    verdict = follow(sent.folder, sent.record, patience=Patience(deadline=120, gone=5, settle=1))
    log = (tmp_path / "run" / f"job-{sent.job}.log").read_text()
    assert verdict.state == "completed", log
    assert mark.read_text() == "unpacked\n"
    assert (local / "someone" / "repro-env" / "bin" / "python").is_file()
    variables = sent.folder.environment()["variables"]
    assert "NCCL_ALGO" not in variables and variables["MASTER_ADDR"].startswith("frontier0000")


def test_an_archive_that_is_none_ends_the_job_before_any_rank(slurm, tmp_path, monkeypatch):
    local = tmp_path / "bb"
    (local / "someone").mkdir(parents=True)
    monkeypatch.setenv("USER", "someone")
    path, env = tmp_path / "site.toml", tmp_path / "env.tar.gz"
    path.write_text(SITE.format(here=Path(__file__).parent / "site-here.toml", local=local))
    env.write_bytes(b"not gzip")
    recipe = load("tiny", {"steps": 2})
    made, text = run.prepare(recipe, load_site(path), tmp_path / "run", Options(account="abc123", env=str(env)))
    sent = run.send(recipe, made, text)
    verdict = follow(sent.folder, sent.record, patience=Patience(deadline=120, gone=5, settle=1))
    assert verdict.state == "failed" and "the environment cannot be unpacked" in verdict.reason
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
