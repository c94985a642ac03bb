"""Exact parameter counts, told apart: true, all ranks, one rank. No torch.

Per layer 12 h^2 + 13 h when ffn = 4 h: qkv 3h(h+1), projection h(h+1), two norms 4h, MLP 2hf + f + h.
"""

from dataclasses import dataclass


def layer(shape):
    """Parameters of one transformer block, unsharded."""
    return layer_per_rank(shape, 1)


def layer_per_rank(shape, tp):
    """Parameters of one block on one rank: matrices and column biases are sharded, norms and row biases are not."""
    h, f = shape.hidden, shape.ffn
    sharded = 3 * h * h + 3 * h + h * h + 2 * h * f + f
    replicated = 4 * h + h + h
    return sharded // tp + replicated


def true_count(recipe):
    """Every parameter of the built model once: padded vocabulary, a tied embedding counted once."""
    return _whole(recipe.shape, recipe.padded_vocab)


def unpadded_count(recipe):
    """As :func:`true_count` without the rows that pad the vocabulary, hence the same for every tp."""
    return _whole(recipe.shape, recipe.shape.vocab)


def _whole(s, vocab):
    tables = vocab * s.hidden * (1 if s.tied else 2)
    return s.layers * layer(s) + tables + entry(s) + 2 * s.hidden


def entry(shape):
    """Parameters of the layer behind the embedding: position table and norm, where there are any."""
    h = shape.hidden
    return (shape.seq * h if shape.positions == "learned" else 0) + (2 * h if shape.embedding_norm else 0)


def per_rank(recipe, stage):
    """Parameters on each rank of a stage, as the optimizer sees them (a tied head holds its copy)."""
    s, p = recipe.shape, recipe.parallel
    table = recipe.padded_vocab * s.hidden // p.tp
    count = recipe.stage_layers[stage] * layer_per_rank(s, p.tp)
    first, last = stage == 0, stage == p.pp - 1
    if first:
        count += table + entry(s)
    if last:
        count += 2 * s.hidden
        if not (first and s.tied):
            count += table
    return count


def one_replica(recipe):
    """Sum over the ranks of one replica: what sits in memory, replicated norms and tied copies included."""
    return recipe.parallel.tp * sum(per_rank(recipe, stage) for stage in range(recipe.parallel.pp))


def all_ranks(recipe):
    """Sum over every rank of the run."""
    return recipe.parallel.dp * one_replica(recipe)


@dataclass(frozen=True)
class Tensor:
    """One parameter as a rank holds it.

    Attributes:
        elements: of this rank's shard.
        matrix: of two dimensions: weight decay applies, and the optimizer keeps matrices and vectors apart.
        replicated: equal on all shards of a tensor-parallel group.
    """

    name: str
    elements: int
    matrix: bool
    replicated: bool


def tensors(recipe, stage):
    """Every :class:`Tensor` of a rank in the order of ``module.parameters()``: reduction buckets follow it.

    DeepSpeed keeps tied modules apart, so a tied table comes first on the last stage too.
    """
    s, p = recipe.shape, recipe.parallel
    first, last = stage == 0, stage == p.pp - 1
    table = recipe.padded_vocab * s.hidden // p.tp
    held = []
    if first or (last and s.tied):
        held.append(Tensor("embedding", table, True, False))
    if first and s.positions == "learned":
        held.append(Tensor("positions", s.seq * s.hidden, True, True))
    if first and s.embedding_norm:
        held += _norm("embedding_norm", s.hidden)
    for number in range(recipe.stage_layers[stage]):
        held += _block(f"block.{number}", s, p.tp)
    if last:
        held += _norm("norm", s.hidden)
        if not s.tied:
            held.append(Tensor("head", table, True, False))
    return tuple(held)


def _norm(name, hidden):
    return [Tensor(f"{name}.{part}", hidden, False, True) for part in ("weight", "bias")]


def _block(name, s, tp):
    h, f = s.hidden, s.ffn
    return [
        *_norm(f"{name}.norm1", h),
        Tensor(f"{name}.qkv.weight", 3 * h * h // tp, True, False),
        Tensor(f"{name}.qkv.bias", 3 * h // tp, False, False),
        Tensor(f"{name}.out.weight", h * h // tp, True, False),
        Tensor(f"{name}.out.bias", h, False, True),
        *_norm(f"{name}.norm2", h),
        Tensor(f"{name}.up.weight", f * h // tp, True, False),
        Tensor(f"{name}.up.bias", f // tp, False, False),
        Tensor(f"{name}.down.weight", h * f // tp, True, False),
        Tensor(f"{name}.down.bias", h, False, True),
    ]
