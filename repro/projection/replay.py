"""Tensors that are nothing but a size: what is alive while the code of a training step runs. No torch.

:mod:`repro.projection.layers` and :mod:`repro.projection.engine` do what the model and DeepSpeed do with
these in place of real tensors. Python's own reference counting ends a tensor where it would end a real one.
"""

from collections import Counter


class Ledger:
    """Bytes alive by name, and the highest point so far.

    Args:
        left_out: names that cost nothing here: what another engine would not hold.

    Attributes:
        phase: what runs now; set by the caller.
        peak, peak_live, peak_phase: the highest point, its bytes by name, and the phase it was reached in.
    """

    def __init__(self, left_out=()):
        self.left_out = frozenset(left_out)
        self.live, self.total = Counter(), 0
        self.phase = None
        self.restart_peak()

    def restart_peak(self):
        self.peak, self.peak_live, self.peak_phase = self.total, dict(self.live), self.phase

    def add(self, name, size):
        self.live[name] += size
        self.total += size
        if self.total > self.peak:
            self.restart_peak()

    def drop(self, name, size):
        self.live[name] -= size
        self.total -= size


class Tensor:
    """``size`` bytes in a ledger under a name, for as long as the object lives."""

    __slots__ = ("ledger", "name", "size")

    def __init__(self, ledger, name, size):
        self.ledger, self.name = ledger, name
        self.size = 0 if name in ledger.left_out else size
        ledger.add(name, self.size)

    def __del__(self):
        self.ledger.drop(self.name, self.size)

    def rename(self, name):
        """The same bytes under another name, once it is known what they are."""
        self.ledger.drop(self.name, self.size)
        if name in self.ledger.left_out:
            self.size = 0
        self.name = name
        self.ledger.add(name, self.size)
        return self
