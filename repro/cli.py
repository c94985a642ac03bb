"""The command line: thin, one function per subcommand.

Exit codes: 0 done, 2 the input is wrong, 3 it ran and failed, 130 interrupted.
"""

import contextlib
import json as jsonlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from repro import progress
from repro.errors import InputError, RunFailed, RunInterrupted

app = typer.Typer(
    name="repro",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Regenerate 'Optimizing Distributed Training on Frontier for Large Language Models' (arXiv 2312.12705).",
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Name = Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe, or path of a TOML file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, e.g. batch.global=16.")
]


@app.command()
def recipes(json: Json = False):
    """List the shipped recipes with their true parameter counts."""
    from repro.report import recipes_table

    rows = recipes_table.rows()
    if json:
        return _print_json({"recipes": rows})
    columns = ("layers", "hidden", "heads", "tp", "pp", "dp", "ranks", "global", "precision")
    columns = columns if _console().width >= 110 else ("tp", "pp", "dp", "ranks", "global")
    table = _table("Shipped recipes", "name", "parameters", *columns, "confidence")
    for row in rows:
        count = recipes_table.decimal_count(row["true_parameters"])
        table.add_row(row["name"], count, *(str(row[c]) for c in columns), row["least_confidence"])
    _show(table)
    print("parameters: each once, with the padded vocabulary; confidence: the weakest of a recipe's sources")


@app.command()
def check(recipe: Name, set: Overrides = None, json: Json = False):
    """Check a recipe and print what it resolves to: the whole of it, parameter counts, warnings."""
    from repro import flops, parameters

    loaded = _load(recipe, set)
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
        return _print_json(found)
    print(loaded.to_toml())
    for key in ("world_size", "accumulation", "padded_vocab", "true_parameters"):
        print(f"{key:24} {found[key]:,}")
    _warn(loaded)


@app.command()
def train(
    recipe: Name,
    set: Overrides = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; the recipe's own by default.")] = None,
    run_folder: Annotated[str | None, typer.Option(help="A new folder; runs/RECIPE-TIME by default.")] = None,
    wandb: Annotated[str, typer.Option(help="offline, online or off.")] = "offline",
    deadline: Annotated[float, typer.Option(help="Seconds of silence after which a run counts as hung.")] = 600.0,
    json: Json = False,
):
    """Train a recipe: on ranks started here, or as one rank under torchrun or srun."""
    from repro.engine.place import from_environment

    overrides = _overrides(set)
    if steps is not None:
        overrides["steps"] = steps
    loaded = _load(recipe, overrides)
    place = from_environment()
    if place is not None:
        from repro.engine.external import train_as_rank

        summary = train_as_rank(loaded, place, run_folder, wandb, deadline)
        if summary is not None:
            _print_trained(loaded, summary, json)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # the work is done and recorded; threads of gloo or NCCL may abort an orderly exit
    from repro.engine.launch import train_local

    if not json:
        _warn(loaded)
    summary = train_local(loaded, run_folder, None, None, wandb, deadline, progress.Silent() if json else None)
    _print_trained(loaded, summary, json)


@app.command()
def trace(
    recipe: Name,
    set: Overrides = None,
    rank: Annotated[int | None, typer.Option(help="A global rank.")] = None,
    stage: Annotated[int | None, typer.Option(help="A pipeline stage, by its first rank; 0 by default.")] = None,
    all_stages: Annotated[bool, typer.Option("--all-stages", help="Every stage.")] = False,
    micro_batches: Annotated[int | None, typer.Option(help="Per step; the recipe's own by default.")] = None,
    device: Annotated[str, typer.Option(help="Whose memory the peaks are held against.")] = "mi250x-gcd",
    match: Annotated[bool, typer.Option("--match", help="Play all stages against each other, too.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Trace also what cannot fit the device.")] = False,
    json: Json = False,
):
    """Run a rank of a recipe on fake tensors by the engine's own code: FLOPs, transfers, memory. No GPU."""
    from repro import devices
    from repro.report import trace_table
    from repro.tracing.match import match as play
    from repro.tracing.trace import trace as run_trace

    loaded, known = _load(recipe, set), devices.get(device)
    if not anyway and not (refusal := trace_table.closed_form(loaded, known))["fits"]:
        if json:
            return _print_json(refusal)
        return trace_table.show_refusal(loaded, known, refusal)
    stages = run_trace(loaded, rank, stage, all_stages, micro_batches)
    found = {
        "recipe": loaded.name,
        "provenance": "traced",
        "world_size": loaded.world_size,
        "device": known.name,
        "stages": [{**s.to_dict(), **trace_table.fit(s, known)} for s in stages],
    }
    if match:
        from dataclasses import asdict

        found["match"] = asdict(play(loaded))
    if json:
        return _print_json(found)
    trace_table.show(loaded, stages, known, found)


