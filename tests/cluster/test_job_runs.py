"""What a job script does, with Slurm's commands played by small stubs: no cluster, every ending in a second."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from repro.cluster.job import Options, plan, script
from repro.cluster.job_log import culprit
from repro.cluster.site import load_site
from repro.recipe import load
from repro.records.run_folder import RunFolder, write_json

HERE = load_site(Path(__file__).parent / "site-here.toml")
# Plays the ranks: $SCENE says how. The warning comes from inside, as nobody else knows when the ranks are up.
SRUN = r"""
echo "srun $*" >> "$LOG"
case "$*" in *"-m repro"*) ;; *) exit 0 ;; esac
env > "$LOG.env"
say() { printf '{\n  "state": "%s",\n  "reason": null\n}\n' "$1" > "$RUN/status.json"; }
heard() { until [ -e "$RUN/asked" ]; do /bin/sleep 0.02; done; }
progress() { mkdir -p "$RUN/checkpoints"; echo step-000009 > "$RUN/checkpoints/latest"; }
case "$SCENE" in
completed) say completed ;;
failed) say failed; exit 3 ;;
crashed) say running; exit 139 ;;
stopped) say interrupted ;;
warned) say running; kill -USR1 $PPID; heard; progress; say interrupted ;;
warned-twice) say running; kill -USR1 $PPID; heard; kill -USR1 $PPID; /bin/sleep 0.2; progress; say interrupted ;;
warned-early)
    kill -USR1 $PPID; /bin/sleep 0.2
    [ ! -e "$RUN/asked" ] || exit 9  # nobody could hear it yet
    say running; heard; progress; say interrupted ;;
