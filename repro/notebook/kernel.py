"""The kernel under ``repro run``: started by this interpreter, without history, watched and killable."""

import contextlib
import logging
import os
import signal
import sys
import threading

from repro.errors import RunFailed, RunInterrupted

GRACE_SECONDS = 5
LONGEST_SOCKET_FOLDER = 80  # the name of a socket file has at most 107 characters


class Lines:
    """A file that passes each whole line it is given to ``progress``, indented below its cell."""

    def __init__(self, progress):
        self.progress, self.rest = progress, ""

    def write(self, text):
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            if self.progress and line.strip():
                self.progress(f"      {line.rsplit(chr(13), 1)[-1]}")

    def flush(self):
        pass


class Watch:
    """Follows one execution: which cell it is in, and why it was stopped, if it was.

    A deadline or a signal ends the kernel and its process group; papermill then finds a failed cell or no kernel.
    """

    def __init__(self, timeout_seconds, progress=None, total=0):
        self.timeout_seconds, self.progress, self.total = timeout_seconds, progress, total
        self.kernels = []
        self.cell, self.line, self.count = None, "", 0
        self.error, self.stopped, self._killer = None, None, None
        self._timer = threading.Timer(timeout_seconds, self.stop, ["deadline"])
        self._timer.daemon = True
        self._timer.start()
        self._handlers = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, self._signalled)

    def close(self):
        """End the watch: no kernel survives it."""
        for timer in (self._timer, self._killer):
            if timer:
                timer.cancel()
        self._kill()
        for number, handler in self._handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def stop(self, why):
        """Interrupt the kernel, so that a training run can still record its end, and kill it soon after."""
        if self.stopped is None:
            self.stopped = why
            self._signal(signal.SIGINT)
            self._killer = threading.Timer(GRACE_SECONDS, self._kill)
            self._killer.daemon = True
            self._killer.start()

    @property
    def executed(self):
        """Whether the kernel got as far as a cell."""
        return self.count > 0

    def failed(self, name, message):
        """Note what ended the execution; a stop that this watch caused is raised here instead."""
        self.raise_if_stopped()
        self.error = (name, str(message))

    def raise_if_stopped(self):
        if self.stopped == "deadline":
            raise RunFailed(f"deadline of {self.timeout_seconds:g} s passed in {self.where()}; the kernel was ended")
        if self.stopped:
            raise RunInterrupted(f"{self.stopped} in {self.where()}; the kernel was ended")

    def where(self):
        return f"In[{self.count}] ({self.line})" if self.executed else "the start of the kernel"

    def cell_start(self, cell, cell_index):
        if self.stopped:
            self._kill()  # the signal came before there was a kernel to kill

    def cell_execute(self, cell, cell_index):
        self.cell, self.count = cell_index, self.count + 1
        self.line = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")[:80]
        if self.progress:
            self.progress(f"[{self.count}/{self.total}] {self.line}")

    def _signalled(self, number, _frame):
        self.stop(signal.Signals(number).name)

    def _kill(self):
        # The group, for what a cell started: the kernel leads its own.
        self._signal(signal.SIGKILL, os.killpg)

    def _signal(self, number, send=os.kill):
        for kernel in self.kernels:
            pid = getattr(kernel.provisioner, "pid", None)
            if pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    send(pid, number)


def kernel_class(scratch, environment, watch, sockets=True):
    """A kernel manager for papermill: its kernel is ``sys.executable``, whatever kernels HOME has registered.

    ``scratch`` holds the connection file and IPython's folder, so that HOME may be read-only or on a
    file system that hangs SQLite. ``sockets``: talk over socket files there, which only this user can open
    and no other run can take, instead of TCP ports.
    """
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec

    scratch.mkdir(parents=True)
    spec = KernelSpec(
        argv=[
            *(sys.executable, "-m", "ipykernel_launcher"),
            *("-f", "{connection_file}", "--HistoryManager.enabled=False", "--log-level=ERROR"),
        ],
        name="python3",
        display_name="Python 3",
        language="python",
        env={"IPYTHONDIR": str(scratch / "ipython"), **environment},
    )

    class Kernel(AsyncKernelManager):
        def __init__(self, **options):
            super().__init__(**options)
            self._kernel_spec = spec
            self.connection_file = str(scratch / "connection.json")
            if sockets and os.name == "posix" and len(str(scratch)) < LONGEST_SOCKET_FOLDER:
                self.transport, self.ip = "ipc", str(scratch / "kernel")
            watch.kernels.append(self)

    return Kernel


@contextlib.contextmanager
def quiet_papermill():
    """Keep papermill's log off standard error: what it says arrives as one line of ours."""
    logger, silent = logging.getLogger("papermill"), logging.NullHandler()
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)
