"""``repro job preflight``: on ranks started here, as one rank under srun or torchrun, or as a job of a site."""

import os
import sys
from typing import Annotated

import typer

from repro import progress
from repro.commands.job import Account, Env, Nodes, Partition, Qos, Rung, jobs
from repro.commands.shared import Json, Name, Overrides, load_recipe, print_json, short
from repro.errors import InputError, RunFailed


@jobs.command("preflight")
def preflight(
    recipe: Name,
    set: Overrides = None,
    local: Annotated[bool, typer.Option("--local", help="All ranks on this machine.")] = False,
    site: Annotated[str | None, typer.Option(help="Site to compare with, and to run at; a name or a path.")] = None,
    run_folder: Annotated[
        str | None, typer.Option(help="A new folder for the result; runs/preflight-RECIPE-TIME by default.")
    ] = None,
    rung: Rung = 0,
    deadline: Annotated[float | None, typer.Option(help="Seconds that a group may take for one transfer.")] = None,
    start_deadline: Annotated[float | None, typer.Option(help="Seconds that all ranks may take to start.")] = None,
    most_mib: Annotated[float | None, typer.Option(help="Largest measured tensor, in MiB.")] = None,
    nodes: Nodes = None,
    hours: Annotated[float | None, typer.Option(help="Wall time; a quarter of an hour, half of one for many.")] = None,
    partition: Partition = None,
    qos: Qos = None,
    account: Account = None,
    env: Env = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask Slurm whether it would take the job.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the job; without it the script is printed.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="With --submit: wait for the end, show the result.")] = False,
    json: Json = False,
):
    """Prove a launch before it costs: binding, transport, first transfer of every group, measured network."""
    from repro.engine.place import from_environment

    loaded = load_recipe(recipe, set)
    most_bytes = None if most_mib is None else int(most_mib * 2**20)
    if most_bytes is not None and most_bytes < 1024:
        raise InputError(f"--most-mib {most_mib:g} must be at least 0.001")
    if follow and not submit:
        raise InputError("--follow needs --submit")
    waits = {"deadline_seconds": deadline, "start_seconds": start_deadline, "most_bytes": most_bytes}
    waits = {name: value for name, value in waits.items() if value is not None}
    place = None if local or submit or dry_run else from_environment()
    if place is not None:
        return _as_rank(loaded, place, run_folder, site, rung, waits, json)
    if local:
        if submit or dry_run:
            raise InputError("--local runs here, --submit and --dry-run are for a job elsewhere; give one")
        from repro.preflight.launch import local as run_local

        if not json:
            progress.say(f"preflight of {loaded.name}: {loaded.world_size} ranks here")
        return _show(run_local(loaded, run_folder, site, rung, **waits), json)
    if site is None:
        raise InputError("preflight needs --local, all ranks on this machine, or --site NAME, a job there")
    from repro.cluster.job import Options

    options = Options(nodes=nodes, hours=hours, partition=partition, qos=qos, account=account, rung=rung, env=env)
    how = "dry run" if dry_run else "follow" if follow else "submit" if submit else "script"
    _job(loaded, site, run_folder, options, waits, how, json)


def _as_rank(recipe, place, run_folder, site, rung, waits, json):
    from repro.preflight.launch import as_rank

    found = as_rank(recipe, place, run_folder, site, rung, **waits)
    code = 0
    if found is not None:
        code = 0 if found.passed else 3
        _print(found, json)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the work is done and recorded; threads of gloo or NCCL may abort an orderly exit


def _show(found, json):
    _print(found, json)
    if not found.passed:
        raise RunFailed(f"preflight failed: {found.data['reason']}")


def _print(found, json):
    if json:
        return print_json({**found.data, "run_folder": str(found.folder)})
    from repro.report import preflight_table

    preflight_table.show(found, short)


def _job(recipe, site, run_folder, options, waits, how, json):
    from repro.cluster import preflight_job, run
    from repro.records.run_folder import default_path

    folder = run_folder or default_path(f"preflight-{recipe.name}")
    made, text = preflight_job.prepare(recipe, site, folder, options, **waits)
    if how == "dry run":
        words = run.dry_run(made, text)
        return print_json({"accepted": True, "slurm": words}) if json else print(f"Slurm would take it: {words}")
    if how == "script":
        return print_json({"run_folder": made.run_folder, "script": text}) if json else print(text, end="")
    sent = run.send(recipe, made, text)
    if not json:
        progress.say(f"job {sent.job}: {sent.how}, run folder {short(made.run_folder)}")
        if sent.note:
            progress.say(f"note: {sent.note}")
    if how == "follow":
        return _follow(sent, json)
    if json:
        print_json({"how": sent.how, "note": sent.note, "run_folder": made.run_folder, **(sent.record or {})})


def _follow(sent, json):
    from repro.cluster.follow import follow
    from repro.cluster.run import require_completed
    from repro.preflight.launch import NAME, read

    last = None

    def show(view):
        nonlocal last
        if view.text != last:
            last = view.text
            progress.say(view.text)

    verdict = None if sent.how == "completed" else follow(sent.folder, sent.record, show=None if json else show)
    if (sent.folder.path / NAME).is_file():
        return _show(read(sent.folder.path), json)
    require_completed(verdict, sent.folder)
