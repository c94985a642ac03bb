"""``repro check --site``: a recipe or a user's script held against the rules of a site."""

from dataclasses import asdict

from repro.commands.shared import plain_table, print_json, show
from repro.errors import InputError


def at_site(recipe, site, script, deepspeed, log, json):
    """Print every finding.

    Raises:
        InputError: there are findings of severity error, after all have been printed.
    """
    from repro.cluster.rules import RULES, examine
    from repro.cluster.site import load_site

    found = examine(recipe, load_site(site), script, deepspeed, log)
    summary = (
        f"{found.subject} at {site}: {_count(found.errors, 'error')}, {_count(found.warnings, 'warning')} "
        f"by {len(RULES)} rules"
    )
    if json:
        print_json(
            {
                "site": site,
                "recipe": recipe.name if recipe is not None else None,
                "script": script,
                "rules": len(RULES),
                "errors": found.errors,
                "warnings": found.warnings,
                "findings": [asdict(finding) for finding in found.findings],
                "notes": found.notes,
            }
        )
    else:
        if found.findings:
            _show(found)
        for note in found.notes:
            print(f"note: {note}")
    if found.errors:
        raise InputError(summary)
    if not json:
        print(summary)


def _count(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"


def _show(found):
    from rich.text import Text

    table = plain_table("", "severity", "rule", "what and why", "fix", "where")
    for one in found.findings:
        what = Text(one.what).append(f"\n{one.why} ({one.source})", style="dim")
        colour = "bold red" if one.severity == "error" else "yellow"
        table.add_row(Text(one.severity, style=colour), Text(one.rule), what, Text(one.fix), Text(one.where))
    show(table)


def refuse_without_recipe(site, changes):
    """What needs a recipe.

    Raises:
        InputError: always.
    """
    if changes:
        raise InputError(f"--set {changes[0]} changes a recipe, and there is none; give a RECIPE")
    raise InputError("give a RECIPE to check, or --site with --script for a script alone")


def refuse_without_site(script, deepspeed, log):
    """What a check without a site cannot do.

    Raises:
        InputError: where one of these is given.
    """
    given = [name for name, value in (("--script", script), ("--deepspeed", deepspeed), ("--log", log)) if value]
    if given:
        from repro.cluster.site import names

        raise InputError(f"{given[0]} is held against the rules of a site: add --site, one of {', '.join(names())}")
