"""Rings over the links of a node, and who shares its NICs: against enumerations written out here."""

from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.layout import Layout
from repro.projection import machine
from repro.projection.network import NO_LINK, fabric, ring_gbytes

FRONTIER, LUMI, SELENE = (machine.load(name) for name in ("frontier", "lumi", "a100-selene"))
NODE = 8


def plain_ring(group, links):
    """GB/s around the best closed way over direct links, or there and back over the best open one.

    Every way is walked: a closed one carries half of the data in each direction, so twice its narrowest link.
    """
    best = 0.0
    for way in permutations(group):
        steps = [links.get((way[i], way[i + 1]), 0) for i in range(len(way) - 1)]
        best = max(best, min(steps))
        if len(way) > 2:
            best = max(best, 2 * min(*steps, links.get((way[-1], way[0]), 0)))
    return best


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 8])
def test_rings_are_the_best_of_all_ways_around(size):
    groups = list(combinations(range(NODE), size))
    if size < 8:
        groups = groups[:: len(groups) // 8]
    for group in groups:
        plain = plain_ring(group, FRONTIER.links)
        # without a way over direct links alone data go through other devices; that is assumed, not computed
        assert ring_gbytes(group, FRONTIER.links) == (plain or (NO_LINK if size == 2 else NO_LINK / size))


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(list(combinations(range(5), 2))), st.sampled_from([50.0, 100.0, 200.0]), min_size=4
    ),
    st.permutations(range(5)),
)
def test_rings_of_any_links(linked, way):
    links = linked | {(b, a): gbytes for (a, b), gbytes in linked.items()}
    plain = plain_ring(way, links)
    assert ring_gbytes(way, links) == max(plain, NO_LINK / 5)  # in whatever order the group is given


def test_closed_rings_of_eight_are_the_five_that_the_node_diagram_has():
    around = [(0, *way) for way in permutations(range(1, NODE)) if way[0] < way[-1]]
    closed = [w for w in around if all(pair in FRONTIER.links for pair in zip(w, (*w[1:], 0), strict=True))]
    assert len(closed) == 5
    assert (0, 1, 3, 2, 4, 5, 7, 6) in closed
    assert (0, 1, 5, 4, 2, 3, 7, 6) in closed
    assert all(min(FRONTIER.links[p] for p in zip(w, (*w[1:], 0), strict=True)) == 50 for w in closed)
    assert sum(FRONTIER.links.values()) / 2 == 26 * 50  # links of the node


@pytest.mark.parametrize(
    ("where", "size", "gbytes", "why"),
    [
        (FRONTIER, 2, 200, "the two GCDs of a module"),
        (LUMI, 2, 200, "the two GCDs of a module"),
        (FRONTIER, 4, 100, "the open chain 5-4-2-3 of 4, 2 and 4 links, back over the same"),
        (LUMI, 4, 100, "the ring 0-1-3-2 of 4, 1, 4 and 1 links, both ways round"),
        (FRONTIER, 8, 100, "a ring with steps of one link, both ways round"),
        (LUMI, 8, 100, "the same devices"),
        (SELENE, 8, 300, "the switch"),
        (SELENE, 2, 300, "the switch"),
    ],
)
def test_tensor_parallel_groups_of_a_node(where, size, gbytes, why):
    rate, crosses = fabric(where).group(size, 1)
    assert rate == gbytes, why
    assert not crosses


def test_the_chain_of_frontier_has_no_closing_link_and_the_ring_of_lumi_has():
    devices = {name: [m.order[rank] for rank in range(4)] for name, m in (("frontier", FRONTIER), ("lumi", LUMI))}
    assert devices == {"frontier": [4, 5, 2, 3], "lumi": [0, 1, 2, 3]}
    links = FRONTIER.links
    assert [links.get(pair) for pair in ((5, 4), (4, 2), (2, 3), (3, 5))] == [200, 100, 200, None]
    assert [links.get(pair) for pair in ((0, 1), (1, 3), (3, 2), (2, 0))] == [200, 50, 200, 50]


# Groups on nodes, counted rank by rank


