"""Throughput of models, a step item by item, and flash attention as figures: drawn from the tidy table alone."""

from dataclasses import replace

from repro.records.table import Table
from repro.report import figures, sweep_figures
from repro.report.figures import LOOK

NARROW = 0.16  # between the series of one model
FLOPS = {"hardware TFLOP/s": "HFU", "model TFLOP/s": "MFU"}
# what a bar shows: items of a step that belong together, in the order of the bar
GROUPS = {
    "matrix products": ("matrix products", "operands of products"),
    "attention": ("attention",),
    "element-wise, accumulation, launches": (
        "element-wise operations",
        "gradient accumulation",
        "between kernels",
    ),
    "tensor-parallel collectives": ("tensor-parallel collectives",),
    "messages between stages": ("messages between stages",),
    "filling and draining": ("filling and draining",),
    "unequal stages": ("stage imbalance",),
    "slowest device": ("slowest device",),
    "once a step: reduction, optimizer, host": (
        "gradient reduction",
        "parameter gathering",
        "tied embedding",
        "optimizer",
        "rest of a step",
    ),
}
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
HATCHES = ("", "", "", "//", "//", "..", "..", "xx", "")  # work, communication, waiting: told apart without colour


def rates(table, note, name, into="figures"):
    """Hardware and model TFLOP/s of every model, by provenance and series; share of the peak on the right.

    Args:
        table: rows of one exhibit, x the model.
        note: what is known of the error, for the caption.
    """
    models = list(dict.fromkeys(row.x for row in table))
    kinds = list(dict.fromkeys((row.series, row.provenance) for row in table.select(metric=tuple(FLOPS))))
    colour = dict(zip(kinds, figures.colours(len(kinds)), strict=True))
    with figures.style():
        figure, axes = figures.canvas(1, 2, width=max(4.4, 1.6 * len(models)), height=3.9, sharey=True)
        for axis, (metric, share) in zip(axes[0], FLOPS.items(), strict=True):
            for number, (series, provenance) in enumerate(kinds):
                rows = table.select(metric=metric, series=series, provenance=provenance).rows
                xs = [models.index(row.x) + NARROW * (number - (len(kinds) - 1) / 2) for row in rows]
                _bars(axis, rows, xs, colour[series, provenance], f"{series}, {provenance}")
            axis.set_title(metric.replace("TFLOP/s", "FLOPs"))
            axis.set_xticks(range(len(models)), models)
            axis.set_xlim(-0.6, len(models) - 0.4)
            axis.grid(False, axis="x")
            axis.set_ylim(bottom=0)
            _share_axis(axis, table, metric, share)
        axes[0, 0].set_ylabel("TFLOP/s per device")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(kinds))
        text = "Left: recomputed forward passes count as work, as in the authors' formula; right: they do not. "
        if len(table.select(provenance="published")):
            text += "Printed values are placed on the right as if they counted recompute. "
        text += sweep_figures.BARS + _calibration(table) + sweep_figures.provenance(_short(table)) + note
        figures.caption(figure, text, width=int(14.5 * figure.get_figwidth()))
    return figures.save(figure, table, name, into)


def _bars(axis, rows, xs, colour, label):
    for x, row in zip(xs, rows, strict=True):
        if row.low is not None:
            axis.plot([x, x], [row.low, row.high], color=colour, linewidth=1.6)
    marker, filled, _ = LOOK[rows[0].provenance]
    axis.plot(xs, [row.value for row in rows], linestyle="", marker=marker, markersize=6, color=colour, zorder=3,
              markerfacecolor=colour if filled else "white", label=label)  # fmt: skip


def _share_axis(axis, table, metric, share):
    """The same axis in percent of the peak, where the table has both."""
    rows = table.select(metric=share).rows
    for row in rows:
        same = table.select(metric=metric, x=row.x, series=row.series, provenance=row.provenance).rows
        if same:
            _in_percent(axis, same[0].value / (100 * row.value), f"{share} (% of peak)")
            return


def _in_percent(axis, each, label):
    right = axis.secondary_yaxis("right", functions=(lambda y: y / each, lambda y: y * each))
    right.set_ylabel(label)


def _calibration(table):
    learned = [row.x for row in table if "this very number" in row.source]
    return f"{', '.join(dict.fromkeys(learned))} is the calibration point; the others are held out. " if learned else ""


def _short(table):
    """Rows with the source cut to what a caption needs."""
    seen = {}
    for row in table.select(metric="hardware TFLOP/s"):
        source = row.source
        if row.provenance == "published":
            source = source.partition("; ")[0]
        if " readings of " in source:
            source = source.split(" readings of ")[0].rpartition("; ")[0]
        seen[row.series, row.provenance, row.x] = replace(row, source=source)
    return Table(seen.values())


