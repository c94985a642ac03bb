"""``repro job``: a recipe as a job of a site, submitted, followed, cancelled."""

import contextlib
from typing import Annotated

import typer

from repro import progress
from repro.commands.shared import (
    Json,
    Name,
    Overrides,
    app,
    assigned,
    load_recipe,
    plain_table,
    print_json,
    short,
    show,
    warn,
)

jobs = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(
    jobs,
    name="job",
    help="A recipe as a job of a site: repro job RECIPE --site S [--show-env | --show-script | --dry-run | --submit].",
)

SiteName = Annotated[str, typer.Option("--site", help="Name of a shipped site, or path of a TOML file.")]
Nodes = Annotated[int | None, typer.Option(help="Nodes; as many as the ranks fill by default.")]
Hours = Annotated[float | None, typer.Option(help="Wall time; at most what the site gives so many nodes.")]
Rung = Annotated[int, typer.Option(help="Rung of the site's ladder of fallbacks for jobs that hang.")]
Account = Annotated[str | None, typer.Option(help="Project to charge.")]
Partition = Annotated[str | None, typer.Option(help="Partition; the site's first by default.")]
Qos = Annotated[str | None, typer.Option(help="Quality of service, e.g. debug.")]
Env = Annotated[str | None, typer.Option(help="Packed environment, prefix or virtual environment, as the site has it.")]
Folder = Annotated[str, typer.Argument(metavar="RUN_FOLDER", help="The run folder that a job was submitted for.")]

FollowHours = Annotated[float, typer.Option(help="Stop following after so long; the job goes on.", min=0.0)]