no-progress) say running; kill -USR1 $PPID; heard; say interrupted ;;
deaf) say running; progress; trap 'exit 143' TERM; kill -USR1 $PPID; while :; do /bin/sleep 0.02; done ;;
warned-failed) say running; kill -USR1 $PPID; heard; progress; say failed; exit 1 ;;
esac
"""
STUBS = {
    "srun": SRUN,
    "scancel": 'echo "scancel $*" >> "$LOG"; echo asked >> "$RUN/asked"',
    "scontrol": 'if [ "$1" = show ]; then printf "frontier00863\\nf2\\n"; else echo "scontrol $*" >> "$LOG"; fi',
    "sbcast": 'echo "sbcast $*" >> "$LOG"; exit "${SBCAST:-0}"',
    "sleep": "exec /bin/sleep 0.02",
}


@pytest.fixture
def batch(tmp_path):
    """Runs a script as the batch shell of a job would; gives exit code, output, and what was called."""
    stubs, run, log = tmp_path / "stubs", tmp_path / "a run", tmp_path / "calls"
    stubs.mkdir()
    for name, text in STUBS.items():
        (stubs / name).write_text(f"#!/bin/bash\n{text}\n")
        (stubs / name).chmod(0o755 | stat.S_IXUSR)
    run.mkdir()
    log.touch()

    def play(scene, recipe="tiny-3d", site=HERE, options=None, **variables):
        options = options or Options(account="abc123", hours=1 / 60 if scene == "deaf" else 2)
        text = script(plan(load(recipe), site, run, options))
        (tmp_path / "job.sh").write_text(text)
        known = {
            "PATH": f"{stubs}:{os.environ['PATH']}",
            "SCENE": scene,
            "RUN": str(run),
            "LOG": str(log),
            "SLURM_JOB_ID": "863",
            "SLURM_JOB_NODELIST": "frontier[00863,00971]",
            "SLURM_SUBMIT_HOST": "login1",
            "BASH_FUNC_module%%": '() {  echo "module $*" >> "$LOG"\n}',
        }
        done = subprocess.run(
            ["bash", str(tmp_path / "job.sh")], env={**known, **variables}, capture_output=True, text=True, timeout=30
        )
        return done.returncode, done.stdout + done.stderr, log.read_text().splitlines()

    play.run = run
    return play


def seen(log_env):
    return dict(line.split("=", 1) for line in log_env.read_text().splitlines() if "=" in line)


@pytest.mark.parametrize(
    "scene, code, requeued",
    [
        ("completed", 0, False),
        ("failed", 3, False),
        ("crashed", 139, False),
        ("stopped", 1, False),
        ("warned", 0, True),
        ("warned-twice", 0, True),
        ("warned-early", 0, True),
        ("no-progress", 1, False),
        ("deaf", 0, True),
        ("warned-failed", 1, False),
    ],
)
def test_endings(batch, scene, code, requeued):
    found, output, calls = batch(scene)
    assert (found, "scontrol requeue 863" in calls) == (code, requeued), output
    assert calls.count("scancel --signal=USR1 863") == (0 if "scancel" not in " ".join(calls) else 1)
    if requeued:
        assert calls[-1] == "scontrol requeue 863", "nothing after it is needed"


def test_the_warning_waits_until_the_ranks_can_hear_it(batch):
    write_json(batch.run / "status.json", {"state": "running", "reason": None})  # as a lost node leaves it
    os.utime(batch.run / "status.json", (1, 1))
    code, output, calls = batch("warned-early")
    assert code == 0 and calls[-1] == "scontrol requeue 863", output


def test_a_run_that_gets_no_further_is_not_started_again(batch):
    (batch.run / "checkpoints").mkdir()
    (batch.run / "checkpoints" / "latest").write_text("step-000004\n")
    code, output, calls = batch("no-progress")
    assert code == 1 and "no checkpoint since this start" in output and "requeue" not in " ".join(calls)


def test_requeues_are_bounded(batch):
    assert batch("warned", SLURM_RESTART_COUNT="19")[0] == 0
    (batch.run / "asked").unlink()
    (batch.run / "checkpoints" / "latest").unlink()
    code, output, _ = batch("warned", SLURM_RESTART_COUNT="20")
    assert code == 1 and "requeued 20 times already" in output


def test_a_queue_without_chains_stops_in_time_but_does_not_start_again(batch):
    debug = Options(account="abc123", qos="debug", env="/x.tar.gz", hours=1 / 60)
    code, output, calls = batch("warned", "175b", load_site("frontier"), debug)
    assert code == 1 and "submit again to go on" in output
    assert "scancel --signal=USR1 863" in calls and "requeue" not in " ".join(calls)


def test_the_state_that_the_record_writes_is_the_one_that_the_script_reads(batch):
    folder = RunFolder(batch.run)
    for state in ("pending", "running", "completed", "failed", "interrupted"):
        folder.set_status(state, "a reason", step=3)
        _, output, _ = batch("silent")
        assert f"the run is {state}" in output


def test_ranks_meet_on_the_first_node_and_never_on_the_login_node(batch, tmp_path):
    _, output, _ = batch("completed")
    found = seen(tmp_path / "calls.env")
    assert found["MASTER_ADDR"] == "frontier00863" and found["MASTER_PORT"] == "20863"
    assert "meeting at frontier00863:20863" in output


def test_a_broadcast_that_fails_ends_the_job_before_any_step(batch):
    options = Options(account="abc123", env="/lustre/env.tar.gz")
    code, output, calls = batch("completed", "175b", load_site("frontier"), options, SBCAST="1")
    assert code == 1 and culprit(output.splitlines()) == "sbcast of /lustre/env.tar.gz ended with 1"
    assert not [call for call in calls if call.startswith("srun")]


# A module that sets its own variables, as rccl-net-plugin does.
MODULE = """() {  case "$*" in *rccl*)
export FI_CXI_RDZV_PROTO=alt_read FI_CXI_RDZV_GET_MIN=0 NCCL_NET=OFI NCCL_NET_GDR_LEVEL=PHB
export NCCL_NET_PLUGIN=/sw/x.so ;; esac
echo "module $*" >> "$LOG"
}"""


@pytest.mark.parametrize(
    "rung, wanted",
    [
        (0, {"FI_CXI_RDZV_PROTO": "alt_read", "NCCL_NET": "OFI", "NCCL_NET_GDR_LEVEL": "PHB"}),
        (3, {"FI_CXI_RDZV_PROTO": "alt_read", "NCCL_NET": "OFI", "NCCL_NET_GDR_LEVEL": None}),
        (4, {"FI_CXI_RDZV_PROTO": None, "FI_CXI_RDZV_GET_MIN": None, "NCCL_NET": "OFI"}),
        (5, {"FI_CXI_RDZV_PROTO": None, "NCCL_NET": "Socket"}),
    ],
)
def test_what_a_rung_drops_is_gone_also_where_a_module_sets_it(batch, tmp_path, rung, wanted):
    options = Options(account="abc123", env="/lustre/env.tar.gz", rung=rung)
    variables = {"BASH_FUNC_module%%": MODULE, "CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_RANK": "3", "RANK": "3"}
    code, output, calls = batch("completed", "175b", load_site("frontier"), options, **variables)
    assert code == 0, output
    found = seen(tmp_path / "calls.env")
    assert {name: found.get(name) for name in wanted} == wanted
    assert found["NCCL_NET_PLUGIN"] == "/sw/x.so"
    assert not {"CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK"} & found.keys()
    loads = [call.removeprefix("module load ") for call in calls if call.startswith("module load ")]
    assert loads == [m.name for m in load_site("frontier").modules]


def test_on_one_node_no_plugin_and_no_half_pair(batch, tmp_path):
    recipe = "1.4b"  # eight ranks
    options = Options(account="abc123", env="/lustre/env.tar.gz")
    variables = {"BASH_FUNC_module%%": MODULE}
    code, output, _ = batch("completed", recipe, load_site("frontier"), options, **variables)
    assert code == 0, output
    found = seen(tmp_path / "calls.env")
    assert not {"FI_CXI_RDZV_PROTO", "FI_CXI_RDZV_GET_MIN", "NCCL_NET"} & found.keys()
    assert found["MIOPEN_USER_DB_PATH"].startswith("/tmp/") and found["MIOPEN_USER_DB_PATH"].endswith("/miopen-863")


def test_folders_for_kernels_are_made_once_on_every_node(batch):
    options = Options(account="abc123", env="/lustre/env.tar.gz")
    _, _, calls = batch("completed", "175b", load_site("frontier"), options)
    made = [call for call in calls if " mkdir -p /tmp/" in call]
    assert len(made) == 1 and "--nodes=16 --ntasks=16 --ntasks-per-node=1" in made[0]
    main = next(call for call in calls if "-m repro" in call)
    assert "--ntasks=128 --ntasks-per-node=8 -c 7" in main and calls.index(made[0]) < calls.index(main)
