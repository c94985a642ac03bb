"""Machines as data: what a node is made of, and the constants of a machine with their ranges. No torch.

A machine is a TOML file in ``repro/machines`` or any path; a user adds one by adding a file. Every constant
has a value, a range that holds it nine times in ten, what it rests on, and a source. There is no default.
"""

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from math import exp, inf, log
from pathlib import Path

from repro import devices
from repro.errors import InputError, shortened, unknown

FOLDER = Path(__file__).parent.parent / "machines"
KINDS = ("specification", "measured", "fitted", "judged")
MOST_LINKED, MOST_NICS = 10, 1000
NINE_IN_TEN = 1.6449  # a normal variable is within this many deviations of its mean nine times in ten

# name: (unit, least, most, what it is)
CONSTANTS = {
    "gemm_ceiling": ("of peak", 0, 1, "share of the peak that an endless matrix product reaches"),
    "gemm_bandwidth": ("of memory bandwidth", 0, 10, "rate at which a product's operands move; small products feel it"),
    "memory_efficiency": ("of memory bandwidth", 0, 1, "share of the bandwidth that element-wise operations reach"),
    "flash_forward": ("of peak", 0, 1, "share of the peak that the flash kernel reaches, forward"),
    "flash_backward": ("of peak", 0, 1, "the same, backward"),
    "kernel_seconds": ("s", 0, 1, "time between two kernels that the host does not hide"),
    "link_efficiency": ("of link bandwidth", 0, 1, "share of the links that collectives inside a node reach"),
    "hop_seconds": ("s", 0, 1, "latency of one step of a ring inside a node"),
    "call_seconds": ("s", 0, 1, "fixed time of a collective"),
    "nic_collective": ("of NIC bandwidth", 0, 1, "share of the NICs that collectives across nodes reach"),
    "nic_decline": ("", 0, 1, "bandwidth of a ring over n nodes falls as (n / 4) to the minus this, beyond 4"),
    "nic_message": ("of NIC bandwidth", 0, 1, "share of the NICs that messages between stages reach"),
    "nic_hop_seconds": ("s", 0, 1, "latency of one step of a ring across nodes"),
    "message_seconds": ("s", 0, 1, "latency of a message between stages, host synchronisation included"),
    "device_spread": ("of time", 0, 0.5, "standard deviation of the speed of devices of one kind"),
    "step_seconds": ("s", 0, 1000, "time of a step that no item explains: host, data, waiting before the step"),
    "cold_stage_seconds": ("s", 0, 1000, "what a stage's first step takes longer; a pipeline's stages pay one by one"),
}
OPERATION = {
    "node_watts": ("W", 0, inf, "power of a node in training"),
    "pue": ("", 1, 10, "power of the site over power of its machines"),
    "node_mtbf_hours": ("h", 0, inf, "mean time between failures of one node"),
    "checkpoint_gbytes": ("GB/s", 0, inf, "rate at which a job writes a checkpoint, all nodes together"),
    "restart_seconds": ("s", 0, inf, "time to notice a failure and to start again"),
}


@dataclass(frozen=True)
class Constant:
    """A number of a machine.

    Attributes:
        low, high: hold it nine times in ten, in somebody's judgement or measurement.
        kind: ``specification``, ``measured``, ``fitted`` (by a calibration) or ``judged``.
    """

    value: float
    low: float
    high: float
    kind: str
    source: str

    def at(self, deviation):
        """The value at so many standard deviations: log-normal, each side with its own width."""
        if self.value <= 0:
            return self.value
        side = self.high if deviation > 0 else self.low
        return self.value * exp(log(side / self.value) * abs(deviation) / NINE_IN_TEN)


