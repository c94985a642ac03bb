"""Exhibit 08: a preflight on this machine, and one brought home from a site, beside what was projected there."""

from dataclasses import replace
from pathlib import Path

from repro.errors import InputError
from repro.report.grid import Grid

LOCAL = {"paper": "tiny-3d", "tiny": "tiny"}  # recipe of the preflight on this machine


def preflight_here(scale, folder):
    """A preflight of a small recipe on real ranks of this machine, over gloo where it has no GPU.

    Returns:
        The :class:`repro.preflight.launch.Preflight`.

    Raises:
        RunFailed: it did not pass: nothing of this machine can then be shown.
    """
    from repro.errors import RunFailed
    from repro.preflight.launch import local

    found = local(LOCAL[scale], Path(folder) / "preflight")
    if not found.passed:
        raise RunFailed(f"preflight on this machine: {found.data['reason']}")
    return found


def brought_home(folder):
    """The preflight of a cluster in ``folder``; ``None`` where none is given."""
    from repro.preflight.launch import read

    return read(folder) if folder else None


def checks(found):
    """What a preflight checked, and what it could not."""
    if found is None:
        return _none()
    rows = tuple((c["name"], c["state"], c["reason"], c["fix"]) for c in found.data["checks"])
    return Grid(("check", "state", "what", "fix"), rows)


def ranks(found):
    """Where the ranks of a preflight sit."""
    from repro.report.preflight_table import BINDING, binding_rows

    return _none() if found is None else Grid(BINDING, binding_rows(found.data))


def points(found):
    """The measured network of a preflight in numbers."""
    from repro.report import network_table

    return _none() if found is None else Grid(network_table.COLUMNS, network_table.rows(found.table))


def _none():
    return Grid(("",), (("no preflight of a cluster was given (parameter preflight_folder)",),))


def expected(one, samples=2000):
    """What a preflight of the recipe at the site should measure: projected, from the profile of the site's machine.

    Returns:
        A :class:`repro.records.table.Table` of bus bandwidths, empty where the site names no machine.
    """
    import numpy as np

    from repro.exhibits.points import rounded
    from repro.preflight import sizes
    from repro.preflight.measure import MOST_BYTES
    from repro.projection import belief, machine, measured_network
    from repro.projection.counts import dtype_bytes
    from repro.records import network
    from repro.records.table import Row, Table

    if one.site.machine is None:
        return Table()
    profile, setup = machine.load(one.site.machine), _setup(one)
    layout, element = one.recipe.layout, dtype_bytes(one.recipe)
    wanted = {}
    for item in sizes.items(one.recipe, MOST_BYTES["nccl"]):
        if item.group != "world":
            for elements in item.elements:
                wanted[item.collective, item.group, elements * element] = _point(item, layout, elements * element)
    rows, found = [], list(wanted.values())
    middle = measured_network.seconds(profile, setup, found)[0]
    drawn = measured_network.seconds(profile, setup, found, belief.prior(profile, samples).constants(profile))
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    source = f"{profile.title}: ranges of its profile"
    for p, seconds, fast, slow in zip(found, middle, low, high, strict=True):
        least, value, most = (rounded(p.bus_factor * p.bytes / s / 1e9) for s in (slow, seconds, fast))
        row = Row(network.EXHIBIT, p.series, p.bytes, network.BUS, value, "GB/s", least, most, "projected", source)
        rows.append(row)
    return Table(rows)


def _point(item, layout, size_bytes):
    from repro.records.network import Point

    size, stride = {
        "tensor": (layout.tp, 1),
        "data": (layout.dp, layout.tp),
        "pipeline": (2, layout.tp * layout.dp),
        "tied": (2, layout.tp * layout.dp * (layout.pp - 1)),
    }[item.group]
    return Point(item.collective, item.group, size, stride, size_bytes, 1.0, 1.0, 1.0)


def _setup(one):
    from repro.records.network import Setup

    p = one.recipe.parallel
    return Setup(one.recipe.name, p.tp, p.pp, p.dp, p.sequence_parallel, one.site.name, one.plan.nodes,
                 one.plan.tasks_per_node, one.site.backend, one.site.date, "projected")  # fmt: skip


def table(projected, here, given):
    """All numbers of the exhibit: projected, measured on this machine, measured on the cluster."""
    from repro.records.network import BUS, EXHIBIT

    found = projected + _of(here.table, f"{EXHIBIT}, this machine")
    return found + (given.table.select(metric=BUS) if given else type(projected)())


def _of(rows, exhibit):
    from repro.records.network import BUS
    from repro.records.table import Table

    return Table(replace(row, exhibit=exhibit) for row in rows.select(metric=BUS))


def site_figure(found, one, given, scale, into="figures"):
    """Bandwidth against size at the site, projected and, where a preflight came home, measured."""
    from repro.records.network import EXHIBIT
    from repro.report import network_figure

    measured = f"measured: {given.folder.name}. " if given else "No preflight of the site was given. "
    text = (
        f"{one.recipe.name} at {one.site.title}, its own groups, all groups of a kind at once. "
        f"Bars: projected, nine in ten samples of the profile's ranges; measured, slowest and fastest. {measured}"
    )
    return network_figure.bandwidth(found.select(exhibit=EXHIBIT), text, _name("08_frontier_network", scale), into)


def here_figure(found, here, scale, into="figures"):
    """Bandwidth against size on this machine: it shows that the measurement runs, not what a network gives."""
    from repro.records.network import EXHIBIT
    from repro.report import network_figure

    layout, backend = here.data["layout"], here.data["backend"]
    text = (
        f"{here.data['recipe']} on {layout['ranks']} ranks of this machine over {backend}: processes that share cores. "
        "It says nothing about RCCL or Slingshot. Bars: slowest and fastest of groups and repeats. "
    )
    rows = found.select(exhibit=f"{EXHIBIT}, this machine")
    return network_figure.bandwidth(rows, text, _name("08_frontier_here", scale), into)


def _name(name, scale):
    return name + ("_tiny" if scale == "tiny" else "")


def constants(one, given):
    """The network constants of the site's machine before and after the preflight that came home."""
    from repro.projection.measured_network import from_preflight

    columns = ("constant", "profile", "range", "measured", "range ")
    if given is None:
        return _none()
    try:
        fit = from_preflight(given.folder / "network.csv", one.site.machine or "")
    except InputError as error:
        return Grid(("not fitted",), ((str(error),),))
    rows = []
    for name, (a, b) in fit.changed.items():
        before = (f"{a.value:.3g} ({a.kind})", f"{a.low:.3g} to {a.high:.3g}")
        rows.append((name, *before, f"{b.value:.3g}", f"{b.low:.3g} to {b.high:.3g}"))
    rows.append(("error of the fit", "", "", f"{fit.error:.1%}", ""))
    return Grid(columns, tuple(rows))
