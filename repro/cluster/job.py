"""A recipe at a site becomes a job: nodes, bin, environment, and the script that asks for them."""

import math
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from repro import __version__
from repro.cluster.rccl import Environment, Setting, environment
from repro.errors import InputError, shortened

TEMPLATE = "job.sh.j2"
DEFAULT_HOURS = 2.0
MOST_REQUEUES = 20
PREPARE_MINUTES = 20  # for each step before the ranks: a broadcast that hangs would use up the whole job
HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
KINDS = ("train", "preflight")


@dataclass(frozen=True)
class Options:
    """What a user may choose; ``None``: the site's or the recipe's own.

    Attributes:
        hours: wall time, at most the bin's.
        rung: of the site's ladder of fallbacks.
        env: the packed archive, the prefix that all nodes see, or the virtual environment on top of the container.
        checkpoint_every, keep: steps between checkpoints, and how many stay.
        deadline_seconds: silence after which ranks count as hung.
    """

    nodes: int | None = None
    hours: float | None = None
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    rung: int = 0
    env: str | None = None
    checkpoint_every: int = 100
    keep: int = 2
    deadline_seconds: int = 1800
    wandb: str = "offline"


@dataclass(frozen=True)
class JobPlan:
    """All that the script of a job says."""

    kind: str
    recipe: str
    ranks: int
    site: object
    nodes: int
    tasks_per_node: int
    hours: float
    partition: str
    qos: str | None
    account: str | None
    chain: bool
    exclusive: bool
    environment: Environment
    rung: int
    run_folder: str
    env: str
    command: tuple
    name: str
    deadline_seconds: int
    wandb: str

    @property
    def time(self):
        """Wall time as Slurm takes it, ``HH:MM:SS``."""
        minutes = int(self.hours * 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}:00"

    @property
    def signal_seconds(self):
        """How long before its end the job is warned: as the site says, but a quarter of a short job at most."""
        return min(self.site.signal_seconds, int(self.hours * 900))

    @property
    def stop_seconds(self):
        """How long the ranks may take from the warning on: the rest is for the requeue."""
        return self.signal_seconds - max(10, self.signal_seconds // 10)

    @property
    def timeout_minutes(self):
        """DeepSpeed's timeout, no shorter than the run's own deadline."""
        return math.ceil(self.deadline_seconds / 60)

    @property
    def shared(self):
        """Variables that have nothing to do with the network between ranks: proxies and offline switches."""
        online = ("WANDB_MODE",) if self.wandb == "online" else ()
        offline = {name: value for name, value in self.site.offline.items() if name not in online}
        return {**self.site.proxies, **offline}

    @property
    def srun(self):
        """Flags of the step that belong to the site."""
        return self._filled(self.site.srun)

    @property
    def sbatch(self):
        """Options of the allocation that belong to the site and its network."""
        storage = self.site.local_storage if self.site.environment == "packed" else None
        constraint = (f"--constraint={storage.constraint}",) if storage and storage.constraint else ()
        return (*self._filled(self.site.sbatch), *constraint, *self.environment.sbatch)

    def _filled(self, flags):
        fill = {
            "cores": str(self.site.node.cores_per_task),
            "gpus": str(self.tasks_per_node),
            "masks": ",".join(row.mask for row in self.site.node.binding[: self.tasks_per_node]),
        }
        return tuple(flag.format(**fill) for flag in flags)


def plan(recipe, site, run_folder, options=None, kind="train", command=None, name=None):
    """The :class:`JobPlan` of a recipe at a site.

    Args:
        run_folder: where the job's record goes; ``recipe.toml`` in it is what the job reads.
        kind: ``train``, or ``preflight``, which is neither requeued nor resumed.
        command: arguments after ``python -m repro``; those of training by default.

    Raises:
        InputError: the site no longer runs, or cannot give what is asked; with the nearest that it can.
    """
    options = options or Options()
    if not site.runnable:
        raise InputError(f"site {site.name} cannot run jobs: {site.why_not}")
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is not one of {KINDS}")
    nodes, tasks = _nodes(recipe, site, options.nodes)
    part = _bin(site, nodes, options)
    hours = _hours(site, nodes, part, options)
    _check_account(site, options.account)
    run_folder = _absolute(run_folder)
    return JobPlan(
        kind=kind,
        recipe=recipe.name,
        ranks=recipe.world_size,
        site=site,
        nodes=nodes,
        tasks_per_node=tasks,
        hours=hours,
        partition=part.name,
        qos=part.qos,
        account=options.account,
        chain=part.chain and kind == "train",
        # masks name cores of a node, so they need all of it
        exclusive=part.exclusive or any("{masks}" in flag for flag in site.srun),
        environment=_patient(environment(site, nodes, options.rung), options.deadline_seconds),
        rung=options.rung,
        run_folder=run_folder,
        env=options.env or f"{run_folder}/environment.tar.gz" if site.environment == "packed" else options.env or "",
        command=tuple(command or train_command(run_folder, options)),
        name=name or f"repro-{recipe.name}",
        deadline_seconds=options.deadline_seconds,
        wandb=options.wandb,
    )


def train_command(run_folder, options):
    """Arguments of ``python -m repro`` for one rank of the run."""
    return (
        "train",
        f"{run_folder}/recipe.toml",
        "--run-folder",
        run_folder,
        "--checkpoint-every",
        str(options.checkpoint_every),
        "--keep",
        str(options.keep),
        "--resume",
        "auto",
        "--wandb",
        options.wandb,
        "--deadline",
        str(options.deadline_seconds),
    )


def script(plan):
    """The text of the job script."""
    return (
        templates()
        .get_template(TEMPLATE)
        .render(
            plan=plan,
            site=plan.site,
            version=__version__,
            most_requeues=MOST_REQUEUES,
            prepare_minutes=PREPARE_MINUTES,
        )
    )


def templates():
    """The templates of scripts, with the filters that make any text one word of bash, of a directive, of a comment."""
    from jinja2 import Environment as Jinja
    from jinja2 import FileSystemLoader, StrictUndefined

    jinja = Jinja(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters["quote"] = lambda value: shlex.quote(str(value))
    jinja.filters["directive"] = _directive
    jinja.filters["plain"] = lambda text: " ".join(text.split())  # a comment ends with its line
    return jinja


def _nodes(recipe, site, asked):
    most, world = site.node.tasks, recipe.world_size
    nodes = math.ceil(world / most) if asked is None else asked
    if type(nodes) is not int or nodes < 1:
        raise InputError(f"nodes {asked!r} must be a whole number from 1")
    tasks, left = divmod(world, nodes)
    if left or not 1 <= tasks <= most or (asked is None and nodes > 1 and tasks != most):
        least = math.ceil(world / most)
        fitting = next((n for n in range(least, world + 1) if world % n == 0), world)
        raise InputError(
            f"{world} ranks do not fill {nodes} nodes of {most} equally; nearest valid: nodes {fitting} with "
            f"{world // fitting} ranks each, or parallel.dp so that tp x pp x dp is a multiple of {most}"
        )
    return nodes, tasks


def _bin(site, nodes, options):
    name = options.partition or (site.default_partition if options.qos is None else None)
    known = sorted({p.name for p in site.partitions})
    if name is not None and name not in known:
        from repro.errors import unknown

        raise unknown(f"partition of {site.name}", name, known)
    found = site.bins(nodes, name, options.qos)
    if options.hours is not None:
        found = [p for p in found if p.hours >= options.hours] or found
    if not found:
        ranges = ", ".join(
            f"{p.name}{f' (qos {p.qos})' if p.qos else ''} {p.min_nodes:,} to {p.max_nodes:,}" for p in site.partitions
        )
        raise InputError(f"no partition of {site.name} takes {nodes:,} nodes as asked; they take: {ranges}")
    return found[0]


def _hours(site, nodes, part, options):
    hours = min(DEFAULT_HOURS, part.hours) if options.hours is None else options.hours
    if not isinstance(hours, int | float) or not math.isfinite(hours) or hours < 1 / 60:
        raise InputError(f"hours {options.hours!r} must be a number from 0.02 to {part.hours:g}")
    if hours > part.hours:
        longer = {p.name for p in site.partitions if p.min_nodes <= nodes <= p.max_nodes and p.hours >= hours}
        instead = f"partition {sorted(longer)[0]} gives so many" if longer else "the run goes on in a next job"
        raise InputError(
            f"{hours:g} hours on {nodes:,} nodes are more than {site.name} gives in {part.name}: "
            f"at most {part.hours:g}; {instead}"
        )
    return float(hours)


def _patient(found, deadline_seconds):
    """torch's watchdog must not end ranks that the run itself would still wait for."""
    value = found[HEARTBEAT]
    if value is None or float(value) >= deadline_seconds:
        return found
    why = "no shorter than the deadline of this run"
    settings = (Setting(HEARTBEAT, str(deadline_seconds), why, "repro", origin="job"),)
    return replace(found, settings=tuple(s for s in found.settings if s.name != HEARTBEAT) + settings)


def _check_account(site, account):
    if account is None:
        return
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", account) or (
        site.account_pattern and not re.fullmatch(site.account_pattern, account)
    ):
        raise InputError(f"account {shortened(account)} is none of {site.name}: it must match {site.account_pattern}")


def _absolute(path):
    path = str(Path(path).absolute())
    if any(ord(c) < 32 or c in "%\\" for c in path):
        raise InputError(
            f"run folder {shortened(path)} must hold no %, backslash or line break: Slurm reads them in a log's name"
        )
    return path


def _directive(value):
    """A value behind ``#SBATCH --option=``: Slurm takes double quotes there, no shell reads it."""
    text = str(value)
    return text if re.fullmatch(r"[A-Za-z0-9_./:@%+=,\[\]-]+", text) else '"' + text.replace('"', '\\"') + '"'
