"""The recipe: one frozen description of a run, from which everything else is derived.

A recipe is TOML. A shipped one is loaded by name, another by path; ``extends`` names the recipe it
varies. Every field is checked when the recipe is built, so a :class:`Recipe` that exists is valid.
"""

import stat
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from repro.errors import InputError, shortened, unknown
from repro.layout import Layout, split_layers
from repro.recipe_rules import check, warnings_for

RECIPES = Path(__file__).parent / "recipes"
MOST_BYTES = 100_000
# Upper bounds lie far beyond any machine: they keep a slip of the finger from becoming an endless computation.
Count = Annotated[int, Field(ge=1, le=10**12)]
Index = Annotated[int, Field(ge=0, le=10**12)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False)


class Shape(Section):
    """The model. ``ffn`` is the inner width; ``vocab_multiple`` pads the vocabulary to a multiple of itself x tp.

    ``alibi`` positions are a bias on the attention scores (arXiv 2108.12409) instead of a learned table;
    ``embedding_norm`` puts a LayerNorm behind the embedding, as BLOOM does.
    """

    layers: Annotated[int, Field(ge=1, le=10_000)]
    hidden: Count
    heads: Count
    ffn: Count
    seq: Count
    vocab: Count
    vocab_multiple: Count = 128
    tied: bool = True
    positions: Literal["learned", "alibi"] = "learned"
    embedding_norm: bool = False
    dropout: Fraction = 0.1

    @property
    def head_dim(self):
        return self.hidden // self.heads


class Parallel(Section):
    """Sizes of the three axes; ``stage_layers`` fixes the layers of each stage where they are not balanced."""

    tp: Count = 1
    pp: Count = 1
    dp: Count = 1
    sequence_parallel: bool = False
    stage_layers: tuple[Count, ...] | None = Field(default=None, strict=False)


class Batch(Section):
    """Samples per micro-batch on one replica, and samples per step over all replicas."""

    micro: Count
    global_: Count = Field(alias="global")


class Precision(Section):
    """``grad_accum`` is the dtype in which gradients add up over micro-batches."""

    dtype: Literal["fp32", "bf16", "fp16"]
    grad_accum: Literal["fp32", "bf16", "fp16"] = Field(
        default_factory=lambda given: "fp16" if given.get("dtype") == "fp16" else "fp32"
    )
    initial_loss_scale_power: Annotated[int, Field(ge=0, le=32)] = 16


class Zero(Section):
    """ZeRO stage and the size of DeepSpeed's buckets, in elements."""

    stage: Literal[0, 1, 2, 3] = 1
    reduce_bucket: Count = 500_000_000
    allgather_bucket: Count = 500_000_000


class Compute(Section):
    """Activation recompute and the attention kernel."""

    recompute: Literal["none", "full"] = "full"
    attention: Literal["flash", "unfused"] = "flash"


class Optimizer(Section):
    """``adam`` adds weight decay to the gradient (the authors' ``adam_w_mode: false``), ``adamw`` decouples it.

    The rate warms up linearly over ``warmup_steps`` and falls by a cosine to ``min_lr`` at ``decay_steps``.
    """

    name: Literal["adam", "adamw"] = "adam"
    lr: Annotated[float, Field(gt=0)] = 6e-5
    min_lr: Annotated[float, Field(ge=0)] = 6e-6
    warmup_steps: Index = 0
    decay_steps: Count = 1000
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip: Annotated[float, Field(ge=0)] = 1.0
    init_std: Annotated[float, Field(gt=0)] = 0.006


class Data(Section):
    """``synthetic`` (seeded tokens), ``stdlib-bytes`` (real text), or ``megatron`` (.bin/.idx at ``prefix``)."""

    kind: str = "synthetic"
    prefix: str | None = None


class Source(Section):
    """Where the values of ``fields`` come from (dotted names; ``shape.*`` for a whole section)."""

    fields: tuple[str, ...] = Field(strict=False)
    source: str
    confidence: Literal["confirmed", "secondary", "derived", "unconfirmed", "ours"]


