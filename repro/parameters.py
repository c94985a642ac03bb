"""Exact parameter counts, told apart: true, all ranks, one rank. No torch.

Per layer 12 h^2 + 13 h when ffn = 4 h: qkv 3h(h+1), projection h(h+1), two norms 4h, MLP 2hf + f + h.
"""


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
    """Parameters of the layer behind the embedding: the position table and the embedding's norm, where there are any."""
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
