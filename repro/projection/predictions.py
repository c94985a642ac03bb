"""Predictions written down before anyone compared them: a list that only grows.

``records/predictions.csv`` holds what was predicted, when, and on what calibration. Rows are added and never changed,
so a later model shows beside them what it would have said. No torch.
"""

import csv
import io
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path

from repro.errors import InputError
from repro.records.run_folder import write_atomic

LEDGER = Path(__file__).parent.parent / "records" / "predictions.csv"
WANTED = (
    *(("lumi-175b", "lumi", nodes, False) for nodes in (64, 128, 256, 512)),
    *(("175b", "frontier", nodes, weak) for weak in (True, False) for nodes in (32, 64, 128)),
    *(("1t", "frontier", nodes, weak) for weak in (True, False) for nodes in (128, 256, 384)),
    ("175b", "h200", 16, False),
)


@dataclass(frozen=True)
class Prediction:
    """A step time, in seconds, of a recipe on nodes of a machine, with the band that holds it nine times in ten.

    Attributes:
        batch: global batch.
        calibrated_on: ids of published runs, separated by blanks; empty for the profile alone.
    """

    id: str
    written: str
    recipe: str
    machine: str
    nodes: int
    batch: int
    low: float
    seconds: float
    high: float
    calibrated_on: str


def name(recipe, machine, nodes, weak):
    return f"{recipe}@{machine}-{nodes}{'-weak' if weak else ''}"


def predict(recipe, machine, nodes, weak):
    """The :class:`Prediction` of today's model."""
    from repro.projection.project import project

    found = project(recipe, machine, nodes, weak, anyway=True)
    time = found.seconds
    low, value, high = (round(number, 3) for number in (time.low, time.value, time.high))
    return Prediction(
        name(recipe, machine, nodes, weak), date.today().isoformat(), recipe, machine, nodes, found.global_batch,
        low, value, high, " ".join(found.calibration),
    )  # fmt: skip


def read(path=LEDGER):
    """Every :class:`Prediction` written down, in order.

    Raises:
        InputError: a row that is not one.
    """
    if not Path(path).exists():
        return []
    rows = []
    with Path(path).open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                typed = {f.name: f.type(row[f.name]) for f in fields(Prediction)}
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{Path(path).name}, line {number}: {error}") from None
            rows.append(Prediction(**typed))
    return rows


def write_missing(path=LEDGER):
    """Write down what is wanted and not there yet; what stands there stays. Returns the new predictions."""
    old = read(path)
    known = {row.id for row in old}
    new = [predict(*wanted) for wanted in WANTED if name(*wanted) not in known]
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Prediction)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in (*old, *new))
    write_atomic(Path(path), text.getvalue())
    return new


def compared():
    """``[(Prediction written down, Prediction of today)]``."""
    return [(old, predict(old.recipe, old.machine, old.nodes, old.id.endswith("-weak"))) for old in read()]
