"""Signals of the process that started local ranks: asked once, the ranks stop; twice, all ends at once."""

import contextlib
import os
import signal
import threading

from repro.errors import RunInterrupted

PASSED_ON = signal.SIGUSR1.name


class Asking:
    """Passes a request to stop on to the ranks that are there to take it."""

    def __init__(self, ranks):
        self.ranks, self.ready, self.name = ranks, set(), None

    def ask(self, name):
        self.name = name
        for rank in self.ready:
            self._tell(rank)

    def heard(self, rank):
        """A rank that has reported stands behind its handlers."""
        if rank not in self.ready:
            self.ready.add(rank)
            if self.name:
                self._tell(rank)

    def _tell(self, rank):
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(self.ranks[rank][0].pid, signal.Signals[PASSED_ON])


class interruptible:
    """Inside the block SIGINT becomes :class:`RunInterrupted`, and so does a second signal of any kind; a first
    SIGTERM or SIGUSR1 asks the ranks to stop. Only where Python allows a handler."""

    def __init__(self, asking):
        self.asking, self.before = asking, {}

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            try:
                self.before[number] = signal.signal(number, self._signalled)
            except ValueError:  # not the main thread
                return
        self.blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])  # one may have waited for this

    def __exit__(self, *_):
        if self.before:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _signalled(self, number, _frame):
        name = signal.Signals(number).name
        if number == signal.SIGINT or self.asking.name:
            raise RunInterrupted(f"interrupted by {name}" + (" after a first signal" if self.asking.name else ""))
        self.asking.ask(name)


@contextlib.contextmanager
def deaf_to_interrupts():
    """The fork server inherits it: signals go to the whole group, and the launcher is the one to answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
