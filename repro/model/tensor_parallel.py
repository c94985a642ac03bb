"""Tensor parallelism after Megatron (arXiv 1909.08053) and its sequence-parallel form (arXiv 2205.05198).

Shape legend: s sequence, b micro-batch, h hidden, t tensor-parallel size; with sequence parallelism
activations outside the sharded regions are [s/t, b, h].
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from repro.model.initialize import normal_blocks_
from repro.model.streams import Streams


@dataclass(frozen=True)
class TensorParallel:
    """What a layer needs to know of its tensor-parallel group.

    Attributes:
        group: process group, ``None`` when ``size`` is 1.
        sequence: whether activations outside sharded regions are split along the sequence.
    """

    group: Any
    rank: int
    size: int
    sequence: bool
    streams: Streams


def sharded(parameter):
    """Mark a parameter as one shard of many: DeepSpeed adds its norm over the group instead of once."""
    parameter.tensor_model_parallel = True
    return parameter


def replicated(parameter, tp):
    """Mark a parameter that each rank applies to its part of the sequence only: its gradients need a sum."""
    parameter.sequence_partial = tp.sequence
    return parameter


class _CopyToShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _SumOverShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def _gather(x, tp):
    out = x.new_empty((x.shape[0] * tp.size, *x.shape[1:]))
    dist.all_gather_into_tensor(out, x.contiguous(), group=tp.group)
    return out


def _scatter_sum(x, tp):
    out = x.new_empty((x.shape[0] // tp.size, *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous(), group=tp.group)
    return out


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return _scatter_sum(x, tp)

    @staticmethod
    def backward(ctx, grad):
        return _gather(grad, ctx.tp), None


class _GatheredLinear(torch.autograd.Function):
    """Gather the sequence, multiply; keeps only the local part and gathers again in backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, tp):
        ctx.save_for_backward(x, weight)
        ctx.tp, ctx.has_bias = tp, bias is not None
        return F.linear(_gather(x, tp), weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        full = _gather(x, ctx.tp).flatten(0, -2)  # [s b, h]
        flat = grad.flatten(0, -2)  # [s b, out/t]
        grad_x = _scatter_sum(grad @ weight, ctx.tp)
        return grad_x, flat.t() @ full, flat.sum(0) if ctx.has_bias else None, None


def column_linear(x, weight, bias, tp):
    """x W^T + b with the rows of W sharded: [s(/t), b, h] -> [s, b, out/t]."""
    if tp.size == 1:
        return F.linear(x, weight, bias)
    if tp.sequence:
        return _GatheredLinear.apply(x, weight, bias, tp)
    return F.linear(_CopyToShards.apply(x, tp.group), weight, bias)


def sum_over_shards(x, tp):
    """Sum of partial results: [s, b, h] -> [s, b, h], or [s/t, b, h] with sequence parallelism."""
    if tp.size == 1:
        return x
    return _ScatterSum.apply(x, tp) if tp.sequence else _SumOverShards.apply(x, tp.group)


class ColumnParallelLinear(nn.Module):
    """Output features sharded. ``blocks`` divides the rows so that any tp draws the same weights."""

    def __init__(self, name, inputs, outputs, std, blocks, tp, seed):
        super().__init__()
        self.tp = tp
        self.weight = sharded(nn.Parameter(torch.empty(outputs // tp.size, inputs)))
        self.bias = sharded(nn.Parameter(torch.zeros(outputs // tp.size)))
        normal_blocks_(self.weight, std, seed, name, dim=0, blocks=blocks, rank=tp.rank, size=tp.size)

    def forward(self, x):
        return column_linear(x, self.weight, self.bias, self.tp)


class RowParallelLinear(nn.Module):
    """Input features sharded; the bias is added once, after the sum."""

    def __init__(self, name, inputs, outputs, std, blocks, tp, seed):
        super().__init__()
        self.tp = tp
        self.weight = sharded(nn.Parameter(torch.empty(outputs, inputs // tp.size)))
        self.bias = replicated(nn.Parameter(torch.zeros(outputs)), tp)
        normal_blocks_(self.weight, std, seed, name, dim=1, blocks=blocks, rank=tp.rank, size=tp.size)

    def forward(self, x):  # [s, b, in/t] -> [s(/t), b, out]
        if self.tp.size == 1:
            return F.linear(x, self.weight, self.bias)
        return sum_over_shards(F.linear(x, self.weight), self.tp) + self.bias


class VocabParallelEmbedding(nn.Module):
    """Token table with its rows sharded; also the weight of a tied output projection."""

    def __init__(self, name, vocab, padded_vocab, hidden, std, multiple, tp, seed):
        super().__init__()
        self.tp = tp
        self.rows = padded_vocab // tp.size
        self.first = self.rows * tp.rank
        self.weight = sharded(nn.Parameter(torch.empty(self.rows, hidden)))
        blocks = padded_vocab // multiple
        normal_blocks_(self.weight, std, seed, name, dim=0, blocks=blocks, rank=tp.rank, size=tp.size)
        with torch.no_grad():
            self.weight[max(vocab - self.first, 0) :].zero_()  # padding is never looked up, nor predicted

    def forward(self, tokens):  # [b, s] -> [s(/t), b, h]
        tokens = tokens.t()
        if self.tp.size == 1:
            return F.embedding(tokens, self.weight)
        local = tokens - self.first
        elsewhere = (local < 0) | (local >= self.rows)
        rows = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return sum_over_shards(rows.masked_fill(elsewhere.unsqueeze(-1), 0), self.tp)
