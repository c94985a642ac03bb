"""What the subcommands share: the application, common options, printing."""

import json as jsonlib
import math
import os
from typing import Annotated

import typer

from repro import progress

app = typer.Typer(
    name="repro",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool):
    if asked:
        from repro import __version__

        print(f"repro {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_version)
    ] = False,
):
    """Regenerate 'Optimizing Distributed Training on Frontier for Large Language Models' (arXiv 2312.12705)."""


Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Name = Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe, or path of a TOML file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, e.g. batch.global=16.")
]


def short(path):
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def plain_table(title, *columns):
    from rich.table import Table

    table = Table(title=title, show_header=any(columns))
    for column in columns:
        # what a user types next must be readable on any terminal
        table.add_column(column, no_wrap=column in ("name", "parameters"))
    return table


def show(table):
    console().print(table)


def console():
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)  # a pipe has no width: let nothing be cut there


def assigned(assignments):
    from repro.recipe import parse_assignment

    return dict(parse_assignment(text) for text in assignments or [])


def load_recipe(name, overrides):
    from repro.recipe import load

    return load(name, overrides if isinstance(overrides, dict) else assigned(overrides))


def warn(recipe):
    for warning in recipe.warnings:
        progress.say(f"warning: {warning}")


def print_json(value):
    """One JSON object; what is not finite, which JSON cannot say, is null."""
    print(jsonlib.dumps(_finite(value), default=str, allow_nan=False))


def _finite(value):
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
