"""Random streams for dropout: one equal on all shards, one of each shard's own.

Where activations are replicated over a tensor-parallel group, its ranks must draw the same mask;
where they are sharded, different ones. Both streams are reseeded at every step from (seed, step,
stage, replica, shard), so a resumed run draws the same masks without any saved random state.
"""

import hashlib
from contextlib import contextmanager


class Streams:
    """The device's default generator is the common stream; the sharded stream is swapped in on demand.

    Args:
        seed: of the run.
        coordinate: :class:`repro.layout.Coordinate` of this rank.
        device: torch device whose default generator dropout uses.
        separate: whether the two streams differ (tp > 1 with dropout).

    Attributes:
        recomputing: a checkpointed function is running again, inside backward.
    """

    def __init__(self, seed, coordinate, device, separate):
        import torch

        self.seed, self.coordinate, self.separate = seed, coordinate, separate
        on_cpu = device.type == "cpu"
        self._get = torch.get_rng_state if on_cpu else lambda: torch.cuda.get_rng_state(device)
        self._set = torch.set_rng_state if on_cpu else lambda state: torch.cuda.set_rng_state(state, device)
        self._sharded = None
        self.recomputing = False

    def reseed(self, step):
        """Start both streams of a step."""
        import torch

        c = self.coordinate
        if self.separate:
            torch.manual_seed(seed_of(self.seed, "sharded", step, c.stage, c.replica, c.shard))
            self._sharded = self._get()
        torch.manual_seed(seed_of(self.seed, "common", step, c.stage, c.replica))

    @contextmanager
    def sharded(self):
        """Draw from this shard's own stream inside the block."""
        if not self.separate:
            yield
            return
        common = self._get()
        self._set(self._sharded)
        try:
            yield
        finally:
            self._sharded = self._get()
            self._set(common)

    def checkpoint(self, function, *inputs):
        """``function(*inputs)`` with its activations recomputed in backward, under the same random numbers.

        Reentrant: the whole forward runs again, the convention of the factor 4 in the FLOPs formula
        (the non-reentrant kind stops early and skips the last matrix product).
        """
        from torch.utils.checkpoint import checkpoint

        at_start, first = self._sharded, True

        def run(*args):
            nonlocal first
            if first:
                first = False
                return function(*args)
            later, self._sharded = self._sharded, at_start
            self.recomputing = True
            try:
                return function(*args)
            finally:
                self._sharded = later
                self.recomputing = False

        return checkpoint(run, *inputs, use_reentrant=True, preserve_rng_state=True)


def seed_of(*parts):
    """A 63-bit seed from any values: the same on every machine, unrelated for neighbouring values."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
