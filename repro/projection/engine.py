"""What DeepSpeed's pipeline engine holds of a step (0.19.8, ``runtime/pipe/engine.py``), in tensors only a size.

One stage, instruction by instruction, in the order of DeepSpeed's 1F1B schedule. No torch.
"""

from collections import deque

from repro.projection.ends import Ends
from repro.projection.layers import WORKING

TOKENS = "tokens and labels"
BUFFER = "buffers between stages"
INPUTS = "inputs of blocks"
OUTPUTS = "sent outputs held until backward"
TWICE = "received inputs held a second time"
AGAIN = "output of the stage gathered again for backward"
LEFT = "logits and inputs that pipe buffers still hold"
# What DeepSpeed holds and Megatron-LM's schedule does not: it frees a sent output at once
# (deallocate_pipeline_outputs), receives into the input itself, and drops the logits with their graph.
ONLY_DEEPSPEED = (OUTPUTS, TWICE, AGAIN, LEFT)
INDEX = 8  # bytes of a token or a size: int64


class Engine:
    """A stage in a running pipeline.

    Args:
        states: :class:`repro.projection.states.States`, told of each gradient, and of start and end of a backward.
        scores_stay: see :class:`repro.projection.layers.Layers`.
    """

    def __init__(self, recipe, stage, ledger, states, scores_stay=False):
        p = recipe.parallel
        self.first, self.last = stage == 0, stage == p.pp - 1
        self.numbers = range(recipe.stage_layers[stage])
        self.depth = p.pp - stage
        self.parted = p.tp > 1 and not p.sequence_parallel
        self.again = recipe.compute.recompute == "full"
        self.ledger, self.states = ledger, states
        self.layers = Ends(recipe, ledger, states, scores_stay)
        self.new = self.layers.new
        self.part = self.layers.context if self.parted else self.layers.outer
        self.tokens = INDEX * self.layers.tokens
        self.loaded, self.labels = {}, {}  # by slot, like all that follow: DeepSpeed's pipe buffers
        self.inputs, self.outputs, self.graphs = {}, {}, {}
        self.shapes = INDEX * (p.tp + 7) if self.parted else 0  # as in counts: how a part was cut
        if p.pp > 1:
            self.buffer = self.new(BUFFER, self.part + self.shapes * (1 if self.last or self.first else 2))

    def run(self, micro_batches):
        """Forward and backward of a step; micro-batches beyond ``depth`` + 2 only repeat what was there."""
        slots = max(2, min(self.depth, micro_batches))
        running = deque()
        for number in range(min(micro_batches, self.depth + 2)):
            if number >= self.depth:
                self._backward(running.popleft())
            self._forward(number % slots)
            running.append(number % slots)
        while running:
            self._backward(running.popleft())

    # Forward

    def _forward(self, slot):
        self.ledger.phase = "forward"
        received = self._receive(slot) if not self.first else None
        if self.first or self.last:
            self._load(slot)
        x = self.new(TOKENS, self.tokens) if self.first else received  # a copy of what was loaded
        del received
        kept = []
        out = self._body(x, kept)
        self.graphs[slot] = kept
        if self.last:
            self.outputs[slot] = [out]  # frees the logits of an earlier micro-batch and what hangs on them
            self.layers.loss(out, kept)
        elif self.parted:
            self.outputs[slot] = [self.new(OUTPUTS, self.part + self.shapes)]
        else:
            self.outputs[slot] = [out.rename(OUTPUTS)]

    def _load(self, slot):
        batch = [self.new(TOKENS, self.tokens) for _ in range(2)]
        if self.first:
            self.loaded[slot] = self.new(TOKENS, self.tokens)
        if self.last:
            self.labels[slot] = batch[1]

    def _receive(self, slot):
        """The input of the stage: parts are gathered, a whole one is copied once more."""
        received = self.new(TWICE, self.part + self.shapes)
        if not self.parted:
            self.inputs[slot] = [received]
            return self.new(INPUTS, self.part)
        copied = self.new(TWICE, self.part + self.shapes)
        flat = self.new(TWICE, self.layers.whole)
        whole = self.new(INPUTS, self.layers.whole)
        del copied, flat
        self.inputs[slot] = [whole]
        return whole

    def _body(self, x, kept):
        layers = self.layers
        if self.first:
            x = layers.embedding(x, kept)
            x = layers.entry(x, kept)
        for _ in self.numbers:
            x = layers.checkpoint(x.rename(INPUTS), kept) if self.again else layers.block(x, kept)
        return layers.head(x, kept) if self.last else x

    # Backward

    def _backward(self, slot):
        self.ledger.phase = "backward"
        layers, kept = self.layers, self.graphs.pop(slot)
        self.states.before_backward(layers.gradients)
        held = []
        if self.last:
            moved = [layers.loss_backward(kept)]
            moved.append(layers.head_backward(moved, kept))
        elif self.parted:
            for name in (AGAIN, WORKING):  # the output, of which only the graph is needed, and its gradient
                flat = self.new(AGAIN, layers.whole)
                held.append(self.new(name, layers.whole))
                del flat
            moved = [held[1]]
        else:
            moved = [self.buffer]
        for number in reversed(self.numbers):
            step = layers.checkpoint_backward if self.again else layers.block_backward
            moved.append(step(moved, kept, f"block.{number}"))
        if self.first:
            moved.append(layers.entry_backward(moved, kept))
            layers.embedding_backward(moved, kept)
        self.states.after_backward()
        if self.last:
            self.outputs[slot] = [t.rename(LEFT) for t in (*self.outputs[slot], *self.inputs.pop(slot, ()), *moved)]
        else:
            del self.outputs[slot]
            held.clear()
        if not self.first:
            self._send_gradient(slot, moved)

    def _send_gradient(self, slot, moved):
        part = self.new(BUFFER, self.part + self.shapes) if self.parted else None
        del part
        self.inputs.pop(slot, None)
        moved.clear()
