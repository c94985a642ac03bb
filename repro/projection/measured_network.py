"""A machine whose network was measured by a preflight: its constants fitted to the rows of a ``network.csv``. No torch.

The model of a collective is that of :mod:`repro.projection.step`: bytes passed on around a ring over the rate that
links or shared NICs reach, and so many steps with a latency each. The constants' ranges in the machine's file are
priors, as in :mod:`repro.projection.calibrate`; what no row tells anything about stays as it was. It never happens
by itself: somebody has to name the file.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from repro.errors import InputError
from repro.projection import calibrate
from repro.projection.machine import CONSTANTS, NINE_IN_TEN, Constant, load
from repro.projection.network import fabric
from repro.projection.step import MEASURED_NODES, constants
from repro.records import network

# what rows of a network can tell; the rest of a machine they cannot
NAMES = ("link_efficiency", "hop_seconds", "call_seconds", "nic_collective", "nic_decline", "nic_hop_seconds",
         "nic_message", "message_seconds")  # fmt: skip
TELLING = 0.02  # a constant is fitted where one standard deviation of it moves some row by so much
LEFT_OUT = ("world",)  # of which RCCL makes a tree, not a ring


@dataclass(frozen=True)
class Fit:
    """What :func:`from_preflight` gives.

    Attributes:
        machine: the machine with fitted constants, of kind ``measured``.
        changed: ``{constant: (before, after)}``, each a :class:`repro.projection.machine.Constant`.
        rows: ``(series, bytes, measured seconds, fitted seconds)``.
        error: of the logarithm of a time, root of the mean square over the rows.
        at_bound: constants that ended where they could go no further: the network is not like the profile's.
    """

    machine: object
    setup: network.Setup
    changed: dict
    rows: tuple
    error: float
    at_bound: tuple


class Rows:
    """Measured points as :func:`repro.projection.calibrate.most_likely` takes runs."""

    def __init__(self, setup, points):
        self.setup, self.points = setup, tuple(points)
        self.seconds = np.array([p.seconds for p in self.points])

    def predict(self, machine, given=None, without=()):
        """Seconds of every point ``[samples, n]``."""
        return seconds(machine, self.setup, self.points, given)


def seconds(machine, setup, points, given=None):
    """Projected seconds of a transfer of each point ``[samples, n]``.

    Args:
        setup: :class:`repro.records.network.Setup`: the layout decides which groups share a node's NICs.
        given: constants as :func:`repro.projection.step.constants` returns them, instead of the machine's values.
    """
    k = {name: np.reshape(np.asarray(getattr(given or constants(machine), name), float), (-1, 1)) for name in NAMES}
    net, world = fabric(machine), setup.tp * setup.pp * setup.dp
    samples = max(len(value) for value in k.values())
    columns = [np.broadcast_to(_one(k, net, setup, world, point), (samples, 1)) for point in points]
    return np.concatenate(columns, axis=-1)


def _one(k, net, setup, world, p):
    if p.collective == "message":
        width, far = (x.item() for x in net.messages(p.stride, setup.pp))
        rate = 1e9 * width * (k["nic_message"] if far else k["link_efficiency"])
        return p.bytes / rate + k["message_seconds"]
    if p.group == "tied":
        ring, crosses = (x.item() for x in net.pairs(setup.tp * setup.dp, setup.pp))
    else:
        ring, crosses = (x.item() for x in net.group(p.size, p.stride, world))
    nodes = p.size / max(net.devices // min(p.stride, net.devices), 1)
    decline = max(nodes / MEASURED_NODES, 1) ** -k["nic_decline"]
    rate = 1e9 * ring * (k["nic_collective"] * decline if crosses else k["link_efficiency"])
    steps = (p.size - 1) * (2 if p.collective == "all-reduce" else 1)
    hop = k["nic_hop_seconds"] if crosses else k["hop_seconds"]
    return p.bus_factor * p.bytes / rate + steps * hop + k["call_seconds"]


def from_preflight(path, machine):
    """The :class:`Fit` of a machine's network constants to the ``network.csv`` of a preflight.

    Raises:
        InputError: no such file or machine; rows over gloo, or of nodes that are not the machine's; rows that
            tell nothing.
    """
    machine = load(machine)
    setup, points = network.read(path)
    if setup.backend != "nccl":
        raise InputError(
            f"{path} was measured over {setup.backend}, which says nothing about the network of {machine.name}; "
            "give the network.csv of a preflight on its GPUs"
        )
    nodes = -(-setup.tp * setup.pp * setup.dp // machine.devices_per_node)
    if setup.nodes != nodes or setup.ranks_per_node > machine.devices_per_node:
        raise InputError(
            f"{path} was measured on {setup.nodes} nodes x {setup.ranks_per_node} ranks, machine {machine.name} has "
            f"{machine.devices_per_node} devices a node: give the profile of the machine that it was measured on"
        )
    return fitted(Rows(setup, [p for p in points if p.group not in LEFT_OUT]), machine, Path(path))


def fitted(rows, machine, path):
    """The :class:`Fit` of a machine to :class:`Rows`; ``path`` is named as the source."""
    names = _told(machine, rows) if rows.points else []
    if not names:
        raise InputError(f"{path} has no row that tells anything about the network of {machine.name}")
    z, factor = calibrate.most_likely(machine, rows, names)
    values = {n: machine.constants[n].at(float(d)) for n, d in zip(names, z, strict=True)}
    values = {n: float(np.clip(v, *_bounds(n))) for n, v in values.items()}
    central = replace(machine, constants={**machine.constants, **{n: _exact(v) for n, v in values.items()}})
    off = np.log(rows.predict(central)[0] / rows.seconds)
    error = float(np.sqrt(np.mean(off**2)))
    # rows that scatter by more than a calibration expects tell a constant less well, in proportion
    spread = np.linalg.norm(factor, axis=1) * max(1.0, error / calibrate.CALIBRATION_ERROR)
    source = f"{path}: {rows.setup.source}"
    after = {}
    for name, d, sigma in zip(names, z, spread, strict=True):
        low, high = (machine.constants[name].at(float(d + s * NINE_IN_TEN * sigma)) for s in (-1, 1))
        low, high = (float(np.clip(v, *_bounds(name))) for v in (min(low, values[name]), max(high, values[name])))
        after[name] = Constant(values[name], low, high, "measured", source)
    after = _shards(after, machine, central, rows, source)
    found = replace(
        machine,
        title=f"{machine.title}; network measured on {rows.setup.date}",
        constants={**machine.constants, **after},
    )
    return Fit(
        machine=found,
        setup=rows.setup,
        changed={n: (machine.constants[n], c) for n, c in after.items()},
        rows=tuple(
            (p.series, p.bytes, float(p.seconds), float(t))
            for p, t in zip(rows.points, rows.predict(central)[0], strict=True)
        ),
        error=error,
        at_bound=tuple(n for n, d in zip(names, z, strict=True) if abs(d) >= 6 or values[n] >= CONSTANTS[n][2]),
    )


def _told(machine, rows):
    """Constants that some row depends on, noticeably, within their range."""
    found = []
    for name in NAMES:
        constant = machine.constants[name]
        if constant.low < constant.high:
            moved = rows.predict(machine, constants(machine, {name: np.array([-1.0, 1.0])}))
            if np.max(np.abs(np.log(moved[1] / moved[0])), initial=0) > TELLING:
                found.append(name)
    return found


def _shards(after, machine, central, rows, source):
    """DeepSpeed's shards between stages: there the projection takes a rate that holds each shard's own latency.

    Only the message before a shard waits for the host (:func:`repro.projection.step.step`), so the rate wanted is that
    of the recipe's own message, latency and all.
    """
    own = [p for p in rows.points if p.collective == "message"]
    if "nic_message" not in after or rows.setup.sequence_parallel or rows.setup.tp == 1 or not own:
        return after
    largest = max(own, key=lambda p: p.bytes)
    width = fabric(machine).messages(largest.stride, rows.setup.pp)[0].item()
    time = float(seconds(central, rows.setup, [largest])[0, 0])
    old = after["nic_message"]
    share = largest.bytes / time / (1e9 * width)
    times = share / old.value
    return {**after, "nic_message": Constant(share, old.low * times, old.high * times, "measured",
                                             f"{source}; of {largest.bytes:,} bytes, latency included")}  # fmt: skip


def _bounds(name):
    _, least, most, _ = CONSTANTS[name]
    return max(least, 1e-12), most


def _exact(value):
    return Constant(value, value, value, "measured", "")
