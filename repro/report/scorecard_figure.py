"""The scorecard as a picture: a row a claim, published over ours with our band, the verdict by marker and word."""

from repro.report import figures

# verdict -> marker, filled, which of the colours; also told by the word beside it
LOOK = {
    "reproduced": ("o", True, 2),
    "consistent": ("D", False, 0),
    "not reproduced": ("X", True, 3),
    "cannot be checked": ("", False, 7),
}
FIRST, LAST = 0.4, 6.0  # of the axis: published over ours
ROW = 0.27  # inches
COLUMNS = ((1.02, "published"), (1.19, "ours (band)"), (1.62, "ours is"), (1.8, "verdict"))  # in widths of the axis


def scorecard(card, into="figures", name="scorecard"):
    """Draw a :class:`repro.exhibits.scorecard.Scorecard`; saved with its CSV as ``scorecard``."""
    lines = card.lines
    colours = figures.colours(8)
    with figures.style():
        figure, [[axis]] = figures.canvas(width=13.6, height=1.9 + ROW * len(lines))
        axis.set_position([0.25, 1.15 / figure.get_figheight(), 0.27, 1 - 1.75 / figure.get_figheight()])
        figure.set_layout_engine("none")  # texts beside the axis are placed by hand: nothing may move it
        axis.axvline(1, color="0.4", linewidth=1)
        for y, line in enumerate(lines):
            marker, filled, number = LOOK[line.verdict]
            _point(axis, y, line, marker, colours[number], filled)
            _texts(axis, y, line, colours[number])
        axis.set_xscale("log")
        axis.set_xlim(FIRST, LAST)
        axis.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        axis.set_xticks([], minor=True)
        axis.set_ylim(len(lines) - 0.4, -0.6)
        axis.set_yticks(range(len(lines)), [_marked(line) for line in lines])
        axis.grid(True, axis="y", color="0.94")
        axis.set_xlabel("published / ours")
        for x, text in COLUMNS:
            axis.text(x, 1.006, text, transform=axis.transAxes, fontweight="bold", fontsize="small")
        counts = ", ".join(f"{count} {verdict}" for verdict, count in card.counts().items())
        axis.set_title(f"{len(lines)} claims: {counts}", pad=24)
        figure.text(0.01, 0.012, CAPTION, fontsize="small", color="0.3", ha="left", va="bottom", linespacing=1.35)
    return figures.save(figure, card, name, into)


CAPTION = (
    "Disc: reproduced, by exact counting, tracing or measurement. Open diamond: consistent with our projection, whose "
    "band holds nine in ten (of a number with open readings: all of them).\n"
    "Cross: not reproduced. No mark: cannot be checked, or beyond the axis. Of a claim 'above' or 'below', the published "
    "number is the limit. * not confirmed: secondary sources; ** unconfirmed, believed only.\n"
    "Projected: a model of time calibrated on the paper's 22B run (of 22B itself: on a run on LUMI), or closed forms of "
    "counts (exact). Nothing was measured on Frontier."
)


def number(value):
    """Five digits at most, thousands apart."""
    if value == int(value) and abs(value) >= 1000:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}"


def sign(line):
    return {"equal": "", "above": "> ", "below": "< "}[line.relation]


def band(line):
    return f"({number(line.low)} to {number(line.high)})" if line.low < line.high else ""


def kind(line):
    """Provenance of ours, as shown to people."""
    if line.ours is None:
        return "none"
    return f"{line.provenance}, exact" if line.exact and line.provenance == "projected" else line.provenance


def _marked(line):
    return line.title + {"confirmed": "", "secondary": " *", "unconfirmed": " **"}[line.confidence]


def _point(axis, y, line, marker, colour, filled):
    if line.ours is None or not line.ours > 0:
        return
    ratio = line.published / line.ours
    ends = [line.published / end if end > 0 else LAST * 2 for end in (line.high, line.low)]
    axis.plot([min(max(end, FIRST), LAST * 1.1) for end in ends], [y, y], color=colour, linewidth=2.2, alpha=0.55,
              solid_capstyle="butt")  # fmt: skip
    axis.plot([ratio], [y], marker=marker, color=colour, markerfacecolor=colour if filled else "white", markersize=6.5,
              linestyle="")  # fmt: skip


def _texts(axis, y, line, colour):
    place = axis.get_yaxis_transform()
    published = "no number" if line.published is None else f"{sign(line)}{number(line.published)}"
    ours = "" if line.ours is None else f"{number(line.ours)} {band(line)} {_unit(line.unit)}"
    texts = (published, ours, kind(line) if line.ours is not None else "", line.verdict)
    for (x, _), text in zip(COLUMNS, texts, strict=True):
        bold = text == line.verdict
        axis.text(x, y, text, transform=place, va="center", fontsize="small", color=colour if bold else "0.15",
                  fontweight="bold" if bold else "normal")  # fmt: skip


def _unit(unit):
    return {"1": "", "-": ""}.get(unit, unit if len(unit) <= 16 else "")
