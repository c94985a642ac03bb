"""Parameters, gradients and optimizer states of a rank, and what reduction and step hold for a while. No torch.

In tensors that are only a size, after DeepSpeed 0.19.8; see :mod:`repro.projection.zero` for its three ways.
"""

from repro.projection import zero
from repro.projection.counts import BYTES, dtype_bytes
from repro.projection.replay import Tensor

PARAMETERS = "parameters"
MASTER = "master weights, fp32"
MOMENTS = "Adam's two moments, fp32"
FLAT = "gradients added up, fp32"
GRADIENTS = "gradients"
BESIDE = "gradients in bf16 beside those in fp32"
BUCKET = "reduction bucket"
SECOND = "second reduction bucket, while the first is there"
COPY = "gradients flattened or cast for the reduction"
SHARD = "reduced gradients of this rank's shard"
FLAT_SHARD = "the shard's gradients flattened once more"
FP32_SHARD = "the shard's gradients in fp32"
NORM = "one gradient in fp64 for the norm"
CAST = "one bf16 gradient cast to be added up"
# Megatron-LM adds gradients up in one flat buffer (in fp32 by its fused kernel), and reduces them in place.
ONLY_DEEPSPEED = (BESIDE, BUCKET, SECOND, COPY, FLAT_SHARD, NORM, CAST)


class States:
    """What stays of a stage between steps.

    Args:
        deepspeed: see :func:`repro.projection.memory.memory`.
    """

    def __init__(self, recipe, stage, ledger, deepspeed):
        p = recipe.parallel
        self.recipe, self.stage, self.ledger, self.deepspeed = recipe, stage, ledger, deepspeed
        self.way = zero.way(recipe)
        self.gradients = BESIDE if self.way == "bf16" else GRADIENTS
        self.element = dtype_bytes(recipe)
        self.groups = zero.padded(recipe, stage)
        self.tensors = zero.tensors(recipe, stage)
        self.bucket = None
        count = sum(t.elements for t in self.tensors)
        if self.way == "plain":
            self.held = [self.new(PARAMETERS, self.element * count), self.new(MOMENTS, 8 * count)]
            return
        flat = sum(self.groups)
        self.shards = [size // p.dp for size in self.groups]
        self.held = [self.new(PARAMETERS, self.element * flat)]
        self.held += [self.new(MASTER, 4 * sum(self.shards)), self.new(MOMENTS, 8 * sum(self.shards))]
        if self.way == "bf16":
            self.held.append(self.new(FLAT, BYTES[recipe.precision.grad_accum] * flat))

    def new(self, name, size):
        return Tensor(self.ledger, name, size)

    # During backward

    def on_gradient(self):
        """ZeRO-1 allocates its bucket with the first gradient of a step."""
        if self.way == "zero1" and self.bucket is None:
            self.bucket = self.new(BUCKET, self.element * self.recipe.zero.reduce_bucket)

    def before_backward(self, gradients):
        """Today bf16 gradients of the last micro-batch are zeroed, in 2023 they were dropped."""
        if self.way == "bf16" and self.deepspeed == "2023":
            gradients.clear()

    def after_backward(self):
        """bf16 gradients are added to the fp32 ones, each cast for itself."""
        if self.way == "bf16":
            for tensor in self.tensors:
                self.new(CAST, 4 * tensor.elements)

    # After the last backward

    def reduce(self, gradients):
        self.ledger.phase = "reduction"
        if self.way == "zero1":
            self._reduce_zero1(gradients)
            return
        for joined, elements in self._all_reduces():
            flat = self.new(COPY, 4 * elements) if joined > 1 else None
            cast = self.new(COPY, 2 * elements) if self.way == "bf16" else None
            del flat, cast

    def _all_reduces(self):
        """How many tensors each all-reduce joins, and its elements."""
        if self.way == "bf16" and self.deepspeed == "2023":
            half = -(-sum(self.groups) // 2)
            yield from ((1, half), (1, half))
            return
        sizes = list(self.groups if self.way == "bf16" else (t.elements for t in self.tensors))
        for elements in zero.reductions(self.recipe, self.stage):
            joined, left = 0, elements
            while left > 0:
                left -= sizes.pop(0)
                joined += 1
            yield joined, elements

    def _reduce_zero1(self, gradients):
        """Gradients move into the bucket, and those that this rank's shard touches on to a buffer of their own."""
        most = self.recipe.zero.reduce_bucket
        second = self.new(SECOND, self.element * most)
        self.shard = None
        bucket = []
        for group, share in zip(zero.groups(self.recipe, self.stage), self.shards, strict=True):
            offset = 0
            for tensor in group:
                if sum(t.elements for t, *_ in bucket) + tensor.elements > most:
                    self._flush(bucket, gradients)
                if tensor.elements <= most:
                    del gradients[tensor.name]
                bucket.append((tensor, offset, share))
                offset += tensor.elements
        self._flush(bucket, gradients)
        gradients.clear()
        self.bucket = None
        del second

    def _flush(self, bucket, gradients):
        if not bucket:
            return
        pieces = []
        for tensor, offset, share in bucket:
            for number, elements in zip(*zero.pieces(offset, tensor.elements, share), strict=True):
                if pieces and pieces[-1][0] == number:
                    pieces[-1][1] += elements
                else:
                    pieces.append([number, elements])
        if len(pieces) > 1:
            for joined, elements in zero.joined([n for _, n in pieces], self.recipe.zero.reduce_bucket):
                flat = self.new(COPY, self.element * elements) if joined > 1 else None
                del flat
        for tensor, offset, share in bucket:
            if offset < share:  # replica 0
                if self.shard is None:
                    self.shard = self.new(SHARD, self.element * sum(t.elements for t, _ in self._own()))
                gradients.pop(tensor.name, None)
        bucket.clear()

    def _own(self):
        """Tensors that replica 0's shard touches, and how much of each is in it."""
        for group, share in zip(zero.groups(self.recipe, self.stage), self.shards, strict=True):
            offset = 0
            for tensor in group:
                if offset < share:
                    yield tensor, min(tensor.elements, share - offset)
                offset += tensor.elements

    def step(self):
        self.ledger.phase = "step"
        if self.way == "zero1":
            self._step_zero1()

    def _step_zero1(self):
        tied_copy = self.recipe.shape.tied and self.stage == self.recipe.parallel.pp - 1 > 0
        for tensor, elements in self._own():
            if not (tied_copy and tensor.name == "embedding"):
                self.new(NORM, 8 * elements)
        for number, share in enumerate(self.shards):
            gradient = self.new(FLAT_SHARD, self.element * share)
            if self.element < 4:
                gradient = self.new(FP32_SHARD, 4 * share)
            if number:
                self.shard = None
            del gradient
