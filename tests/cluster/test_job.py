"""Job scripts: what a site is asked for, and that the text is what it was when it was last read.

``python tests/cluster/test_job.py`` writes the golden files anew; read the difference before committing it.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from repro.cluster.build_ops import DEEPSPEED, build_script
from repro.cluster.job import Options, plan, script
from repro.cluster.site import load_site, names
from repro.engine.place import expand_nodes
from repro.errors import InputError
from repro.recipe import load

GOLDEN = Path(__file__).parent / "golden"
JOBS = {
    "22b": ("22b", {}, {}, 2),
    "175b-16": ("175b", {}, {}, 16),
    "175b-128": ("175b", {"parallel.dp": 16, "batch.global": 10240}, {"hours": 6.0}, 128),
    "1t-384": ("1t", {}, {"hours": 12.0}, 384),
}


def job(name, site="frontier"):
    recipe, overrides, options, _ = JOBS[name]
    env = {"env": "/lustre/orion/abc123/proj-shared/repro-env.tar.gz"} if site == "frontier" else {}
    return plan(
        load(recipe, overrides),
        load_site(site),
        f"/lustre/orion/abc123/scratch/user/runs/{name}",
        Options(account="abc123" if site == "frontier" else "project_465000000", **env, **options),
    )


@pytest.mark.parametrize("name", JOBS)
def test_the_script_is_the_golden_one(name):
    assert script(job(name)) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_asks_for_its_nodes_and_no_more_hours_than_its_bin(name):
    text, site, nodes = script(job(name)), load_site("frontier"), JOBS[name][3]
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.M))
    hours, minutes, _ = map(int, directives["time"].split(":"))
    assert int(directives["nodes"]) == nodes
    assert hours + minutes / 60 <= max(p.hours for p in site.bins(nodes, directives["partition"]))
    assert directives["ntasks-per-node"] == "8" and directives["constraint"] == "nvme"
    assert directives["network"] == "disable_rdzv_get" and "FI_CXI_RDZV_PROTO=alt_read" in text


@pytest.mark.parametrize("site", [name for name in names() if load_site(name).runnable])
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("rung", [0, 1])
def test_every_script_is_sound_bash(tmp_path, site, name, rung):
    recipe, overrides, _, nodes = JOBS[name]
    loaded = load_site(site)
    longest = max(p.hours for p in loaded.bins(nodes, loaded.default_partition))
    text = script(
        plan(load(recipe, overrides), loaded, tmp_path / "a run's folder", Options(hours=min(2, longest), rung=rung))
    )
    file = tmp_path / "job.sh"
    file.write_text(text)
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=20)
    assert "SLURM_SUBMIT_HOST" not in text
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(file)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_a_folder_of_any_name_stays_one_word(tmp_path):
    folder = tmp_path / 'it\'s $(touch executed) "here"; `date`'
    text = script(plan(load("175b"), load_site("frontier"), folder))
    line = next(line for line in text.splitlines() if line.startswith("run_folder="))
    done = subprocess.run(
        ["bash", "-c", line + '; printf %s "$run_folder"'], capture_output=True, text=True, cwd=tmp_path, timeout=10
    )
    assert done.stdout == str(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "recipe, overrides, options, words",
    [
        ("175b", {}, {"hours": 3}, "at most 2; partition extended gives so many"),
        ("175b", {}, {"hours": 30, "partition": "extended"}, "at most 24"),
        ("175b", {}, {"partition": "bacth"}, "did you mean 'batch'"),
        ("1t", {}, {"partition": "extended"}, "no partition .* takes 384 nodes"),
        ("175b", {}, {"account": "someone"}, "must match"),
        ("175b", {}, {"account": "abc123; rm -rf ~"}, "must match"),
        ("175b", {}, {"nodes": 15}, "nearest valid: nodes 16"),
        ("175b", {}, {"nodes": 8}, "nearest valid: nodes 16"),
        ("175b", {}, {"rung": 9}, "valid are 0 to 5"),
    ],
)
def test_what_the_site_cannot_give_is_refused_with_what_it_can(tmp_path, recipe, overrides, options, words):
    with pytest.raises(InputError, match=words):
        plan(load(recipe, overrides), load_site("frontier"), tmp_path / "run", Options(**options))


def test_the_papers_own_site_is_history(tmp_path):
    with pytest.raises(InputError, match="removed by 2026-07-01"):
        plan(load("175b"), load_site("frontier-paper-2023"), tmp_path / "run")


def test_debug_jobs_are_not_chained(tmp_path):
    text = script(plan(load("175b"), load_site("frontier"), tmp_path / "run", Options(qos="debug")))
    assert "#SBATCH --no-requeue" in text and "scontrol requeue" not in text
    assert "#SBATCH --signal=B:USR1@600" in text, "a checkpoint is written all the same"


@pytest.mark.parametrize("site", ["frontier", "lumi"])
def test_the_build_of_operators_is_sound_bash_and_checks_the_wavefront(tmp_path, site):
    file = tmp_path / "build.sh"
    file.write_text(build_script(load_site(site)))
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=20)
    assert "gfx90a" in file.read_text() and "Wavefront Size: *64" in file.read_text()
    assert "rccl-net-plugin" not in file.read_text(), "needed at run time only"
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(file)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_the_deepspeed_that_is_built_is_the_one_that_is_pinned():
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert f"\ndeepspeed=={DEEPSPEED}\n" in pins
    assert "DS_BUILD_FUSED_ADAM=1 DS_BUILD_UTILS=1" in build_script(load_site("frontier"))


@pytest.mark.parametrize("site, words", [("generic-slurm", "no known GPU"), ("frontier-paper-2023", "cannot build")])
def test_sites_whose_operators_cannot_be_built(site, words):
    with pytest.raises(InputError, match=words):
        build_script(load_site(site))


def test_lumi_binds_by_masks_of_whole_nodes_from_its_modules(tmp_path):
    text = script(plan(load("lumi-175b"), load_site("lumi"), tmp_path / "run", Options(partition="dev-g", hours=1)))
    assert text.index("module use /appl/local/laifs/modules") < text.index("module load lumi-aif-singularity-bindings")
    assert "#SBATCH --exclusive" in text and "#SBATCH --cpus-per-task=7" in text
    assert "--cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00," in text
    assert "NCCL_NET_GDR_LEVEL=" not in text and "unset RANK WORLD_SIZE LOCAL_RANK NCCL_NET_GDR_LEVEL" in text


def test_a_deadline_is_never_longer_than_what_torch_and_deepspeed_wait(tmp_path):
    patient = Options(deadline_seconds=4000)
    text = script(plan(load("175b"), load_site("frontier"), tmp_path / "run", patient))
    assert "export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=4000\n" in text and "export DEEPSPEED_TIMEOUT=67\n" in text
    assert "--deadline 4000" in text


def test_a_run_that_goes_online_has_proxies_and_is_not_told_to_stay_off(tmp_path):
    texts = [
        script(plan(load("175b"), load_site("frontier"), tmp_path / "run", Options(wandb=mode)))
        for mode in ("online", "offline")
    ]
    assert ["WANDB_MODE=offline" in text for text in texts] == [False, True]
    assert all("export https_proxy=http://proxy.ccs.ornl.gov:3128/" in text for text in texts)


@pytest.mark.parametrize("hours, seconds", [(2, 600), (0.5, 450), (1 / 60, 15)])
def test_a_short_job_is_warned_later(tmp_path, hours, seconds):
    made = plan(load("175b"), load_site("frontier"), tmp_path / "run", Options(hours=hours))
    assert made.signal_seconds == seconds and 0 < made.stop_seconds < seconds
    assert f"#SBATCH --signal=B:USR1@{seconds}\n" in script(made)


@pytest.mark.parametrize("name", ["100%", "a\\b", "two\nlines"])
def test_a_folder_that_slurm_would_read_as_something_else_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="must hold no %, backslash or line break"):
        plan(load("175b"), load_site("frontier"), tmp_path / name)


def test_a_name_of_two_lines_does_not_leave_its_comment(tmp_path):
    from dataclasses import replace

    made = replace(plan(load("175b"), load_site("frontier"), tmp_path / "run"), recipe="x\ntouch executed", name="x y")
    text = script(made)
    assert "\ntouch" not in text and '#SBATCH --job-name="x y"' in text


def test_a_site_on_nothing_but_slurm(tmp_path):
    site = load_site(Path(__file__).parent / "site-here.toml")
    text = script(plan(load("tiny-3d"), site, tmp_path / "run", Options(account="abc123", env="/opt/my env")))
    assert "python=('/opt/my env/bin/python')" in text
    for absent in ("module", "sbcast", "MIOPEN", "gpu", "proxy", "constraint", "network="):
        assert absent not in text.lower(), absent


def test_the_last_resort_is_loud(tmp_path):
    text = script(plan(load("175b"), load_site("frontier"), tmp_path / "run", Options(rung=5)))
    assert "echo 'job: WARNING rung 5" in text and "NCCL_NET=Socket" in text
    assert "disable_rdzv_get" not in text and "=alt_read" not in text


@pytest.mark.parametrize(
    "text, names",
    [
        ("frontier00863", ["frontier00863"]),
        (
            "frontier[00863,00971-00973]",
            ["frontier00863", "frontier00971", "frontier00972", "frontier00973"],
        ),
    ],
)
def test_node_lists(text, names):
    assert expand_nodes(text) == names


if __name__ == "__main__":
    for each in JOBS:
        (GOLDEN / f"{each}.sh").write_text(script(job(each)))
