"""The tidy table: the one form in which every number reaches a figure, whatever way it came.

One row is one number with its unit, its band and its provenance. The CSV is byte-stable: writing what
was read gives the same bytes.
"""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from numbers import Integral, Real
from pathlib import Path

from repro.errors import InputError, unknown
from repro.records.run_folder import write_atomic

PROVENANCES = ("published", "measured", "traced", "projected")

# column of metrics.jsonl -> metric, unit, factor to that unit
METRICS = {
    "loss": ("loss", "nat/token", 1),
    "seconds": ("step time", "s", 1),
    "tokens_per_second": ("throughput", "token/s", 1),
    "hardware_tflops": ("hardware TFLOP/s", "TFLOP/s per device", 1),
    "model_tflops": ("model TFLOP/s", "TFLOP/s per device", 1),
    "hfu": ("HFU", "1", 1),
    "mfu": ("MFU", "1", 1),
    "grad_norm": ("gradient norm", "1", 1),
    "lr": ("learning rate", "1", 1),
    "loss_scale": ("loss scale", "1", 1),
    "peak_memory_bytes": ("peak memory", "GiB", 2**-30),
}
FLAGS = ("warmup", "skipped")


@dataclass(frozen=True)
class Row:
    """One number of an exhibit; ``low`` and ``high`` bound it, where a band is known."""

    exhibit: str
    series: str
    x: int | float | str
    metric: str
    value: int | float
    unit: str
    low: int | float | None
    high: int | float | None
    provenance: str
    source: str

    def __post_init__(self):
        if self.provenance not in PROVENANCES:
            raise unknown("provenance", self.provenance, PROVENANCES)
        for name in ("exhibit", "series", "metric", "unit", "source"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise InputError(f"table row: {name} = {getattr(self, name)!r} must be a text that is not empty")
        for name in ("value", "low", "high"):
            number = getattr(self, name)
            if number is not None or name == "value":
                object.__setattr__(self, name, _number(name, number))
        if not isinstance(self.x, str):
            object.__setattr__(self, "x", _number("x", self.x))
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InputError(f"table row {self.metric}: low {self.low} is above high {self.high}")


COLUMNS = tuple(field.name for field in fields(Row))


@dataclass(frozen=True)
class Table:
    """Rows in their order. Tables add up: ``measured + published``."""

    rows: tuple[Row, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "rows", tuple(self.rows))

    def __add__(self, other):
        return Table(self.rows + other.rows)

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def select(self, **wanted):
        """The rows whose columns equal the given values, or are among them where a list is given."""
        for column in wanted:
            if column not in COLUMNS:
                raise unknown("column", column, COLUMNS)
        return Table(row for row in self.rows if all(_matches(getattr(row, c), w) for c, w in wanted.items()))

    def frame(self):
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame([astuple(row) for row in self.rows], columns=list(COLUMNS))

    def to_csv(self):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([_text(cell) for cell in astuple(row)] for row in self.rows)
        return text.getvalue()

    def write(self, path):
        write_atomic(path, self.to_csv())

    def _repr_html_(self):
        return self.frame().to_html(index=False)


def read(path):
    """The table in a CSV file.

    Raises:
        InputError: the file is missing, its columns are others, or a row is not valid.
    """
    try:
        lines = list(csv.reader(io.StringIO(Path(path).read_text(encoding="utf-8"), newline="")))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read table {path}: {getattr(error, 'strerror', None) or error}") from None
    if not lines or tuple(lines[0]) != COLUMNS:
        raise InputError(f"{path} is not a table: its first line must be {','.join(COLUMNS)}")
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(COLUMNS):
            raise InputError(f"{path} line {number}: {len(cells)} cells instead of {len(COLUMNS)}")
        data = dict(zip(COLUMNS, cells, strict=True))
        data["x"] = _parse(data["x"])
        try:
            data["value"] = _parse_number(data["value"])
            for name in ("low", "high"):
                data[name] = None if data[name] == "" else _parse_number(data[name])
            rows.append(Row(**data))
        except InputError as error:
            raise InputError(f"{path} line {number}: {error}") from None
    return Table(rows)


def from_run(folder, exhibit="training", series=None):
    """A run folder's metrics as measured rows, x the step; null values give no row.

    Warm-up and skipped steps get a row of unit ``flag``, as figures read nothing but the table.
    """
    series = series or folder.recipe().name
    rows = []

    def add(step, metric, value, unit):
        rows.append(Row(exhibit, series, step, metric, value, unit, None, None, "measured", folder.path.name))

    for record in folder.metrics():
        for column, (metric, unit, factor) in METRICS.items():
            if record.get(column) is not None:
                value = record[column] if factor == 1 else record[column] * factor
                add(record["step"], metric, value, unit)
        for flag in FLAGS:
            if record.get(flag):
                add(record["step"], flag, 1, "flag")
    return Table(rows)


def _matches(value, wanted):
    return value in wanted if isinstance(wanted, Iterable) and not isinstance(wanted, str) else value == wanted


def _number(name, value):
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"table row: {name} = {value!r} is not a number")
    value = int(value) if isinstance(value, Integral) else float(value)
    if not math.isfinite(value):
        raise InputError(f"table row: {name} = {value} is not finite")
    return value


def _text(cell):
    return "" if cell is None else cell if isinstance(cell, str) else repr(cell)


def _parse_number(text):
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number") from None


def _parse(text):
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        # Only what would be written the same way again: "1e3" or "007" stays the text it is.
        if repr(value) == text:
            return value
    return text
