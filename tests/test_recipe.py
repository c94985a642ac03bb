"""Recipes: what is shipped is complete and sourced, and every fault of input is one line with a way out."""

import math
import os
import subprocess
import sys
import time

import pytest

from repro import recipe as recipes
from repro.errors import InputError
from repro.recipe import build, fields, from_toml, load, names, parse_assignment
from repro.recipe_rules import nearest_divisor, nearest_multiples

LABELS = {"name", "title"}
PAPER = [name for name in names() if not name.startswith(("tiny", "lumi"))]


def leaves(data, prefix=""):
    for key, value in data.items():
        if key == "sources":
            continue
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def written(name):
    import tomllib

    return tomllib.loads((recipes.RECIPES / f"{name}.toml").read_text(encoding="utf-8"))


def minimal(**sections):
    base = {
        "name": "m",
        "shape": {"layers": 4, "hidden": 64, "heads": 4, "ffn": 256, "seq": 64, "vocab": 256},
        "batch": {"micro": 1, "global": 8},
        "precision": {"dtype": "fp32", "grad_accum": "fp32"},
    }
    for key, value in sections.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return base


def refused(function, *args):
    with pytest.raises(InputError) as caught:
        function(*args)
    message = str(caught.value)
    assert "\n" not in message, message
    return message


# What is shipped


