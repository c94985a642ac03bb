"""The environment of a job: what RCCL, libfabric and torch are told at a site, and what must stay untold."""

from dataclasses import dataclass

from repro.errors import InputError


@dataclass(frozen=True)
class Setting:
    """A variable of a job.

    Attributes:
        value: ``None``: the job takes it out of what it finds, as a module of the site may have set it.
        why: meaning, or the reason for leaving it unset.
        origin: ``site``, ``one node``, or the rung of the ladder that changed it.
    """

    name: str
    value: str | None
    why: str
    source: str
    date: str = ""
    contested: str | None = None
    origin: str = "site"


@dataclass(frozen=True)
class Environment:
    """What :func:`environment` gives.

    Attributes:
        settings: what is exported.
        dropped: what the site sets otherwise, but not here: on one node, or on this rung.
        unset: what the site wants unset always.
        sbatch: options of Slurm that belong to pairs.
        loud: warnings that the job has to print.
    """

    settings: tuple
    dropped: tuple
    unset: tuple
    sbatch: tuple
    loud: tuple

    def __getitem__(self, name):
        return next((one.value for one in self.settings if one.name == name), None)


def environment(site, nodes, rung=0):
    """The environment of a job on ``nodes`` nodes.

    Variables of a pair come with the pair's option of Slurm, both or neither; what holds for several nodes only
    is left out on one, pairs among it. Rungs of the site's ladder add up: rung 3 does what 1 and 2 do, too, since
    a job that still hangs on one rung is tried on the next, and each step costs more speed than the one before.

    Raises:
        InputError: the site's ladder has no such rung, or it sets what must stay unset.
    """
    if type(rung) is not int or not 0 <= rung <= len(site.ladder):
        raise InputError(f"rung {rung} is not on the ladder of {site.name}; valid are 0 to {len(site.ladder)}")
    settings, dropped, pairs = _begin(site, nodes)
    # with one node there is no fabric that a rung could choose
    several = {"NCCL_NET"} | {v.name for v in site.variables if v.when == "multi-node" or v.pair}
    loud = []
    for step in site.ladder[:rung]:
        origin = f"rung {step.number}"
        for name, value in step.set.items():
            if nodes > 1 or name not in several:
                settings[name] = Setting(name, value, step.why, step.source, site.date, origin=origin)
                dropped.pop(name, None)
        gone = [v.name for v in site.variables if v.pair in step.drop_pairs]
        for name in (*step.drop, *gone):
            if settings.pop(name, None):
                dropped[name] = Setting(name, None, step.why, step.source, site.date, origin=origin)
        for name in step.drop_pairs:
            pairs.pop(name, None)
        if step.loud:
            loud.append(f"{origin}, {step.title}: {step.why}")
    unset = {one.name: one for one in site.unset}
    both = sorted(settings.keys() & unset.keys())
    if both:
        raise InputError(f"site {site.name} sets {both[0]}, which must stay unset: {unset[both[0]].why}")
    return Environment(
        tuple(settings.values()),
        tuple(dropped.values()),
        tuple(Setting(one.name, None, one.why, one.source) for one in site.unset),
        tuple(pair.sbatch_option for pair in pairs.values()),
        tuple(loud),
    )


def _begin(site, nodes):
    """Settings, what is left out, and pairs, all by name, before the ladder."""
    pairs = {pair.name: pair for pair in site.pairs} if nodes > 1 else {}
    settings, dropped = {}, {}
    for v in site.variables:
        wrong = v.when == ("single-node" if nodes > 1 else "multi-node")
        if wrong or (v.pair and v.pair not in pairs):
            origin = "several nodes" if nodes > 1 else "one node"
            why = f"left out: {v.meaning}"
            dropped[v.name] = Setting(v.name, None, why, v.source, v.date, v.contested, origin)
        else:
            settings[v.name] = Setting(v.name, v.value, v.meaning, v.source, v.date, v.contested)
    return settings, dropped, pairs


def rows(site, nodes, rung=0):
    """The environment as rows of a table: name, value, why, contested, source, date, origin."""
    found = environment(site, nodes, rung)
    return [
        {
            "name": one.name,
            "value": "(unset)" if one.value is None else one.value,
            "why": one.why,
            "contested": one.contested or "",
            "source": one.source,
            "date": one.date,
            "origin": one.origin,
        }
        for one in (*found.settings, *found.dropped, *found.unset)
    ]
