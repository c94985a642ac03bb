"""The job of a preflight: the template of training with a short step that is not repeated."""

import subprocess

import pytest

from repro.cluster import job, preflight_job
from repro.errors import InputError
from repro.recipe import load


def prepared(recipe="175b", site="frontier", folder="/lustre/a b/run", **changes):
    return preflight_job.prepare(load(recipe), site, folder, job.Options(account="abc123", **changes))


def test_it_is_short_and_neither_requeued_nor_resumed():
    made, text = prepared()
    assert (made.nodes, made.ranks, made.time) == (16, 128, "00:15:00")
    assert "--requeue" not in text and "--no-requeue" in text
    assert "--resume" not in text and "checkpoint-every" not in text
    assert " -m repro job preflight '/lustre/a b/run/recipe.toml' --site frontier" in text
    assert prepared("1t")[0].time == "00:30:00", "384 nodes take longer to start"
    assert prepared(hours=1.0)[0].time == "01:00:00"


def test_environment_and_step_are_those_of_training():
    recipe, options = load("175b"), job.Options(account="abc123", rung=2)
    _, text = prepared(rung=2)
    train = job.script(job.plan(recipe, preflight_job.sites.load_site("frontier"), "/lustre/a b/run", options))
    exports = [
        line for line in text.splitlines() if line.startswith(("export", "unset", "module", "#SBATCH --network"))
    ]
    assert exports == [
        line for line in train.splitlines() if line.startswith(("export", "unset", "module", "#SBATCH --network"))
    ]
    assert "--rung 2" in text
    step = [line for line in text.splitlines() if line.startswith("srun --nodes=16 --ntasks=128")]
    assert step and step[0] in train


def test_the_shell_takes_it():
    assert subprocess.run(["bash", "-n"], input=prepared()[1], text=True, timeout=20).returncode == 0


def test_the_ranks_find_a_site_of_ones_own_again(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "generic-slurm"\nname = "mine"\n')
    words = preflight_job.command("/run", path, 0, 60, 300, 2**20)
    assert words[words.index("--site") + 1] == str(path)
    assert words[-2:] == ("--most-mib", "1")


def test_a_site_that_is_history_is_refused():
    with pytest.raises(InputError, match="cannot run jobs"):
        prepared(site="frontier-paper-2023")
