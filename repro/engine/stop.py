"""Asking a run to stop: the step in progress ends, a checkpoint is written, the record says so.

SIGUSR1 (a scheduler's warning) waits as long as the step takes. SIGTERM is followed by SIGKILL within half
a minute, from Slurm and torchrun alike: a step that has not ended by then is given up, and the record
says so in time. A second signal ends at once.
"""

import os
import signal
import threading
import time

TERM_SECONDS = 20.0
SAME_SECONDS = 1.0  # srun, scancel and torchrun each pass a signal on: what comes together is one


class Stop:
    """Whether this rank was asked to stop.

    Attributes:
        asked: name of the signal, or ``None``.
    """

    def __init__(self):
        self.asked = None

    def ask(self, name):
        self.asked = self.asked or name

    def ignore(self):
        """From here on signals change nothing: the work is done, only the process has yet to end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)


class Quiet(Stop):
    """Of a local rank: its launcher passes requests on as SIGUSR1, and decides alone on all else."""

    def __init__(self):
        super().__init__()
        signal.signal(signal.SIGUSR1, lambda *_: self.ask("SIGUSR1"))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


class Watched(Stop):
    """Of a rank that torchrun or srun started.

    Signals arrive in a thread of their own: Python's handlers would wait for a collective to return.

    Args:
        end: called as ``end(name, why)`` before the process ends with code 130, from that thread.
    """

    def __init__(self, end):
        super().__init__()
        self._end = end
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._follow, args=(wake,), daemon=True, name="signals").start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])  # one may have waited for this

    def _follow(self, wake):
        first = None
        while True:
            number = os.read(wake, 1)[0]
            name, now = signal.Signals(number).name, time.monotonic()
            if number == signal.SIGINT:
                self._finish(name, "")
            if first is None:
                first = now
                self.ask(name)
            elif now - first > SAME_SECONDS:
                self._finish(name, " after a first signal")
            if number == signal.SIGTERM:
                timer = threading.Timer(
                    TERM_SECONDS, self._finish, (name, f": the step did not end within {TERM_SECONDS:g} s")
                )
                timer.daemon = True
                timer.start()

    def _finish(self, name, why):
        try:
            self._end(name, why)
        finally:
            os._exit(130)

    def ignore(self):
        signal.set_wakeup_fd(-1)
        super().ignore()
