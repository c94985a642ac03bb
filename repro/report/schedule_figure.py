"""The timeline of a pipeline: passes of every micro-batch on every stage. Drawn from the tidy table alone."""

from repro.report import figures

TITLES = {"measured": "measured: real ranks", "projected": "projected: event simulation"}
NAMED = 0.018  # of the axis: narrower passes bear no number
WAITS = ("receive", "activation", "gradient", "send")


def timelines(table, name, note, into="figures"):
    """A panel for each provenance on one time axis; saved under ``name``, with ``note`` at the caption's end."""
    kinds = list(dict.fromkeys(row.provenance for row in table))
    scale, unit = (1e3, "ms") if max(row.x + row.value for row in table) < 1 else (1, "s")
    end = scale * max(row.x + row.value for row in table)
    stages = list(dict.fromkeys(row.series for row in table))
    stages.sort(key=lambda name: int(name.split()[-1]))
    colours = dict(zip(("forward", "backward"), figures.colours(2), strict=True))
    with figures.style():
        figure, axes = figures.canvas(len(kinds), 1, width=9.6, height=0.9 + 0.42 * len(stages), sharex=True)
        for axis, kind in zip(axes[:, 0], kinds, strict=True):
            for row in table.select(provenance=kind):
                _bar(axis, row, stages.index(row.series), scale, end, colours)
            axis.set_yticks(range(len(stages)), stages)
            axis.set_ylim(len(stages) - 0.45, -0.55)
            axis.set_xlim(0, end * 1.005)
            axis.grid(False)
            axis.set_title(TITLES.get(kind, kind), fontsize="medium")
        axes[-1, 0].set_xlabel(f"time since the first forward ({unit})")
        figure.legend(handles=_legend(colours), loc="outside right upper", fontsize="small")
        figures.caption(figure, f"{_caption(table, kinds)} {note}", width=125)
    return figures.save(figure, table, name, into)


def _bar(axis, row, place, scale, end, colours):
    kind, _, number = row.metric.partition(", micro-batch ")
    start, length = scale * row.x, scale * row.value
    if kind in colours:
        axis.barh(place, length, 0.72, start, color=colours[kind], edgecolor="white", linewidth=0.5)
        if length > NAMED * end:
            axis.text(start + length / 2, place, number, ha="center", va="center", fontsize="x-small", color="white")
    elif kind.startswith(WAITS):
        axis.barh(place, length, 0.24, start, color="0.6", linewidth=0)


def _legend(colours):
    from matplotlib.patches import Patch

    return [Patch(color=colour, label=kind) for kind, colour in colours.items()] + [Patch(color="0.6", label="message")]


def _caption(table, kinds):
    sources = "; ".join(f"{kind}: {table.select(provenance=kind).rows[0].source}" for kind in kinds)
    text = "1F1B, the order of DeepSpeed's schedule; numbers are micro-batches. Grey: sending, or waiting to receive. "
    return text + sources[0].upper() + sources[1:] + ". Not drawn: reduction and optimizer."
