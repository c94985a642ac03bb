"""Subcommands that say what a run would be, or was: trace, project, scorecard."""

from typing import Annotated

import typer

from repro.commands.shared import Json, Name, Overrides, app, load_recipe, print_json
from repro.errors import InputError


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

    loaded, known = load_recipe(recipe, set), devices.get(device)
    if not anyway and not (refusal := trace_table.closed_form(loaded, known))["fits"]:
        if json:
            return print_json(refusal)
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
        return print_json(found)
    trace_table.show(loaded, stages, known, found)


@app.command()
def project(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Name of a recipe, or path of one.")] = None,
    machine: Annotated[str | None, typer.Option(help="Name of a machine, or path of a profile; no default.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Fill so many nodes with replicas; the batch stays.")] = None,
    weak: Annotated[bool, typer.Option("--weak", help="With --nodes: keep the batch of each replica instead.")] = False,
    tokens: Annotated[float | None, typer.Option(help="Tokens to train on, e.g. 20e12; 20 a parameter else.")] = None,
    node_mtbf_hours: Annotated[float | None, typer.Option(help="Mean time between failures of one node.")] = None,
    network: Annotated[
        str | None, typer.Option(help="A preflight's network.csv to fit the machine to; no RECIPE: print the profile.")
    ] = None,
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
        if network is not None:
            raise InputError(f"--{chosen[0]} takes no --network: it runs over all published ones")
        return project_command.tables(chosen, recipe, machine, print_json if json else None)
    if machine is None or (recipe is None and network is None):
        raise InputError(project_command.what_is_missing(recipe, machine))
    if network is not None:
        return project_command.with_network(
            network,
            machine,
            recipe and load_recipe(recipe, set),
            (nodes, weak, tokens, anyway, {"node_mtbf_hours": node_mtbf_hours}),
            print_json if json else None,
        )
    found = project_command.run(
        load_recipe(recipe, set), machine, nodes, weak, tokens, anyway, {"node_mtbf_hours": node_mtbf_hours}
    )
    print_json(found.to_dict()) if json else project_command.show(found)


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

    run_scorecard(output, accept, log, deepspeed, script, device, print_json if json else None)
