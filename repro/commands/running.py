"""Subcommands on recipes, and those that run something: train, run, reproduce."""

import os
import sys
from typing import Annotated

import typer

from repro import progress
from repro.commands.shared import (
    Json,
    Name,
    Overrides,
    app,
    assigned,
    console,
    load_recipe,
    plain_table,
    print_json,
    short,
    show,
    warn,
)
from repro.errors import InputError, RunInterrupted


@app.command()
def recipes(json: Json = False):
    """List the shipped recipes with their true parameter counts."""
    from repro.report import recipes_table

    rows = recipes_table.rows()
    if json:
        return print_json({"recipes": rows})
    columns = ("layers", "hidden", "heads", "tp", "pp", "dp", "ranks", "global", "precision")
    columns = columns if console().width >= 110 else ("tp", "pp", "dp", "ranks", "global")
    table = plain_table("Shipped recipes", "name", "parameters", *columns, "confidence")
    for row in rows:
        count = recipes_table.decimal_count(row["true_parameters"])
        table.add_row(row["name"], count, *(str(row[c]) for c in columns), row["least_confidence"])
    show(table)
    print("parameters: each once, with the padded vocabulary; confidence: the weakest of a recipe's sources")


@app.command()
def check(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Name of a recipe, or path of one.")] = None,
    set: Overrides = None,
    site: Annotated[str | None, typer.Option(help="Hold a job against the rules of this site.")] = None,
    script: Annotated[str | None, typer.Option(help="With --site: a job or launch script of yours.")] = None,
    deepspeed: Annotated[str | None, typer.Option(help="With --site: the engine's JSON.")] = None,
    log: Annotated[str | None, typer.Option(help="With --site: a training log, for its rates.")] = None,
    json: Json = False,
):
    """Check a recipe and print what it resolves to; with --site also a script, its settings and the job itself."""
    from repro import flops, parameters
    from repro.commands import checking

    if recipe is None and (site is None or set):
        checking.refuse_without_recipe(site, set)
    if site is not None:
        chosen = None if recipe is None else load_recipe(recipe, set)
        return checking.at_site(chosen, site, script, deepspeed, log, json)
    checking.refuse_without_site(script, deepspeed, log)
    loaded = load_recipe(recipe, set)
    stages = range(loaded.parallel.pp)
    found = {
        "recipe": loaded.to_dict(),
        "world_size": loaded.world_size,
        "accumulation": loaded.accumulation,
        "padded_vocab": loaded.padded_vocab,
        "true_parameters": parameters.true_count(loaded),
        "parameters_per_rank_by_stage": [parameters.per_rank(loaded, stage) for stage in stages],
        "hardware_flops_per_step": flops.hardware_flops(loaded),
        "model_flops_per_step": flops.model_flops(loaded),
        "warnings": loaded.warnings,
    }
    if json:
        return print_json(found)
    print(loaded.to_toml())
    for key in ("world_size", "accumulation", "padded_vocab", "true_parameters"):
        print(f"{key:24} {found[key]:,}")
    warn(loaded)


@app.command()
def train(
    recipe: Name,
    set: Overrides = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; the recipe's own by default.")] = None,
    run_folder: Annotated[str | None, typer.Option(help="A new folder; runs/RECIPE-TIME by default.")] = None,
    wandb: Annotated[str, typer.Option(help="offline, online or off.")] = "offline",
    deadline: Annotated[float, typer.Option(help="Seconds of silence after which a run counts as hung.")] = 600.0,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints; 0: only when asked to stop.")] = 0,
    keep: Annotated[int, typer.Option(help="Complete checkpoints that stay.")] = 2,
    resume: Annotated[
        str, typer.Option(help="never; auto: go on in the run folder; or a run folder or checkpoint to go on from.")
    ] = "never",
    json: Json = False,
):
    """Train a recipe: on ranks started here, or as one rank under torchrun or srun.

    SIGTERM or SIGUSR1 ends the step in progress, writes a checkpoint and exits with 0; a second one ends at once.
    """
    from repro.engine.keeper import Keeping
    from repro.engine.place import from_environment

    overrides = assigned(set)
    if steps is not None:
        overrides["steps"] = steps
    loaded = load_recipe(recipe, overrides)
    place, keeping = from_environment(), Keeping(checkpoint_every, keep)
    if resume == "auto" and not run_folder:
        raise InputError("--resume auto goes on in a run folder: name it with --run-folder")
    if place is not None:
        from repro.engine.external import train_as_rank

        try:
            summary = train_as_rank(loaded, place, run_folder, wandb, deadline, keeping, resume)
        except RunInterrupted as stopped:
            if not stopped.resumable:
                raise
            progress.say(f"repro: {stopped}")
            summary = None
        if summary is not None:
            _print_trained(loaded, summary, json)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # the work is done and recorded; threads of gloo or NCCL may abort an orderly exit
    from repro.engine.launch import train_local

    if not json:
        warn(loaded)
    shown = progress.Silent() if json else None
    summary = train_local(
        loaded, run_folder, wandb=wandb, deadline_seconds=deadline, progress=shown, keeping=keeping, resume=resume
    )
    _print_trained(loaded, summary, json)


