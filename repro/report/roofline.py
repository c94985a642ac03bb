"""Operations of a layer under the roof of one device, drawn from the tidy table alone."""

from repro.records.table import Table
from repro.report import figures, sweep_figures

ROOF, LAYER = "roof", "whole layer"
MARKERS = ("o", "v", "P", "X", "s", "^", "D", "*")  # an operation each; provenance is one only: projected


def roofline(table, note, name, into="figures"):
    """The roof, the balance, and each operation at its intensity and projected rate; saved under ``name``."""
    device = {row.x: row.value for row in table.select(series=ROOF)}
    points = Table(row for row in table if row.series != ROOF)
    models = list(dict.fromkeys(row.series for row in points))
    operations = list(dict.fromkeys(row.x for row in points.select(metric="intensity")))
    with figures.style():
        figure, [[axis, zoom]] = figures.canvas(1, 2, width=5.2, height=4.2)
        _roof(axis, device, points)
        for model, colour in zip(models, figures.colours(len(models)), strict=True):
            for operation, marker in zip(operations, MARKERS, strict=False):
                _point(zoom, points, model, operation, colour, marker)
                _point(axis, points, model, operation, colour, marker)
        _zoomed(zoom, device, points)
        axis.set_ylabel("TFLOP/s of one device")
        for one in (axis, zoom):
            one.set_xlabel("intensity (FLOP/byte)")
        figure.legend(*_keys(models, operations), loc="outside right upper", fontsize="small")
        text = (
            "One layer's operations, forward, recompute and backward of one micro-batch. Left: the roof, whose knee is "
            f"the balance of {device['balance']:.0f} FLOP/byte. Right: the same points enlarged. All points are "
            "projected: FLOPs and bytes are closed forms with each operand moved once, rates rest on the machine's "
            "profile; bars hold nine in ten samples. Collectives are not in a layer's time here. "
            "Where models coincide, as in attention, the last one covers the others. "
        )
        figures.caption(figure, text + sweep_figures.provenance(points.select(metric="rate")) + note, width=150)
    return figures.save(figure, table, name, into)


def _roof(axis, device, points):
    import numpy as np
    from matplotlib.ticker import LogLocator

    knee = device["balance"]
    right = 4 * max(row.value for row in points.select(metric="intensity"))
    x = np.geomspace(min(8, knee / 16), right, 200)
    axis.plot(x, np.minimum(device["memory"] * x / 1e3, device["peak"]), color="black", linewidth=1.6)
    axis.axvline(knee, color="0.5", linewidth=1, linestyle=":")
    axis.annotate(f"balance {knee:.0f}", (knee, 0), (4, 6), xycoords=("data", "axes fraction"),
                  textcoords="offset points", fontsize="small", color="0.3")  # fmt: skip
    axis.annotate(f"peak {device['peak']:.4g} TFLOP/s", (right, device["peak"]), (0, 4), ha="right",
                  textcoords="offset points", fontsize="small")  # fmt: skip
    axis.annotate(f"memory\n{device['memory']:,.4g} GB/s", (x[12], device["memory"] * x[12] / 1e3), (8, 0), va="top",
                  textcoords="offset points", fontsize="small")  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(LogLocator(subs=(1, 2, 5) if side is axis.yaxis else (1,)))
        side.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.set_xlim(x[0], right)
    axis.set_ylim(top=2 * device["peak"])


def _point(axis, points, model, operation, colour, marker):
    own = {row.metric: row for row in points.select(series=model, x=operation)}
    if "rate" not in own:
        return
    x, rate = own["intensity"].value, own["rate"]
    axis.plot([x, x], [rate.low, rate.high], color=colour, linewidth=1.2, zorder=2)
    whole = operation == LAYER
    axis.plot(x, rate.value, marker=marker, color=colour, markerfacecolor=colour if whole else "white",
              markersize=11 if whole else 6, linestyle="", zorder=4 if whole else 3)  # fmt: skip


def _zoomed(axis, device, points):
    rows, xs = points.select(metric="rate"), [row.value for row in points.select(metric="intensity")]
    axis.set_xlim(min(xs) * 0.92, max(xs) * 1.08)
    axis.set_ylim(0, max(max(row.high for row in rows) * 1.1, 1.05 * device["peak"]))
    axis.axhline(device["peak"], color="black", linewidth=1.6)


def _keys(models, operations):
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c, linewidth=3) for c in figures.colours(len(models))]
    handles += [
        Line2D([], [], color="0.2", marker=m, linestyle="", markerfacecolor="0.2" if o == LAYER else "white",
               markersize=10 if o == LAYER else 6)
        for o, m in zip(operations, MARKERS, strict=False)
    ]  # fmt: skip
    return handles, [*models, *operations]
