"""The models themselves: shapes, parameters counted in every way that a log may mean, bytes per parameter."""

from pathlib import Path

from repro import parameters
from repro.errors import InputError
from repro.records.table import Row, Table, read
from repro.report.grid import Grid
from repro.report.recipes_table import decimal_count, least_confidence

PUBLISHED = Path(__file__).parents[1] / "records" / "published" / "models.csv"
SCALES = ("paper", "tiny")
FEW = 4  # stages at scale tiny
UNITS = {"GB": 10**9, "TB": 10**12}
# What a reading of "bytes per parameter" counts, and what it leaves out of mixed-precision Adam.
READINGS = (
    (
        14,
        "weight 2 + gradient 4 + fp32 weight 4 + momentum 4",
        "Adam's variance, 4",
        "a reader of the paper; secondary",
    ),
    (
        14,
        "weight 2 + fp32 weight 4 + momentum 4 + variance 4",
        "gradient, 2 or 4",
        "authors' code, checkpoints; secondary",
    ),
    (16, "weight 2 + gradient 2 + fp32 weight 4 + momentum 4 + variance 4", "no state", "ZeRO, arXiv 1910.02054"),
    (18, "as 16, gradient in fp32", "no state", "derived"),
    (24, "no sum was found", "unknown", "the paper's introduction; confirmed"),
)


def chosen(recipes, scale="paper"):
    """The recipes of these names, smallest model first; at scale ``tiny`` their small relatives.

    Raises:
        InputError: no recipe, one twice, or one that does not exist.
    """
    from repro.recipe import load

    found = [load(name) for name in recipes]
    if not found or len({r.name for r in found}) < len(found):
        raise InputError(f'recipes = {recipes!r}: give at least one, none of them twice, e.g. ["22b", "175b"]')
    found.sort(key=parameters.unpadded_count)
    return [reduced(recipe) for recipe in found] if scale == "tiny" else found


def reduced(recipe):
    """A recipe of the same width with one layer a stage, at most 4 stages and 8 micro-batches: quick to trace."""
    from repro.recipe import load

    stages, dp = min(recipe.parallel.pp, FEW), recipe.parallel.dp
    changes = {"parallel.pp": stages, "shape.layers": stages, "parallel.stage_layers": []}
    return load(recipe, {**changes, "batch.global": 8 * recipe.batch.micro * dp, "name": f"{recipe.name[:42]} reduced"})


def shapes(models):
    """Shape, layout and the weakest evidence of each model."""
    columns = ("model", "layers", "hidden", "heads", "seq", "vocabulary", "tp x pp x dp", "ranks", "micro", "global")
    rows = (
        (r.name, r.shape.layers, r.shape.hidden, r.shape.heads, r.shape.seq, r.padded_vocab,
         f"{r.parallel.tp} x {r.parallel.pp} x {r.parallel.dp}", r.world_size, r.batch.micro, r.batch.global_,
         least_confidence(r))
        for r in models
    )  # fmt: skip
    return Grid((*columns, "weakest evidence"), tuple(rows))


def table(models):
    """Parameter counts in closed form and what was published of them: exhibits ``parameters`` and ``bytes``."""
    rows = []
    for model in models:
        for metric, value in _counts(model).items():
            rows.append(_row("parameters", model.name, model.name, metric, value, "1", "projected", "closed form"))
        for size, *_ in READINGS[1:]:
            source = f"{size} bytes x {parameters.true_count(model):,} parameters"
            value = size * parameters.true_count(model)
            rows.append(_row("bytes", model.name, size, "model states", value, "byte", "projected", source))
    return Table(rows) + read(PUBLISHED)


def _counts(recipe):
    last = recipe.parallel.pp - 1
    found = {
        "each parameter once": parameters.true_count(recipe),
        "ranks of one replica": parameters.one_replica(recipe),
        "all ranks": parameters.all_ranks(recipe),
        "a rank of the first stage": parameters.per_rank(recipe, 0),
    }
    if last > 1:
        found["a rank of the middle stage"] = parameters.per_rank(recipe, recipe.parallel.pp // 2)
    return {**found, "a rank of the last stage": parameters.per_rank(recipe, last)}


def counts(models):
    """Parameters: true, of all ranks, of a rank. Projected: closed form."""
    found = {model.name: _counts(model) for model in models}
    metrics = list(dict.fromkeys(metric for one in found.values() for metric in one))
    rows = ((metric, *(f"{one[metric]:,}" if metric in one else "-" for one in found.values())) for metric in metrics)
    sizes = ("each parameter once, short", *(decimal_count(one["each parameter once"]) for one in found.values()))
    return Grid(("parameters (projected: closed form)", *found), (sizes, *rows))


def authors_log():
    """The totals that the authors' 175B log prints beside the closed form, and why they differ."""
    from repro.recipe import load

    recipe = load("175b-log")
    s, tp = recipe.shape, recipe.parallel.tp
    printed = {row.metric: row.value for row in read(PUBLISHED).select(exhibit="parameters")}
    table, positions = recipe.padded_vocab * s.hidden, tp * s.seq * s.hidden
    replica, true = parameters.one_replica(recipe), parameters.true_count(recipe)
    lines = (
        ("TOTAL_PARAMS", "ranks of one replica", replica,
         f"their last stage also copies the position table: {tp} x {s.seq:,} x {s.hidden:,} = {positions:,}"),
        ("UNIQUE_PARAMS", "the same less the tied copy", replica - table,
         "none: norms, biases behind a row-parallel matrix and positions count once for each of the 4 shards"),
        ("UNIQUE_PARAMS", "each parameter once", true, "those replicated parameters, 3 times too often"),
    )  # fmt: skip
    rows = (
        (name, f"{printed[name]:,}", meaning, f"{ours:,}", f"{printed[name] - ours:+,}", why)
        for name, meaning, ours, why in lines
    )
    heads = ("log line", "published", "what is counted", "projected (closed form)", "difference", "because")
    return Grid(heads, tuple(rows))


def readings(models):
    """Bytes per parameter as they are quoted, what each leaves out, and what they make of each model."""
    rows = (
        (size, parts, left_out, source, *(_decimal_bytes(size * parameters.true_count(model)) for model in models))
        for size, parts, left_out, source in READINGS
    )
    heads = (f"{model.name} (projected)" for model in models)
    return Grid(("bytes", "sum", "left out", "where", *heads), tuple(rows))


def printed():
    """What is quoted of the paper's memory, beside bytes x the parameters of the recipe and x the name's."""
    from repro.recipe import load

    nominal = {"22b": 22e9, "175b": 175e9, "1t": 1e12}
    rows = []
    for row in read(PUBLISHED).select(exhibit="bytes"):
        value, true = row.value * UNITS[row.unit], row.x * parameters.true_count(load(row.series))
        source, _, confidence = row.source.rpartition("; ")
        rows.append(
            (row.series, row.x, f"{row.value:g} {row.unit}", f"{row.x * nominal[row.series] / value - 1:+.1%}",
             f"{true / value - 1:+.1%}", confidence, source)
        )  # fmt: skip
    names = ("model", "bytes", "published", "bytes x nominal size", "bytes x true count", "confidence", "source")
    return Grid(names, tuple(rows))


def _decimal_bytes(number):
    return f"{number / 1e12:.2f} TB" if number >= 1e12 else f"{number / 1e9:.4g} GB"


def _row(exhibit, series, x, metric, value, unit, provenance, source):
    return Row(exhibit, series, x, metric, value, unit, None, None, provenance, source)