def test_the_main_recipes_are_shipped():
    assert {"tiny", "tiny-3d", "1.4b", "22b", "175b", "1t"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_shipped_recipe_loads_under_its_own_name(name):
    assert load(name).name == name
    assert load(name).title


@pytest.mark.parametrize("name", names())
def test_every_field_in_force_has_a_source(name):
    recipe = load(name)
    bare = [field for field in leaves(recipe.to_dict()) if field not in LABELS and not recipe.source_of(field)]
    assert bare == []


@pytest.mark.parametrize("name", names())
def test_every_field_that_a_file_sets_has_a_source_in_that_file(name):
    data = written(name)
    sourced = {field for source in data["sources"] for field in source["fields"]}
    bare = [
        f for f in leaves(data) if f not in LABELS | {"extends"} | sourced and f.split(".")[0] + ".*" not in sourced
    ]
    assert bare == []


@pytest.mark.parametrize("name", names())
def test_sources_name_fields_that_exist(name):
    sections = {field.split(".")[0] + ".*" for field in fields() if "." in field}
    named = {field for source in load(name).sources for field in source.fields}
    assert named <= {*fields(), *sections}


@pytest.mark.parametrize("name", names())
def test_shipped_recipes_rest_on_no_default(name):
    data = recipes._read(name)
    data.pop("sources")
    assert set(leaves(data)) == set(leaves(load(name).to_dict()))


@pytest.mark.parametrize(
    ("name", "tp", "pp", "dp", "micro", "batch", "heads"),
    [
        ("22b", 1, 8, 2, 1, 640, 48),
        ("175b", 4, 16, 2, 1, 640, 96),
        ("1t", 8, 64, 6, 1, 9600, 128),
        ("1t-2024-01", 4, 128, 2, 1, 1024, 200),
        ("175b-log", 4, 16, 2, 1, 1280, 96),
    ],
)
def test_main_layouts(name, tp, pp, dp, micro, batch, heads):
    r = load(name)
    got = (r.parallel.tp, r.parallel.pp, r.parallel.dp, r.batch.micro, r.batch.global_, r.shape.heads)
    assert got == (tp, pp, dp, micro, batch, heads)


def test_1t_batch_and_layout_are_not_sold_as_confirmed():
    recipe = load("1t")
    for field in ("batch.global", "parallel.tp", "parallel.pp"):
        assert recipe.source_of(field).confidence == "unconfirmed"


@pytest.mark.parametrize("name", PAPER)
def test_paper_recipes_share_the_authors_optimizer(name):
    o = load(name).optimizer
    assert (o.lr, o.min_lr, o.beta1, o.beta2, o.weight_decay, o.init_std) == (6e-5, 6e-6, 0.9, 0.95, 0.1, 0.006)


def test_the_log_processed_a_quarter_of_what_it_counted():
    asked, executed = load("175b-log"), load("175b-log-executed")
    json_micro = 4
    accumulation = asked.batch.global_ // (json_micro * asked.parallel.dp)
    assert executed.accumulation == accumulation == 160
    assert executed.batch.global_ * 4 == asked.batch.global_


def test_tiny_3d_is_tiny_on_another_layout():
    one, other = load("tiny").to_dict(), load("tiny-3d").to_dict()
    for data in (one, other):
        for key in ("name", "title", "parallel", "sources"):
            data.pop(key)
    assert one == other


def test_the_believed_1_4b_shape_cannot_be_built():
    message = refused(load, "1.4b", {"shape.hidden": 2114})
    assert "2114" in message
    assert "hidden 2112 or 2136" in message


# Round trip and derived values


@pytest.mark.parametrize("name", names())
def test_toml_round_trip(name):
    recipe = load(name)
    assert from_toml(recipe.to_toml()) == recipe


def test_round_trip_keeps_uneven_stages():
    recipe = load("tiny-3d", {"parallel.stage_layers": [1, 3]})
    assert from_toml(recipe.to_toml()).stage_layers == (1, 3)


@pytest.mark.parametrize(("tp", "padded"), [(1, 50304), (2, 50432), (4, 50688), (8, 51200)])
def test_padded_vocabulary(tp, padded):
    assert load("175b", {"parallel.tp": tp}).padded_vocab == padded


def test_a_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load("tiny").batch.micro = 2


def test_overrides_are_recorded_as_our_own_choice():
    recipe = load("175b", {"batch.global": 1280})
    assert recipe.batch.global_ == 1280
    assert recipe.source_of("batch.global").confidence == "ours"
    assert load(recipe, {"batch.global": 640}).batch.global_ == 640


def test_an_override_leaves_the_recipe_that_it_starts_from_alone():
    recipe = load("tiny")
    load(recipe, {"batch.global": 32})
    assert recipe.batch.global_ == 16


@pytest.mark.parametrize(("dtype", "accumulation"), [("fp32", "fp32"), ("bf16", "fp32"), ("fp16", "fp16")])
def test_a_missing_accumulation_dtype_is_filled_in_and_said(dtype, accumulation):
    data = minimal()
    data["precision"] = {"dtype": dtype}
    recipe = build(data)
    assert recipe.precision.grad_accum == accumulation
    assert any("grad_accum was not given" in line for line in recipe.warnings)
    assert from_toml(recipe.to_toml()).precision.grad_accum == accumulation


def test_extends_takes_a_path_beside_the_file(tmp_path):
    (tmp_path / "base.toml").write_text(load("tiny").to_toml())
    (tmp_path / "child.toml").write_text('extends = "base.toml"\nname = "child"\n[batch]\nglobal = 32\n')
    child = load(tmp_path / "child.toml")
    assert (child.name, child.batch.global_, child.shape) == ("child", 32, load("tiny").shape)


# Faults of input: (overrides of a minimal recipe, words that the message must hold)

RULES = {
    "heads do not divide hidden": ({"shape": {"hidden": 66}}, ["66", "heads 3", "hidden 64 or 68"]),
    "alibi in the flash kernel": ({"shape": {"positions": "alibi"}}, ["alibi", "compute.attention unfused"]),
    "tp does not divide heads": ({"parallel": {"tp": 3}}, ["heads 4", "tp 3", "nearest valid: parallel.tp 2"]),
    "tp does not divide ffn": ({"shape": {"ffn": 255}, "parallel": {"tp": 2}}, ["ffn 255", "parallel.tp 1"]),
    "tp far above heads": ({"parallel": {"tp": 10**12}}, ["nearest valid: parallel.tp 4"]),
    "sequence does not split": (
        {"shape": {"seq": 63}, "parallel": {"tp": 2, "sequence_parallel": True}},
        ["seq 63", "seq 62 or 64"],
    ),
    "sequence parallel alone": ({"parallel": {"sequence_parallel": True}}, ["tp to 2"]),
    "more stages than layers": ({"parallel": {"pp": 5}}, ["5 pipeline stages", "pp = 4"]),
    "stage layers do not add up": (
        {"parallel": {"pp": 2, "stage_layers": [1, 2]}},
        ["[1, 2]", "sum 4", "balanced would be [2, 2]"],
    ),
    "too many stage layers": ({"parallel": {"stage_layers": [3, 1]}}, ["1 positive numbers", "[4]"]),
    "batch does not divide": (
        {"batch": {"micro": 2, "global": 256}, "parallel": {"dp": 7}},
        ["256", "micro 2", "dp 7", "252 or 266"],
    ),
    "batch under one micro-batch": ({"batch": {"global": 3}, "parallel": {"dp": 4}}, ["batch.global 4"]),
    "batch uneven and too small": (
        {"batch": {"global": 7}, "parallel": {"dp": 3, "pp": 4}},
        ["nearest valid: batch.global 12"],
    ),
    "fewer micro-batches than stages": (
        {"batch": {"global": 1}, "parallel": {"pp": 4}},
        ["1 micro-batches", "nearest valid: batch.global 4"],
    ),
    "zero 2 with pipeline": ({"zero": {"stage": 2}, "parallel": {"pp": 2}}, ["zero.stage 1, or parallel.pp 1"]),
    "zero 3": ({"zero": {"stage": 3}}, ["zero.stage 3", "nearest valid: zero.stage 1"]),
    "zero 0 in fp16": (
        {"zero": {"stage": 0}, "precision": {"dtype": "fp16", "grad_accum": "fp16"}},
        ["fp16", "nearest valid: zero.stage 1"],
    ),
    "zero 0 in bf16": ({"zero": {"stage": 0}, "precision": {"dtype": "bf16"}}, ["bf16", "zero.stage 1"]),
    "fp16 adding up in fp32": ({"precision": {"dtype": "fp16", "grad_accum": "fp32"}}, ["nearest valid: fp16"]),
    "fp32 adding up in bf16": ({"precision": {"grad_accum": "bf16"}}, ["nearest valid: fp32"]),
    "bf16 adding up in fp16": ({"precision": {"dtype": "bf16", "grad_accum": "fp16"}}, ["nearest valid: fp32"]),
    "unknown dataset": ({"data": {"kind": "stdlib-byte"}}, ["did you mean 'stdlib-bytes'?"]),
    "megatron without prefix": ({"data": {"kind": "megatron"}}, ["needs data.prefix"]),
    "prefix without megatron": ({"data": {"prefix": "a/b"}}, ["a/b", "leave it out"]),
    "bytes need 256 tokens": ({"data": {"kind": "stdlib-bytes"}, "shape": {"vocab": 255}}, ["255", "valid: 256"]),
    "min_lr above lr": ({"optimizer": {"lr": 1e-3, "min_lr": 1e-2}}, ["0.01", "the most is 0.001"]),
    "a name with folders in it": ({"name": "../../x"}, ["name = '../../x'", "e.g. my-22b"]),
    "a name with a line end": ({"name": "a\nb"}, ["it names folders"]),
    "no name": ({"name": ""}, ["name = ''", "it names folders"]),
    "a name too long for a folder": ({"name": "x" * 10**6}, ["…", "at most 50"]),
    "a split as long as a book": ({"parallel": {"stage_layers": [1] * 10**5}}, ["…", "balanced would be [4]"]),
    "warmup covers the decay": ({"optimizer": {"warmup_steps": 10, "decay_steps": 10}}, ["the most is 9"]),
}

TYPES = {
    "unknown key at top": ({"stpes": 3}, ["stpes", "did you mean 'steps'?"]),
    "unknown section": ({"shap": {"layers": 1}}, ["'shap'", "did you mean 'shape"]),
    "unknown key in a section": ({"batch": {"globel": 3}}, ["batch.globel", "did you mean 'batch.global'?"]),
    "a section that is a number": ({"zero": 1}, ["zero = 1"]),
    "text for a number": ({"batch": {"global": "8"}}, ["batch.global = '8'", "integer"]),
    "a float for a count": ({"batch": {"global": 8.0}}, ["batch.global = 8.0", "integer"]),
    "a flag for a count": ({"parallel": {"tp": True}}, ["parallel.tp = True", "integer"]),
    "a number for a flag": ({"shape": {"tied": 1}}, ["shape.tied = 1", "boolean"]),
    "NaN": ({"optimizer": {"lr": math.nan}}, ["optimizer.lr = nan", "finite"]),
    "infinity": ({"optimizer": {"clip": math.inf}}, ["optimizer.clip = inf", "finite"]),
    "negative": ({"optimizer": {"weight_decay": -0.1}}, ["-0.1", "greater than or equal to 0"]),
    "zero count": ({"parallel": {"dp": 0}}, ["parallel.dp = 0", "greater than or equal to 1"]),
    "a count that nobody means": ({"shape": {"hidden": 10**30}}, ["shape.hidden", "equal to 1000000000000"]),
    "layers that nobody means": ({"shape": {"layers": 10**9}}, ["shape.layers", "equal to 10000"]),
    "a number too long to read": ({"seed": 10**4000}, ["seed", "…", "less than or equal"]),
    "dropout of 1": ({"shape": {"dropout": 1.0}}, ["shape.dropout", "less than 1"]),
    "unknown dtype": ({"precision": {"dtype": "fp8"}}, ["fp8", "'fp32', 'bf16' or 'fp16'"]),
    "unknown optimizer": ({"optimizer": {"name": "sgd"}}, ["sgd", "'adam' or 'adamw'"]),
    "unknown confidence": (
        {"sources": [{"fields": ["steps"], "source": "s", "confidence": "sure"}]},
        ["sources.0.confidence", "'confirmed'"],
    ),
    "sources that are no list": ({"sources": 3}, ["sources = 3"]),
    "loss scale out of range": ({"precision": {"initial_loss_scale_power": 33}}, ["33", "less than or equal to 32"]),
    "extends outside a file": ({"extends": "tiny"}, ["extends works in a recipe file only"]),
}


@pytest.mark.parametrize("case", [*RULES, *TYPES])
def test_fault_is_one_line_with_a_way_out(case):
    sections, words = {**RULES, **TYPES}[case]
    message = refused(build, minimal(**sections))
    missing = [word for word in words if word not in message]
    assert not missing, message
    assert len(message) < 600


def test_the_minimal_recipe_itself_is_valid():
    assert build(minimal()).accumulation == 8


@pytest.mark.parametrize(
    ("section", "field"), [("shape", "layers"), ("batch", "global"), ("precision", "dtype"), (None, "name")]
)
def test_missing_field(section, field):
    data = minimal()
    del (data[section] if section else data)[field]
    path = f"{section}.{field}" if section else field
    assert refused(build, data) == f"recipe field {path} is missing"


def test_missing_section():
    data = minimal()
    del data["batch"]
    assert refused(build, data) == "recipe field batch is missing"


# Files and names


def test_unknown_recipe_names_the_nearest():
    assert "did you mean '175b'?" in refused(load, "175B")
    assert "did you mean 'tiny'?" in refused(load, "TINY")
    assert "known: " in refused(load, "zzzzzz")


@pytest.mark.parametrize("name", ["recipes/175b", "", "../175b", "missing.toml", "a\0b.toml", "a\0b"])
def test_names_and_paths_that_lead_nowhere(name):
    refused(load, name)


def test_unreadable_files(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    assert "cannot read recipe" in refused(load, tmp_path / "folder.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "cannot read recipe" in refused(load, tmp_path / "binary.toml")


@pytest.mark.parametrize("text", ["name = ", "a = 1\na = 2", "[shape\n", "n = " + "9" * 5000])
def test_invalid_toml(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert "is not valid TOML" in refused(load, path)
    assert "is not valid TOML" in refused(from_toml, text)


def test_a_file_that_is_no_recipe_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "big.toml").write_text("#" * 10**7)
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("big.toml", "pipe.toml"):
        assert "plain file of at most 100,000 bytes" in refused(load, tmp_path / name)
    (tmp_path / "deep.toml").write_text("a = " + "[" * 50_000)
    assert "is not valid TOML" in refused(load, tmp_path / "deep.toml")


def test_a_byte_order_mark_is_no_fault(tmp_path):
    (tmp_path / "windows.toml").write_text('\ufeffextends = "tiny"\r\n', encoding="utf-8")
    assert load(tmp_path / "windows.toml").shape == load("tiny").shape


def test_extends_loops(tmp_path):
    for name, parent in (("a", "b"), ("b", f"../{tmp_path.name}/c"), ("c", "a"), ("self", "self")):
        (tmp_path / f"{name}.toml").write_text(f'extends = "{parent}.toml"\n')
    assert "a -> b -> c -> a" in refused(load, tmp_path / "a.toml")
    assert "self -> self" in refused(load, tmp_path / "self.toml")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("extends = 5", "extends = 5"),
        ('extends = "175bb"', "did you mean '175b'?"),
        ('extends = "gone.toml"', "cannot read recipe"),
        ('extends = "tiny"\nsources = 3', "sources"),
        ('extends = "tiny"\nshape = 3', "shape = 3"),
    ],
)
def test_bad_children(tmp_path, text, word):
    path = tmp_path / "child.toml"
    path.write_text(text)
    assert word in refused(load, path)


@pytest.mark.parametrize("text", ["batch = 3", "sources = 3"])
def test_overrides_of_a_malformed_file(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    refused(load, path, {"batch.global": 8})


# --set


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch.global=16", ("batch.global", 16)),
        (" optimizer.lr = 1e-3 ", ("optimizer.lr", 1e-3)),
        ("shape.tied=false", ("shape.tied", False)),
        ("precision.dtype=fp16", ("precision.dtype", "fp16")),
        ('precision.dtype="fp16"', ("precision.dtype", "fp16")),
        ("parallel.stage_layers=[1, 3]", ("parallel.stage_layers", [1, 3])),
        ("data.prefix=/data/a=b", ("data.prefix", "/data/a=b")),
        ("data.prefix=", ("data.prefix", "")),
        ("steps=5\nseed=6", ("steps", "5\nseed=6")),
    ],
)
def test_set_is_read_as_toml_else_as_text(text, expected):
    field, value = parse_assignment(text)
    assert (field, value) == expected
    assert type(value) is type(expected[1])


