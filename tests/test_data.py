"""Which tokens a step trains on: the same for every layout, the same after a resume."""

import ast
import math
import os
import shutil
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.engine.corpus import TEXT_BYTES, Text
from repro.engine.data import batches, dataset, permuted
from repro.errors import InputError
from repro.recipe import load

has_megatron = pytest.mark.skipif(find_spec("megatron") is None, reason="the extra 'megatron' is not installed")


def recipe(kind="stdlib-bytes", **overrides):
    return load("tiny", {"data.kind": kind, **{key.replace("__", "."): value for key, value in overrides.items()}})


def step(recipe, number):
    """All samples of one step, in order, as the replicas together see them: tokens and labels [global, seq]."""
    data = dataset(recipe)
    pairs = []
    for replica in range(recipe.parallel.dp):
        pairs += islice(batches(recipe, replica, number, data), recipe.accumulation)
    return torch.cat([tokens for tokens, _ in pairs]), torch.cat([labels for _, labels in pairs])


@pytest.mark.parametrize("kind", ["synthetic", "stdlib-bytes"])
@settings(max_examples=20, deadline=None)
@given(dp=st.sampled_from([1, 2, 3, 4]), micro=st.integers(1, 3), m=st.integers(1, 4), number=st.integers(0, 10**6))
def test_every_layout_processes_the_same_samples(kind, dp, micro, m, number):
    size = dp * micro * m
    r = recipe(kind, parallel__dp=dp, parallel__pp=1, parallel__tp=1, batch__micro=micro, batch__global=size)
    one = load(r, {"parallel.dp": 1, "batch.micro": 1})
    tokens, labels = step(r, number)
    expected = torch.stack([dataset(r).sample(number * size + i) for i in range(size)])
    assert tokens.dtype == labels.dtype == torch.int64
    assert torch.equal(tokens, expected[:, :-1]) and torch.equal(labels, expected[:, 1:])
    assert torch.equal(tokens, step(one, number)[0])


def test_micro_batches_have_the_shape_of_the_recipe_and_labels_are_the_next_tokens():
    r = recipe("stdlib-bytes")
    tokens, labels = next(batches(r, 0))
    assert tokens.shape == labels.shape == (r.batch.micro, r.shape.seq)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert tokens.is_contiguous() and labels.is_contiguous()


@pytest.mark.parametrize("kind", ["synthetic", "stdlib-bytes"])
def test_resumed_iterator_equals_the_uninterrupted_one(kind):
    r = recipe(kind)
    whole = list(islice(batches(r, 0), 5 * r.accumulation))
    resumed = list(islice(batches(r, 0, first_step=3), 2 * r.accumulation))
    for (a, b), (c, d) in zip(whole[3 * r.accumulation :], resumed, strict=True):
        assert torch.equal(a, c) and torch.equal(b, d)


@pytest.mark.parametrize("kind", ["synthetic", "stdlib-bytes"])
def test_the_seed_changes_the_order_and_nothing_else_does(kind):
    first, second = recipe(kind, seed=1), recipe(kind, seed=2)
    assert not torch.equal(step(first, 0)[0], step(second, 0)[0])
    assert torch.equal(step(first, 0)[0], step(load(first, {"optimizer.lr": 1e-3, "steps": 7}), 0)[0])


def test_synthetic_tokens_fill_the_vocabulary_evenly():
    r = recipe("synthetic", shape__vocab=8, shape__seq=4096)
    tokens = torch.cat([dataset(r).sample(i) for i in range(20)])
    counts = torch.bincount(tokens, minlength=8).double()
    assert tokens.min() == 0 and tokens.max() == 7
    assert ((counts - counts.mean()).abs() < 5 * math.sqrt(len(tokens) / 8)).all()


def test_real_text_is_python_source():
    text = Text.of_stdlib().text
    assert TEXT_BYTES <= len(text) < TEXT_BYTES + 1_000_000
    source = Path(ast.__file__).read_bytes()
    assert source in text
    assert ast.parse(source)
    assert "import " in text.decode("utf-8", errors="strict")


def test_a_window_is_a_piece_of_the_text():
    data = dataset(recipe("stdlib-bytes"))
    start = data.window(5) * data.seq
    assert bytes(data.sample(5).tolist()) == data.tokens.text[start : start + data.seq + 1]


@pytest.mark.parametrize("kind", ["synthetic", "stdlib-bytes"])
def test_the_fingerprint_is_stable(kind):
    first, again = dataset(recipe(kind)).describe(), dataset(recipe(kind)).describe()
    assert first == again
    assert len(first["sha256"]) == 64 and first["kind"] == kind


def test_the_fingerprint_of_synthetic_data_tells_seeds_apart():
    assert dataset(recipe("synthetic", seed=1)).describe() != dataset(recipe("synthetic", seed=2)).describe()