class Recipe(Section):
    """A whole run. ``steps`` optimizer steps, of which the first ``timing_warmup`` stay out of mean timings."""

    name: str
    title: str = ""
    shape: Shape
    parallel: Parallel = Parallel()
    batch: Batch
    precision: Precision
    zero: Zero = Zero()
    compute: Compute = Compute()
    optimizer: Optimizer = Optimizer()
    data: Data = Data()
    steps: Count = 20
    timing_warmup: Index = 2
    seed: Index = 1234
    sources: tuple[Source, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _consistent(self):
        check(self)
        return self

    @cached_property
    def layout(self):
        return Layout(self.parallel.pp, self.parallel.dp, self.parallel.tp)

    @property
    def world_size(self):
        return self.layout.world_size

    @property
    def accumulation(self):
        """Micro-batches per step on each replica (``m``)."""
        return self.batch.global_ // (self.batch.micro * self.parallel.dp)

    @property
    def padded_vocab(self):
        """Vocabulary rounded up to a multiple of ``vocab_multiple`` x tp."""
        unit = self.shape.vocab_multiple * self.parallel.tp
        return -(-self.shape.vocab // unit) * unit

    @cached_property
    def stage_layers(self):
        """Transformer layers on each stage."""
        return split_layers(self.shape.layers, self.parallel.pp, self.parallel.stage_layers)

    @property
    def warnings(self):
        """What is legal but probably not meant, one line each."""
        return warnings_for(self)

    def source_of(self, field):
        """The :class:`Source` of a dotted field, or ``None``: the last entry that names it wins."""
        section = field.split(".")[0] + ".*"
        found = [s for s in self.sources if field in s.fields or section in s.fields]
        return found[-1] if found else None

    def to_dict(self):
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")

    def to_toml(self):
        """The complete recipe as TOML; :func:`from_toml` gives the same recipe back."""
        import tomli_w

        return tomli_w.dumps(self.to_dict())


def names():
    """Names of the shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load(name, overrides=None):
    """The recipe of a shipped name or a TOML path, with dotted fields overridden.

    Raises:
        InputError: unknown name or field, a value of the wrong type, an inconsistent whole.
    """
    if isinstance(name, Recipe):
        return build(_override(name.to_dict(), overrides or {}))
    return build(_override(_read(name), overrides or {}))


def build(data):
    """A recipe from nested dictionaries; pydantic's complaint becomes one line."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise _one_line(error) from None


def from_toml(text):
    """A recipe from TOML text."""
    return build(_parse(text, "recipe"))


def parse_assignment(text):
    """``batch.global=16`` -> ``("batch.global", 16)``; the value is read as TOML, else as a string."""
    import tomllib

    field, sep, value = text.partition("=")
    if not sep or not field.strip():
        raise InputError(f"--set {text!r} is not FIELD=VALUE, e.g. --set batch.global=16")
    try:
        found = tomllib.loads(f"value = {value.strip()}")
    except (ValueError, RecursionError):
        found = {}
    # more than one key: the text had a second line, of which nothing may be lost in silence
    return field.strip(), found["value"] if len(found) == 1 else value.strip()


def _read(name, seen=()):
    path = _path(name)
    if path in seen:
        raise InputError(f"recipe {name} extends itself through {' -> '.join(p.stem for p in (*seen, path))}")
    try:
        if stat.S_ISFIFO(path.stat().st_mode) or path.stat().st_size > MOST_BYTES:
            raise ValueError(f"a recipe is a plain file of at most {MOST_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read recipe {name}: {getattr(error, 'strerror', None) or error}") from None
    data = _parse(text, name)
    if "extends" not in data:
        return data
    parent = data.pop("extends")
    if not isinstance(parent, str):
        raise InputError(f"recipe field extends = {shortened(parent)}: input should be a name or a path of a recipe")
    if parent.endswith(".toml"):
        parent = path.parent / parent
    return _merge(_read(parent, (*seen, path)), _as_variant(data, path.stem))


def _as_variant(data, stem):
    """A variant has a name of its own, and its parent's sources do not speak for what it changes."""
    changed = [f"{k}.{leaf}" for k, v in data.items() if isinstance(v, dict) for leaf in v]
    changed += [k for k, v in data.items() if not isinstance(v, dict) and k not in ("name", "title", "sources")]
    data = {"name": stem, "title": f"variant {stem}", **data}
    own = data.get("sources", [])
    if changed and isinstance(own, list):
        note = {"fields": changed, "source": f"set in {stem}.toml, which names no source", "confidence": "ours"}
        data["sources"] = [note, *own]
    return data


def _path(name):
    path = Path(name)
    if path.suffix == ".toml":
        try:
            return path.resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(f"cannot read recipe {name}: {error}") from None
    if str(name) not in names():
        raise unknown("recipe", name, names())
    return RECIPES / f"{name}.toml"


def _parse(text, name):
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not valid TOML: {error}") from None


def _merge(base, top):
    merged = dict(base)
    for key, value in top.items():
        if key == "sources" and isinstance(value, list) and isinstance(base.get(key), list):
            merged[key] = [*base[key], *value]
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = _merge(base[key], value)
        else:
            merged[key] = value
    return merged


def _override(data, overrides):
    for field, value in overrides.items():
        _set(data, field, value)
    if overrides and isinstance(data.get("sources", []), list):
        note = {"fields": sorted(overrides), "source": "override by the user", "confidence": "ours"}
        data["sources"] = [*data.get("sources", []), note]
    return data


def _set(data, field, value):
    known = fields()
    if field not in known:
        raise unknown("recipe field", field, known)
    *sections, leaf = field.split(".")
    for section in sections:
        inside = data.get(section, {})
        if not isinstance(inside, dict):
            return  # not a table: building the recipe says so
        data[section] = data = dict(inside)
    data[leaf] = value


def fields():
    """Every dotted field that an override may name."""
    found = []
    for name, info in Recipe.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            found += [f"{name}.{sub.alias or key}" for key, sub in info.annotation.model_fields.items()]
        elif name != "sources":
            found.append(name)
    return found


def _one_line(error):
    problem = error.errors()[0]
    if "ctx" in problem and isinstance(problem["ctx"].get("error"), InputError):
        return problem["ctx"]["error"]
    where = ".".join(str(part) for part in problem["loc"])
    if where == "extends":
        return InputError("recipe field extends works in a recipe file only; give the complete recipe here")
    if problem["type"] == "extra_forbidden":
        return unknown("recipe field", where, [*fields(), *Recipe.model_fields, "extends"])
    if problem["type"] == "missing":
        return InputError(f"recipe field {where} is missing")
    return InputError(
        f"recipe field {where} = {shortened(problem['input'])}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
    )
