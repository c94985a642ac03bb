"""Embedding, head and loss of :mod:`repro.model.gpt` and :mod:`repro.model.loss` in tensors that are only a size.

As :mod:`repro.projection.layers`, line by line. No torch.
"""

from repro.projection.layers import WEIGHT_GRADIENT, WORKING, Layers

ENTRY = "embedding activations"
LOGITS = "logits"
PROBABILITIES = "probabilities of the loss, fp32"


class Ends(Layers):
    """Layers of the first and the last stage, on top of the blocks."""

    def embedding(self, indices, kept):
        if self.tp == 1:
            kept.append(indices)
            return self.new(ENTRY, self.whole)
        local, elsewhere = self.new(ENTRY, 8 * self.tokens), self.new(ENTRY, self.tokens)
        masked = self.new(ENTRY, 8 * self.tokens)
        rows = self.new(ENTRY, self.whole)
        out = self.new(ENTRY, self.whole)
        if self.sequence:
            out = self.new(ENTRY, self.outer)
        kept.append((masked, elsewhere))
        del local, rows
        return out

    def embedding_backward(self, given, kept):
        saved = kept.pop()
        if self.sequence:
            given[0] = self.new(WORKING, self.whole)  # gathered
        if self.tp > 1:
            given[0] = self.new(WORKING, self.whole)  # masked
        moved = [self.new(WEIGHT_GRADIENT, self.table)]
        given.clear()
        del saved
        if self.waiting is not None:
            moved[0] = self.new(WEIGHT_GRADIENT, self.table)
            self.waiting = None
        self.accumulate("embedding", moved)

    def entry(self, x, kept):
        if self.recipe.shape.embedding_norm:
            x = self.norm(x, kept, ENTRY)
        if self.recipe.shape.positions == "learned":
            x = self.new(ENTRY, x.size)
        return self.dropout(x, kept, ENTRY)

    def entry_backward(self, given, kept):
        g = self.dropout_backward(given.pop(), kept)
        if self.recipe.shape.positions == "learned":
            summed = self.new(WORKING, self.outer // self.recipe.batch.micro) if self.recipe.batch.micro > 1 else None
            moved = [self.new(WEIGHT_GRADIENT, self.positions)]
            del summed
            self.accumulate("positions", moved)
        moved = [g]
        del g
        if self.recipe.shape.embedding_norm:
            moved.append(self.norm_backward(moved, kept, "embedding_norm"))
        return moved.pop()

    def head(self, x, kept):
        return self.column(self.norm(x, kept, LOGITS), kept, self.logits, LOGITS)

    def loss(self, logits, kept):
        p = self.new(PROBABILITIES, 4 * logits.size // self.element)
        kept.append((p, self.new(PROBABILITIES, 9 * self.tokens)))

    def loss_backward(self, kept):
        p, small = kept.pop()
        if self.element == 4:
            return p
        out = self.new(WORKING, self.logits)
        del p, small
        return out

    def head_backward(self, given, kept):
        if self.recipe.shape.tied and self.recipe.parallel.pp == 1:
            weight = None  # one weight with two gradients: autograd adds them before the weight sees them
        else:
            weight = "embedding" if self.recipe.shape.tied else "head"
        given.append(self.column_backward(given, kept, weight, self.table, None))
        return self.norm_backward(given, kept, "norm")
