"""A projection for people, and the tables of its validation."""

import math

import numpy as np


def _table(title, *columns, words=()):
    """Columns of ``words`` wrap where the width is short, so that no number of the others is cut."""
    from rich.table import Table

    table = Table(title=title)
    for number, column in enumerate(columns):
        side = "right" if number else "left"
        table.add_column(column, justify=side, no_wrap=column not in words, overflow="fold")
    return table


def _print(table):
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def number(value):
    """Four digits, thousands apart; what has no end is ``never`` done."""
    if math.isinf(value):
        return "never"
    if value and math.isfinite(value) and abs(value) >= 1e4:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"
    return f"{value:.4g}"


def show(found):
    """Print a :class:`repro.projection.project.Projection`."""
    title = (
        f"{found.recipe} on {found.machine}: projected; {found.nodes:,} nodes, {found.devices:,} devices, "
        f"batch {found.global_batch:,} as {found.micro_batches:,} micro-batches a replica"
    )
    table = _table(title, "", "value", "90 % band", "unit")
    for name, one in found.rates.items():
        scale, unit = (100, "% of peak") if name in ("HFU", "MFU") else (1, one.unit)
        band = f"{number(scale * one.low)} to {number(scale * one.high)}"
        table.add_row(name, number(scale * one.value), band, unit)
    _print(table)
    words = ("item", "weakest evidence", "rests on")
    parts = _table("One step", "item", "seconds", "share", "90 % band", *words[1:], words=words)
    for name, item in sorted(found.items.items(), key=lambda pair: -pair[1].share):
        if item.seconds.value > 0 or item.seconds.high > 0:
            band = f"{number(item.seconds.low)} to {number(item.seconds.high)}"
            parts.add_row(
                name, number(item.seconds.value), f"{item.share:.1%}", band, item.kind, ", ".join(item.rests_on)
            )
    _print(parts)
    _memory(found)
    cost = _table(f"Training on {found.tokens:.3g} tokens", "", "value", "90 % band", "unit")
    for name, one in found.cost.items():
        cost.add_row(name.replace("_", " "), number(one.value), f"{number(one.low)} to {number(one.high)}", one.unit)
    _print(cost)
    print("the band's variance by constant: " + ", ".join(f"{k} {v:.0%}" for k, v in found.band_rests_on.items()))
    on = ", ".join(found.calibration) or "nothing: the profile's own ranges"
    print(f"calibrated on {on}; steady state, without the cold first step, evaluation and checkpoints in a step")


def _memory(found):
    peaks = [s["peak_gib"] for s in found.stages]
    worst = int(np.argmax(peaks))
    verdict = "fits" if found.fits else "DOES NOT FIT"
    if found.fits and found.tight:
        verdict = "fits, but less than the 10 GiB remain that the allocator held beyond the peak on LUMI"
    print(
        f"memory: fullest stage {worst} of {len(peaks)} peaks at {peaks[worst]:.1f} of {found.memory_gib:g} GiB, "
        f"the leanest at {min(peaks):.1f}; {verdict}"
    )


def show_validation(validations, pairs):
    """Print published beside projected, row by row, and what it comes to."""
    from repro.projection.validate import summary

    for one in validations:
        table = _table(
            f"{one.title}; calibrated on {', '.join(one.points)}",
            "run", "metric", "published", "projected", "90 % band", "error", "constant MFU", "in band", "group",
        )  # fmt: skip
        for c in one.checks:
            constant = "" if c.constant_mfu_error is None else f"{c.constant_mfu_error:+.1%}"
            table.add_row(
                c.id, c.metric.replace("_", " "), number(c.published), number(c.projected),
                f"{number(c.low)} to {number(c.high)}", f"{c.error:+.1%}", constant, "yes" if c.inside else "no",
                c.group,
            )  # fmt: skip
        _print(table)
        groups = one.groups()
        for group in [None, *groups] if len(groups) > 1 else [None]:
            s = summary(one.held_out(group))
            constant = s["constant_mfu_mean_error"]
            print(
                f"  {group or 'all held out'}: {s['rows']} rows, mean error {s['mean_error']:.1%}, worst "
                f"{s['worst_error']:.1%}, constant MFU {constant:.1%}, {s['inside_band']:.0%} in the band, "
                f"median width {s['median_width']:.0%}"
            )
        for run, why in one.skipped.items():
            print(f"  not projected: {run}: {why}")
    mean, worst = float(np.mean(list(pairs.values()))), max(pairs, key=pairs.get)
    print(
        f"SC21, all {len(pairs)} pairs of Table 1's rows as calibration: mean error {mean:.1%} on the other rows, "
        f"worst pair {pairs[worst]:.1%} ({' and '.join(worst)})"
    )
    print("error: projected over published less 1; of efficiencies, the difference in points")


def show_ablation(rows):
    """Print what each effect earns."""
    sets = [name for name in rows[0].errors if name != "all"]
    counts = [f"{name} ({rows[0].rows[name]})" for name in sets]
    table = _table(
        "Mean error on held-out rows with one effect left out, all calibrated again",
        "left out",
        *counts,
        "mean",
        "earns",
    )
    for row in rows:
        cells = [f"{row.errors[name]:.2%}" for name in (*sets, "all")]
        table.add_row(row.effect, *cells, "" if row.effect == "nothing" else f"{100 * row.earns:+.2f} points")
    _print(table)
    print("mean: over the tables, each counting the same. Rows are those that no calibration saw.")


def show_mechanisms(rows, published):
    """Print which mechanism explains which scaling point."""
    ids = list(rows[0].values)
    table = _table(
        "Scaling of the paper by mechanism, percent; likely readings",
        "mechanism",
        "rests on",
        *ids,
        "explains",
        "breaks",
    )
    table.add_row("published", "", *(f"{published[one]:.0f}" for one in ids), "", "")
    for row in rows:
        c = row.candidate
        table.add_row(
            c.name, c.kind, *(f"{row.values[one]:.1f}" for one in ids), f"{len(row.explains)} of {len(ids)}",
            ", ".join(row.breaks),
        )  # fmt: skip
    _print(table)
    for row in rows:
        print(f"  {row.candidate.name}: {row.candidate.what}")
    print(
        "explains: within 2 points. The published points were known when this list was made, but no size here was "
        "fitted to them: the cold start is the authors' log, 28.1 s over 16 stages."
    )


def show_predictions(pairs):
    """Print what was written down beside what today's model says."""
    table = _table(
        "Predictions written down",
        "prediction",
        "written",
        "nodes",
        "batch",
        "seconds",
        "90 % band",
        "today",
        "calibrated on",
    )
    for old, new in pairs:
        table.add_row(
            old.id, old.written, str(old.nodes), f"{old.batch:,}", number(old.seconds),
            f"{number(old.low)} to {number(old.high)}", number(new.seconds), old.calibrated_on or "nothing",
        )  # fmt: skip
    _print(table)
