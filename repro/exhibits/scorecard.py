"""The scorecard: every claim beside our number, with a verdict. The rules of verdicts stand here and nowhere else.

*reproduced*: ours was measured, traced or counted exactly, and agrees within the claim's tolerance. *consistent*:
ours is projected, and its band holds the published value (of a comparison: all of the band says the same).
*not reproduced*: ours disagrees. *cannot be checked*: there is no way to a number of ours, or its band says both.
"""

import csv
import io
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from repro.errors import InputError
from repro.records import claims as published
from repro.records.run_folder import write_atomic
from repro.records.table import Row, Table

REPRODUCED, CONSISTENT, NOT, UNCHECKED = "reproduced", "consistent", "not reproduced", "cannot be checked"
VERDICTS = (REPRODUCED, CONSISTENT, NOT, UNCHECKED)
ACCEPTED = Path(__file__).parents[1] / "records" / "accepted_verdicts.csv"
WIDE = 0.3  # a band wider than this share of its middle says little, and the reason says so


@dataclass(frozen=True)
class Line:
    """One claim with its verdict.

    Attributes:
        published, unit: what was printed; None where the claim has no number.
        ours, low, high, provenance, how: our number; None and "none" where there is no way to one.
        exact: whether ours was measured or counted, not projected by a model of time.
        difference: ours over published, less 1.
    """

    id: str
    title: str
    claim: str
    relation: str
    published: float | None
    unit: str
    ours: float | None
    low: float | None
    high: float | None
    provenance: str
    exact: bool
    difference: float | None
    verdict: str
    reason: str
    how: str
    source: str
    confidence: str


COLUMNS = tuple(field.name for field in fields(Line))


@dataclass(frozen=True)
class Scorecard:
    """Every :class:`Line`, in the order of the claims."""

    lines: tuple

    def counts(self):
        """``{verdict: how many}``, all four."""
        return {verdict: sum(line.verdict == verdict for line in self.lines) for verdict in VERDICTS}

    def to_csv(self):
        return _csv(COLUMNS, ([_text(cell) for cell in astuple(line)] for line in self.lines))

    def table(self):
        """The numbers as tidy rows: published beside ours, the verdict in the source of ours."""
        rows = []
        for line in self.lines:
            if line.published is not None:
                rows.append(
                    Row("scorecard", line.id, line.confidence, line.title, line.published, line.unit, None, None,
                        "published", line.source)
                )  # fmt: skip
            if line.ours is not None:
                rows.append(
                    Row("scorecard", line.id, line.verdict, line.title, line.ours, line.unit, line.low, line.high,
                        line.provenance, line.how)
                )  # fmt: skip
        return Table(rows)


def scorecard(machine="frontier", trace=True, runs=(), claims=published.CLAIMS, sources=None):
    """The :class:`Scorecard` of a file of claims.

    Args:
        machine: name of a machine or path of a profile that projections stand on.
        trace: count parameters on fake ranks (10 s); in closed form otherwise.
        runs: run folders on that machine, whose measured rates take the place of projected ones.
        sources: a :class:`repro.exhibits.scorecard_sources.Sources` used before, instead of machine, trace and runs.

    Raises:
        InputError: a claim, a machine or a run folder that is not valid.
    """
    from repro.exhibits.scorecard_numbers import ours
    from repro.exhibits.scorecard_sources import Sources

    if isinstance(runs, str):
        raise InputError(f'runs = {runs!r} must be a list of run folders, e.g. ["runs/22b-64"]')
    sources = sources or Sources(machine, trace, tuple(runs))
    if runs:
        _ = sources.measured  # a wrong run folder is told before anything is computed
    return Scorecard(tuple(line(claim, ours(claim, sources)) for claim in published.read(claims)))


def line(claim, ours):
    """The :class:`Line` of a claim and our number for it, which may be None."""
    verdict, reason = judge(claim, ours)
    if ours is None:
        found = (None, None, None, "none", False, None)
    else:
        difference = round(ours.value / claim.published - 1, 6)
        found = (ours.value, ours.low, ours.high, ours.provenance, ours.exact, difference)
    return Line(
        claim.id, claim.title, claim.claim, claim.relation, claim.published, claim.unit, *found, verdict, reason,
        ours.how if ours else "", claim.source, claim.confidence,
    )  # fmt: skip