def nodes_of(group):
    return {rank // NODE for rank in group}


def shared(groups):
    """The most groups that one node's NICs carry: those with ranks in it and elsewhere."""
    count = Counter(node for group in groups if len(nodes_of(group)) > 1 for node in nodes_of(group))
    return max(count.values(), default=0)


def groups_of(layout, kind):
    return {getattr(layout, f"{kind}_group")(rank) for rank in range(layout.world_size)}


def narrowest(layout, kind, machine):
    """GB/s of a group's ring across nodes, from the number that meet at the NICs; None where all stay inside."""
    most = shared(groups_of(layout, kind))
    return machine.node_gbytes / most if most else None


LAYOUTS = [
    (tp, dp, pp)
    for tp in (1, 2, 3, 4, 5, 6, 8, 12, 16)
    for dp in (1, 2, 3, 4, 5, 6, 8, 12)
    for pp in (1, 2, 3, 4, 7, 8)
]


def arrays():
    return np.array(LAYOUTS).T


def compare(rates, crosses, kind, machine):
    wrong = []
    for (tp, dp, pp), rate, far in zip(LAYOUTS, rates, crosses, strict=True):
        layout = Layout(pp, dp, tp)
        wanted = narrowest(layout, kind, machine)
        if far != (wanted is not None) or (far and rate != pytest.approx(wanted)):
            wrong.append((tp, dp, pp, rate, wanted))
    assert wrong == []


def test_tensor_parallel_groups_across_nodes_share_its_nics():
    tp, dp, pp = arrays()
    compare(*fabric(SELENE).group(tp, np.ones_like(tp), tp * dp * pp), "tensor", SELENE)


def test_data_parallel_groups_across_nodes_share_its_nics():
    tp, dp, pp = arrays()
    compare(*fabric(SELENE).group(dp, tp, tp * dp * pp), "data", SELENE)


def test_first_and_last_stages_across_nodes_share_its_nics():
    tp, dp, pp = arrays()
    rates, crosses = fabric(SELENE).pairs(tp * dp, pp)
    for (t, d, p), rate, far in zip(LAYOUTS, rates, crosses, strict=True):
        most = shared(groups_of(Layout(p, d, t), "tied"))
        assert far == (most > 0), (t, d, p)
        if far:  # one device does not send through two NICs
            assert rate == min(SELENE.node_gbytes / most, SELENE.nic_gbytes), (t, d, p)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 30), st.integers(1, 6), st.sampled_from([4, 6, 8]))
def test_any_groups_on_any_nodes(size, stride, blocks, n):
    groups = [
        [block * size * stride + r + i * stride for i in range(size)] for block in range(blocks) for r in range(stride)
    ]
    count = Counter()
    for group in groups:
        nodes = {rank // n for rank in group}
        count.update(nodes if len(nodes) > 1 else ())
    most = max(count.values(), default=0)
    from repro.projection.network import sharing

    assert sharing(size, stride, size * stride * blocks, n) == most


def test_messages_between_stages_share_its_nics():
    tp, dp, pp = arrays()
    rates, crosses = fabric(FRONTIER).messages(tp * dp, pp)
    for (t, d, p), rate, far in zip(LAYOUTS, rates, crosses, strict=True):
        layout = Layout(p, d, t)
        leaving = Counter()
        for rank in range(layout.world_size):
            line = layout.pipeline_group(rank)
            place = line.index(rank)
            if place < p - 1 and line[place + 1] // NODE != rank // NODE:
                leaving[rank // NODE] += 1
        assert far == bool(leaving), (t, d, p)
        if far:
            assert rate == min(FRONTIER.nic_gbytes, FRONTIER.node_gbytes / max(leaving.values())), (t, d, p)


def test_messages_inside_a_node_go_over_the_narrowest_pair():
    found = {stride: float(fabric(FRONTIER).messages(stride, 8 // stride)[0]) for stride in (1, 2, 4)}
    expected = {}
    for stride in found:
        pairs = [(FRONTIER.order[r], FRONTIER.order[r + stride]) for r in range(NODE - stride)]
        expected[stride] = min(FRONTIER.links.get(pair, NO_LINK) for pair in pairs)
    assert found == expected


def test_a_stage_a_node_as_on_lumi():
    """175B on LUMI: eight replicas' groups and eight messages on the NICs of a node, as its logger showed."""
    net = fabric(LUMI)
    assert net.group(4, 8, 8 * 4 * 8)[0] == 12.5
    assert net.messages(8 * 4, 8)[0] == 12.5
    assert not net.group(8, 1, 8 * 4 * 8)[1]
