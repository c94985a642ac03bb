"""The scorecard as a picture: a row a claim, published over ours with our band, the verdict by marker and word."""

from repro.report import figures

# verdict -> marker, filled, which of the colours; also told by the word beside it
LOOK = {
    "reproduced": ("o", True, 2),
    "consistent": ("D", False, 0),
    "not reproduced": ("X", True, 3),
    "cannot be checked": ("", False, 7),
}
FIRST, LAST = 0.2, 6.0  # of the axis: published over ours
ROW = 0.27  # inches
LEFT, WIDTH = 0.24, 0.22  # of the axis, in widths of the figure
COLUMNS = ((0.475, "published"), (0.567, "ours"), (0.658, "band"), (0.743, "unit"), (0.815, "ours is"),
           (0.88, "verdict"))  # fmt: skip


def scorecard(card, into="figures", name="scorecard"):
    """Draw a :class:`repro.exhibits.scorecard.Scorecard`; saved with its CSV as ``scorecard``."""
    lines = card.lines
    colours = figures.colours(8)
    with figures.style():
        figure, [[axis]] = figures.canvas(width=14.4, height=1.9 + ROW * len(lines))
        tall = figure.get_figheight()
        axis.set_position([LEFT, 1.2 / tall, WIDTH, 1 - 1.85 / tall])
        figure.set_layout_engine("none")  # texts beside the axis are placed by hand: nothing may move it
        axis.axvline(1, color="0.4", linewidth=1)
        for y, line in enumerate(lines):
            marker, filled, number = LOOK[line.verdict]
            _point(axis, y, line, marker, colours[number], filled)
            _texts(axis, y, line, colours[number])
        axis.set_xscale("log")
        axis.set_xlim(FIRST, LAST)
        axis.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
        axis.set_xticks([], minor=True)
        axis.set_ylim(len(lines) - 0.4, -0.6)
        axis.set_yticks(range(len(lines)), [_marked(line) for line in lines])
        axis.grid(True, axis="y", color="0.94")
        axis.set_xlabel("published / ours")
        for x, text in COLUMNS:
            figure.text(x, 1 - 0.58 / tall, text, fontweight="bold", fontsize="small")
        counts = ", ".join(f"{count} {verdict}" for verdict, count in card.counts().items())
        figure.text(0.01, 1 - 0.28 / tall, f"{len(lines)} claims: {counts}", fontsize="large")
        figure.text(0.01, 0.012, CAPTION, fontsize="small", color="0.3", ha="left", va="bottom", linespacing=1.35)
    return figures.save(figure, card, name, into)


CAPTION = (
    "Disc: reproduced, by counting, tracing or measurement. Open diamond: consistent with our projection, whose "
    "band holds nine in ten (of a number with open readings: all of them).\n"
    "Cross: not reproduced. No mark: cannot be checked, or beyond the axis. Of a claim '>' or '<', the published "
    "number is the limit. * not confirmed: secondary sources; ** unconfirmed, believed only.\n"
    "Projected: a model of time calibrated on the paper's 22B run (of 22B itself: on a run on LUMI). Counted: closed "
    "forms, nothing fitted. TFLOP/s are those of one GCD."
)
UNITS = {
    "TFLOP/s per GCD": "TFLOP/s",
    "million EFLOP": "10^24 FLOP",
    "% of the machine": "%",
    "hidden size": "",
    "% of PP 8's, PP 16": "% of PP 8",
    "throughput, TP 8 / TP 16": "ratio",
    "ring bandwidth, TP 2 / best of 4 and 8": "ratio",
    "all-reduce rate, worst of TP 4 and 8 / TP 16": "ratio",
}


def number(value):
    """Four digits, or whole, thousands apart."""
    if value == int(value) and abs(value) >= 1000:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def sign(line):
    return {"equal": "", "above": "> ", "below": "< "}[line.relation]


def band(line):
    return f"{number(line.low)} to {number(line.high)}" if line.low < line.high else ""


def kind(line):
    """Provenance of ours, as shown to people."""
    if line.ours is None:
        return "none"
    return "counted" if line.exact and line.provenance == "projected" else line.provenance


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
    from matplotlib.transforms import blended_transform_factory

    place = blended_transform_factory(axis.figure.transFigure, axis.transData)
    published = "no number" if line.published is None else f"{sign(line)}{number(line.published)}"
    ours = ("", "") if line.ours is None else (number(line.ours), band(line))
    unit = {"1": "", "-": ""}.get(line.unit, UNITS.get(line.unit, line.unit))
    texts = (published, *ours, unit, "" if line.ours is None else kind(line), line.verdict)
    for (x, _), text in zip(COLUMNS, texts, strict=True):
        bold = text == line.verdict
        axis.text(x, y, text, transform=place, va="center", fontsize="small", color=colour if bold else "0.15",
                  fontweight="bold" if bold else "normal")  # fmt: skip
