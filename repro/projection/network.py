"""Bandwidth and latency of groups of ranks on a machine, where DeepSpeed's axis order puts them. No torch.

Ranks are numbered model fastest, then data, then pipe (:mod:`repro.layout`), and fill nodes in order. A
tensor-parallel group is consecutive ranks; a data-parallel group has a stride of tp, a message between
stages one of tp x dp. Inside a node a ring runs over the links between its devices in the site's rank
order; across nodes it shares the node's NICs with every other group that has a rank there.
"""

from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np

NO_LINK = 50.0  # GB/s assumed between devices of a node without a direct link; the narrowest link on the way


@dataclass(frozen=True)
class Fabric:
    """What links and NICs of a machine could carry, before efficiencies.

    Attributes:
        ring: GB/s of a ring, by ``[size, stride]`` of a group inside a node; 0 where it does not fit.
        message: GB/s of the narrowest message inside a node, by stride.
    """

    devices: int
    node_gbytes: float
    nic_gbytes: float
    ring: np.ndarray
    message: np.ndarray

    def group(self, size, stride, ranks=None):
        """Of groups of ``size`` ranks ``stride`` apart: GB/s of the ring, and whether any crosses nodes.

        A ring enters and leaves a node once. Groups that meet at a node share its NICs; where more meet at one
        node than at another, the step waits for the slower ones.

        Args:
            ranks: of the world; many if not given.
        """
        size, stride = np.broadcast_arrays(np.asarray(size), np.asarray(stride))
        n = self.devices
        most = sharing(size, stride, size * stride * n if ranks is None else ranks, n)
        near = np.minimum(stride, n)
        inside = np.where(size * near <= n, size, 1)
        members = np.minimum(size, n // near)  # ranks of one group in a node that it fills
        local, within = self.ring[inside, near], self.ring[members, near]
        # ring[1] is no ring: nothing to limit
        return np.where(most > 0, np.minimum(self.node_gbytes / np.maximum(most, 1), within), local), most > 0

    def messages(self, stride, stages):
        """Of messages ``stride`` ranks ahead: GB/s of one, and whether any of them crosses nodes.

        All ranks of a stage send at once. Where some stages meet inside a node and others across, the
        slower way is what the pipeline waits for.
        """
        stride, stages = np.broadcast_arrays(np.asarray(stride), np.asarray(stages))
        n = self.devices
        # of the first node: those whose receiver is beyond it; no node has more
        senders = np.maximum(np.minimum(n, stride * (stages - 1)) - np.maximum(n - stride, 0), 0)
        return self._alone(senders, stride)

    def pairs(self, width, stages):
        """Of the first stage's ``width`` ranks, each with its peer on the last: GB/s, whether any crosses nodes."""
        width, stages = np.broadcast_arrays(np.asarray(width), np.asarray(stages))
        n, stride = self.devices, width * (stages - 1)
        apart = np.minimum(width - np.clip(n - stride, 0, width), n)
        return self._alone(np.where(stages > 1, apart, 0), stride)

    def _alone(self, senders, stride):
        """A device alone sends through one NIC, and shares the node's with all that send."""
        outside = np.minimum(self.nic_gbytes, self.node_gbytes / np.maximum(senders, 1))
        return np.where(senders > 0, outside, self.message[np.minimum(stride, self.devices)]), senders > 0


def sharing(size, stride, ranks, devices):
    """The most groups with ranks both in one node and elsewhere, over the nodes of ``ranks`` ranks.

    Groups come in blocks of ``size x stride`` ranks. What nodes look like repeats after ``devices`` blocks. It is
    enough to look at the nodes where blocks begin: those inside a block are like the first node.
    """
    size, stride, ranks = (x[..., None] for x in np.broadcast_arrays(size, stride, ranks))
    block = size * stride
    low = np.arange(devices) * block // devices * devices
    high = np.minimum(low + devices, ranks)
    first, last = low // block, (high - 1) // block
    open_groups = _open(size, stride, low - first * block, np.minimum(high - first * block, block))
    open_groups = open_groups + (last > first) * _open(size, stride, 0, high - last * block)
    return np.max(np.where(low < ranks, open_groups, 0), axis=-1)


def _open(size, stride, low, high):
    """Groups with ranks both inside and outside of places ``low`` to ``high`` of a block: touched less contained."""
    contained = np.minimum(stride, high - (size - 1) * stride) - low
    return np.minimum(stride, high - low) - np.maximum(contained, 0)


def fabric(machine):
    """The :class:`Fabric` of a machine."""
    links = tuple(sorted(machine.links.items()))
    ring, message = _tables(machine.order, links, machine.switch_gbytes)
    return Fabric(machine.devices_per_node, machine.node_gbytes, machine.nic_gbytes, ring, message)


@cache
def _tables(order, links, switch):
    n, links = len(order), dict(links)
    ring = np.zeros((n + 1, n + 1))
    message = np.full(n + 1, np.inf)
    ring[1, :] = np.inf
    for stride in range(1, n + 1):
        for size in range(2, n // stride + 1):
            starts = [node * size * stride + r for node in range(n // (size * stride)) for r in range(stride)]
            groups = [tuple(order[start + i * stride] for i in range(size)) for start in starts]
            ring[size, stride] = min(ring_gbytes(group, links, switch) for group in groups)
        pairs = [(order[r], order[r + stride]) for r in range(n - stride)]
        message[stride] = min((switch or links.get(pair, NO_LINK) for pair in pairs), default=np.inf)
    message[message == np.inf] = switch or NO_LINK
    return ring, message


def ring_gbytes(group, links, switch=0.0):
    """GB/s at which each device of a group passes on data around the best ring over direct links.

    Two devices send to each other over their link. A closed ring carries half of the data each way round,
    so twice its narrowest link. An open chain returns on the other direction of the same links, so once.
    With a switch each device has its own link into it.

    Args:
        group: devices, in any order.
        links: ``{(a, b): GB/s each way}``, both orders.
    """
    if len(group) == 1:
        return float("inf")
    if switch:
        return switch
    if len(group) == 2:
        return links.get(tuple(group), NO_LINK)
    return _best(tuple(sorted(group)), tuple(sorted(links.items())))


@cache
def _best(group, links):
    links = dict(links)
    best_ring, best_chain = 0.0, 0.0
    for rest in permutations(group[1:]):
        way = (group[0], *rest)
        around = [links.get(pair, 0.0) for pair in zip(way, (*way[1:], way[0]), strict=True)]
        best_ring = max(best_ring, min(around))
        around.sort()
        best_chain = max(best_chain, around[1])  # without its narrowest step the ring is a chain
    return max(2 * best_ring, best_chain, NO_LINK / len(group))
