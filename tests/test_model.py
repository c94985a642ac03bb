"""Pieces of the model that parity alone would not pin down."""

import pytest
import reference
import torch

from repro import parameters
from repro.layout import Coordinate
from repro.model.initialize import normal_blocks_
from repro.model.loss import token_losses
from repro.model.streams import Streams, seed_of
from repro.model.tensor_parallel import TensorParallel

ALONE = TensorParallel(None, 0, 1, False, None)


@pytest.mark.parametrize("tied", [True, False])
def test_built_parameters_are_the_counted_ones(small, tied):
    recipe = small(shape={"layers": 3, "tied": tied})
    model, _ = reference.single(recipe)
    assert sum(p.numel() for p in model.parameters()) == parameters.true_count(recipe)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_shard_starts_with_the_weights_that_one_process_has_there(size):
    whole = torch.empty(16, 6)
    normal_blocks_(whole, 0.5, 1, "w", dim=0, blocks=8)
    shards = [torch.empty(16 // size, 6) for _ in range(size)]
    for rank, shard in enumerate(shards):
        normal_blocks_(shard, 0.5, 1, "w", dim=0, blocks=8, rank=rank, size=size)
    assert torch.equal(torch.cat(shards), whole)
    assert whole.std().item() == pytest.approx(0.5, rel=0.2)
    other = torch.empty(16, 6)
    normal_blocks_(other, 0.5, 1, "v", dim=0, blocks=8)
    assert not torch.equal(whole, other)


def test_loss_ignores_the_padding_and_equals_torch():
    vocab, padded = 11, 16
    logits = torch.randn(5, 2, padded, dtype=torch.float32, requires_grad=True)
    labels = torch.randint(0, vocab, (2, 5))
    ours = token_losses(logits, labels, vocab, ALONE).mean()
    ours.backward()
    mine, logits.grad = logits.grad, None
    theirs = torch.nn.functional.cross_entropy(logits[..., :vocab].flatten(0, 1), labels.t().flatten())
    theirs.backward()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert torch.allclose(mine, logits.grad, atol=1e-7)
    assert mine[..., vocab:].abs().max() == 0


def test_loss_survives_large_half_precision_logits():
    logits = torch.full((3, 1, 8), 60000.0, dtype=torch.float16)
    losses = token_losses(logits, torch.zeros(1, 3, dtype=torch.long), 8, ALONE)
    assert losses.flatten().tolist() == pytest.approx([2.0794415] * 3, rel=1e-6)


def streams(shard, seed=1, stage=0, replica=0):
    return Streams(seed, Coordinate(stage, replica, shard), torch.device("cpu"), separate=True)


def draws(stream, step):
    stream.reseed(step)
    common = torch.rand(4).tolist()
    with stream.sharded():
        sharded = torch.rand(4).tolist()
    return common, sharded, torch.rand(4).tolist()


def test_common_stream_is_equal_on_all_shards_and_the_sharded_one_is_not():
    first, second = draws(streams(0), 3), draws(streams(1), 3)
    assert first[0] == second[0]
    assert first[2] == second[2], "drawing from the sharded stream must not move the common one"
    assert first[1] != second[1]


def test_streams_depend_on_step_stage_replica_and_seed_only():
    assert draws(streams(0), 3) == draws(streams(0), 3)
    others = [
        draws(streams(0), 4),
        draws(streams(0, stage=1), 3),
        draws(streams(0, replica=1), 3),
        draws(streams(0, seed=2), 3),
    ]
    for other in others:
        assert other[0] != draws(streams(0), 3)[0]


def test_seeds_are_stable_across_machines():
    assert seed_of(1234, "common", 0) == seed_of(1234, "common", 0)
    assert 0 <= seed_of("x") < 2**63
    assert seed_of(1, 23) != seed_of(12, 3)


def test_recompute_replays_the_sharded_stream():
    stream = streams(0)
    stream.reseed(0)
    seen = []

    def layer(x):
        with stream.sharded():
            seen.append(torch.rand(2).tolist())
        return x * 2

    x = torch.ones(2, requires_grad=True)
    out = stream.checkpoint(layer, stream.checkpoint(layer, x))
    with stream.sharded():
        after = torch.rand(2).tolist()
    out.sum().backward()
    assert seen[:2] == seen[:1:-1], "backward recomputes the second call first, each with its own numbers"
    assert seen[0] != seen[1] != after
