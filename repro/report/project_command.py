"""What ``repro project`` does: one projection, or the tables that say how good projections are."""

from dataclasses import asdict
from math import isfinite

from repro.errors import InputError
from repro.report.project_table import show

__all__ = ["run", "show", "tables", "what_is_missing", "with_network"]


def what_is_missing(recipe, machine):
    """The line for a call without a recipe or a machine."""
    from repro.projection.machine import names

    if recipe is None:
        others = "--validate, --ablation, --mechanisms, --predictions"
        return f"project needs a RECIPE, e.g. repro project 175b --machine frontier, or one of {others}"
    return f"project needs --machine; there is no default. Known: {', '.join(names())}"


def with_network(path, machine, recipe, options, as_json):
    """A projection on a machine fitted to a preflight's ``network.csv``; without a recipe the fitted profile.

    Args:
        options: the rest of what :func:`run` takes.
        as_json: prints one object; ``None``: tables for people, the profile as TOML.
    """
    from repro.projection.machine_file import to_toml
    from repro.projection.measured_network import from_preflight
    from repro.report.network_table import show_fit

    fit = from_preflight(path, machine)
    if as_json:
        fitted = {name: asdict(after) for name, (_, after) in fit.changed.items()}
        more = {"network": {"file": path, **asdict(fit.setup), "constants": fitted, "error": fit.error,
                            "at_bound": fit.at_bound}}  # fmt: skip
        return as_json({**run(recipe, fit.machine, *options).to_dict(), **more} if recipe else more)
    show_fit(fit, to_stderr=recipe is None)
    if recipe is None:
        print(to_toml(fit.machine), end="")
    else:
        show(run(recipe, fit.machine, *options))


def run(recipe, machine, nodes, weak, tokens, anyway, operation):
    """The :class:`repro.projection.project.Projection` of what a command line said."""
    from repro.projection.project import project

    if weak and nodes is None:
        raise InputError("--weak says how a batch grows with --nodes; give --nodes too")
    for name, value in (("tokens", tokens), ("node-mtbf-hours", operation["node_mtbf_hours"])):
        if value is not None and not (isfinite(value) and value > 0):
            raise InputError(f"--{name} {value} must be a number above 0")
    given = {name: value for name, value in operation.items() if value is not None}
    return project(recipe, machine, nodes, weak, tokens, anyway, given)


def tables(chosen, recipe, machine, as_json):
    """Print the chosen tables, or hand them to ``as_json`` as one object."""
    if recipe is not None or machine is not None:
        raise InputError(f"--{chosen[0]} takes no recipe and no --machine: it runs over all published ones")
    makers = {"validate": _validate, "ablation": _ablation, "mechanisms": _mechanisms, "predictions": _predictions}
    found = {name: makers[name](as_json is None) for name in chosen}
    if as_json:
        as_json(found)


def _validate(show_it):
    from repro.projection import validate
    from repro.report.project_table import show_validation

    found, pairs = validate.everything(), validate.table_1_pairs()
    if show_it:
        return show_validation(found, pairs)
    return {
        "tables": [
            {**asdict(v), "summary": {g or "all": validate.summary(v.held_out(g)) for g in (None, *v.groups())}}
            for v in found
        ],
        "sc21_pairs": [{"points": list(ids), "mean_error": error} for ids, error in pairs.items()],
    }


def _ablation(show_it):
    from repro.projection.ablation import ablation
    from repro.report.project_table import show_ablation

    found = ablation()
    return show_ablation(found) if show_it else [asdict(row) for row in found]


def _mechanisms(show_it):
    from repro.projection import mechanisms
    from repro.records import published_runs
    from repro.report.project_table import show_mechanisms

    found = mechanisms.mechanisms()
    published = {run.id: run.value for run in published_runs.runs(machine="frontier")}
    return show_mechanisms(found, published) if show_it else [asdict(row) for row in found]


def _predictions(show_it):
    from repro.projection.predictions import compared
    from repro.report.project_table import show_predictions

    found = compared()
    return show_predictions(found) if show_it else [{"written": asdict(a), "today": asdict(b)} for a, b in found]