def judge(claim, ours):
    """``(verdict, reason)`` of a claim and our number for it."""
    if ours is None:
        return UNCHECKED, claim.why
    return (_equal if claim.relation == "equal" else _compared)(claim, ours)


def _equal(claim, ours):
    p = claim.published
    # what a number's reading leaves open counts as ours: the nearer end of it speaks
    nearest = min(max(p, ours.low), ours.high)
    off, within = abs(nearest / p - 1), _percent(claim.tolerance)
    if ours.exact:
        if off <= claim.tolerance:
            return REPRODUCED, "equal" if nearest == p else f"{_percent(off)} apart, {within} allowed"
        return NOT, f"{_percent(off)} apart, {within} allowed"
    band = f"the band {ours.low:g} to {ours.high:g}"
    if ours.low <= p <= ours.high:
        width = (ours.high - ours.low) / ours.value
        weak = f", but it is {_percent(width)} wide and says little" if width > WIDE else ""
        return CONSISTENT, f"inside {band}{weak}"
    return NOT, f"{_percent(off)} outside {band}"


def _compared(claim, ours):
    p, word = claim.published, claim.relation
    holds = [value > p if word == "above" else value < p for value in (ours.low, ours.value, ours.high)]
    band = f"{ours.low:g} to {ours.high:g}" if ours.low < ours.high else f"{ours.value:g}"
    if all(holds):
        return REPRODUCED if ours.exact else CONSISTENT, f"{band}, all {word} {p:g}"
    if not any(holds):
        return NOT, f"{band}, nothing of it {word} {p:g}"
    return UNCHECKED, f"the band {band} reaches to both sides of {p:g}"


def _percent(fraction):
    return f"{100 * fraction:.2g} %" if fraction < 1 else f"{100 * fraction:.0f} %"


@dataclass(frozen=True)
class Change:
    """A verdict that differs from the accepted one; ``was`` or ``now`` is None where the claim is new or gone."""

    id: str
    was: str | None
    now: str | None
    reason: str

    @property
    def worse(self):
        """Whether it has to be accepted: less agreement, or less known. A new claim is neither."""
        if self.was is None or self.now is None:
            return self.now is None
        if UNCHECKED in (self.was, self.now):
            return self.now in (UNCHECKED, NOT)
        return VERDICTS.index(self.now) > VERDICTS.index(self.was)

    def __str__(self):
        return f"{self.id}: {self.was or 'no verdict'} -> {self.now or 'no such claim'} ({self.reason})"


def changes(card, path=None):
    """Every :class:`Change` since the accepted verdicts.

    Raises:
        InputError: the file is missing or not what :func:`accept` writes.
    """
    before, now = accepted(path), {line.id: line for line in card.lines}
    found = [
        Change(name, before.get(name), line.verdict, line.reason)
        for name, line in now.items()
        if line.verdict != before.get(name)
    ]
    return found + [Change(name, was, None, "the claim is gone") for name, was in before.items() if name not in now]


def accepted(path=None):
    """``{claim: verdict}`` that somebody accepted."""
    path = Path(path or ACCEPTED)
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read accepted verdicts {path}: {why}; repro scorecard --accept writes them") from None
    if not lines or lines[0] != ["id", "verdict"]:
        raise InputError(f"{path} line 1: the columns must be id,verdict; repro scorecard --accept writes them")
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != 2 or cells[1] not in VERDICTS:
            raise InputError(f"{path} line {number}: {cells} must be a claim and one of {', '.join(VERDICTS)}")
    return dict(lines[1:])


def accept(card, path=None):
    """Make the card's verdicts the accepted ones."""
    write_atomic(Path(path or ACCEPTED), _csv(("id", "verdict"), ((line.id, line.verdict) for line in card.lines)))


def _csv(header, rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _text(cell):
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "" if cell is None else cell if isinstance(cell, str) else repr(cell)
