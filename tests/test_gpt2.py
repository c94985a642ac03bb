"""Our model against Hugging Face's GPT-2 with the same weights: logits and every gradient."""

import pytest
import reference
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", params=["flash", "unfused"])
def pair(request, small):
    """Our model and Hugging Face's, random weights copied over, and one batch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    recipe = small(
        shape={"layers": 3, "hidden": 48, "heads": 6, "ffn": 192, "seq": 32, "vocab": 256},
        compute={"attention": request.param},
        optimizer={"init_std": 0.2},
    )
    s = recipe.shape
    config = GPT2Config(
        vocab_size=s.vocab,
        n_positions=s.seq,
        n_embd=s.hidden,
        n_layer=s.layers,
        n_head=s.heads,
        n_inner=s.ffn,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = GPT2LMHeadModel(config)
    ours, loss_of = reference.single(recipe)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in ours.parameters():  # norms and biases away from their trivial start
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=generator))
        for name, (value, transform) in correspondence(ours, s).items():
            theirs.get_parameter(name).copy_(transform(value))
    tokens = torch.randint(0, s.vocab, (2, s.seq + 1), generator=generator)
    return ours, loss_of, theirs, tokens, s


def correspondence(model, shape):
    """Hugging Face's parameter names -> our parameter and how to turn it into theirs.

    Theirs are [in, out] (Conv1D), with Q, K and V one after the other; our QKV rows are [heads, 3, head_dim].
    """
    n, d = shape.heads, shape.head_dim

    def qkv(x):
        return x.reshape(n, 3, d, *x.shape[1:]).transpose(0, 1).reshape(x.shape)

    def qkv_weight(x):
        return qkv(x).t()

    def same(x):
        return x

    embedding, entry, *blocks, norm = model.body
    found = {
        "transformer.wte.weight": (embedding.weight, same),
        "transformer.wpe.weight": (entry.positions, same),
        "transformer.ln_f.weight": (norm.weight, same),
        "transformer.ln_f.bias": (norm.bias, same),
    }
    for number, block in enumerate(blocks):
        h = f"transformer.h.{number}"
        found |= {
            f"{h}.ln_1.weight": (block.norm1.weight, same),
            f"{h}.ln_1.bias": (block.norm1.bias, same),
            f"{h}.attn.c_attn.weight": (block.attention.qkv.weight, qkv_weight),
            f"{h}.attn.c_attn.bias": (block.attention.qkv.bias, qkv),
            f"{h}.attn.c_proj.weight": (block.attention.out.weight, torch.t),
            f"{h}.attn.c_proj.bias": (block.attention.out.bias, same),
            f"{h}.ln_2.weight": (block.norm2.weight, same),
            f"{h}.ln_2.bias": (block.norm2.bias, same),
            f"{h}.mlp.c_fc.weight": (block.mlp.up.weight, torch.t),
            f"{h}.mlp.c_fc.bias": (block.mlp.up.bias, same),
            f"{h}.mlp.c_proj.weight": (block.mlp.down.weight, torch.t),
            f"{h}.mlp.c_proj.bias": (block.mlp.down.bias, same),
        }
    return found


def test_logits_are_equal(pair):
    ours, _, theirs, tokens, _ = pair
    mine, other = ours(tokens[:, :-1]).transpose(0, 1), theirs(tokens[:, :-1]).logits
    assert other.abs().max() > 1
    assert (mine - other).abs().max() / other.abs().max() < 1e-5


def test_loss_and_every_gradient_are_equal(pair):
    ours, loss_of, theirs, tokens, shape = pair
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    ours.zero_grad()
    theirs.zero_grad()
    loss = loss_of(ours(inputs), labels)
    other = F.cross_entropy(theirs(inputs).logits.flatten(0, 1), labels.flatten())
    loss.backward()
    other.backward()
    assert loss.item() == pytest.approx(other.item(), rel=1e-6)
    names = correspondence(ours, shape)
    assert set(names) == {name for name, _ in theirs.named_parameters()}
    for name, (parameter, transform) in names.items():
        theirs_grad = theirs.get_parameter(name).grad
        difference = (transform(parameter.grad) - theirs_grad).abs().max() / theirs_grad.abs().max()
        assert difference < 1e-5, f"gradient of {name} differs by {difference:.1e}"
