"""What the paper and the articles about it claim, one row a claim: data in ``published/claims.csv``. No torch.

A published value is a number, or names the record that holds it, so that nothing is typed twice:
``runs:FR-175B-percent`` is the value of that published run, ``models:parameters/175b/TOTAL_PARAMS`` the row of
``models.csv`` with that exhibit, series and metric (``models:bytes/1t/14`` by its x).
"""

import csv
import math
import re
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from repro.errors import InputError, shortened, unknown

PUBLISHED = Path(__file__).parent / "published"
CLAIMS = PUBLISHED / "claims.csv"
RELATIONS = ("equal", "above", "below")
CONFIDENCES = ("confirmed", "secondary", "unconfirmed")


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        title: a few words, for a figure.
        claim: what is claimed, in our words.
        published: the value printed, in ``unit``; None where the claim has no number.
        relation: ours should be ``equal`` to it, ``above`` or ``below``.
        ours: how our number is obtained: a key of :data:`repro.exhibits.scorecard_numbers.NUMBERS`, then, after a
            colon, what it is asked for; ``none`` where there is no way to.
        tolerance: of ours over published, as a fraction.
        why: of the tolerance; of ``none``, why there is no way.
    """

    id: str
    title: str
    claim: str
    published: float | None
    unit: str
    relation: str
    ours: str
    tolerance: float
    why: str
    source: str
    confidence: str


COLUMNS = tuple(field.name for field in fields(Claim))


def read(path=CLAIMS):
    """Every :class:`Claim`, in the order of the file.

    Raises:
        InputError: a row that is not valid, by file and line.
    """
    found, seen, records = [], set(), _Records()
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file, strict=True)
            if tuple(next(lines, ())) != COLUMNS:
                raise InputError(f"{path} line 1: the columns must be {','.join(COLUMNS)}")
            for cells in lines:
                try:
                    claim = _claim(cells, records)
                    if claim.id in seen:
                        raise InputError(f"id {claim.id} stands twice")
                except InputError as error:
                    raise InputError(f"{path} line {lines.line_num}: {error}") from None
                seen.add(claim.id)
                found.append(claim)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise InputError(f"{path} holds no claim")
    return tuple(found)


def _claim(cells, records):
    if len(cells) != len(COLUMNS):
        raise InputError(f"{len(cells)} cells instead of {len(COLUMNS)}")
    data = dict(zip(COLUMNS, cells, strict=True))
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,39}", data["id"]):
        raise InputError(f"id {shortened(data['id'])} must be small letters, digits, dots and hyphens, at most 40")
    for column in ("title", "claim", "why", "source", "ours", "unit"):
        if not data[column].strip():
            raise InputError(f"{column} is empty")
    for column, known in (("relation", RELATIONS), ("confidence", CONFIDENCES)):
        if data[column] not in known:
            raise unknown(column, data[column], known)
    data["published"] = _published(data["published"], records)
    data["tolerance"] = _number("tolerance", data["tolerance"] or "0", 0)
    if data["published"] is None and data["ours"] != "none":
        raise InputError("published is empty: only a claim whose ours is none may have no number")
    return Claim(**data)


class _Records:
    """Published values that claims may name, each kind read once."""

    @cached_property
    def runs(self):
        from repro.records import published_runs

        return {run.id: run.value for run in published_runs.runs()}

    @cached_property
    def models(self):
        from repro.records import table

        rows = table.read(PUBLISHED / "models.csv")
        return {f"{r.exhibit}/{r.series}/{r.x if r.exhibit == 'bytes' else r.metric}": r.value for r in rows}


def _published(text, records):
    if not text:
        return None
    kind, colon, name = text.partition(":")
    if not colon:
        return _number("published", text, 1e-12)
    if kind not in ("runs", "models"):
        raise unknown("record of a published value", kind, ("runs", "models"))
    values = getattr(records, kind)
    if name not in values:
        raise unknown(f"published value in {kind}", name, values)
    return float(values[name])


def _number(column, text, least):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise InputError(f"{column} {shortened(text)} is not a number of at least {least:g}")
    return number
