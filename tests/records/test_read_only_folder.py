"""A run folder into which nothing can be written is refused before ranks are started."""

import subprocess

import pytest

from repro.engine.resume import opened
from repro.errors import InputError
from repro.recipe import load
from repro.records.run_folder import RunFolder


@pytest.fixture
def read_only(tmp_path):
    """A run folder, mounted read-only onto itself."""
    folder = RunFolder.create(tmp_path / "run", load("tiny"))
    if subprocess.run(["mount", "--bind", folder.path, folder.path], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here; run the tests as root in a privileged container")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder.path], check=True)
        yield folder
    finally:
        subprocess.run(["umount", folder.path], check=True)


def test_a_read_only_folder_is_refused_in_one_line(read_only):
    refused = pytest.raises(InputError, match=r"^cannot write run folder '/.*/run': Read-only file system$")
    with refused, opened(load("tiny"), read_only.path, "auto"):
        pass


def test_a_completed_run_is_still_shown_from_there(read_only):
    subprocess.run(["mount", "-o", "remount,bind,rw", read_only.path], check=True)
    read_only.set_status("completed")
    subprocess.run(["mount", "-o", "remount,bind,ro", read_only.path], check=True)
    with opened(load("tiny"), read_only.path, "auto") as start:
        assert start.done
