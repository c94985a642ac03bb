"""Whose a run folder is, what its status says when it is nobody's, and what a killed process leaves behind."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.errors import InputError
from repro.recipe import load
from repro.records import checkpoints, lock, scratch
from repro.records.atomic import append_line
from repro.records.run_folder import RunFolder

HOLDER = (
    "import sys, time\nfrom repro.records.lock import held\n"
    "with held(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(600)"
)


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", load("tiny"))


def test_a_killed_run_is_told_from_one_that_runs_and_one_that_has_not_begun(folder):
    folder.set_status("running", ranks=4)
    assert folder.status()["state"] == "running", "no lock was ever taken: a job that waits, or a file system without"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        assert folder.status()["state"] == "running"
        with (
            pytest.raises(InputError, match=f"in use by process {process.pid} on "),
            lock.held(folder.path, patience_seconds=0.1),
        ):
            pytest.fail("held twice")
    finally:
        process.kill()
        process.wait(10)
    found = folder.status()
    assert (found["state"], found["ranks"]) == ("failed", 4)
    assert "without a last word" in found["reason"] and found["reason"].endswith("it was running")
    assert folder.written_status()["state"] == "running"
    folder.set_status("interrupted", "as asked")
    assert folder.status()["reason"] == "as asked", "a last word stands"


@pytest.mark.parametrize("words", ["process 7 on another-host\n", "", "process 7"])
def test_of_another_host_nothing_is_concluded(folder, words):
    folder.set_status("running")
    (folder.path / lock.RUN).write_text(words)
    assert not lock.abandoned(folder.path)
    assert folder.status()["state"] == "running"


def test_whoever_holds_a_lock_has_signed_it_at_any_moment(folder, monkeypatch):
    (folder.path / lock.RUN).write_text("process 1234567 on a-host-with-a-long-name.example.org\n")
    seen, cut = [], os.ftruncate

    def watching(descriptor, size):
        seen.append((folder.path / lock.RUN).read_text())
        cut(descriptor, size)

    monkeypatch.setattr(lock.os, "ftruncate", watching)
    with lock.held(folder.path):
        assert (folder.path / lock.RUN).read_text().startswith(f"process {os.getpid()} on ")
    assert seen[0].startswith(f"process {os.getpid()} on ")


def test_a_line_that_a_crash_cut_short_is_not_glued_to_the_next(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"st')
    append_line(path, {"step": 2, "loss": float("nan")})
    assert path.read_text() == '{"step": 1}\n{"st\n{"step": 2, "loss": null}\n'


def test_an_error_of_writing_names_the_file():
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        append_line(Path("/dev/full"), {"step": 1})


def test_what_a_crash_left_of_an_older_checkpoint_goes_with_the_next(tmp_path):
    for step, whole in ((2, False), (4, True), (10**6, True), (1_000_002, False)):
        made = tmp_path / "checkpoints" / checkpoints.name_of(step)
        made.mkdir(parents=True)
        (made / "weights.pt").write_bytes(b"weights")
        if whole:
            files = {"weights.pt": (7, checkpoints.checksum(made / "weights.pt"))}
            checkpoints.commit(tmp_path, step, load("tiny"), files, {})
    checkpoints.prune(tmp_path, 2)
    assert [one.step for one in checkpoints.complete(tmp_path)] == [4, 10**6]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*")) == [
        "step-000004",
        "step-1000000",
        "step-1000002",  # being written right now
    ]


def test_temporary_folders_of_killed_processes_are_swept_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    old = time.time() - 2 * scratch.YOUNG_SECONDS
    for name in ("x-killed", "x-young", "x-held", "y-other", "x-unknown"):
        (tmp_path / name).mkdir()
        if name != "x-unknown":
            (tmp_path / name / scratch.HELD).touch()
        if name != "x-young":
            os.utime(tmp_path / name, (old, old))
    with (tmp_path / "x-held" / scratch.HELD).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with scratch.scratch("x-") as made:
            left = {path.name for path in tmp_path.iterdir()}
            assert left == {"x-young", "x-held", "y-other", "x-unknown", Path(made).name}
    assert not Path(made).exists()


def test_an_error_in_a_temporary_folder_is_not_hidden():
    with pytest.raises(OSError, match="mine"), scratch.scratch("repro-test-"):
        raise OSError("mine")
