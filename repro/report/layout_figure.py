"""Which layouts fit a device: one small grid of tensor x pipeline for each model, replicas and micro-batch."""

from repro.report import figures
from repro.report.memory_tables import OTHERS, PP, TIGHT_GIB, TP

COLOURS = {"fits": "#9ecae1", "tight": "#fee08b", "does not fit": "#e0e0e0"}


def layouts(table, models, device, into="figures"):
    """Peak GiB of every layout, coloured by whether it fits; saved as ``01_layouts``."""
    from matplotlib.patches import Patch

    table = table.select(exhibit="layouts")
    with figures.style():
        figure, axes = figures.canvas(len(models), len(OTHERS), width=3.9, height=1.9, sharex=True, sharey=True)
        for line, model in zip(axes, models, strict=True):
            for axis, (dp, micro) in zip(line, OTHERS, strict=True):
                _grid(axis, table.select(series=f"{model.name}, dp {dp}, mbs {micro}"), device)
                axis.set_title(f"{model.name}, dp {dp}, mbs {micro}", fontsize="medium")
                _own(axis, model)
        for axis in axes[:, 0]:
            axis.set_ylabel("tp")
        for axis in axes[-1]:
            axis.set_xlabel("pp")
        patches = [Patch(color=colour) for colour in COLOURS.values()]
        names = ("fits", f"fits, with less than {TIGHT_GIB:g} GiB to spare", "does not fit")
        figure.legend(patches, names, loc="outside upper center", ncols=3, fontsize="small")
        text = (
            f"GiB at the peak of the fullest stage against {device.memory_gib:g} GiB of {device.name}. Projected: "
            "closed form; > where the states alone exceed the device. Each model keeps its micro-batches per replica. "
            f"Reserved memory is not in: LUMI's run reserved about {TIGHT_GIB:g} GiB beyond its peak, hence the "
            "yellow. Framed: tp x pp of the recipe. Blank: pp does not divide the layers, or no valid recipe."
        )
        figures.caption(figure, text, width=140)
    return figures.save(figure, table, "01_layouts", into)


def _grid(axis, table, device):
    from matplotlib.patches import Rectangle

    for row in table:
        tp, pp = (int(part) for part in row.x.split(" x "))
        x, y = PP.index(pp), TP.index(tp)
        axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=COLOURS[verdict(row, device)], edgecolor="white"))
        text = f"{row.value:.0f}" if row.metric == "peak" else f">{row.value:.0f}"
        axis.text(x, y, text, ha="center", va="center", fontsize=7)
    axis.set_xticks(range(len(PP)), PP)
    axis.set_yticks(range(len(TP)), TP)
    axis.set_xlim(-0.5, len(PP) - 0.5)
    axis.set_ylim(-0.5, len(TP) - 0.5)
    axis.grid(False)


def verdict(row, device):
    """``fits``, ``tight`` or ``does not fit``; a lower bound is only ever given above the device's memory."""
    if row.value > device.memory_gib:
        return "does not fit"
    return "tight" if row.value > device.memory_gib - TIGHT_GIB else "fits"


def _own(axis, model):
    from matplotlib.patches import Rectangle

    tp, pp = model.parallel.tp, model.parallel.pp
    if tp in TP and pp in PP:
        axis.add_patch(
            Rectangle((PP.index(pp) - 0.5, TP.index(tp) - 0.5), 1, 1, fill=False, edgecolor="black", zorder=3)
        )