@dataclass(frozen=True)
class Machine:
    """A machine as the ranks of a job see it.

    Attributes:
        order: device of each local rank.
        links: ``{(a, b): GB/s each way}`` of directly linked devices, both orders; empty where a switch joins all.
        switch_gbytes: GB/s each way of a device into the node's switch, 0 where there is none.
        nics, nic_gbytes: NICs of a node, GB/s each way of one.
        calibration: ``constants`` that are fitted on published runs, and the ids of those ``points``.
        constants: ``{name: Constant}``, see :data:`CONSTANTS`; ``operation`` likewise, see :data:`OPERATION`.
    """

    name: str
    title: str
    device: devices.Device
    order: tuple[int, ...]
    links: dict
    switch_gbytes: float
    nics: int
    nic_gbytes: float
    constants: dict
    operation: dict
    sources: dict
    calibration: dict

    @property
    def devices_per_node(self):
        return len(self.order)

    @property
    def node_gbytes(self):
        """GB/s each way of a node into the network."""
        return self.nics * self.nic_gbytes

    def moved(self, values, source):
        """This machine with constants at ``values``; those that its calibration names count as fitted now."""
        changed = dict(self.constants)
        for name, value in values.items():
            named = name in self.calibration.get("constants", ())
            old = self.constants[name]
            kind, why = ("fitted", source) if named else (old.kind, old.source)
            changed[name] = Constant(value, value, value, kind, why)
        return replace(self, constants=changed)

    def with_constants(self, kind="fitted", source="given", **values):
        """This machine with constants set to values; their range closes around them.

        Raises:
            InputError: no such constant, or a value outside its bounds.
        """
        changed = dict(self.constants)
        for name, value in values.items():
            if name not in CONSTANTS:
                raise unknown("machine constant", name, CONSTANTS)
            value = _number(self.name, name, value, *CONSTANTS[name][1:3])
            changed[name] = Constant(value, value, value, kind, source)
        return replace(self, constants=changed)


