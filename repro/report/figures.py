"""The house style of every figure, and how one is saved: beside the table it was drawn from, byte-stable.

Colour tells series apart, the marker tells provenance, so that no print and no eye mixes a projected
point with a measured one.
"""

import os
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repro.records.run_folder import write_atomic
from repro.records.table import PROVENANCES

# marker, filled, line
LOOK = {
    "published": ("s", False, ":"),
    "measured": ("o", True, "-"),
    "traced": ("^", True, "-."),
    "projected": ("D", False, "--"),
}
MOST_MARKERS = 40  # on one line; a thousand steps would be a smear
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "figure.dpi": 100,
    "grid.color": "0.9",
    "grid.linewidth": 0.8,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same widths on every machine
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "savefig.dpi": 150,
    "svg.fonttype": "none",  # text stays text: searchable, and a diff shows what changed
    "svg.hashsalt": "repro",
}


@contextmanager
def style():
    """The house style, for the lines of a ``with`` block; nothing of it stays behind."""
    import matplotlib as mpl
    import seaborn as sns

    base = {**sns.axes_style("whitegrid"), **sns.plotting_context("notebook", font_scale=0.9)}
    with mpl.rc_context({**base, **STYLE}):
        yield


def colours(count):
    """Colour-blind-safe colours, one per series."""
    import seaborn as sns

    return sns.color_palette("colorblind", count)


def canvas(rows=1, columns=1, width=6.4, height=3.4, **options):
    """A figure without pyplot, hence without a backend or a window, and its array of axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def draw(axis, table, line=True):
    """Draw the rows over x: a colour per series, marker and line by provenance, the band where there is one.

    All rows must share one metric and unit, which become the label of the y axis.
    """
    import seaborn as sns

    labels = sorted({(row.metric, row.unit) for row in table})
    if len(labels) != 1:
        raise ValueError(f"one axis shows one metric, not {labels}")
    frame = table.frame()
    series = list(dict.fromkeys(frame["series"]))
    for name, colour in zip(series, colours(len(series)), strict=True):
        for provenance in PROVENANCES:
            part = frame[(frame["series"] == name) & (frame["provenance"] == provenance)]
            if part.empty:
                continue
            marker, filled, dash = LOOK[provenance]
            sns.lineplot(
                data=part,
                x="x",
                y="value",
                ax=axis,
                estimator=None,
                errorbar=None,
                legend=False,
                label=f"{name}, {provenance}",
                color=colour,
                linestyle=dash if line else "",
                marker=marker,
                markevery=max(1, len(part) // MOST_MARKERS),
                markeredgecolor=colour,
                markerfacecolor=colour if filled else "white",
            )
            band = part.dropna(subset=["low", "high"]).astype({"value": float, "low": float, "high": float})
            if len(band):
                ends = [(band["value"] - band["low"]).clip(lower=0), (band["high"] - band["value"]).clip(lower=0)]
                axis.errorbar(band["x"], band["value"], yerr=ends, fmt="none", ecolor=colour)
    metric, unit = labels[0]
    axis.set_ylabel(metric if unit == "1" else f"{metric} ({unit})")
    axis.legend()


def caption(figure, text, width=110):
    """Text beneath the figure: what it shows and where its numbers come from."""
    figure.supxlabel(textwrap.fill(text, width), x=0.01, ha="left", fontsize="small", color="0.3")


@dataclass(frozen=True)
class Exhibit:
    """A saved figure: its files, and its picture for a notebook."""

    png: Path
    svg: Path
    csv: Path

    @property
    def files(self):
        return [self.png, self.svg, self.csv]

    def _repr_png_(self):
        return self.png.read_bytes()

    def __repr__(self):
        return f"{os.path.relpath(self.png)} (.svg, .csv)"


def save(figure, table, name, folder="figures"):
    """Write ``name.png``, ``name.svg`` and ``name.csv``, the table the figure was drawn from.

    The same table gives the same bytes: no date, no random identifiers.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"{name}.{kind}" for kind in ("png", "svg", "csv")}
    with style():
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            # Beside, then renamed: a reader, or a crash, never sees half a picture.
            temporary = folder / f".{name}.{os.getpid()}.{kind}"
            figure.savefig(temporary, format=kind, metadata=metadata)
            temporary.replace(paths[kind])
    write_atomic(paths["csv"], table.to_csv())
    return Exhibit(**paths)
