"""The GPT of Megatron-LM: learned positions, pre-LayerNorm, fused QKV, GELU, tied embedding.

Shape legend: s sequence, b micro-batch, h hidden, n heads, d head size, f ffn, t tensor-parallel
size. Between layers activations are [s, b, h], or [s/t, b, h] with sequence parallelism.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from repro.model.initialize import normal_blocks_
from repro.model.loss import token_losses
from repro.model.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    column_linear,
    replicated,
)


def dropout(x, p, training):
    """Dropout with a mask of one byte per element, the same operator on every device."""
    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


class LayerNorm(nn.LayerNorm):
    def __init__(self, hidden, tp):
        super().__init__(hidden)
        replicated(self.weight, tp)
        replicated(self.bias, tp)


class Entry(nn.Module):
    """Behind the embedding: its norm and the learned positions where the recipe has them, then dropout.

    A layer of its own: a tied embedding must hold nothing else, since DeepSpeed keeps only the tied
    weight of its two copies in step.
    """

    def __init__(self, shape, std, tp, seed):
        super().__init__()
        self.tp, self.p = tp, shape.dropout
        self.norm = LayerNorm(shape.hidden, tp) if shape.embedding_norm else None
        self.positions = None
        if shape.positions == "learned":
            self.positions = replicated(nn.Parameter(torch.empty(shape.seq, shape.hidden)), tp)
            normal_blocks_(self.positions, std, seed, "positions")

    def forward(self, x):  # [s(/t), b, h]
        if self.norm is not None:
            x = self.norm(x)
        if self.positions is not None:
            first = x.shape[0] * self.tp.rank if self.tp.sequence else 0
            x = x + self.positions[first : first + x.shape[0]].unsqueeze(1)
        return residual_dropout(x, self.p, self.training, self.tp)


def residual_dropout(x, p, training, tp):
    """Dropout outside the sharded regions: equal on all shards unless the sequence is split."""
    if not tp.sequence:
        return dropout(x, p, training)
    with tp.streams.sharded():
        return dropout(x, p, training)


class Scores:
    """What all blocks of a rank share of unfused attention: the causal mask, and ALiBi's bias where there is one."""

    def __init__(self, shape, tp):
        self.shape, self.tp = shape, tp
        self.future = self.bias = None

    def masked(self, q, k):  # [b n/t, s, d] twice -> [b n/t, s, s]
        s, d = q.shape[1:]
        if self.future is None or self.future.device != q.device:
            self.future = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
        # The scale stands inside the product: applied to q it would keep one more tensor per layer.
        keys, scale = k.transpose(1, 2), 1 / math.sqrt(d)
        if self.shape.positions == "alibi":
            scores = torch.baddbmm(self._alibi(q), q, keys, beta=1, alpha=scale)
        else:
            scores = torch.baddbmm(q.new_empty(1, 1, 1), q, keys, beta=0, alpha=scale)
        return scores.masked_fill_(self.future, float("-inf"))

    def _alibi(self, q):  # [b n/t, 1, s]
        if self.bias is None or self.bias.shape[0] != q.shape[0]:
            own = self.shape.heads // self.tp.size
            slopes = torch.tensor(alibi_slopes(self.shape.heads)[own * self.tp.rank : own * (self.tp.rank + 1)])
            bias = slopes[:, None, None] * torch.arange(q.shape[1])  # the key's position: softmax ignores the rest
            self.bias = bias.repeat(q.shape[0] // own, 1, 1).to(q)
        return self.bias


def alibi_slopes(heads):
    """Slope of each head (arXiv 2108.12409): a geometric sequence, interleaved where heads is no power of 2."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


class Attention(nn.Module):
    """Causal self-attention. QKV rows are ordered [n, 3, d], so a shard is a range of heads."""

    def __init__(self, name, shape, kind, scores, std, out_std, tp, seed):
        super().__init__()
        h = shape.hidden
        self.tp, self.p, self.kind, self.scores = tp, shape.dropout, kind, scores
        self.heads, self.head_dim = shape.heads // tp.size, shape.head_dim
        self.qkv = ColumnParallelLinear(f"{name}.qkv", h, 3 * h, std, shape.heads, tp, seed)
        self.out = RowParallelLinear(f"{name}.out", h, h, out_std, shape.heads, tp, seed)

    def forward(self, x):  # [s(/t), b, h]
        qkv = self.qkv(x)  # [s, b, 3h/t]
        s, b = qkv.shape[:2]
        q, k, v = qkv.view(s, b, self.heads, 3, self.head_dim).permute(3, 1, 2, 0, 4).unbind(0)  # [b, n/t, s, d]
        with self.tp.streams.sharded():
            mixed = self._flash(q, k, v) if self.kind == "flash" else self._unfused(q, k, v)
        return self.out(mixed.permute(2, 0, 1, 3).reshape(s, b, -1))

    def _flash(self, q, k, v):
        p = self.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)

    def _unfused(self, q, k, v):
        b, n, s, d = q.shape
        q, k, v = (x.reshape(b * n, s, d) for x in (q, k, v))
        probabilities = self.scores.masked(q, k).softmax(-1)
        return torch.bmm(dropout(probabilities, self.p, self.training), v).view(b, n, s, d)


class MLP(nn.Module):
    """h -> f -> h with GELU in its tanh form, as Megatron's fused bias-GELU and GPT-2 have it."""

    def __init__(self, name, shape, std, out_std, tp, seed):
        super().__init__()
        blocks = math.gcd(shape.ffn, shape.heads)
        self.up = ColumnParallelLinear(f"{name}.up", shape.hidden, shape.ffn, std, blocks, tp, seed)
        self.down = RowParallelLinear(f"{name}.down", shape.ffn, shape.hidden, out_std, blocks, tp, seed)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), with dropout on both branches."""

    def __init__(self, number, shape, attention, scores, std, tp, seed):
        super().__init__()
        name, out_std = f"block.{number}", std / math.sqrt(2 * shape.layers)
        self.tp, self.p = tp, shape.dropout
        self.norm1 = LayerNorm(shape.hidden, tp)
        self.attention = Attention(name, shape, attention, scores, std, out_std, tp, seed)
        self.norm2 = LayerNorm(shape.hidden, tp)
        self.mlp = MLP(name, shape, std, out_std, tp, seed)

    def forward(self, x):  # [s(/t), b, h]
        x = x + residual_dropout(self.attention(self.norm1(x)), self.p, self.training, self.tp)
        return x + residual_dropout(self.mlp(self.norm2(x)), self.p, self.training, self.tp)


class Head(VocabParallelEmbedding):
    """Output projection with a weight of its own, for untied recipes."""

    def forward(self, x):
        return logits_from(self, x)


def logits_from(table, x):  # [s(/t), b, h] -> [s, b, V/t]
    """Logits of this shard of the vocabulary, from the rows of a token table."""
    return column_linear(x, table.weight, None, table.tp)


def mean_loss(recipe, tp):
    """The loss function of the last stage: mean over the tokens of a micro-batch."""

    def loss(logits, labels):
        return token_losses(logits, labels, recipe.shape.vocab, tp).mean()

    return loss


@dataclass(frozen=True)
class Layer:
    """How to build one layer. A tied one shares its module with the other tied one and has a ``forward``."""

    build: type
    arguments: tuple
    tied: bool = False
    forward: Callable | None = None


def layers(recipe, tp):
    """Every :class:`Layer` of the model, first to last; the order that ``layout.stage_bounds`` cuts.

    :class:`repro.engine.pipeline.GPTPipeline` builds a stage of it, :class:`GPT` the whole.
    """
    shape, std, seed = recipe.shape, recipe.optimizer.init_std, recipe.seed
    table = (shape.vocab, recipe.padded_vocab, shape.hidden, std, shape.vocab_multiple, tp, seed)
    attention, scores = recipe.compute.attention, Scores(shape, tp)
    return [
        Layer(VocabParallelEmbedding, ("embedding", *table), shape.tied),
        Layer(Entry, (shape, std, tp, seed)),
        *(Layer(Block, (number, shape, attention, scores, std, tp, seed)) for number in range(shape.layers)),
        Layer(LayerNorm, (shape.hidden, tp)),
        Layer(VocabParallelEmbedding, ("embedding", *table), True, logits_from)
        if shape.tied
        else Layer(Head, ("head", *table)),
    ]


class GPT(nn.Module):
    """All layers in one process, without DeepSpeed: the reference that every layout is compared with."""

    def __init__(self, recipe, tp):
        super().__init__()
        self.recompute, self.streams = recipe.compute.recompute == "full", tp.streams
        *body, head = layers(recipe, tp)
        self.body = nn.ModuleList(layer.build(*layer.arguments) for layer in body)
        self.head = None if head.tied else head.build(*head.arguments)

    def forward(self, tokens):  # [b, s] -> [s, b, V]
        x = tokens
        for layer in self.body:
            again = self.recompute and self.training and isinstance(layer, Block)
            x = self.streams.checkpoint(layer, x) if again else layer(x)
        return logits_from(self.body[0], x) if self.head is None else self.head(x)