def names():
    """Names of the shipped machines."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "devices")


def load(name):
    """The :class:`Machine` of a shipped name or a TOML path.

    Raises:
        InputError: an unknown name, with the known ones; a profile that lacks a number or has a wrong one.
    """
    if isinstance(name, Machine):
        return name
    if str(name).endswith(".toml"):
        return _read(Path(name))
    if str(name) not in names():
        raise unknown("machine", name, names())
    return _shipped(str(name))


@cache
def _shipped(name):
    return _read(FOLDER / f"{name}.toml")


def _read(path):
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError("it is no plain file")
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read machine {path.name}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return _machine(path.stem, data)
    except InputError as error:
        raise InputError(f"machine {path.name}: {error}") from None


def _machine(name, data):
    _known("field", data, ("title", "device", "node", "constants", "operation", "calibration"))
    node = _table(data, "node")
    _known("field of node", node, ("order", "order_source", "links", "links_source", "switch_gbytes", "switch_source",
                                   "nics", "nic_gbytes", "nic_source"))  # fmt: skip
    order = node.get("order")
    if not isinstance(order, list) or not order or sorted(map(repr, order)) != sorted(map(repr, range(len(order)))):
        raise InputError(f"node.order {shortened(order)} must name each device of a node once, from 0")
    links = _links(node.get("links", []), len(order))
    switch = _number("node", "switch_gbytes", node.get("switch_gbytes", 0), 0, inf)
    if bool(switch) == bool(links) and (links or len(order) > 1):
        have = "both links and" if links else "neither links nor"
        raise InputError(f"node has {have} switch_gbytes: how do its devices reach each other?")
    if links and len(order) > MOST_LINKED:
        raise InputError(f"node.links of {len(order)} devices: rings are searched among {MOST_LINKED} at most")
    nics = node.get("nics")
    if not isinstance(nics, int) or isinstance(nics, bool) or not 1 <= nics <= MOST_NICS:
        raise InputError(f"node.nics = {shortened(nics)}: input should be a whole number from 1 to {MOST_NICS}")
    for key, told in (("order", order), ("links", links), ("switch", switch), ("nic", nics)):
        source = node.get(f"{key}_source")
        if told and not (isinstance(source, str) and source.strip()):
            raise InputError(f"node.{key}_source = {shortened(source)}: input should say where the numbers come from")
    return Machine(
        name=name,
        title=str(data.get("title", name)),
        device=devices.get(str(data.get("device", ""))),
        order=tuple(order),
        links=links,
        switch_gbytes=switch,
        nics=nics,
        nic_gbytes=_number("node", "nic_gbytes", node.get("nic_gbytes"), 0, inf),
        constants=_constants("constants", _table(data, "constants"), CONSTANTS),
        operation=_constants("operation", _table(data, "operation"), OPERATION),
        calibration=_calibration(data.get("calibration", {})),
        sources={key: str(value) for key, value in node.items() if key.endswith("_source")},
    )


def _table(data, key):
    found = data.get(key)
    if not isinstance(found, dict):
        raise InputError(f"table {key} is missing")
    return found


def _calibration(data):
    if not isinstance(data, dict):
        raise InputError("calibration must be a table of constants and points")
    _known("field of calibration", data, ("constants", "points", "why"))
    for key in ("constants", "points"):
        rows = data.get(key, [])
        if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
            raise InputError(f"calibration.{key} {shortened(rows)} must be a list of names")
    _known("machine constant in calibration", data.get("constants", []), CONSTANTS)
    return data


def _known(kind, data, known):
    for key in data:
        if key not in known:
            raise unknown(kind, key, known)


def _links(rows, count):
    found = {}
    for row in rows if isinstance(rows, list) else [rows]:
        valid = isinstance(row, list) and len(row) == 3 and all(type(d) is int and 0 <= d < count for d in row[:2])
        if not valid or row[0] == row[1]:
            raise InputError(f"node.links {shortened(row)} must be [device, device, GB/s], devices 0 to {count - 1}")
        a, b, gbytes = row
        if (a, b) in found:
            raise InputError(f"node.links {shortened(row)} stands there twice; both ways are one link")
        found[a, b] = found[b, a] = _number("node", "links", gbytes, 0, inf)
    return found


def _constants(where, data, wanted):
    _known(f"field of {where}", data, wanted)
    found = {}
    for name, (_, least, most, what) in wanted.items():
        if name not in data:
            raise InputError(f"{where}.{name} is missing: {what}")
        row = data[name]
        if not isinstance(row, dict):
            raise InputError(f"{where}.{name} must be a table with value, low, high, kind, source")
        _known(f"field of {where}.{name}", row, ("value", "low", "high", "kind", "source"))
        if row.get("kind") not in KINDS:
            raise unknown(f"kind of {where}.{name}", row.get("kind"), KINDS)
        if not isinstance(row.get("source"), str) or not row["source"].strip():
            raise InputError(f"{where}.{name} names no source")
        value = row.get("value")
        if row["kind"] != "specification" and not {"low", "high"} <= row.keys():
            raise InputError(f"{where}.{name} is {row['kind']} and needs low and high: what holds it nine times in ten")
        low, value, high = (
            _number(f"{where}.{name}", key, row.get(key, value), least, most) for key in ("low", "value", "high")
        )
        if not low <= value <= high:
            raise InputError(f"{where}.{name}: value {value} is not between low {low} and high {high}")
        if low == 0 < high:
            raise InputError(
                f"{where}.{name}: low 0 of a range up to {high}: ranges are of factors; give a low above 0"
            )
        found[name] = Constant(value, low, high, row["kind"], str(row["source"]))
    return found


LARGEST = 1e30  # TOML has numbers without end
MAY_BE_ZERO = {"nic_decline", "kernel_seconds", "hop_seconds", "call_seconds", "nic_hop_seconds", "message_seconds"}
MAY_BE_ZERO |= {"device_spread", "step_seconds", "cold_stage_seconds", "restart_seconds", "node_watts", "switch_gbytes"}


def _number(where, name, value, least, most):
    """A finite number above ``least`` (or 0, where that means "none of it") and up to ``most``."""
    if value is None:
        raise InputError(f"{where}: {name} is missing")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
        raise InputError(f"{where}: {name} = {shortened(value)}: input should be a number")
    last = where.rpartition(".")[2]
    closed = least >= 1 or name in MAY_BE_ZERO or last in MAY_BE_ZERO
    if value > most or value < least or (value == least and not closed):
        bound = f"at least {least:g}" if closed else f"above {max(least, 0):g}"
        raise InputError(
            f"{where}: {name} = {value} must be {bound}" + (f" and at most {most:g}" if most < inf else "")
        )
    return float(value)
