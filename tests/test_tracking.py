"""wandb is a copy: whole when it can be, and never a reason for a run to fail or to hang."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.errors import InputError
from repro.recipe import load
from repro.records.run_folder import RunFolder
from repro.records.sidecar import read_rows, run_id
from repro.records.tracking import start
from repro.records.wandb_file import copies, last_logged_step, records

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """A user without any wandb configuration or key."""
    for key in [key for key in os.environ if key.startswith("WANDB")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tmp_path / "a run, with a name", load("tiny"))
    folder.set_status("running")
    return folder


def write(folder, steps):
    for step in steps:
        folder.append_metrics({"step": step, "loss": 1 / step, "grad_norm": None, "seconds": float("nan")})


def history(path):
    """The rows in a ``.wandb`` file: step -> names of its values."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = [r.history for r in map(Record.FromString, records(path)) if r.HasField("history")]
    return {row.step.num: {(i.nested_key or [i.key])[0] for i in row.item} for row in rows}


def run_record(path):
    from wandb.proto.wandb_internal_pb2 import Record

    return next(r.run for r in map(Record.FromString, records(path)) if r.HasField("run"))


def alive(text):
    """Processes, zombies aside, with ``text`` in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            zombie = (process / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            continue
        if text in command and not zombie and process.name != str(os.getpid()):
            found.append(command)
    return found


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return value


def test_offline_copy_holds_every_step_and_can_be_checked(folder, monkeypatch, tmp_path):
    # The user's own variables, some of which would send the copy elsewhere or nowhere
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for key, value in {"MODE": "disabled", "RUN_ID": "other", "DIR": str(tmp_path / "elsewhere")}.items():
        monkeypatch.setenv(f"WANDB_{key}", value)
    sidecar = start(folder, "offline")
    write(folder, [1, 2, 3, 2, 3, 4])  # as after a resume from an older checkpoint
    folder.append_metrics({"step": 5, "note": "x" * 70_000})  # longer than a block of the file
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # a crash in the middle of a row
    result = sidecar.finish()
    assert result == {"state": "complete", "mode": "offline", "last_step": 5, "reason": None}
    assert sidecar.process.returncode == 0

    (copy,) = copies(folder.path)
    rows = history(copy)
    assert sorted(rows) == [1, 2, 3, 4, 5]
    assert {"step", "loss"} <= rows[4] and not {"grad_norm", "seconds"} & rows[4]
    run = run_record(copy)
    assert (run.project, run.run_id, run.display_name) == ("mine", run_id(folder.path), folder.path.name)
    assert "seq" in str(run.config)

    size = copy.stat().st_size
    os.truncate(copy, size - 60_000)  # inside the long row
    assert last_logged_step(copy) == 4
    os.truncate(copy, 3)
    assert last_logged_step(copy) is None


def test_a_final_status_ends_the_copy_and_a_resumed_run_is_copied_from_there(folder):
    sidecar = start(folder, "offline")
    write(folder, [1, 2, 3])
    folder.set_status("failed", "rank 3 died")
    assert sidecar.process.wait(20) == 0
    first = copies(folder.path)
    assert last_logged_step(first[0]) == 3
    folder.set_status("running")
    write(folder, [3, 4, 5])
    assert start(folder, "offline").finish()["last_step"] == 5
    (second,) = set(copies(folder.path)) - set(first)
    assert sorted(history(second)) == [4, 5]
    assert run_record(second).run_id == run_record(first[0]).run_id


@linux
def test_sigkill_of_the_run_leaves_a_whole_copy_and_no_process(folder):
    code = (
        "import sys, time\n"
        "from repro.records.run_folder import RunFolder\n"
        "from repro.records.tracking import start\n"
        "folder = RunFolder.open(sys.argv[1])\n"
        "print(start(folder, 'offline').process.pid, flush=True)\n"
        "for step in range(1, 10**6):\n"
        "    folder.append_metrics({'step': step, 'loss': 1.0})\n"
        "    time.sleep(0.05)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE, text=True)
    pid = run.stdout.readline().strip()
    assert wait_for(lambda: alive(f"--pid {pid}"), 20), "wandb did not start"
    time.sleep(0.5)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert wait_for(lambda: not alive(str(folder.path)) and not alive(f"--pid {pid}"), 15), "a process is left"
    (copy,) = copies(folder.path)
    assert last_logged_step(copy) == folder.metrics()[-1]["step"]
    assert folder.status()["state"] == "running"


@linux
def test_a_signal_to_every_process_of_the_job_does_not_cost_the_copy(folder):
    """As when a job is cancelled: wandb's own process dies of it, so the copy is made once more."""
    sidecar = start(folder, "offline")
    write(folder, [1, 2, 3])
    assert wait_for(lambda: alive(f"--pid {sidecar.process.pid}") and copies(folder.path), 20)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        if stat.read_text().rsplit(")", 1)[1].split()[1] == str(sidecar.process.pid):
            os.kill(int(stat.parent.name), signal.SIGTERM)
    os.kill(sidecar.process.pid, signal.SIGTERM)
    write(folder, [4])
    folder.set_status("interrupted", "SIGTERM")
    result = sidecar.finish()
    assert (result["state"], result["last_step"]) == ("complete", 4)
    assert len(copies(folder.path)) == 1 and sorted(history(copies(folder.path)[0])) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("module", "state", "reason"),
    [
        ("raise ImportError('no such thing')", "failed", "no such thing"),
        ("class Settings: model_fields = {}\ndef init(**k): raise OSError('disk\\nfull')", "failed", "wandb"),
        ("import time\ntime.sleep(1000)", "killed", "did not finish within 3 s"),
        ("import os\nos._exit(5)", "failed", "without a word"),
    ],
)
def test_a_broken_wandb_neither_fails_nor_hangs_the_run(folder, tmp_path, monkeypatch, module, state, reason):
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "wandb.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(fake))
    sidecar = start(folder, "offline")
    write(folder, [1])
    began = time.monotonic()
    result = sidecar.finish(deadline_seconds=3)
    assert time.monotonic() - began < 5
    assert result["state"] == state and reason in result["reason"] and "\n" not in result["reason"]
    assert sidecar.process.returncode is not None
    assert not (folder.path / "wandb" / "finish").exists()


