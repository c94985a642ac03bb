"""Memory as figures, each drawn from the tidy table alone: stages, time, LUMI's run. Layouts: see layout_figure."""

from repro import devices
from repro.report import figures
from repro.report.figures import LOOK

PARTS = ("parameters", "gradients", "optimizer states", "activations", "buffers", "temporary")
NOT_IN = "Allocated memory only: what the allocator reserves beyond it, the device's context and RCCL come on top."
PHASES = {"Load": "forward", "Recv": "forward", "Forw": "forward", "Back": "backward", "Redu": "reduction"}


def stages(table, device, into="figures"):
    """Memory of every stage at its peak, a panel a model; saved as ``01_stages``."""
    table = table.select(exhibit="stages")
    names = _series(table)
    with figures.style():
        figure, axes = figures.canvas(len(names), 1, width=9.6, height=2.3)
        for axis, name in zip(axes[:, 0], names, strict=True):
            _bars(axis, table.select(series=name))
            _limit(axis, device)
            axis.set_title(name)
            axis.set_ylabel("GiB")
            axis.set_ylim(0, device.memory_gib * 1.12)
        axes[-1, 0].set_xlabel("pipeline stage")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", fontsize="small")
        text = (
            "Bars: memory at the peak of a step, traced on fake ranks, by what it holds. Diamonds: the same peak "
            "projected by the closed form. "
        )
        figures.caption(figure, text + NOT_IN, width=130)
    return figures.save(figure, table, "01_stages", into)


def _bars(axis, table):
    bottom = {}
    for part, colour in zip(PARTS, figures.colours(len(PARTS)), strict=True):
        rows = table.select(metric=part, provenance="traced").rows
        x, heights = [row.x for row in rows], [row.value for row in rows]
        below = [bottom.get(i, 0) for i in x]
        axis.bar(x, heights, 0.8, bottom=below, color=colour, label=f"{part}, traced", linewidth=0)
        bottom |= {i: bottom.get(i, 0) + height for i, height in zip(x, heights, strict=True)}
    axis.grid(False, axis="x")
    axis.set_xlim(-0.6, max(bottom, default=0) + 0.6)
    axis.xaxis.get_major_locator().set_params(integer=True)
    _points(axis, table.select(metric="peak", provenance="projected"), "black", "peak, projected")


def _points(axis, table, colour, label, line=False):
    for provenance in dict.fromkeys(row.provenance for row in table):
        marker, filled, dash = LOOK[provenance]
        rows = [row for row in table if row.provenance == provenance]
        axis.plot([row.x for row in rows], [row.value for row in rows], color=colour, marker=marker, label=label,
                  linestyle=dash if line else "", markerfacecolor=colour if filled else "white", zorder=3,
                  markersize=7 if provenance == "published" else 4)  # fmt: skip


def _limit(axis, device):
    axis.axhline(device.memory_gib, color="black", linewidth=1)
    axis.annotate(f"{device.memory_gib:g} GiB, {device.name}", (1, device.memory_gib), (0, 3), ha="right",
                  xycoords=("axes fraction", "data"), textcoords="offset points", fontsize="small")  # fmt: skip


