"""Exhibit 08: a recipe's job at a site: what it asks for, its environment and script, what the rules find."""

import html
from dataclasses import dataclass
from functools import cached_property

from repro.errors import InputError
from repro.report.grid import Grid

NOWHERE = "/lustre/PROJECT/runs/RUN"  # stands in the script for the run folder that a submission would take
ACCOUNT = "abc123"  # stands in it for the user's own


@dataclass(frozen=True)
class Job:
    """A recipe at a site.

    Attributes:
        plan: :class:`repro.cluster.job.JobPlan` of training, ``text`` its script.
        preflight: ``(plan, text)`` of the preflight.
    """

    recipe: object
    site: object
    plan: object
    text: str
    preflight: tuple

    @cached_property
    def findings(self):
        from repro.cluster.rules import of_job

        return tuple(of_job(self.recipe, self.site, self.text))


@dataclass(frozen=True)
class Script:
    """A script as it is, in a notebook and in a log."""

    text: str

    def _repr_html_(self):
        return f"<pre>{html.escape(self.text)}</pre>"

    def __repr__(self):
        return self.text


def job(recipe, site, nodes=0, rung=0):
    """The :class:`Job` of a recipe at a site.

    Args:
        nodes: as many replicas as fill them, the batch staying; 0: the recipe's own ranks.
        rung: of the site's ladder of fallbacks.

    Raises:
        InputError: unknown names, nodes that no whole number of replicas fills, what the site cannot give.
    """
    from repro.cluster import job as jobs
    from repro.cluster import preflight_job
    from repro.cluster.site import load_site
    from repro.recipe import load

    where, what = load_site(site), load(recipe)
    if nodes:
        what = load(what, {"parallel.dp": _replicas(what, where, nodes)})
    options = jobs.Options(rung=rung, account=ACCOUNT if where.account_required else None)
    plan = jobs.plan(what, where, NOWHERE, options)
    short = preflight_job.prepare(what, site, NOWHERE, options)
    return Job(what, where, plan, jobs.script(plan), short)


def _replicas(recipe, site, nodes):
    replica, tasks = recipe.parallel.tp * recipe.parallel.pp, site.node.tasks
    dp, left = divmod(nodes * tasks, replica)
    if nodes < 0 or left or not dp:
        near = max(1, round(nodes * tasks / replica)) * replica
        raise InputError(
            f"nodes {nodes}: {nodes * tasks} ranks are no whole number of replicas of {replica} (tp x pp); "
            f"nearest valid: {-(-near // tasks)}, or 0 for the recipe's own"
        )
    return dp


def asked(one):
    """What the job asks for."""
    p = one.plan
    rows = [
        ("site", f"{one.site.title}, facts of {one.site.date}"),
        ("ranks", f"{p.ranks:,} on {p.nodes:,} nodes, {p.tasks_per_node} each"),
        (
            "tp x pp x dp",
            " x ".join(str(n) for n in (one.recipe.parallel.tp, one.recipe.parallel.pp, one.recipe.parallel.dp)),
        ),
        ("queue", p.partition + (f", qos {p.qos}" if p.qos else "")),
        ("wall time", f"{p.time}, {p.nodes * p.hours:,.0f} node-hours"),
        ("of the preflight", f"{one.preflight[0].time}, {p.nodes * one.preflight[0].hours:,.0f} node-hours"),
        ("rung of the ladder", f"{p.rung} of {len(one.site.ladder)}"),
    ]
    return Grid(("", "asked for"), tuple(rows))


def environment(one):
    """The environment of the job: what is set, why, on whose word, and what has to stay unset."""
    from repro.cluster.rccl import rows

    keys = ("name", "value", "why", "contested", "source", "date", "origin")
    found = rows(one.site, one.plan.nodes, one.plan.rung)
    return Grid(keys, tuple(tuple(row[key] for key in keys) for row in found))


def ladder(one):
    """What to try when a job hangs, one rung after the other."""
    rows = []
    for rung in one.site.ladder:
        does = [f"{name}={value}" for name, value in rung.set.items()]
        does += [f"without {name}" for name in (*rung.drop, *(f"pair {pair}" for pair in rung.drop_pairs))]
        rows.append((rung.number, rung.title, ", ".join(does), rung.why, rung.source))
    return Grid(("rung", "title", "does", "why", "source"), tuple(rows))


def script(one):
    """The job script of training."""
    return Script(one.text)


def preflight_step(one):
    """What the script of the preflight says otherwise than that of training."""
    import difflib

    lines = difflib.unified_diff(
        one.text.splitlines(), one.preflight[1].splitlines(), "training", "preflight", "", "", 0
    )
    return Script("\n".join(line for line in lines if not line.startswith("@@")) + "\n")


def findings(one):
    """What the site's rules find in the job; one line where they find nothing."""
    from repro.cluster.rules import RULES

    rows = tuple((f.severity, f.rule, f.what, f.why, f.fix, f.source) for f in one.findings)
    nothing = (("", "", f"nothing, by {len(RULES)} rules", "", "", ""),)
    return Grid(("severity", "rule", "found", "why", "fix", "source"), rows or nothing)


def binding(one):
    """Where the site's table wants each rank of a node."""
    rows = tuple((row.local_rank, row.gpu, row.cores, row.numa, row.nic or "") for row in one.site.node.binding)
    return Grid(("local rank", "GCD", "cores", "NUMA", "NIC"), rows or (("", "the site has no table", "", "", ""),))
