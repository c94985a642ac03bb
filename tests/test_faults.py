"""The fault matrix: whatever happens, the run ends soon, its status is true, and it goes on as if nothing had been.

Every row ends the same way: the last complete checkpoint is sound, and the run resumed with ``auto`` has the losses of
the uninterrupted one bit for bit, dropout on. The table of what happened is printed below the tests.
"""

import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import time
from dataclasses import dataclass

import fault_cases as cases
import fault_mains
import pytest
from test_checkpoints import essence

from repro.records import checkpoints
from repro.records.run_folder import RunFolder

LIMIT_SECONDS = 30
NAMED = [f"stage {stage}, replica 0, shard {shard}" for stage in range(2) for shard in range(2)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return cases.Whole(tmp_path_factory.mktemp("whole"))


@dataclass(frozen=True)
class Fault:
    """A row of the matrix.

    Attributes:
        happen: what is done.
        state, reason: what the status must say afterwards; ``None``: the fault is none of the run's.
        resumed: the steps that the resumed run may begin with: only what was complete.
    """

    name: str
    happen: object
    state: str
    reason: str | None
    resumed: tuple

    def __str__(self):
        return self.name.replace(" ", "-")


def killed(where, fault, at, phase, resumed=(2,), happen=cases.rank_fault):
    reason = rf"^rank {at} \({NAMED[at]}\) was killed by SIGKILL in phase '{phase}'$"
    return Fault(f"rank {at} killed {where}", happen(fault, at), "failed", reason, resumed)


LAUNCHER = r"^the launcher was killed$|^the run ended without a last word"
UNSAID = r"^the run ended without a last word: its processes are gone; it was {}$"
HANG = rf"^no rank reported for 4 s: rank 2 \({NAMED[2]}\) in 'step 4' "
WRITING = "(step 4|step 5|.* the checkpoint of step 4)"
WAITS = r"rank 0 \(.*\) in 'step 4' waits for others in \w+ \(.*; rank 3 .*waits for others"
FULL = "No space left on device"

FAULTS = [
    killed("in forward", "killed_in_forward", 0, "step 4"),
    killed("in backward", "killed_in_backward", 1, "step 4"),
    killed("in the reduction", "killed_in_reduction", 2, "step 4"),
    killed("in the optimizer", "killed_in_optimizer", 3, "step 4"),
    killed("while a checkpoint is written", "killed_while_writing", 1, WRITING),
    killed("between manifest and latest", "killed_before_latest", 2, ".*", (4,)),
    killed("while the ranks meet", "killed_while_meeting", 0, "meeting the other 3 ranks", (0,)),
    killed("while the model is built", "killed_while_building", 3, "building the model", (0,)),
    killed("while a checkpoint is loaded", "killed_while_loading", 1, "loading.* of step 4", (4,), cases.on_a_resume),
    killed("while a resume cuts the record", "killed_while_cutting_the_record", 2, ".*", (4,), cases.on_a_resume),
    Fault("launcher killed", cases.launcher_fault("launcher_killed"), "failed", LAUNCHER, (2, 4)),
    Fault("launcher killed before any rank runs", cases.launcher_fault("launcher_killed_at_the_start"), "failed",
          UNSAID.format("pending"), (0,)),
    Fault("fork server killed", cases.rank_fault("fork_server_killed", 0), "failed",
          "^the fork server, the parent of all ranks, was killed$", (2,)),
    Fault("recording rank of srun killed", cases.recording_rank_of_srun, "failed", UNSAID.format("running"), (2, 4)),
    Fault("rank 2 hangs", cases.hung("hangs"), "failed",
          HANG + rf"is in stand_still \(fault_mains.*{WAITS}", (2,)),
    Fault("rank 2 stopped", cases.hung("stopped"), "failed",
          HANG + rf"does not answer.*{WAITS}", (2,)),
    Fault("disk full, checkpoint", cases.disk_full_for_a_checkpoint, "failed",
          rf"^the checkpoint of step 4 cannot be written: {FULL} \(rank \d\); last complete checkpoint: step 2", (2,)),
    Fault("disk full, metrics", cases.rank_fault("disk_full_for_metrics", 2), "failed",
          rf"^rank 2 \({NAMED[2]}\) failed in phase 'step 4': OSError: .*File too large: '.*metrics.jsonl'", (2,)),
    Fault("disk full, last status", cases.disk_full_for_the_last_status, "completed", None, ()),
    Fault("folder read-only while training", cases.read_only_while_training, "failed", UNSAID.format("running"), (2,)),
    Fault("folder read-only at the start", cases.read_only_at_the_start, None, None, (0,)),
    Fault("newest checkpoint truncated", cases.damage("truncated"), "completed", None, ()),
    Fault("newest checkpoint bit-flipped", cases.damage("bit-flipped"), "completed", None, ()),
    Fault("newest checkpoint lacks a file", cases.damage("missing file"), "completed", None, ()),
    Fault("newest checkpoint lacks its manifest", cases.damage("missing manifest"), "completed", None, ()),
    Fault("newest checkpoint's manifest cut short", cases.damage("broken manifest"), "completed", None, ()),
    Fault("all checkpoints damaged", cases.all_damaged, "failed",
          "^no checkpoint is sound: checkpoint of step 4 .*; checkpoint of step 2 passed over: .* bytes", (0,)),
    Fault("status cut short", cases.broken_status, "completed", None, ()),
    Fault("loss not a number", cases.not_a_number("nan_loss"), "failed",
          "^the loss of step 4 is nan; .*last complete checkpoint: step 2$", (2,)),
    Fault("gradient norm infinite", cases.not_a_number("infinite_gradient"), "failed",
          "^the gradient norm of step 4 is inf; .*last complete checkpoint: step 2$", (2,)),
    Fault("endless overflow, fp16", cases.not_a_number("endless_overflow"), "failed",
          "^the last 2 steps to step 5 overflowed, at loss scale .*last complete checkpoint: step 4$", (4,)),
    Fault("dataset index corrupt", cases.corrupt_index, "failed", r"^data.prefix .*corpus: the .idx file ", (4,)),
    Fault("clock jumps by hours, both ways", cases.clock_jumps, "completed", None, ()),
    Fault("disk slow", cases.slow_disk, "completed", None, ()),
    Fault("two runs in one folder", cases.two_runs, "completed", None, ()),
    Fault("two runs in one folder, patient", cases.two_runs_one_after_another, "completed", None, ()),
    Fault("second signal", cases.second_signal, "interrupted", "^interrupted by SIGTERM after a first signal$", (2, 4)),
    Fault("signal to every process", cases.signal_to_all, "interrupted",
          r"^asked to stop by SIGTERM, (\d) steps are done; last complete checkpoint: step \1$", (3, 4, 5)),
    Fault("signal before the handlers stand", cases.signal_before_the_handlers, "interrupted",
          "^asked to stop by SIGUSR1, 0 steps are done; there is no complete checkpoint$", (0,)),
    Fault("signals in the teardown", cases.signals_in_the_teardown, "completed", None, ()),
    Fault("papermill's kernel killed", cases.notebook_fault("getpid"), "failed", LAUNCHER, (2, 4)),
    Fault("papermill (repro run) killed", cases.notebook_fault("getppid"), "failed", LAUNCHER, (2, 4)),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault(fault, whole, tmp_path, record_property):
    row = {"fault": fault.name}
    record_property("fault", row)
    ground = cases.Ground(whole, tmp_path)
    with contextlib.ExitStack() as last:
        if os.getuid() == 0:
            last.callback(subprocess.run, ["umount", "--lazy", str(tmp_path)], capture_output=True)
        whole.run()
        started = time.monotonic()
        row["happened"] = fault.happen(ground)
        row["seconds"] = time.monotonic() - fault_mains.happened(ground.folder, started)
        assert row["seconds"] < LIMIT_SECONDS
        assert not multiprocessing.active_children()
        if fault.state is not None:
            status = RunFolder.open(ground.folder).status()
            assert status["state"] == fault.state
            assert fault.reason is None or re.search(fault.reason, status["reason"]), status["reason"]
            row["happened"] = status["reason"] or row["happened"]
        row["happened"] = row["happened"].replace(f"{tmp_path}/", "")
        sound = [one.step for one in checkpoints.complete(ground.folder) if not one.damaged()]
        ground.undo.close()
        row["from"] = resumed(ground, max(sound, default=0)) if fault.resumed else None
        row["equal"] = essence(ground.folder) == essence(whole.run(ground.main, ground.overrides))
        assert row["equal"]
        assert not fault.resumed or row["from"] in fault.resumed
        steps = [step["step"] for step in RunFolder.open(ground.folder).metrics()]
        assert steps == list(range(6)), "each step once"


def resumed(ground, expected):
    """The step that the resumed run began with: that of the last complete checkpoint, and nothing less."""
    ground.train()
    path = ground.folder / "starts.jsonl"
    step = json.loads(path.read_text().splitlines()[-1])["step"] if path.exists() else 0
    assert step == expected
    return step
