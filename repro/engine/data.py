"""Which tokens each step trains on, for every layout the same.

Sample numbers run on through a whole run: step ``k`` takes ``k * global`` to ``(k + 1) * global - 1``,
replica ``d`` the ``d``-th equal part of them, in order of micro-batches. The position is therefore a
function of the step alone, and a resumed run needs no saved state.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

from repro.engine.corpus import Indexed, Text, Tokens
from repro.errors import InputError
from repro.recipe_rules import DATASETS


class Dataset(Protocol):
    """Numbered samples of ``seq + 1`` tokens."""

    def sample(self, index):
        """The int64 tensor of sample ``index``, any non-negative integer."""

    def describe(self):
        """What identifies the data, for the record: kind, tokens, bytes, sha256 and more."""


def dataset(recipe):
    """The :class:`Dataset` that a recipe names.

    Raises:
        InputError: the files are missing, broken, or too short for one sample.
    """
    if recipe.data.kind == "synthetic":
        return Synthetic(recipe.seed, recipe.shape.vocab, recipe.shape.seq)
    if recipe.data.kind == "stdlib-bytes":
        tokens = Text.of_stdlib()
    elif recipe.data.kind == "megatron":
        tokens = Indexed.open(recipe.data.prefix)
    else:
        raise ValueError(f"data.kind {recipe.data.kind!r} is not one of {DATASETS}")
    return Windows(tokens, recipe.data.kind, recipe.shape.seq, recipe.shape.vocab, recipe.seed)


def batches(recipe, replica, first_step=0, data=None):
    """Endless micro-batches of one replica, ``recipe.accumulation`` to a step, from ``first_step`` on.

    Args:
        data: a :class:`Dataset` already open; the recipe's own otherwise.

    Returns:
        An iterator over ``(tokens [b, s], labels [b, s])``, both int64; a label is the next token.
    """
    if not 0 <= replica < recipe.parallel.dp:
        raise InputError(f"replica {replica} is outside the layout; valid are 0 to {recipe.parallel.dp - 1}")
    if first_step < 0:
        raise InputError(f"first_step {first_step} is negative; the first is 0")
    return _micro_batches(recipe, replica, first_step, data or dataset(recipe))


def _micro_batches(recipe, replica, step, data):
    import torch

    b = recipe.batch.micro
    while True:
        first = step * recipe.batch.global_ + replica * recipe.accumulation * b
        for micro in range(recipe.accumulation):
            samples = torch.stack([data.sample(first + micro * b + i) for i in range(b)])  # [b, s+1]
            yield samples[:, :-1].contiguous(), samples[:, 1:].contiguous()
        step += 1


@dataclass(frozen=True)
class Synthetic:
    """Uniform random tokens, sample ``i`` a function of (seed, i): nothing to learn, the loss stays at ln(vocab)."""

    seed: int
    vocab: int
    seq: int

    def sample(self, index):
        import numpy as np
        import torch

        return torch.from_numpy(np.random.default_rng((self.seed, index)).integers(0, self.vocab, self.seq + 1))

    def describe(self):
        digest = hashlib.sha256(f"{self.seed} {self.vocab} {self.seq} ".encode())
        digest.update(self.sample(0).numpy().tobytes())
        return {
            "kind": "synthetic",
            "tokens": None,
            "bytes": None,
            "windows": None,
            "sha256": digest.hexdigest(),
            "sha256_covers": "seed, vocab, seq and sample 0",
        }


@dataclass(frozen=True)
class Windows:
    """A token stream cut in windows of ``seq + 1`` tokens that overlap by one; each epoch is a new order of them."""

    tokens: Tokens
    kind: str
    seq: int
    vocab: int
    seed: int

    def __post_init__(self):
        if self.count < 1:
            raise InputError(
                f"{self.kind} data of {self.tokens.length} tokens is too short for one sample of shape.seq {self.seq}; "
                f"the most is seq {max(self.tokens.length - 1, 0)}"
            )

    @property
    def count(self):
        """Number of windows, which is the number of samples in an epoch."""
        return (self.tokens.length - 1) // self.seq

    def window(self, index):
        """Which window sample ``index`` is."""
        epoch, position = divmod(index, self.count)
        return permuted(position, self.count, f"{self.seed} {epoch}")

    def sample(self, index):
        sample = self.tokens.read(self.window(index) * self.seq, self.seq + 1)
        if int(sample.min()) < 0:
            raise InputError(f"{self.kind} data holds the negative token {int(sample.min())}: not a file of tokens")
        if (token := int(sample.max())) >= self.vocab:
            raise InputError(
                f"{self.kind} data holds token {token}, outside shape.vocab {self.vocab}; "
                f"set shape.vocab to the tokenizer's size, at least {token + 1}"
            )
        return sample

    def describe(self):
        return {"kind": self.kind, "windows": self.count, **self.tokens.describe()}


def permuted(position, size, key):
    """``position`` under a permutation of ``range(size)`` that ``key`` picks, without a table.

    A Feistel network over the next even number of bits, walked until it falls inside: an epoch of
    10**9 windows costs no memory, and any position is found without those before it.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = position >> half, position & mask
        for turn in range(6):
            word = hashlib.blake2b(f"{key} {turn} {right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(word, "little") & mask)
        position = left << half | right
        if position < size:
            return position
