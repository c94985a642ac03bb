"""Tables beside the figures of memory: FLOPs against the formula, LUMI's run, real ranks against fake ones."""

from repro.report.grid import Grid


def flops(table):
    """Hardware FLOPs of one micro-batch through the whole model, traced, beside the closed formula."""
    rows, traced = [], table.select(exhibit="flops", provenance="traced").rows
    models = list(dict.fromkeys(row.series for row in traced))
    for row in sorted(traced, key=lambda row: models.index(row.series)):
        [formula] = table.select(exhibit="flops", series=row.series, x=row.x, provenance="projected")
        above = f"{row.value / formula.value - 1:+.3%}"
        rows.append((row.series, row.x, f"{row.value:.6e}", f"{formula.value:.6e}", above))
    heads = ("model", "attention", "traced (FLOP)", "projected: formula (FLOP)", "traced above formula")
    return Grid(heads, tuple(rows))


def lumi(table):
    """Each stage of the run on LUMI in GiB; differences are those to the published value."""
    table = table.select(exhibit="lumi")
    heads, rows = ["run", "stage"], []
    for metric in ("live", "peak"):
        heads += [f"{metric}, published", "projected", "", "traced", ""]
    for first in table.select(metric="peak", provenance="published"):
        cells = [first.series, first.x]
        for metric in ("live after the step", "peak"):
            one = {r.provenance: r.value for r in table.select(series=first.series, x=first.x, metric=metric)}
            cells.append(f"{one['published']:.2f}")
            for provenance in ("projected", "traced"):
                value = one.get(provenance)
                cells += ["-", ""] if value is None else [f"{value:.2f}", f"{value / one['published'] - 1:+.1%}"]
        [reserved] = table.select(series=first.series, x=first.x, metric="reserved")
        rows.append((*cells, f"{reserved.value - first.value:.2f}"))
    return Grid((*heads, "reserved less peak, published"), tuple(rows))


def agreement(table):
    """Every rank of a small run: what real ranks did beside what the trace says. All counts are exact."""
    rows = []
    for real in table.select(exhibit="agreement", provenance="measured"):
        [fake] = table.select(exhibit="agreement", series=real.series, metric=real.metric, provenance="traced")
        unit = "" if real.unit == "1" else f" ({real.unit})"
        difference = f"{fake.value - real.value:+,}"
        rows.append((real.series, real.metric + unit, f"{real.value:,}", f"{fake.value:,}", difference))
    return Grid(("rank", "quantity", "measured", "traced", "difference"), tuple(rows))
