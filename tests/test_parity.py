"""Every layout trains as one process does: losses and gradient norms of ten steps."""

import pytest
import reference

LAYOUTS = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2), (2, 2, 2), (1, 4, 1)]
TOLERANCE = 1e-5  # relative, fp32


@pytest.fixture(scope="module")
def reference_of():
    done = {}

    def find(recipe):
        single = {"tp": 1, "pp": 1, "dp": 1, "sequence_parallel": False}
        recipe = recipe.model_copy(update={"parallel": recipe.parallel.model_copy(update=single)})
        key = recipe.to_toml()
        if key not in done:
            done[key] = reference.train(recipe)
        return done[key]

    return find


def worst(folder, expected):
    """Largest relative difference of loss and of gradient norm over all steps."""
    rows = folder.metrics()
    assert len(rows) == len(expected)
    losses = max(abs(row["loss"] - loss) / loss for row, (loss, _) in zip(rows, expected, strict=True))
    norms = max(abs(row["grad_norm"] - norm) / norm for row, (_, norm) in zip(rows, expected, strict=True))
    return losses, norms


def assert_equal(folder, expected, tolerance=TOLERANCE):
    losses, norms = worst(folder, expected)
    assert losses < tolerance, f"loss differs by {losses:.1e}"
    assert norms < tolerance, f"gradient norm differs by {norms:.1e}"


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_layout_with_and_without_recompute(layout, recompute, small, train_small, reference_of):
    tp, pp, dp = layout
    recipe = small(
        parallel={"tp": tp, "pp": pp, "dp": dp}, shape={"layers": max(2, pp)}, compute={"recompute": recompute}
    )
    expected = reference_of(recipe)
    assert max(norm for _, norm in expected) > recipe.optimizer.clip, "clipping must be at work"
    assert expected[-1][0] != pytest.approx(expected[0][0], rel=1e-3), "ten steps must change the loss"
    assert_equal(train_small(recipe), expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_untied(layout, small, train_small, reference_of):
    tp, pp, dp = layout
    recipe = small(parallel={"tp": tp, "pp": pp, "dp": dp}, shape={"layers": max(2, pp), "tied": False})
    assert_equal(train_small(recipe), reference_of(recipe))


@pytest.mark.parametrize(
    ("layout", "tied"),
    [
        ((2, 1, 1), True),
        ((2, 1, 1), False),
        ((2, 2, 1), True),
        ((2, 2, 2), True),
        ((2, 2, 2), False),
        ((4, 1, 1), True),
    ],
    ids=str,
)
def test_sequence_parallel(layout, tied, small, train_small, reference_of):
    tp, pp, dp = layout
    recipe = small(
        parallel={"tp": tp, "pp": pp, "dp": dp, "sequence_parallel": True},
        shape={"tied": tied},
        compute={"recompute": "full"},
    )
    assert_equal(train_small(recipe), reference_of(recipe))


def test_unfused_attention_and_plain_adam(small, train_small, reference_of):
    recipe = small(
        parallel={"tp": 2, "pp": 2}, compute={"attention": "unfused", "recompute": "full"}, optimizer={"name": "adam"}
    )
    assert_equal(train_small(recipe), reference_of(recipe))


def test_alibi_and_embedding_norm(small, train_small, reference_of):
    recipe = small(
        parallel={"tp": 2, "pp": 2},
        shape={"positions": "alibi", "embedding_norm": True},
        compute={"attention": "unfused", "recompute": "full"},
    )
    assert_equal(train_small(recipe), reference_of(recipe))


def test_explicit_uneven_stages(small, train_small, reference_of):
    recipe = small(parallel={"pp": 2, "stage_layers": [3, 1]}, shape={"layers": 4})
    assert_equal(train_small(recipe), reference_of(recipe))


@pytest.mark.parametrize("sequence", [False, True])
def test_recompute_draws_the_same_dropout_masks(sequence, small, train_small):
    runs = [
        train_small(
            small(
                parallel={"tp": 2, "pp": 2, "sequence_parallel": sequence},
                shape={"dropout": 0.1},
                compute={"recompute": recompute, "attention": "unfused"},
                steps=4,
            )
        )
        for recompute in ("none", "full")
    ]
    without = train_small(small(parallel={"tp": 2, "pp": 2}, steps=4, compute={"attention": "unfused"}))
    kept, recomputed, plain = ([row["loss"] for row in run.metrics()] for run in (*runs, without))
    assert recomputed == pytest.approx(kept, rel=1e-6)
    assert recomputed != pytest.approx(plain, rel=1e-4), "dropout must be at work"


@pytest.mark.parametrize(("accumulation", "tolerance"), [("fp32", 3e-3), ("bf16", 3e-2)])
def test_bf16_stays_near_fp32(accumulation, tolerance, small, train_small, reference_of):
    changes = {"parallel": {"tp": 2, "pp": 2}, "compute": {"recompute": "full"}}
    recipe = small(precision={"dtype": "bf16", "grad_accum": accumulation}, **changes)
    losses, norms = worst(train_small(recipe), reference_of(small(**changes)))
    assert 1e-7 < losses < tolerance
    assert norms < 10 * tolerance
