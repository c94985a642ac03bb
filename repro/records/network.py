"""Measured times of collectives and messages, to and from the tidy table.

A point is one collective over one kind of groups at one size. Every point gives three rows of the table: its time
and both bandwidths, median with the fastest and slowest group and repeat as ``low`` and ``high``. Series and source
are written so that people can read them and :func:`read` gets the points back.

Sizes are those of the whole tensor: what an all-reduce sums, what an all-gather ends with, what a reduce-scatter
begins with. *Algorithm bandwidth* is size over time. *Bus bandwidth* is what each link of a ring carries, so that it
compares with hardware: 2 (n - 1) / n of it for an all-reduce, (n - 1) / n for the other two, all of it for a message
(the convention of the nccl-tests).
"""

import re
from dataclasses import dataclass

from repro.errors import InputError, shortened
from repro.records import table as tables
from repro.records.table import Row, Table

EXHIBIT = "preflight network"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "message")
GROUPS = ("world", "tensor", "data", "pipeline", "tied")
TIME, ALGORITHM, BUS = "time", "algorithm bandwidth", "bus bandwidth"
SERIES = re.compile(r"([\w-]+), ([\w-]+), (\d+) ranks, stride (\d+)")
SOURCE = re.compile(
    r"preflight of (?P<recipe>[^()]+) \(tp (?P<tp>\d+) x pp (?P<pp>\d+) x dp (?P<dp>\d+)(?P<sp>, sequence parallel)?\)"
    r" on (?P<site>.+), (?P<nodes>\d+) nodes? x (?P<each>\d+) ranks?, (?P<backend>\w+), (?P<date>[^;]+); (?P<folder>.+)"
)


@dataclass(frozen=True)
class Setup:
    """What was measured on.

    Attributes:
        site: its name, or ``this machine``.
        ranks_per_node: on the fullest node.
        backend: ``nccl`` (RCCL too) or ``gloo``.
        folder: name of the preflight's folder.
    """

    recipe: str
    tp: int
    pp: int
    dp: int
    sequence_parallel: bool
    site: str
    nodes: int
    ranks_per_node: int
    backend: str
    date: str
    folder: str

    @property
    def source(self):
        sizes = f"tp {self.tp} x pp {self.pp} x dp {self.dp}" + ", sequence parallel" * self.sequence_parallel
        where = (
            f"{self.nodes} node{'s' * (self.nodes > 1)} x {self.ranks_per_node} rank{'s' * (self.ranks_per_node > 1)}"
        )
        return (
            f"preflight of {self.recipe} ({sizes}) on {self.site}, {where}, {self.backend}, {self.date}; {self.folder}"
        )


@dataclass(frozen=True)
class Point:
    """One measured time.

    Attributes:
        group: ``tensor``, ``data``, ``tied`` (first and last stage), ``pipeline`` (a message to the next), ``world``.
        size, stride: ranks of a group, and how far apart they are numbered.
        bytes: of the whole tensor.
        seconds: median over groups and repeats; ``low`` and ``high`` the fastest and the slowest.
    """

    collective: str
    group: str
    size: int
    stride: int
    bytes: int
    seconds: float
    low: float
    high: float

    @property
    def series(self):
        return f"{self.collective}, {self.group}, {self.size} ranks, stride {self.stride}"

    @property
    def bus_factor(self):
        return {"all-reduce": 2 * (self.size - 1) / self.size, "message": 1.0}.get(
            self.collective, (self.size - 1) / self.size
        )


def rows(setup, points):
    """The points as a :class:`repro.records.table.Table`."""
    found = []
    for p in points:
        for metric, unit, value in (
            (TIME, "s", lambda seconds: seconds),
            (ALGORITHM, "GB/s", lambda seconds, p=p: p.bytes / seconds / 1e9),
            (BUS, "GB/s", lambda seconds, p=p: p.bus_factor * p.bytes / seconds / 1e9),
        ):
            low, high = sorted((value(p.low), value(p.high)))
            row = Row(EXHIBIT, p.series, p.bytes, metric, value(p.seconds), unit, low, high, "measured", setup.source)
            found.append(row)
    return Table(found)


def read(path):
    """``(Setup, points)`` of a ``network.csv``.

    Raises:
        InputError: no such table, none of its rows is a preflight's, or they are of several preflights.
    """
    return points_of(tables.read(path), path)


def points_of(table, where="the table"):
    """``(Setup, points)`` of the rows of a preflight in a table."""
    found, setups = [], set()
    for row in table.select(exhibit=EXHIBIT, metric=TIME, provenance="measured"):
        series, source = SERIES.fullmatch(row.series), SOURCE.fullmatch(row.source)
        if not series or not source or series[1] not in COLLECTIVES or series[2] not in GROUPS:
            raise InputError(f"{where}: {shortened(row.series)}, {shortened(row.source)} is no row of a preflight")
        setups.add(_setup(source))
        size, stride = int(series[3]), int(series[4])
        low, high = (row.value if v is None else v for v in (row.low, row.high))
        if not low > 0 or type(row.x) is not int:
            raise InputError(f"{where}: {row.series} at {row.x!r} bytes took {row.value} s: both must be above 0")
        found.append(Point(series[1], series[2], size, stride, row.x, row.value, low, high))
    if not found:
        raise InputError(f"{where} holds no time of a preflight (exhibit {EXHIBIT!r}, metric {TIME!r})")
    if len(setups) > 1:
        names = " and ".join(sorted(s.folder for s in setups))
        raise InputError(f"{where} holds rows of {len(setups)} preflights ({names}); give the network.csv of one")
    return setups.pop(), tuple(found)


def _setup(match):
    return Setup(
        recipe=match["recipe"],
        tp=int(match["tp"]),
        pp=int(match["pp"]),
        dp=int(match["dp"]),
        sequence_parallel=match["sp"] is not None,
        site=match["site"],
        nodes=int(match["nodes"]),
        ranks_per_node=int(match["each"]),
        backend=match["backend"],
        date=match["date"],
        folder=match["folder"],
    )