@app.command()
def compare(
    one: Annotated[str, typer.Argument(metavar="RUN_FOLDER", help="A run folder.")],
    other: Annotated[str, typer.Argument(metavar="RUN_FOLDER", help="Another one.")],
    json: Json = False,
):
    """Say where two runs first differ, times and memory apart; exit code 3 when they do."""
    from repro.records.compare import compare as compare_folders
    from repro.records.run_folder import RunFolder

    found = compare_folders(RunFolder.open(one), RunFolder.open(other))
    if json:
        print_json({**vars(found), "equal": found.equal})
    else:
        for field, (ours, theirs) in found.recipes.items():
            print(f"recipe: {field} {ours} | {theirs}")
        if found.missing:
            print(f"steps that one run lacks: {len(found.missing)}, first {found.missing[0]}")
        if found.first:
            step, column, ours, theirs = found.first
            print(f"first difference: step {step}, {column} {ours!r} | {theirs!r}")
            print(f"losses differ by at most {found.relative:.2g} of their value")
        print(f"{found.steps} common steps: {'different' if found.first else 'equal'}")
    if not found.equal:
        raise typer.Exit(3)


@app.command()
def run(
    notebook: Annotated[str, typer.Argument(metavar="NOTEBOOK", help="Path of a notebook.")],
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", metavar="NAME VALUE", help="A parameter; repeatable.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="The executed copy; runs/NOTEBOOK-TIME.ipynb by default.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which the kernel is killed.")] = 3600.0,
    json: Json = False,
):
    """Run a notebook through papermill, failing wherever papermill would let a broken run pass."""
    from repro.notebook.arguments import split
    from repro.notebook.runner import run_notebook

    done = run_notebook(notebook, split(parameter), output, timeout, progress=None if json else progress.say)
    found = {"executed_notebook": str(done.output), "run_folder": str(done.folder), "seconds": done.seconds}
    if json:
        return print_json(found)
    for key, value in found.items():
        print(f"{key:18} {value if isinstance(value, str) else f'{value:.1f}'}")


@app.command()
def reproduce(
    again: Annotated[bool, typer.Option("--again", help="Run every notebook, also where nothing changed.")] = False,
    json: Json = False,
):
    """Run the paper's notebooks at the scale of this machine, those whose inputs changed; say what lies where."""
    from repro.report.where import print_jobs
    from repro.reproduce import reproduce as run_all

    done = run_all(say=(lambda line: None) if json else progress.say, again=again)
    print_json({"jobs": done}) if json else print_jobs(done, short)


def _print_trained(recipe, summary, json):
    found = {"run_folder": str(summary.folder.path), **summary.numbers, "tracking": summary.tracking}
    if json:
        return print_json(found)
    from repro.report.training import NUMBERS

    table = plain_table(f"{recipe.name}: measured on {recipe.world_size} ranks", "", "")
    table.add_row("run folder", short(found["run_folder"]))
    for key, (label, unit) in NUMBERS.items():
        if found[key] is not None:
            value = f"{found[key]:.4g}" if isinstance(found[key], float) else str(found[key])
            table.add_row(label, value if unit in ("1", "") else f"{value} {unit}")
    tracking = found["tracking"]
    table.add_row("wandb", " ".join(str(tracking[k]) for k in ("mode", "state", "reason") if tracking.get(k)))
    show(table)
