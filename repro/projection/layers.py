"""The layers of :mod:`repro.model.gpt`, forward and backward, in tensors that are only a size. No torch.

Line by line as the model has it, so that a tensor lives here as long as there. Forward puts what autograd
saves on a stack, ``kept`` (``None`` without gradients, as inside the forward of a recomputed block);
backward takes it off again. A gradient that a caller gives away comes in a list of one and is popped.

Shape legend: s sequence, b micro-batch, h hidden, f ffn, n heads, t tensor-parallel size, V padded vocabulary.
"""

from repro.projection.counts import dtype_bytes
from repro.projection.replay import Tensor

ACTIVATIONS = "activations of blocks"
SCORES = "attention scores"
MASKS = "dropout masks"
WORKING = "gradients of activations"
WEIGHT_GRADIENT = "gradient of one weight before it is added"


class Layers:
    """Layers of one rank.

    Args:
        states: names the gradients of weights, and is told of each one added, as DeepSpeed's hooks are.

        scores_stay: the scores before the softmax live until the attention returns, as in Megatron-LM's.

    Attributes:
        gradients: ``{name: Tensor}``, one per weight that has one.
    """

    def __init__(self, recipe, ledger, states, scores_stay=False):
        s, p = recipe.shape, recipe.parallel
        self.recipe, self.ledger, self.states, self.scores_stay = recipe, ledger, states, scores_stay
        self.tp, self.sequence, self.p = p.tp, p.sequence_parallel, s.dropout
        self.flash = recipe.compute.attention == "flash"
        self.element = e = dtype_bytes(recipe)
        self.tokens = s.seq * recipe.batch.micro
        self.hidden, self.positions = s.hidden * e, s.seq * s.hidden * e
        self.whole = self.tokens * s.hidden * e  # [s, b, h]
        self.outer = self.whole // p.tp if self.sequence else self.whole  # outside the sharded regions
        self.context = self.whole // p.tp
        self.inner = self.tokens * s.ffn * e // p.tp
        self.scores = self.tokens * s.seq * s.heads * e // p.tp
        self.lse = 4 * self.tokens * s.heads // p.tp  # log of the sum of exponentials, fp32
        self.logits = self.tokens * recipe.padded_vocab * e // p.tp
        self.table = recipe.padded_vocab * s.hidden * e // p.tp
        self.weights = {
            "qkv": 3 * s.hidden**2 * e // p.tp,
            "out": s.hidden**2 * e // p.tp,
            "up": s.hidden * s.ffn * e // p.tp,
            "down": s.hidden * s.ffn * e // p.tp,
        }
        self.biases = {"qkv": 3 * self.hidden // p.tp, "up": s.ffn * e // p.tp}
        self.gradients, self.waiting = {}, None

    def new(self, name, size):
        return Tensor(self.ledger, name, size)

    def accumulate(self, weight, given):
        """Add a gradient to that of the weight; the first one becomes it. ``None`` is one that has to wait."""
        gradient = given.pop()
        if weight is None:
            self.waiting = gradient
            return
        if weight not in self.gradients:
            self.gradients[weight] = gradient.rename(self.states.gradients)
        del gradient
        self.states.on_gradient()

    # Operators

    def norm(self, x, kept, name=ACTIVATIONS):
        out = self.new(name, x.size)
        mean_and_deviation = self.new(name, 2 * x.size // (self.hidden // self.element))
        if kept is not None:
            kept.append((x, mean_and_deviation))
        return out

    def norm_backward(self, given, kept, weight):
        gradient, saved = given.pop(), kept.pop()
        out = self.new(WORKING, gradient.size)
        small = [[self.new(WEIGHT_GRADIENT, self.hidden)] for _ in range(2)]
        del gradient, saved
        for part, one in zip(("weight", "bias"), small, strict=True):
            self.accumulate(f"{weight}.{part}", one)
        return out

    def dropout(self, x, kept, name=ACTIVATIONS):
        if not self.p:
            return x
        out = self.new(name, x.size)
        mask = self.new(MASKS, x.size // self.element)
        if kept is not None:
            kept.append(mask)
        return out

    def dropout_backward(self, gradient, kept):
        if not self.p:
            return gradient
        mask = kept.pop()
        out = self.new(SCORES if gradient.name == SCORES else WORKING, gradient.size)
        del mask
        return out

    def column(self, x, kept, size, name=ACTIVATIONS):
        gathered = self.new(name, self.whole) if self.sequence else None
        out = self.new(name, size)
        del gathered
        if kept is not None:
            kept.append(x)
        return out

    def column_backward(self, given, kept, weight, size, bias):
        gradient, saved = given.pop(), kept.pop()
        gathered = self.new(WORKING, self.whole) if self.sequence else None
        out = self.new(WORKING, self.whole)
        if self.sequence:
            out = self.new(WORKING, self.outer)  # summed and split
        small = [self.new(WEIGHT_GRADIENT, bias)] if bias else None
        large = [self.new(WEIGHT_GRADIENT, size)]
        del gathered, gradient, saved
        if small:
            self.accumulate(f"{weight}.bias", small)
        self.accumulate(f"{weight}.weight" if bias else weight, large)
        return out

    def row(self, x, kept):
        out = self.new(ACTIVATIONS, self.whole)
        if self.sequence:
            out = self.new(ACTIVATIONS, self.outer)  # summed and split
        if kept is not None:
            kept.append(x)
        if self.tp > 1:
            out = self.new(ACTIVATIONS, self.outer)  # with the bias
        return out

    def row_backward(self, given, kept, weight, size, inputs):
        small = [self.new(WEIGHT_GRADIENT, self.hidden)]
        if self.tp > 1:
            self.accumulate(f"{weight}.bias", small)
        if self.sequence:
            gathered = self.new(WORKING, self.whole)
            given.pop()
            given.append(gathered)
            del gathered
        gradient, saved = given.pop(), kept.pop()
        out = self.new(WORKING, inputs)
        large = [self.new(WEIGHT_GRADIENT, size)]
        del gradient, saved
        if self.tp == 1:
            self.accumulate(f"{weight}.bias", small)
        self.accumulate(f"{weight}.weight", large)
        return out

    # A block, also under recompute

    def checkpoint(self, x, kept):
        kept.append(x)
        return self.block(x, None)

    def checkpoint_backward(self, given, kept, name):
        """Forward again, now keeping; then backward. The output of the one and the gradient given stay to the end."""
        g, x, inner = given.pop(), kept.pop(), []
        out = self.block(x, inner)
        result = self.block_backward([g], inner, name)
        del out
        return result

    def block(self, x, kept):
        x1 = self.add(x, self.dropout(self.attention(self.norm(x, kept), kept), kept))
        return self.add(x1, self.dropout(self.mlp(self.norm(x1, kept), kept), kept))

    def add(self, x, _):
        return self.new(ACTIVATIONS, x.size)

    def attention(self, x, kept):
        qkv = self.column(x, kept, 3 * self.context)
        scores = [] if self.flash else [self.new(SCORES, self.scores)]
        mixed = self._flash(qkv, kept) if self.flash else self._unfused(qkv, scores, kept)
        return self.row(mixed if self.flash else self.new(ACTIVATIONS, self.context), kept)

    def _flash(self, qkv, kept):
        out, lse = self.new(ACTIVATIONS, self.context), self.new(ACTIVATIONS, self.lse)
        if kept is not None:
            kept.append((qkv, out, lse))
        return out

    def _unfused(self, qkv, scores, kept):
        probabilities = self.new(SCORES, self.scores)
        if not self.scores_stay:
            scores.clear()
        if kept is not None:
            kept += [qkv, probabilities]
        dropped = self.dropout(probabilities, kept, SCORES)
        if kept is not None:
            kept.append((dropped, qkv))
        return self.new(ACTIVATIONS, self.context)

    def mlp(self, x, kept):
        return self.row(self._gelu(self.column(x, kept, self.inner), kept), kept)

    def _gelu(self, x, kept):
        if kept is not None:
            kept.append(x)
        return self.new(ACTIVATIONS, self.inner)

    def block_backward(self, given, kept, name):
        g = given.pop()
        branch = self.dropout_backward(g, kept)
        moved = [branch]
        del branch
        moved.append(self.row_backward(moved, kept, f"{name}.down", self.weights["down"], self.inner))
        moved.append(self._gelu_backward(moved, kept))
        up = f"{name}.up"
        moved.append(self.column_backward(moved, kept, up, self.weights["up"], self.biases["up"]))
        moved.append(self.norm_backward(moved, kept, f"{name}.norm2"))
        g = self._join(g, moved)
        branch = self.dropout_backward(g, kept)
        moved.append(branch)
        del branch
        moved.append(self.row_backward(moved, kept, f"{name}.out", self.weights["out"], self.context))
        moved.append((self._flash_backward if self.flash else self._unfused_backward)(moved, kept))
        qkv = f"{name}.qkv"
        moved.append(self.column_backward(moved, kept, qkv, self.weights["qkv"], self.biases["qkv"]))
        moved.append(self.norm_backward(moved, kept, f"{name}.norm1"))
        return self._join(g, moved)

    def _join(self, skip, branch):
        """The gradients of a residual's two ways, added."""
        total = self.new(WORKING, skip.size)
        branch.pop()
        return total

    def _gelu_backward(self, given, kept):
        gradient, saved = given.pop(), kept.pop()
        out = self.new(WORKING, self.inner)
        del gradient, saved
        return out

    def _flash_backward(self, given, kept):
        gradient, saved = given.pop(), kept.pop()
        q, k, v = (self.new(WORKING, self.context) for _ in range(3))
        del gradient, saved
        return self._stacked([q, k, v])

    def _stacked(self, three):
        """Gradients of q, k and v as one: stacked, then in the order of the fused weight."""
        stacked = self.new(WORKING, 3 * self.context)
        three.clear()
        ordered = self.new(WORKING, 3 * self.context)
        del stacked
        return ordered

    def _unfused_backward(self, given, kept):
        gradient, saved = given.pop(), kept.pop()
        v = self.new(WORKING, self.context)
        g = self.new(SCORES, self.scores)
        del gradient, saved
        g = self.dropout_backward(g, kept)
        saved = kept.pop()
        g = self.new(SCORES, self.scores)  # softmax
        saved = kept.pop()
        g = self.new(SCORES, self.scores)  # mask
        q = self.new(WORKING, self.context)
        q = self.new(WORKING, self.context)  # scaled
        k = self.new(WORKING, self.context)
        k = self.new(WORKING, self.context)
        del g, saved
        three = [q, k, v]
        del q, k, v
        return self._stacked(three)
