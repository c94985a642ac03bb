"""ALiBi and the embedding norm against Hugging Face's BLOOM with the same weights."""

import pytest
import reference
import torch

from repro.model.gpt import alibi_slopes


@pytest.fixture(scope="module", params=[4, 6], ids=["4 heads", "6 heads"])
def pair(request, small):
    from transformers import BloomConfig, BloomForCausalLM

    heads = request.param
    recipe = small(
        shape={
            "layers": 2,
            "hidden": 8 * heads,
            "heads": heads,
            "ffn": 32 * heads,
            "seq": 24,
            "vocab": 256,
            "positions": "alibi",
            "embedding_norm": True,
        },
        compute={"attention": "unfused"},
        optimizer={"init_std": 0.2},
    )
    s = recipe.shape
    theirs = BloomForCausalLM(BloomConfig(vocab_size=s.vocab, hidden_size=s.hidden, n_layer=s.layers, n_head=s.heads))
    ours, loss_of = reference.single(recipe)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=generator))
        for name, value in correspondence(ours).items():
            theirs.get_parameter(name).copy_(value)
    return ours, loss_of, theirs, torch.randint(0, s.vocab, (2, s.seq + 1), generator=generator)


def correspondence(model):
    embedding, entry, *blocks, norm = model.body
    found = {
        "transformer.word_embeddings.weight": embedding.weight,
        "transformer.word_embeddings_layernorm.weight": entry.norm.weight,
        "transformer.word_embeddings_layernorm.bias": entry.norm.bias,
        "transformer.ln_f.weight": norm.weight,
        "transformer.ln_f.bias": norm.bias,
    }
    for number, block in enumerate(blocks):
        for theirs, module in (
            ("input_layernorm", block.norm1),
            ("self_attention.query_key_value", block.attention.qkv),
            ("self_attention.dense", block.attention.out),
            ("post_attention_layernorm", block.norm2),
            ("mlp.dense_h_to_4h", block.mlp.up),
            ("mlp.dense_4h_to_h", block.mlp.down),
        ):
            found[f"transformer.h.{number}.{theirs}.weight"] = module.weight
            found[f"transformer.h.{number}.{theirs}.bias"] = module.bias
    return found


def test_logits_and_gradients_are_equal(pair):
    ours, loss_of, theirs, tokens = pair
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    mine = ours(inputs)
    other = theirs(inputs).logits
    assert (mine.transpose(0, 1) - other).abs().max() / other.abs().max() < 1e-5
    loss_of(mine, labels).backward()
    torch.nn.functional.cross_entropy(other.flatten(0, 1), labels.flatten()).backward()
    names = correspondence(ours)
    assert set(names) == {name for name, _ in theirs.named_parameters()}
    for name, parameter in names.items():
        expected = theirs.get_parameter(name).grad
        assert (parameter.grad - expected).abs().max() / expected.abs().max() < 2e-5, name


def test_slopes():
    assert alibi_slopes(8) == [2**-i for i in range(1, 9)]
    assert len(alibi_slopes(112)) == 112
