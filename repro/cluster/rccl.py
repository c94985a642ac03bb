"""The environment of a job: what RCCL, libfabric and torch are told at a site, and what must stay untold."""

from dataclasses import dataclass

from repro.errors import InputError


@dataclass(frozen=True)
class Setting:
    """A variable of a job.

    Attributes:
        value: ``None``: must stay unset.
        why: meaning, or the reason for leaving it unset.
        origin: ``site``, or the rung of the ladder that changed it.
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
    """What :func:`environment` gives: settings, what stays unset, options of Slurm that belong to them, warnings."""

    settings: tuple
    unset: tuple
    sbatch: tuple
    loud: tuple

    def __getitem__(self, name):
        return next((one.value for one in self.settings if one.name == name), None)


def environment(site, nodes, rung=0):
    """The environment of a job on ``nodes`` nodes.

    Variables of a pair come with the pair's option of Slurm, both or neither; what holds for several nodes only
    is left out on one. Rungs of the site's ladder add up: rung 3 does what 1 and 2 do, too.

    Raises:
        InputError: the site's ladder has no such rung, or it sets what must stay unset.
    """
    if type(rung) is not int or not 0 <= rung <= len(site.ladder):
        raise InputError(f"rung {rung} is not on the ladder of {site.name}; valid are 0 to {len(site.ladder)}")
    several = nodes > 1
    pairs = {pair.name: pair for pair in site.pairs} if several else {}
    unset = {one.name: one for one in site.unset}
    settings = {}
    for v in site.variables:
        if v.when == ("single-node" if several else "multi-node") or (v.pair and v.pair not in pairs):
            continue
        settings[v.name] = (Setting(v.name, v.value, v.meaning, v.source, v.date, v.contested), v.pair)
    loud = []
    for step in site.ladder[:rung]:
        origin = f"rung {step.number}"
        for name, value in step.set.items():
            if not several and name == "NCCL_NET":
                continue  # no fabric to fall back from
            settings[name] = (Setting(name, value, step.why, step.source, site.date, origin=origin), None)
        for name in step.drop:
            settings.pop(name, None)
        for name in step.drop_pairs:
            pairs.pop(name, None)
            settings = {key: (one, pair) for key, (one, pair) in settings.items() if pair != name}
        if step.loud:
            loud.append(f"{origin}, {step.title}: {step.why}")
    both = sorted(settings.keys() & unset.keys())
    if both:
        raise InputError(f"site {site.name} sets {both[0]}, which must stay unset: {unset[both[0]].why}")
    return Environment(
        tuple(one for one, _ in settings.values()),
        tuple(Setting(one.name, None, one.why, one.source) for one in site.unset),
        tuple(pair.sbatch_option for pair in pairs.values()),
        tuple(loud),
    )


def rows(site, nodes, rung=0):
    """The environment as rows of a table: name, value, why, contested, source, date, origin."""
    found = environment(site, nodes, rung)
    table = [
        {
            "name": one.name,
            "value": "(unset)" if one.value is None else one.value,
            "why": one.why,
            "contested": one.contested or "",
            "source": one.source,
            "date": one.date,
            "origin": one.origin,
        }
        for one in (*found.settings, *found.unset)
    ]
    for step in site.ladder[:rung]:
        for name in step.drop:
            table.append(
                {
                    "name": name,
                    "value": "(dropped)",
                    "why": step.why,
                    "contested": "",
                    "source": step.source,
                    "date": site.date,
                    "origin": f"rung {step.number}",
                }
            )
    return table
