"""wandb as a copy of the record that can neither fail nor hang a run.

The rank that keeps the record starts a sidecar (:mod:`repro.records.sidecar`) beside it and waits for
it at the end for a bounded time. wandb itself is never imported here.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from repro.errors import unknown
from repro.records.sidecar import ASK, RESULT, one_line

MODES = ("offline", "online", "off")
LOG = "wandb/sidecar.log"


@dataclass(frozen=True)
class Sidecar:
    """A sidecar that was started, or why there is none."""

    folder: Path
    mode: str
    process: subprocess.Popen | None = None
    problem: str | None = None

    def finish(self, deadline_seconds=20):
        """Let the sidecar copy the last rows and end; kill it at the deadline. Never raises.

        Returns:
            ``{"state", "mode", "last_step", "reason"}`` for the record. State ``complete``: wandb's file
            was read back and holds ``last_step``; ``killed``, ``failed``: with the reason; ``off``.
            ``mode`` is ``offline`` where online did not work out.
        """
        try:
            return self._finish(deadline_seconds)
        except Exception as error:  # the run is over and good: nothing here may change that
            with contextlib.suppress(Exception):
                self._kill()
            return self._outcome("failed", one_line(error))

    def _finish(self, deadline_seconds):
        if self.process is None:
            return self._outcome("failed" if self.problem else "off", self.problem)
        asked = self.folder / ASK
        asked.touch()
        try:
            self.process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            self._kill()
            return self._outcome("killed", f"wandb did not finish within {deadline_seconds} s")
        finally:
            asked.unlink(missing_ok=True)
        try:
            return json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return self._outcome("failed", self._last_words())

    def _kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(2)

    def _last_words(self):
        lines = (self.folder / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it ended without a word")

    def _outcome(self, state, reason=None):
        return {"state": state, "mode": self.mode, "last_step": None, "reason": reason}


def start(folder, mode):
    """Start the sidecar of a :class:`~repro.records.run_folder.RunFolder` whose status is not final.

    Args:
        mode: ``offline`` writes a copy to upload later; ``online`` uploads as the run goes and falls back
            to ``offline``; ``off`` starts nothing.

    Raises:
        InputError: unknown mode. A sidecar that cannot start is no error, only a reason in the record.
    """
    if mode not in MODES:
        raise unknown("wandb mode", mode, MODES)
    if mode == "off":
        return Sidecar(folder.path, mode)
    command = [sys.executable, "-m", "repro.records.sidecar", str(folder.path)]
    command += ["--mode", mode, "--parent", str(os.getpid())]
    try:
        (folder.path / "wandb").mkdir(exist_ok=True)
        for stale in (ASK, RESULT):
            (folder.path / stale).unlink(missing_ok=True)
        with (folder.path / LOG).open("ab") as log, _blocked(signal.SIGUSR1):
            process = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[2],  # the same code as here, whether installed or not
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # The address of a wandb service that belongs to, and dies with, another process
                env={key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"},
            )
    except OSError as error:
        return Sidecar(folder.path, mode, problem=one_line(error))
    return Sidecar(folder.path, mode, process)


@contextlib.contextmanager
def _blocked(number):
    """A process started inside the block never sees the signal: a scheduler sends its warning to all of a job."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
