"""Sweeps as figures: projected bands, and measured points where there are any. Drawn from the tidy table alone."""

from dataclasses import replace

from repro.records.table import Table
from repro.report import figures

DODGE = 1.035  # of x from one series to the next on a logarithmic axis, so that bands do not hide each other
RATE = "hardware TFLOP/s\nper device"
BARS = "Bars: nine in ten samples of a projection; of measured points, slowest and fastest step. "


def panel(axis, table, ticks=None, dodge=DODGE):
    """One metric over x on a logarithmic axis; series a little apart."""
    names = list(dict.fromkeys(row.series for row in table))
    middle = (len(names) - 1) / 2
    moved = {name: dodge ** (i - middle) for i, name in enumerate(names)}
    if table.rows:
        figures.draw(axis, Table(replace(row, x=row.x * moved[row.series]) for row in table))
    ticks = sorted({row.x for row in table}) if ticks is None else ticks
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axis.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    axis.minorticks_off()
    axis.set_xlabel("")
    axis.set_ylabel("")


def tensor_parallel(table, refused, note, name="03_tensor_parallelism", into="figures"):
    """Throughput, and the share of collectives, against tp: a column a model; saved under ``name``.

    Args:
        refused: ``(series, tp, why)`` of what has no recipe: named in its panel.
        note: what is known of the error, for the caption.
    """
    rates = table.select(metric="hardware TFLOP/s")
    shares = Table(row for row in table if row.metric.startswith("share"))
    models = list(dict.fromkeys(_model(row) for row in rates))
    ticks = sorted({row.x for row in rates} | {tp for _, tp, _ in refused})
    with figures.style():
        rows = 2 if len(shares) else 1
        figure, axes = figures.canvas(rows, len(models), width=max(4.2, 8.4 / len(models)), height=3.0, sharey="row")
        for column, model in enumerate(models):
            for axis, part in zip(axes[:, column], (rates, shares), strict=False):
                panel(axis, Table(row for row in part if _model(row) == model), ticks)
                if max(ticks) > 8:
                    axis.axvline(8 * 2**0.5, color="0.5", linewidth=1, linestyle=":")
            axes[0, column].set_title(model)
            axes[-1, column].set_xlabel("tensor parallelism (ranks)")
            _refusals(axes[0, column], [(tp, why) for series, tp, why in refused if series == model])
        for row, label in zip(axes, (RATE, "tensor-parallel collectives\n(% of a step)"), strict=False):
            tidy(row, label, lambda text: text.partition(", ")[2] if text.count(", ") > 1 else text)
        text = "One replica, stages and samples of a step fixed: only tp changes. " + BARS
        text += "Dotted: node boundary. " if max(ticks) > 8 else ""
        text += f"{provenance(table)}{note}"
        figures.caption(figure, text, width=int(14.5 * figure.get_figwidth()))
    return figures.save(figure, table, name, into)


def sweeps(table, panels, metrics, name, text, into="figures"):
    """Sweeps side by side, a row for each metric; saved under ``name``.

    Args:
        panels: ``(exhibit, title, label of x)`` of each column.
        metrics: ``(metric, label)`` of each row; those that the table lacks are left out.
        text: the caption, provenance apart.
    """
    metrics = [pair for pair in metrics if len(table.select(metric=pair[0]))]
    with figures.style():
        figure, axes = figures.canvas(len(metrics), len(panels), width=4.2, height=3.2, sharey="row")
        for number, (row, (metric, label)) in enumerate(zip(axes, metrics, strict=True)):
            for axis, (exhibit, title, across) in zip(row, panels, strict=True):
                part = table.select(exhibit=exhibit, metric=metric)
                panel(axis, part, sorted({r.x for r in table.select(exhibit=exhibit)}))
                _too_large(axis, part)
                axis.set_xlabel(across if number == len(metrics) - 1 else "")
                axis.set_title(title if number == 0 else "", fontsize="medium")
            tidy(row, label)
        figures.caption(figure, text + provenance(table), width=int(14.5 * figure.get_figwidth()))
    return figures.save(figure, table, name, into)


def _too_large(axis, table):
    rows = [row for row in table if "does not fit" in row.source]
    if rows:
        axis.plot([r.x for r in rows], [r.value for r in rows], "x", color="black", markersize=9, zorder=4,
                  label="more than the device's memory")  # fmt: skip


def tidy(axes, label, shorten=None):
    """One label and one legend for a row of panels that share y, which begins at 0 and holds every band."""
    top = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(0, top)
    axes[0].set_ylabel(label)
    handles = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        if axis.get_legend():
            axis.get_legend().remove()
    texts = [shorten(text) if shorten else text for text in handles]
    unique = dict(zip(texts, handles.values(), strict=True))
    axes[-1].legend(unique.values(), unique.keys(), fontsize="small", loc="best")


def provenance(table):
    """Where the numbers of a table come from, a sentence for each kind."""
    found, text = {}, ""
    for row in table:
        found.setdefault(row.provenance, {})[row.source.partition("; does not fit")[0]] = None
    for kind, sources in found.items():
        names = list(sources)
        shown = "; ".join(names) if kind != "measured" or len(names) < 3 else f"{len(names)} runs, the first {names[0]}"
        text += f"{kind.capitalize()}: {shown}. "
    return text


def _model(row):
    return row.series.partition(",")[0]


def _refusals(axis, refused):
    for tp, why in refused:
        why = why.partition(";")[0].replace("shape.", "").replace("parallel.", "")
        axis.annotate(f"none: {why}", (tp, 0), (0, 6), textcoords="offset points", rotation=90, ha="center",
                      va="bottom", fontsize="x-small", color="0.3")  # fmt: skip
