"""Bandwidth of collectives against message size, a panel for each kind of groups. Drawn from the tidy table alone."""

from dataclasses import replace

from repro.records.network import SERIES
from repro.records.table import Table
from repro.report import figures
from repro.report.network_table import size
from repro.report.sweep_figures import provenance

TITLES = {
    "tensor": "tensor-parallel",
    "data": "data-parallel",
    "tied": "first and last stage",
    "pipeline": "to the next stage",
}
DODGE = 1.12  # of x from one series to the next, so that bars do not hide each other


def bandwidth(table, text, name, into="figures"):
    """Bus bandwidths of a table by group and collective; saved under ``name``.

    Args:
        text: the caption, provenance apart.
    """
    groups = [group for group in TITLES if any(_parts(row)[1] == group for row in table)]
    shown = Table(row for row in table if _parts(row)[1] in groups)
    with figures.style():
        figure, axes = figures.canvas(
            1, max(1, len(groups)), width=max(3.6, 12 / max(1, len(groups))), height=3.6, sharey=True
        )
        for axis, group in zip(axes[0], groups, strict=False):
            part = [row for row in shown if _parts(row)[1] == group]
            _panel(axis, part)
            axis.set_title(_title(part[0], group), fontsize="medium")
        axes[0, 0].set_ylabel("bus bandwidth (GB/s)")
        figures.caption(figure, text + provenance(shown), width=int(14.5 * figure.get_figwidth()))
    return figures.save(figure, shown, name, into)


def _panel(axis, rows):
    names = list(dict.fromkeys((_parts(row)[0], row.provenance) for row in rows))
    middle = (len(names) - 1) / 2
    shift = {key: DODGE ** (number - middle) for number, key in enumerate(names)}
    moved = [replace(row, series=_parts(row)[0], x=row.x * shift[_parts(row)[0], row.provenance]) for row in rows]
    figures.draw(axis, Table(moved))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = sorted({row.x for row in rows})
    axis.set_xticks(ticks, [size(x) for x in ticks], rotation=30, ha="right", fontsize="small")
    axis.minorticks_off()
    axis.set_xlabel("size of the whole tensor")
    axis.set_ylabel("")
    axis.legend(fontsize="x-small")


def _parts(row):
    """``(collective, group, ranks, stride)`` of a series."""
    return SERIES.fullmatch(row.series).groups()


def _title(row, group):
    _, _, ranks, stride = _parts(row)
    return f"{TITLES[group]}: {ranks} ranks, {stride} apart"