@app.command()
def project(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Name of a recipe, or path of one.")] = None,
    machine: Annotated[str | None, typer.Option(help="Name of a machine, or path of a profile; no default.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Fill so many nodes with replicas; the batch stays.")] = None,
    weak: Annotated[bool, typer.Option("--weak", help="With --nodes: keep the batch of each replica instead.")] = False,
    tokens: Annotated[float | None, typer.Option(help="Tokens to train on, e.g. 20e12; 20 a parameter else.")] = None,
    node_mtbf_hours: Annotated[float | None, typer.Option(help="Mean time between failures of one node.")] = None,
    set: Overrides = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Project also what does not fit into memory.")] = False,
    validate: Annotated[bool, typer.Option("--validate", help="Published runs against their projection.")] = False,
    ablation: Annotated[bool, typer.Option("--ablation", help="What each effect of the model earns.")] = False,
    mechanisms: Annotated[bool, typer.Option("--mechanisms", help="What explains the loss of strong scaling.")] = False,
    predictions: Annotated[bool, typer.Option("--predictions", help="What was predicted before it was known.")] = False,
    json: Json = False,
):
    """Project a recipe's time, rates, memory and cost on a machine, with bands. In a second, without torch."""
    from repro.report import project_command

    chosen = [
        name
        for name, on in (
            ("validate", validate),
            ("ablation", ablation),
            ("mechanisms", mechanisms),
            ("predictions", predictions),
        )
        if on
    ]
    if chosen:
        return project_command.tables(chosen, recipe, machine, _print_json if json else None)
    if recipe is None or machine is None:
        raise InputError(project_command.what_is_missing(recipe, machine))
    found = project_command.run(
        _load(recipe, set), machine, nodes, weak, tokens, anyway, {"node_mtbf_hours": node_mtbf_hours}
    )
    _print_json(found.to_dict()) if json else project_command.show(found)


@app.command()
def scorecard(
    output: Annotated[str, typer.Option(help="Folder of scorecard.png, .svg and .csv.")] = "figures",
    accept: Annotated[bool, typer.Option("--accept", help="Take today's verdicts as the accepted ones.")] = False,
    log: Annotated[str | None, typer.Option(help="Instead: what is wrong with a Megatron-DeepSpeed log.")] = None,
    deepspeed: Annotated[str | None, typer.Option(help="With --log: the run's DeepSpeed JSON.")] = None,
    script: Annotated[str | None, typer.Option(help="With --log: the run's launch script.")] = None,
    device: Annotated[str, typer.Option(help="With --log: the device whose peak counts.")] = "mi250x-gcd",
    json: Json = False,
):
    """Every claim of the paper beside our number, with a verdict; or the faults of a training log."""
    from repro.exhibits.scorecard_command import run as run_scorecard

    run_scorecard(output, accept, log, deepspeed, script, device, _print_json if json else None)


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
        return _print_json(found)
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
    _print_json({"jobs": done}) if json else print_jobs(done, _short)


def _short(path):
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _print_trained(recipe, summary, json):
    found = {"run_folder": str(summary.folder.path), **summary.numbers, "tracking": summary.tracking}
    if json:
        return _print_json(found)
    from repro.report.training import NUMBERS

    table = _table(f"{recipe.name}: measured on {recipe.world_size} ranks", "", "")
    table.add_row("run folder", _short(found["run_folder"]))
    for key, (label, unit) in NUMBERS.items():
        if found[key] is not None:
            value = f"{found[key]:.4g}" if isinstance(found[key], float) else str(found[key])
            table.add_row(label, value if unit in ("1", "") else f"{value} {unit}")
    tracking = found["tracking"]
    table.add_row("wandb", " ".join(str(tracking[k]) for k in ("mode", "state", "reason") if tracking.get(k)))
    _show(table)


def _table(title, *columns):
    from rich.table import Table

    table = Table(title=title, show_header=any(columns))
    for column in columns:
        # what a user types next must be readable on any terminal
        table.add_column(column, no_wrap=column in ("name", "parameters"))
    return table


def _show(table):
    _console().print(table)


def _console():
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)  # a pipe has no width: let nothing be cut there


def _overrides(assignments):
    from repro.recipe import parse_assignment

    return dict(parse_assignment(text) for text in assignments or [])


def _load(name, overrides):
    from repro.recipe import load

    return load(name, overrides if isinstance(overrides, dict) else _overrides(overrides))


def _warn(recipe):
    for warning in recipe.warnings:
        progress.say(f"warning: {warning}")


def _print_json(value):
    print(jsonlib.dumps(value, default=str))


def main(arguments=None):
    """Entry point of the ``repro`` script; every expected error becomes one line and an exit code."""
    _open_standard_files()
    try:
        _require_folder()
        code = app(args=_arguments(arguments), standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe or a full disk still has an answer
        sys.exit(code if isinstance(code, int) else 0)
    except InputError as error:
        _fail(error, 2)
    except RunFailed as error:
        _fail(error, 3)
    except (RunInterrupted, KeyboardInterrupt, typer.Abort) as error:
        _fail(error if str(error) else "interrupted", 130)
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except SystemExit as end:
        sys.exit(0 if end.code == 1 else end.code)  # 1 is what click and rich end with when the reader has gone
    except OSError as error:
        _drop_output()
        _fail(": ".join(str(part) for part in (error.strerror or error, error.filename) if part), 3)
    except Exception as error:
        # typer carries its own copy of click, so its usage errors are known by what they can do
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        _fail(message, 2) if message else sys.exit(0)  # no arguments at all: the help has been printed


def _open_standard_files():
    """Whatever of 0, 1 and 2 the caller has closed leads nowhere, not into the next file that is opened."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _require_folder():
    try:
        Path.cwd()
    except OSError:
        raise InputError("the current folder has been removed; change to one that exists") from None


def _drop_output():
    # Python flushes what is left when it ends, and would complain a second time
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _arguments(arguments):
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["run"]:
        from repro.notebook.arguments import join

        return join(arguments)  # papermill's ``-p NAME VALUE``, which typer cannot take
    return arguments


def _fail(text, code):
    # one line whatever a path, a value or a rank's error holds: line ends and escapes are shown, not obeyed
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    progress.say(f"repro: {line}")
    sys.exit(code)