@pytest.mark.parametrize("text", ["batch.global", "", "=3", "  =3"])
def test_set_without_a_field_or_value(text):
    assert "is not FIELD=VALUE" in refused(parse_assignment, text)


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("batch.globel", "batch.global"),
        ("gbs", "known"),
        ("shape", "shape"),
        ("sources", "unknown"),
        ("extends", "known"),
    ],
)
def test_set_of_an_unknown_field(field, word):
    assert word in refused(load, "tiny", {field: 1})


# Helpers and imports


@pytest.mark.parametrize(
    ("value", "number", "nearest"), [(3, 4, 2), (5, 12, 4), (24, 2114, 14), (7, 7, 7), (100, 8, 8), (1, 9, 1)]
)
def test_nearest_divisor(value, number, nearest):
    distances = {d: abs(d - min(value, number)) for d in range(1, number + 1) if number % d == 0}
    assert nearest_divisor(value, number) == nearest
    assert distances[nearest] == min(distances.values())


def test_the_nearest_divisor_of_a_large_prime_is_found_at_once():
    started = time.monotonic()
    assert nearest_divisor(10**9, 999_999_999_989) == 1
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("value", "unit", "least", "text"),
    [(256, 14, 1, "252 or 266"), (3, 4, 1, "4"), (7, 3, 12, "12"), (13, 3, 12, "12 or 15")],
)
def test_nearest_multiples(value, unit, least, text):
    assert nearest_multiples(value, unit, least) == text


def test_describing_a_run_needs_neither_torch_nor_deepspeed():
    code = (
        "import sys, repro.recipe, repro.flops, repro.layout, repro.report.recipes_table as table; table.rows(); "
        "print(sorted({'torch', 'deepspeed', 'numpy', 'pandas', 'wandb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_variant_has_its_own_name_and_is_not_credited_to_its_parents_sources(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "175b"\nsteps = 5\n[parallel]\ntp = 8\n')
    recipe = load(path)
    assert recipe.name == "mine"
    assert recipe.title == "variant mine"
    for field in ("parallel.tp", "steps"):
        assert recipe.source_of(field).source == "set in mine.toml, which names no source"
        assert recipe.source_of(field).confidence == "ours"
    assert recipe.source_of("parallel.pp") == load("175b").source_of("parallel.pp")