def timeline(table, device, into="figures"):
    """Memory over the instructions of a step; saved as ``01_timeline``."""
    table = table.select(exhibit="timeline")
    [name] = _series(table)
    live, peak = table.select(metric="live").rows, table.select(metric="peak within").rows
    count = table.select(metric="micro-batches").rows[0].value
    with figures.style():
        figure, [[axis]] = figures.canvas(width=9.6, height=3.6)
        axis.step([row.x for row in live], [row.value for row in live], where="mid", color="0.2",
                  label="live after the instruction, traced")  # fmt: skip
        kinds = [_phase(row.source) for row in peak]
        phases = ("forward", "backward", "reduction", "step")
        for phase, colour in zip(phases, figures.colours(len(phases)), strict=True):
            chosen = [(a, b) for a, b, kind in zip(live, peak, kinds, strict=True) if kind == phase]
            x, top = [b.x for _, b in chosen], [b.value for _, b in chosen]
            axis.vlines(x, [a.value for a, _ in chosen], top, color=colour, linewidth=1)
            axis.plot(x, top, color=colour, linestyle="", marker=LOOK["traced"][0], markersize=4,
                      label=f"peak within, {phase}, traced")  # fmt: skip
        highest = max(peak, key=lambda row: row.value)
        axis.annotate(f"{highest.value:.2f} GiB", (highest.x, highest.value), (-4, 4), ha="right",
                      textcoords="offset points", fontsize="small")  # fmt: skip
        _limit(axis, device)
        axis.set_ylim(min(row.value for row in live) * 0.9, device.memory_gib * 1.05)
        axis.set_xlabel(f"instruction of the pipeline schedule, first stage of {name}")
        axis.set_ylabel("GiB")
        figure.legend(loc="outside right upper", fontsize="small")
        text = (
            f"One step of the first stage of {name}, {count} micro-batches shown; every further one repeats the "
            f"middle. Traced on a fake rank. The axis does not begin at 0. "
        )
        figures.caption(figure, text + NOT_IN, width=130)
    return figures.save(figure, table, "01_timeline", into)


def _phase(source):
    instruction = source.rpartition(", ")[2]
    if instruction.endswith("Grad"):
        return "backward"
    return PHASES.get(instruction[:4], "step" if instruction.startswith("Opt") else "forward")


def lumi(table, into="figures"):
    """The 175B run on LUMI: published, projected and, where it was traced, traced; saved as ``01_lumi``."""
    table, device = table.select(exhibit="lumi"), devices.get("mi250x-gcd")
    names = _series(table)
    colours = dict(zip(("live after the step", "peak", "reserved"), figures.colours(3), strict=True))
    with figures.style():
        figure, axes = figures.canvas(2, len(names), width=4.6, height=3.0, sharex=True, sharey="row")
        for (axis, below), name in zip(axes.T, names, strict=True):
            one = table.select(series=name)
            for metric, colour in colours.items():
                for provenance in ("published", "traced", "projected"):
                    rows = one.select(metric=metric, provenance=provenance)
                    _points(axis, rows, colour, f"{metric}, {provenance}", line=True)
            top = {row.x: row.value for row in one.select(metric="reserved")}
            peak = {row.x: row.value for row in one.select(metric="peak", provenance="published")}
            axis.fill_between(list(top), [peak[x] for x in top], list(top.values()), color="0.92", zorder=0,
                              label="reserved less peak, published")  # fmt: skip
            _limit(axis, device)
            axis.set_title(f"lumi-175b, {name}")
            axis.set_ylim(0, device.memory_gib * 1.12)
            _differences(below, one, colours)
        axes[0, 0].set_ylabel("GiB")
        axes[1, 0].set_ylabel("% above published")
        for axis in axes[1]:
            axis.set_xlabel("pipeline stage")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", fontsize="small")
        text = (
            "Published: log of June 2023, TP 8 x PP 8. Projected: closed form by the rules of the software of that "
            "time, e.g. 16-bit gradients stay after the step. Traced: today's software, where they do not, on fake "
            "ranks. The grey band, blocks that torch's allocator had reserved beyond the peak, is in neither and is "
            "not modelled."
        )
        figures.caption(figure, text, width=130)
    return figures.save(figure, table, "01_lumi", into)


def _differences(axis, table, colours):
    axis.axhline(0, color="black", linewidth=1)
    for metric in ("live after the step", "peak"):
        published = {row.x: row.value for row in table.select(metric=metric, provenance="published")}
        for provenance in ("traced", "projected"):
            marker, filled, dash = LOOK[provenance]
            rows = table.select(metric=metric, provenance=provenance).rows
            axis.plot([row.x for row in rows], [100 * (row.value / published[row.x] - 1) for row in rows],
                      color=colours[metric], marker=marker, linestyle=dash, markersize=4,
                      markerfacecolor=colours[metric] if filled else "white")  # fmt: skip


def _series(table):
    return list(dict.fromkeys(row.series for row in table))