@jobs.command("recipe")
def of_recipe(
    recipe: Name,
    site: SiteName,
    set: Overrides = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; the recipe's own by default.")] = None,
    nodes: Nodes = None,
    hours: Hours = None,
    rung: Rung = 0,
    account: Account = None,
    partition: Partition = None,
    qos: Qos = None,
    env: Env = None,
    run_folder: Annotated[str | None, typer.Option(help="Of the run; runs/RECIPE-SITE by default.")] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 100,
    show_env: Annotated[bool, typer.Option("--show-env", help="Print the environment of the job.")] = False,
    show_script: Annotated[bool, typer.Option("--show-script", help="Print the script.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask Slurm whether it would take the job.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the job; a second call finds the first.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="With --submit: follow the job to its end.")] = False,
    follow_hours: FollowHours = 168.0,
    again: Annotated[bool, typer.Option("--again", help="Submit also where the run failed before.")] = False,
    json: Json = False,
):
    """A recipe as a job: what it asks for, its environment, its script; check it, submit it, follow it."""
    from repro.cluster import run
    from repro.cluster.job import Options
    from repro.cluster.site import load_site

    overrides = assigned(set) | ({} if steps is None else {"steps": steps})
    loaded, place = load_recipe(recipe, overrides), load_site(site)
    options = Options(
        nodes=nodes, hours=hours, partition=partition, qos=qos, account=account, rung=rung, env=env,
        checkpoint_every=checkpoint_every,
    )  # fmt: skip
    made, text = run.prepare(loaded, place, run_folder or f"runs/{loaded.name}-{place.name}", options)
    if show_env:
        return _print_environment(place, made, json)
    if show_script:
        return print_json({"script": text}) if json else print(text, end="")
    if not json:
        warn(loaded)
    if dry_run:
        words = run.dry_run(made, text)
        return print_json({"accepted": True, "slurm": words}) if json else print(f"Slurm would take it: {words}")
    if not submit:
        return _print_plan(made, json)
    run.require_rules(loaded, place, text)
    sent = run.send(loaded, made, text, again)
    if not json:
        progress.say(f"job {sent.job}: {sent.how}, run folder {short(str(sent.folder.path))}")
        if sent.note:
            progress.say(f"note: {sent.note}")
    if follow and sent.how != "completed":
        return _follow(sent.folder, sent.record, follow_hours, json)
    if json:
        print_json({"how": sent.how, "note": sent.note, "run_folder": str(sent.folder.path), **(sent.record or {})})


@jobs.command("status")
def status_of(run_folder: Folder, json: Json = False):
    """Where the job of a run folder stands; a record that the run could not close is closed."""
    from repro.cluster.follow import look
    from repro.cluster.submit import open_record

    folder, record = open_record(run_folder)
    _print_verdict(folder, record, look(folder, record), json)


@jobs.command("follow")
def follow_job(run_folder: Folder, follow_hours: FollowHours = 168.0, json: Json = False):
    """Follow the job of a run folder to its end. Ctrl-C leaves the job alone."""
    from repro.cluster.submit import open_record

    _follow(*open_record(run_folder), follow_hours, json)


@jobs.command("cancel")
def cancel_job(run_folder: Folder, json: Json = False):
    """End the job of a run folder."""
    from repro.cluster import slurm
    from repro.cluster.follow import Patience, follow
    from repro.cluster.submit import open_record

    folder, record = open_record(run_folder)
    slurm.cancel(record["job"])
    _print_verdict(folder, record, follow(folder, record, patience=Patience(deadline=120.0)), json)


@jobs.command("build")
def build(site: SiteName):
    """Print how to build and pack the environment of a site, DeepSpeed's operators for its GPUs among it."""
    from repro.cluster.build_ops import build_script
    from repro.cluster.site import load_site

    print(build_script(load_site(site)), end="")


@jobs.command("sites")
def sites(json: Json = False):
    """List the shipped sites."""
    from repro.cluster.site import load_site, names

    rows = [{"name": s.name, "title": s.title, "date": s.date, "runnable": s.runnable} for s in map(load_site, names())]
    if json:
        return print_json({"sites": rows})
    table = plain_table("Sites", "name", "title", "facts of", "runs")
    for row in rows:
        table.add_row(row["name"], row["title"], row["date"], "yes" if row["runnable"] else "no, history")
    show(table)


def arguments(words):
    """``repro job RECIPE ...`` is ``repro job recipe RECIPE ...``: only the other subcommands are named."""
    named = {command.name for command in jobs.registered_commands}
    if len(words) > 1 and words[1] not in named and words[1] not in ("--help", "-h"):
        return [words[0], "recipe", *words[1:]]
    return words


def _follow(folder, record, hours, json):
    from repro.cluster.follow import Patience, follow
    from repro.cluster.run import require_completed

    with _shown(json) as shown:
        verdict = follow(folder, record, shown, Patience(deadline=hours * 3600))
    if json:
        _print_verdict(folder, record, verdict, json)
    require_completed(verdict, folder)
    if not json:
        print(f"completed: {short(str(folder.path))}")


@contextlib.contextmanager
def _shown(json):
    """What to call with each look of the follower: a live line on a terminal, plain lines elsewhere."""
    from repro.cluster.run import Lines

    if json or not progress.can_redraw():
        yield None if json else Lines(progress.say)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    with console.status("asking Slurm") as line:

        def show(view):
            for text in view.lines:
                console.print(Text(f"  {text}"))
            line.update(Text(view.text + (f" ({view.clock})" if view.clock else "")))

        yield show


def _print_verdict(folder, record, verdict, json):
    if json:
        print_json(
            {"job": record["job"], "state": verdict.state, "reason": verdict.reason, "run_folder": str(folder.path)}
        )
    else:
        print(f"job {record['job']}: {verdict.state}" + (f", {verdict.reason}" if verdict.reason else ""))


def _print_environment(site, made, json):
    from repro.cluster.rccl import rows

    found = rows(site, made.nodes, made.rung)
    if json:
        return print_json({"site": site.name, "nodes": made.nodes, "rung": made.rung, "environment": found})
    table = plain_table(
        f"{site.title}, {made.nodes} nodes, rung {made.rung}", "name", "value", "why", "contested", "source", "date"
    )
    for row in found:
        why = row["why"] if row["origin"] == "site" else f"{row['origin']}: {row['why']}"
        table.add_row(row["name"], row["value"], why, row["contested"], row["source"], row["date"])
    show(table)
    for option in made.environment.sbatch:
        print(f"with it: #SBATCH {option}")
    for text in made.environment.loud:
        print(f"WARNING {text}")


def _print_plan(made, json):
    found = {
        "recipe": made.recipe,
        "site": made.site.name,
        "ranks": made.ranks,
        "nodes": made.nodes,
        "tasks_per_node": made.tasks_per_node,
        "partition": made.partition,
        "qos": made.qos,
        "hours": made.hours,
        "node_hours": made.nodes * made.hours,
        "account": made.account,
        "rung": made.rung,
        "environment": made.env,
        "run_folder": made.run_folder,
    }
    if json:
        return print_json(found)
    for key, value in found.items():
        if value is not None:
            print(f"{key:16} {value}")
    print("next: --show-env, --show-script, --dry-run, --submit [--follow]; repro check RECIPE --site SITE")
