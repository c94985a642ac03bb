"""Scaling, its explanations and the cost of a training as figures, drawn from the tidy table alone."""

from dataclasses import replace

from repro.records.table import Table
from repro.report import figures, sweep_figures
from repro.report.figures import LOOK

SCALINGS = ("weak scaling", "strong scaling")
COSTS = (("wall time", "wall time (days)"), ("node-hours", "million node-hours"), ("energy", "energy (GWh)"))


def efficiency(table, note, name, into="figures"):
    """Efficiency against devices: a row a model, a column a scaling; saved under ``name``."""
    models = list(dict.fromkeys(_model(row) for row in table))
    with figures.style():
        figure, axes = figures.canvas(len(models), 2, width=4.8, height=2.8, sharey=True)
        kinds = list(dict.fromkeys(_kind(row) for row in table))
        for row, model in zip(axes, models, strict=True):
            for axis, scaling in zip(row, SCALINGS, strict=True):
                own = table.select(exhibit=scaling)
                own = Table(replace(r, series=_kind(r)) for r in own if _model(r) == model)
                _panel(axis, own, kinds)
                axis.set_title(f"{model}, {scaling}", fontsize="medium")
            row[0].set_ylabel("efficiency (%)")
        for axis in axes[-1]:
            axis.set_xlabel("devices")
        ends = [v for row in table for v in (row.low, row.value, row.high) if v is not None]
        axes[0, 0].set_ylim(min(max(0, min(ends) - 4), 70), max(ends) + 4)
        keys = {}  # a series may stand in one panel only
        for axis in axes.flat:
            keys |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        figure.legend(keys.values(), keys.keys(), loc="outside upper center", ncols=2, fontsize="small")
        text = "Rate of a device over that in the smallest run, which is 100 %. "
        if any("cold" in kind for kind in kinds):
            text += "Cold first step counted: in a mean of 1 to 10 steps. All readings: batch, layout, base and "
            text += "mean as the source may be read. The axis does not begin at 0. "
        figures.caption(figure, text + sweep_figures.BARS + sweep_figures.provenance(_short(table)) + note, width=136)
    return figures.save(figure, table, name, into)


def _panel(axis, own, kinds):
    """All series of one panel, dodged, in the same colours in every panel."""
    palette = dict(zip(kinds, figures.colours(len(kinds)), strict=True))
    axis.set_xscale("log", base=2)
    for number, kind in enumerate(kinds):
        shift = sweep_figures.DODGE ** (number - (len(kinds) - 1) / 2)
        for provenance in dict.fromkeys(row.provenance for row in own.select(series=kind)):
            rows = own.select(series=kind, provenance=provenance).rows
            marker, filled, dash = LOOK[provenance]
            for row in rows:
                if row.low is not None:
                    axis.plot([row.x * shift] * 2, [row.low, row.high], color=palette[kind], linewidth=1.4)
            axis.plot([row.x * shift for row in rows], [row.value for row in rows], color=palette[kind],
                      linestyle=dash if len(rows) > 1 else "", marker=marker, label=f"{kind}, {provenance}",
                      markerfacecolor=palette[kind] if filled else "white", zorder=3)  # fmt: skip
    ticks = sorted({row.x for row in own})
    axis.axhline(100, color="0.5", linewidth=0.8)
    if ticks:
        axis.set_xticks(ticks, [f"{x:,}" for x in ticks])
        axis.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
    axis.minorticks_off()


def aggregate(table, note, name, into="figures"):
    """What all devices reach together, on two logarithmic axes, with the ideal line from the smallest run."""
    shown, unit = _in_gflops(table)
    with figures.style():
        figure, axes = figures.canvas(1, 2, width=4.9, height=3.8, sharey=True)
        for axis, scaling in zip(axes[0], SCALINGS, strict=True):
            own = shown.select(exhibit=scaling)
            ticks = sorted({row.x for row in own})
            sweep_figures.panel(axis, own, ticks, dodge=1.0)
            for number, series in enumerate(dict.fromkeys(row.series for row in own)):
                rows = sorted(own.select(series=series), key=lambda row: row.x)
                ideal = [rows[0].value * row.x / rows[0].x for row in rows]
                axis.plot([row.x for row in rows], ideal, color="0.4", linewidth=0.9, zorder=1,
                          label="" if number else "ideal from the smallest run")  # fmt: skip
            axis.set_yscale("log", base=2)
            axis.yaxis.set_major_formatter("{x:g}")
            axis.set_title(scaling, fontsize="medium")
            axis.set_xlabel("devices")
            axis.legend(fontsize="small")
        axes[0, 0].set_ylabel(f"aggregate hardware {unit}")
        text = "Hardware FLOPs, recompute counted, of all devices together. " + sweep_figures.BARS
        figures.caption(figure, text + sweep_figures.provenance(table) + note, width=140)
    return figures.save(figure, table, name, into)