@pytest.mark.parametrize("seq", [4096, 50_000])
def test_each_epoch_takes_every_window_once_in_a_new_order(seq):
    data = dataset(recipe("stdlib-bytes", shape__seq=seq))
    epochs = [[data.window(e * data.count + i) for i in range(data.count)] for e in range(3)]
    assert all(sorted(epoch) == list(range(data.count)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 300), key=st.text(max_size=5))
def test_permuted_is_a_permutation(size, key):
    assert sorted(permuted(i, size, key) for i in range(size)) == list(range(size))


def test_permuted_spreads_neighbours():
    """A moved window says nothing about where the next one goes: steps between them look uniform."""
    size = 10_000
    order = torch.tensor([permuted(i, size, "1234 0") for i in range(size)], dtype=torch.float64)
    assert abs(torch.corrcoef(torch.stack([order[:-1], order[1:]]))[0, 1]) < 0.05
    assert abs(torch.corrcoef(torch.stack([order, torch.arange(size, dtype=torch.float64)]))[0, 1]) < 0.05


def test_too_little_text_for_one_sample_is_an_input_error():
    with pytest.raises(InputError, match=r"too short for one sample of shape.seq 10000000; the most is seq \d+"):
        dataset(recipe("stdlib-bytes", shape__seq=10_000_000))


@pytest.mark.parametrize(("replica", "first"), [(-1, 0), (8, 0), (0, -1)])
def test_a_position_outside_the_run_is_refused_at_once(replica, first):
    with pytest.raises(InputError):
        batches(recipe("synthetic"), replica, first)


@pytest.mark.parametrize("missing", [".bin", ".idx"])
def test_a_missing_megatron_file_is_named(tmp_path, missing):
    for ending in {".bin", ".idx"} - {missing}:
        (tmp_path / f"x{ending}").write_bytes(b"12345678")
    with pytest.raises(InputError, match=rf"x\{missing} does not exist$"):
        dataset(recipe("megatron", data__prefix=str(tmp_path / "x")))


def test_a_prefix_with_its_ending_gets_a_hint(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"12345678")
    with pytest.raises(InputError, match="leave the ending out"):
        dataset(recipe("megatron", data__prefix=str(tmp_path / "x.bin")))


def test_without_megatron_core_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "megatron", None)
    for ending in (".bin", ".idx"):
        (tmp_path / f"x{ending}").write_bytes(b"12345678")
    with pytest.raises(InputError, match=r"frontier-llm-repro\[megatron\]"):
        dataset(recipe("megatron", data__prefix=str(tmp_path / "x")))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Five documents of 500, 0, 700, 33 and 1 tokens below 200, written by the library: prefix and tokens."""
    import numpy as np

    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="the extra 'megatron'")
    prefix = tmp_path_factory.mktemp("corpus") / "x"
    builder = indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    documents = [torch.arange(length) * 7 % 200 for length in (500, 0, 700, 33, 1)]
    for document in documents:
        builder.add_document(document, [len(document)])
    builder.finalize(f"{prefix}.idx")
    return prefix, torch.cat(documents)


@has_megatron
def test_megatron_documents_are_one_stream(corpus):
    prefix, tokens = corpus
    data = dataset(recipe("megatron", data__prefix=str(prefix), shape__seq=64))
    assert data.count == 19
    for i in range(data.count):
        start = data.window(i) * 64
        assert torch.equal(data.sample(i), tokens[start : start + 65])
    about = data.describe()
    assert (about["tokens"], about["documents"], about["windows"]) == (1234, 5, 19)
    assert about == dataset(recipe("megatron", data__prefix=str(prefix), shape__seq=64)).describe()


@has_megatron
def test_a_token_outside_the_vocabulary_is_named(corpus):
    data = dataset(recipe("megatron", data__prefix=str(corpus[0]), shape__vocab=150))
    with pytest.raises(InputError, match=r"token 199, outside shape.vocab 150; .* at least 200"):
        for i in range(data.count):
            data.sample(i)


@has_megatron
@pytest.mark.parametrize("ending", [".bin", ".idx"])
@pytest.mark.parametrize("kept", [0, 5, 20, 33, 50, -1])
def test_a_truncated_megatron_file_is_one_line_and_no_traceback(corpus, tmp_path, ending, kept, capfd):
    for e in (".bin", ".idx"):
        shutil.copy(f"{corpus[0]}{e}", tmp_path / f"x{e}")
    path = tmp_path / f"x{ending}"
    os.truncate(path, kept if kept >= 0 else path.stat().st_size + kept)
    with pytest.raises(InputError) as caught:
        dataset(recipe("megatron", data__prefix=str(tmp_path / "x")))
    assert "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err
