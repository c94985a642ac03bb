"""Recipes of any shape and layout, for properties of the projection that hold for all of them."""

from hypothesis import strategies as st

from repro.recipe import build

PRECISIONS = (("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"))


@st.composite
def recipes(draw, most_stages=6, balanced=False):
    """A valid recipe: up to 16 shards, 12 replicas, unequal stages among them."""
    pick = lambda *options: draw(st.sampled_from(options))  # noqa: E731
    tp, pp, dp, micro = pick(1, 2, 4, 8, 16), draw(st.integers(1, most_stages)), pick(1, 2, 3, 6, 8, 12), pick(1, 2, 4)
    layers, hidden = draw(st.integers(pp, 4 * pp + 3)), pick(512, 2048, 6144)
    alibi, (dtype, accumulate) = draw(st.booleans()), pick(*PRECISIONS)
    parallel = {"tp": tp, "pp": pp, "dp": dp, "sequence_parallel": tp > 1 and draw(st.booleans())}
    if not balanced and draw(st.booleans()):
        # one layer everywhere, the others wherever they fall
        extra = draw(st.lists(st.integers(0, pp - 1), min_size=layers - pp, max_size=layers - pp))
        parallel["stage_layers"] = [1 + extra.count(stage) for stage in range(pp)]
    return build(
        {
            "name": "any",
            "shape": {
                "layers": layers,
                "hidden": hidden,
                "heads": hidden // 32,
                "ffn": pick(3, 4) * hidden,
                "seq": pick(512, 2048),
                "vocab": pick(1000, 50257),
                "tied": draw(st.booleans()),
                "positions": "alibi" if alibi else "learned",
                "embedding_norm": draw(st.booleans()),
                "dropout": pick(0.0, 0.1),
            },
            "parallel": parallel,
            "batch": {"micro": micro, "global": micro * dp * draw(st.integers(pp, 3 * pp + 5))},
            "precision": {"dtype": dtype, "grad_accum": accumulate},
            "zero": {"stage": draw(st.integers(0, 1)) if dtype == "fp32" else 1},
            "compute": {
                "recompute": pick("none", "full"),
                "attention": "unfused" if alibi else pick("flash", "unfused"),
            },
        }
    )
