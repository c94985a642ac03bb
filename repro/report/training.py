"""A training run as a figure and as numbers, and what a recipe is going to run."""

from repro import flops, parameters
from repro.records.metrics import checked, summarize
from repro.records.table import from_run
from repro.report import figures
from repro.report.grid import Grid

NUMBERS = {
    "steps": ("steps", "1"),
    "skipped_steps": ("skipped steps", "1"),
    "timed_steps": ("steps in the means", "1"),
    "first_loss": ("first loss", "nat/token"),
    "last_loss": ("last loss", "nat/token"),
    "seconds": ("mean step time", "s"),
    "tokens_per_second": ("mean throughput", "token/s"),
    "hardware_tflops": ("mean hardware TFLOP/s", "TFLOP/s per device"),
    "model_tflops": ("mean model TFLOP/s", "TFLOP/s per device"),
    "hfu": ("HFU", "1"),
    "mfu": ("MFU", "1"),
    "throughput_invalid": ("means withheld", ""),
}


def curves(table):
    """Loss and step time over the steps, with warm-up and skipped steps marked. Drawn from the table alone."""
    with figures.style():
        figure, axes = figures.canvas(1, 2, width=4.8, height=3.8)
        for axis, metric in zip(axes[0], ("loss", "step time"), strict=True):
            shown = table.select(metric=metric)
            if len(shown):
                figures.draw(axis, shown)
            _mark(axis, table, metric)
            axis.set_xlabel("optimizer step")
            axis.xaxis.get_major_locator().set_params(integer=True)
            if axis.get_legend_handles_labels()[1]:
                axis.legend()
        axes[0, 1].set_ylim(bottom=0)
        figures.caption(figure, _caption(table))
    return figure


def exhibit(folder, name="02_train", into="figures"):
    """The curves of a run folder, saved and ready to show: see :class:`repro.report.figures.Exhibit`."""
    table = from_run(folder)
    return figures.save(curves(table), table, name, into)


def numbers(folder):
    """The run in numbers; means leave warm-up out, and are withheld where they would mislead."""
    found, status = summarize(checked(folder.metrics())), folder.status()
    unfinished = status["state"] != "completed"
    state = (("state", f"{status['state']}: {status.get('reason') or 'no reason recorded'}", "", "measured"),)
    rows = (state if unfinished else ()) + tuple(
        (label, _readable(found[key]), unit, "measured")
        for key, (label, unit) in NUMBERS.items()
        if found[key] is not None
    )
    return Grid(("quantity", "value", "unit", "provenance"), rows)


def plan(recipe):
    """What a recipe is going to run; legal but doubtful settings stand below as warnings."""
    shape, parallel, batch = recipe.shape, recipe.parallel, recipe.batch
    rows = (
        ("recipe", recipe.name),
        ("model", f"{shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads, sequence {shape.seq}"),
        ("parameters", f"{parameters.true_count(recipe):,}"),
        ("ranks", f"{recipe.world_size} = tp {parallel.tp} x pp {parallel.pp} x dp {parallel.dp}"),
        ("batch", f"global {batch.global_}, micro {batch.micro}, {recipe.accumulation} micro-batches a step"),
        ("tokens a step", f"{batch.global_ * shape.seq:,}"),
        ("hardware FLOPs a step", f"{flops.hardware_flops(recipe):.3e}"),
        ("precision", f"{recipe.precision.dtype}, gradients added in {recipe.precision.grad_accum}"),
        ("ZeRO, recompute, attention", f"{recipe.zero.stage}, {recipe.compute.recompute}, {recipe.compute.attention}"),
        ("data, steps", f"{recipe.data.kind}, {recipe.steps} (first {recipe.timing_warmup} untimed)"),
        *(("warning", text) for text in recipe.warnings),
    )
    return Grid(("what", "value"), rows)


def _mark(axis, table, metric):
    warmup = table.select(metric="warmup")
    if len(warmup):
        steps = [row.x for row in warmup]
        axis.axvspan(min(steps) - 0.5, max(steps) + 0.5, color="0.9", zorder=0, label="warm-up, not in the means")
    skipped = {row.x for row in table.select(metric="skipped")}
    points = [row for row in table.select(metric=metric) if row.x in skipped]
    if points:
        axis.scatter([p.x for p in points], [p.value for p in points], marker="x", s=60, color="black", zorder=3,
                     label="skipped (overflow)")  # fmt: skip
    for step in sorted(skipped - {p.x for p in points}):  # a skipped step whose value was not finite has no point
        axis.axvline(step, color="black", linestyle=":", linewidth=1)


def _caption(table):
    sources = ", ".join(sorted({row.source for row in table})) or "no steps"
    provenances = ", ".join(sorted({row.provenance for row in table})) or "nothing"
    counts = [
        f"{len(table.select(metric=m))} {word} steps" for m, word in (("warmup", "warm-up"), ("skipped", "skipped"))
    ]
    return f"Loss and wall time of every optimizer step; {' and '.join(counts)}. {provenances.capitalize()}: {sources}."


def _readable(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)