def test_online_without_a_key_ends_offline_with_the_reason(folder):
    sidecar = start(folder, "online")
    write(folder, [1, 2])
    result = sidecar.finish()
    assert (result["state"], result["mode"], result["last_step"]) == ("complete", "offline", 2)
    assert "No API key" in result["reason"]
    assert len(copies(folder.path)) == 1


def test_online_with_an_unreachable_host_ends_offline_with_the_reason(folder, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    sidecar = start(folder, "online")
    write(folder, [1, 2])
    result = sidecar.finish(deadline_seconds=30)
    assert (result["state"], result["mode"], result["last_step"]) == ("complete", "offline", 2)
    assert "127.0.0.1" in result["reason"]
    assert len(copies(folder.path)) == 1


def test_off_starts_nothing(folder):
    assert start(folder, "off").finish() == {"state": "off", "mode": "off", "last_step": None, "reason": None}
    assert not (folder.path / "wandb").exists()


def test_a_sidecar_that_cannot_start_is_a_reason_in_the_record(folder):
    (folder.path / "wandb").write_text("in the way")
    result = start(folder, "offline").finish()
    assert result["state"] == "failed" and "FileExistsError" in result["reason"]


def test_an_unknown_mode_is_refused(folder):
    with pytest.raises(InputError, match="did you mean 'offline'"):
        start(folder, "ofline")


def test_a_row_still_being_written_waits(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_rows(path, 0) == ([], 0)
    path.write_text('{"step": 1}\nnonsense\n{"st')
    rows, offset = read_rows(path, 0)
    assert rows == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert read_rows(path, offset)[0] == [{"step": 2}]


def test_run_ids_are_legal_and_tell_folders_of_one_name_apart():
    first, second = run_id(Path("/a/b c:d#" + "x" * 100)), run_id(Path("/b/b c:d#" + "x" * 100))
    assert first != second
    assert len(first) <= 64 and not set(first) & set("/\\#?%: ")