def _in_gflops(table):
    """The rows and their unit; a laptop's in GFLOP/s, so that ticks can be read."""
    if max((row.value for row in table), default=1) > 1e-3:
        return table, "PFLOP/s"
    smaller = (
        replace(row, value=1e6 * row.value, low=1e6 * row.low, high=1e6 * row.high, unit="GFLOP/s") for row in table
    )
    return Table(smaller), "GFLOP/s"


def mechanisms(table, close, note, name, into="figures"):
    """How far each mechanism alone is from the printed efficiencies: a row a mechanism, a marker a printed point."""
    printed = {row.x: row.value for row in table.select(provenance="published")}
    names = list(dict.fromkeys(row.series for row in table.select(provenance="projected")))
    markers = dict(zip(printed, ("o", "s", "o", "s"), strict=False))
    with figures.style():
        figure, [[axis]] = figures.canvas(width=9.2, height=4.4)
        axis.axvspan(-close, close, color="0.9", zorder=0, label=f"within {close:g} points")
        axis.axvline(0, color="0.4", linewidth=1)
        colours = figures.colours(len(printed))
        for number, (run, colour) in enumerate(zip(printed, colours, strict=True)):
            place = 0.14 * (number - (len(printed) - 1) / 2)
            rows = table.select(x=run, provenance="projected").rows
            face = "white" if "weak" in run else colour
            axis.plot([row.value - printed[run] for row in rows], [names.index(row.series) + place for row in rows],
                      linestyle="", marker=markers.get(run, "D"), color=colour, markersize=7,
                      markerfacecolor=face, label=f"{run}: printed {printed[run]:g} %")  # fmt: skip
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_xlabel("projected less printed efficiency (points)")
        figure.legend(loc="outside right upper", fontsize="small")
        text = (
            "Published: printed efficiencies, where the vertical line is. Projected: one mechanism at a time in the "
            "likely readings, calibrated on FR-22B-tflops. The list was made with these points known; no size is "
            "fitted to them, but for the factor 4.5, for which no physics is known. No band. "
        )
        text += note + "Not modelled: other jobs on the network. "
        figures.caption(figure, text, width=132)
    return figures.save(figure, table, name, into)


def cost(table, note, name, into="figures"):
    """Days, node-hours and energy of each training, with bands; compute at the printed rate beside the days."""
    trainings = list(dict.fromkeys(row.series for row in table))
    nodes = {row.series: row.x for row in table}
    colour, other = figures.colours(2)
    with figures.style():
        figure, axes = figures.canvas(1, 3, width=3.9, height=1.6 + 0.45 * len(trainings), sharey=True)
        for axis, (metric, label) in zip(axes[0], COSTS, strict=True):
            rows = table.select(metric=metric, provenance="projected").rows
            for row in rows:
                y = trainings.index(row.series)
                axis.plot([row.low, row.high], [y, y], color=colour, linewidth=1.6)
                axis.annotate(f"{row.value:,.3g}" if row.value < 1e3 else f"{row.value:,.0f}", (row.value, y), (0, 7),
                              textcoords="offset points", ha="center", fontsize="small")  # fmt: skip
            _points(axis, rows, trainings, colour, "projected, all included")
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:,g}")
            axis.set_xlabel(label)
            axis.margins(x=0.25, y=0.3)
        _points(axes[0, 0], table.select(metric="compute", provenance="published").rows, trainings, other,
                "published rate, compute alone")  # fmt: skip
        axes[0, 0].set_yticks(range(len(trainings)), [f"{t}\n{nodes[t]} nodes" for t in trainings])
        axes[0, 0].invert_yaxis()
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize="small")
        text = "Projected: steady state, with failures and checkpoints; bars hold nine in ten samples. "
        text += "Published: the printed throughput over the hardware FLOPs, nothing else. "
        text += sweep_figures.provenance(_short(table.select(provenance="projected")))
        figures.caption(figure, text + note, width=165)
    return figures.save(figure, table, name, into)


def _points(axis, rows, trainings, colour, label):
    if rows:
        marker, _, _ = LOOK[rows[0].provenance]
        axis.plot([row.value for row in rows], [trainings.index(row.series) for row in rows], linestyle="", zorder=3,
                  marker=marker, color=colour, markerfacecolor="white", markersize=6, label=label)  # fmt: skip


def _short(table):
    """Rows with the part of a source that a caption needs: no count of readings."""
    return Table(replace(row, source="; ".join(p for p in row.source.split("; ") if " readings of " not in p))
                 for row in table)  # fmt: skip


def _model(row):
    return row.series.partition(", ")[0]


def _kind(row):
    return row.series.partition(", ")[2]
