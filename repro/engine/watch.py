"""What the launcher knows of its ranks, and whose fault an end was. No torch, no processes."""

import signal
import time

from repro.engine.stacks import standing
from repro.errors import InputError, RunFailed

ASLEEP_SECONDS = 10.0  # the launcher looks every second
GRACE_SECONDS = 2.0  # after a first death the others tell quickly whether they only lost a peer


class Watch:
    """Collects phases, errors and exits of ranks, and gives the verdict.

    Args:
        layout: :class:`repro.layout.Layout`, to name a rank by its place.
        deadline_seconds: the longest silence of all ranks together.
        logs: folder of the ranks' logs.
    """

    def __init__(self, layout, deadline_seconds, logs=None):
        self.layout, self.deadline, self.logs = layout, deadline_seconds, logs
        self.phases = dict.fromkeys(range(layout.world_size), "starting")
        self.errors, self.inputs, self.exits = {}, {}, {}
        self.last_heard = self.last_look = time.monotonic()
        self.trouble_since = None

    def heard(self, rank, kind, value):
        self.last_heard = time.monotonic()
        if kind == "phase":
            self.phases[rank] = value
        elif kind == "input error":
            self.inputs[rank] = value
            self._trouble()
        elif kind == "error":
            self.errors[rank] = value
            self._trouble()

    def ended(self, rank, exitcode):
        self.exits[rank] = exitcode
        if exitcode != 0:
            self._trouble()

    def _trouble(self):
        self.trouble_since = self.trouble_since or time.monotonic()

    def patience(self):
        """Seconds to wait for the next word: never beyond the deadline, little once there is trouble."""
        if self.trouble_since:
            return 0.1
        return max(0.0, min(1.0, self.last_heard + self.deadline - time.monotonic()))

    def must_stop(self):
        now = time.monotonic()
        if now - self.last_look > ASLEEP_SECONDS:
            self.last_heard += now - self.last_look  # stopped by Ctrl-Z, and the ranks too: that was no silence
        self.last_look = now
        if self.trouble_since:
            settled = self.inputs or any(self.exits[rank] != -signal.SIGABRT for rank in self._killed())
            return settled or now - self.trouble_since > GRACE_SECONDS
        return now - self.last_heard > self.deadline

    def verdict(self, living):
        """Return if all ranks ended well.

        Args:
            living: gives ``{rank: process number}`` of those still alive; asked only when the run hung.

        Raises:
            InputError: what a rank found wrong with the input.
            RunFailed: names the rank that died, failed, or what each waited for.
        """
        if self.inputs:
            raise InputError(self.inputs[min(self.inputs)])
        if killed := self._killed():
            rank = killed[0]
            how = signal.Signals(-self.exits[rank]).name
            raise RunFailed(f"{self.name(rank)} was killed by {how} in phase {self.phases[rank]!r}")
        own = [rank for rank, (_, _, peer_loss) in self.errors.items() if not peer_loss]
        for rank in own or self.errors:
            kind, text, _ = self.errors[rank]
            if [*self.errors.values()].count(self.errors[rank]) == self.layout.world_size:
                raise RunFailed(text if kind == RunFailed.__name__ else f"all ranks failed: {kind}: {text}")
            raise RunFailed(f"{self.name(rank)} failed in phase {self.phases[rank]!r}: {kind}: {text}")
        silent = [rank for rank, code in self.exits.items() if code != 0]
        if silent:
            rank = silent[0]
            raise RunFailed(f"{self.name(rank)} ended with exit code {self.exits[rank]} in phase {self.phases[rank]!r}")
        if len(self.exits) < self.layout.world_size:
            where = standing({r: (pid, self.logs / log_name(r)) for r, pid in living().items()})
            words = "; ".join(f"{self.name(r)} in {self.phases[r]!r} {words}" for r, words in where.items())
            raise RunFailed(f"no rank reported for {self.deadline:g} s: {words}; stacks are in the logs of the run")

    def name(self, rank):
        c = self.layout.coordinate(rank)
        return f"rank {rank} (stage {c.stage}, replica {c.replica}, shard {c.shard})"

    def _killed(self):
        """Ranks ended by a signal, in the order of their ends. One that aborted because of the loss of another, as
        NCCL's watchdog does, is not the one to name where that other had its say."""
        own = any(not peer_loss for _, _, peer_loss in self.errors.values())
        codes = [(rank, code) for rank, code in self.exits.items() if code is not None and code < 0]
        return [rank for rank, code in codes if not (own and code == -signal.SIGABRT)]


def log_name(rank):
    return f"rank-{rank}.log"
