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

    def group(self, size, stride):
        """Of groups of ``size`` ranks ``stride`` apart: GB/s of the ring, and whether it crosses nodes.

        A ring enters and leaves a node once. Groups that have ranks in one node share its NICs: as many as
        there are devices, divided by the ranks that each group has there.
        """
        size, stride = np.broadcast_arrays(np.asarray(size), np.asarray(stride))
        n = self.devices
        span = size * stride
        inside = (span <= n) & (n % np.maximum(span, 1) == 0)
        # ranks of one group in a node; a group that straddles nodes unevenly counts as if it had the fewest
        members = np.where(stride >= n, 1, np.maximum(np.minimum(size, n // np.minimum(stride, n)), 1))
        sharing = np.maximum(n // members, 1)
        local = self.ring[np.where(inside, size, 1), np.where(inside, stride, 1)]
        outside = np.minimum(self.node_gbytes / sharing, self.ring[np.minimum(members, n), 1] + 1e9 * (members == 1))
        return np.where(inside, local, outside), ~inside

    def messages(self, stride, stages):
        """Of messages ``stride`` ranks ahead: GB/s of one, and whether any of them crosses nodes.

        All ranks of a stage send at once. Where some stages meet inside a node and others across, the
        slower way is what the pipeline waits for.
        """
        stride, stages = np.broadcast_arrays(np.asarray(stride), np.asarray(stages))
        n = self.devices
        crosses = stride * stages > n
        senders = np.minimum(stride, n)
        outside = np.minimum(self.nic_gbytes, self.node_gbytes / senders)
        return np.where(crosses, outside, self.message[np.minimum(stride, n)]), crosses


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