def breakdown(table, note, name, into="figures"):
    """Where the time of a step goes, a bar a model: shares of its items."""
    shares = table.select(metric="share of a step")
    models = list(dict.fromkeys(row.series for row in shares))
    with figures.style():
        figure, [[axis]] = figures.canvas(width=9.6, height=1.9 + 0.55 * len(models))
        left = dict.fromkeys(models, 0.0)
        palette = figures.colours(len(GROUPS))
        for (group, items), colour, hatch in zip(GROUPS.items(), palette, HATCHES, strict=True):
            widths = [sum(row.value for row in shares.select(series=model, x=items)) for model in models]
            places = range(len(models))
            axis.barh(places, widths, 0.62, left=list(left.values()), color=colour, hatch=hatch, label=group,
                      edgecolor="white", linewidth=0.5)  # fmt: skip
            for place, model, width in zip(places, models, widths, strict=True):
                if width >= 3.5:
                    axis.text(left[model] + width / 2, place, f"{width:.0f}", ha="center", va="center",
                              fontsize="small", bbox=LABEL)  # fmt: skip
                left[model] += width
        seconds = {m: sum(row.value for row in table.select(metric="time", series=m)) for m in models}
        axis.set_yticks(range(len(models)), [f"{m}\n{seconds[m]:.3g} s" for m in models])
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.set_xlim(0, 100)
        axis.set_xlabel("share of a step in steady state (%)")
        figure.legend(loc="outside right upper", fontsize="small")
        text = "One step, item by item; hatched: communication (lines), waiting (dots, crosses). "
        figures.caption(figure, text + sweep_figures.provenance(table) + note, width=138)
    return figures.save(figure, table, name, into)


def attention(table, note, name, into="figures"):
    """What flash attention gains, and peak memory with and without, over the sequence length."""
    gains = table.select(metric="gain of flash attention")
    drawn = Table(row for row in gains if row.provenance != "published")
    claimed = sweep_figures.provenance(gains.select(provenance="published"))
    peaks = table.select(metric="peak, fullest stage")
    ticks = sorted({row.x for row in drawn})
    with figures.style():
        figure, axes = figures.canvas(1, 2, width=5.2, height=3.8)
        here = {"measured": ", runs"}  # a series of its own, so that its bars stand beside the projected ones
        apart = Table(replace(row, series=row.series + here.get(row.provenance, "")) for row in drawn)
        sweep_figures.panel(axes[0, 0], apart, ticks)
        claims = gains.select(provenance="published").rows
        if claims:
            marker, _, dash = LOOK["published"]
            axes[0, 0].plot([row.x for row in claims], [row.value for row in claims], color="black", linestyle=dash,
                            label="claimed, published", marker=marker, markerfacecolor="white")  # fmt: skip
        axes[0, 0].axhline(0, color="0.5", linewidth=0.8)
        axes[0, 0].set_ylabel("gain in throughput (%)")
        axes[0, 0].legend(fontsize="small", loc="upper left")
        _peaks(axes[0, 1], peaks, table.select(metric="memory of a device").rows)
        for axis in axes[0]:
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axis.minorticks_off()
            axis.set_xlabel("sequence length (tokens)")
        text = (
            "Left: tokens a second with flash over unfused attention, all else equal. Right: allocated memory of the "
            "fullest stage, closed form. The claim names no model and no sequence length. "
        )
        text += sweep_figures.BARS
        figures.caption(figure, text + sweep_figures.provenance(drawn) + claimed + note, width=150)
    return figures.save(figure, table, name, into)


def _peaks(axis, peaks, limits):
    names = list(dict.fromkeys(row.series.rpartition(", ")[0] for row in peaks))
    marker = LOOK["projected"][0]
    for name, colour in zip(names, figures.colours(len(names)), strict=True):
        for kind, dash, face in (("unfused", "-", colour), ("flash", "--", "white")):
            rows = peaks.select(series=f"{name}, {kind}").rows
            axis.plot([r.x for r in rows], [r.value for r in rows], dash, color=colour, marker=marker,
                      markerfacecolor=face, label=f"{name}, {kind}")  # fmt: skip
    for row in limits:
        axis.axhline(row.value, color="black", linewidth=1)
        axis.annotate(f"{row.value:g} GiB, {row.x}", (0, row.value), (4, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize="small")  # fmt: skip
    values = [row.value for row in peaks]
    if values and max(values) > 2 * min(values):
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_ylim(bottom=min(values) / 3)  # room for the legend
    else:
        axis.set_ylim(0, 1.2 * max(values, default=1))
    axis.set_ylabel("peak of the fullest stage (GiB)")
    axis.legend(
        fontsize="small", loc="lower right", ncols=min(len(names), 2), title="projected", title_fontsize="small"
    )
