"""A preflight as a job: the plan and script of training with another step and a short wall time. No torch."""

from dataclasses import replace
from pathlib import Path

from repro.cluster import job
from repro.cluster import site as sites

HOURS, MANY_NODES, HOURS_OF_MANY = 0.25, 64, 0.5  # thousands of ranks take minutes to start
DEADLINE_SECONDS, START_SECONDS = 120, 600


def prepare(recipe, site_name, run_folder, options=None, deadline_seconds=DEADLINE_SECONDS,
            start_seconds=START_SECONDS, most_bytes=None):  # fmt: skip
    """The :class:`repro.cluster.job.JobPlan` of a preflight and the text of its script.

    Args:
        site_name: of a shipped site, or the path of its file, which the job has to find again.
        most_bytes: of a measured tensor; what :mod:`repro.preflight.measure` takes by default.
        options: :class:`repro.cluster.job.Options`; without ``hours`` a quarter of an hour, of many nodes half of one.

    Raises:
        InputError: as :func:`repro.cluster.job.plan`.
    """
    site = sites.load_site(site_name)
    options = options or job.Options()
    if options.hours is None:
        nodes = options.nodes or -(-recipe.world_size // site.node.tasks)
        options = replace(options, hours=HOURS_OF_MANY if nodes > MANY_NODES else HOURS)
    folder = str(Path(run_folder).absolute())
    arguments = command(folder, site_name, options.rung, deadline_seconds, start_seconds, most_bytes)
    made = job.plan(recipe, site, folder, options, kind="preflight", name=f"preflight-{recipe.name}", command=arguments)
    return made, job.script(made)


def command(run_folder, site_name, rung, deadline_seconds, start_seconds, most_bytes=None):
    """Arguments of ``python -m repro`` for one rank of the preflight."""
    name = str(site_name) if str(site_name) in sites.names() else str(Path(site_name).absolute())
    return (
        "job", "preflight", f"{run_folder}/recipe.toml", "--site", name, "--run-folder", run_folder,
        "--rung", str(rung), "--deadline", f"{deadline_seconds:g}", "--start-deadline", f"{start_seconds:g}",
        *(("--most-mib", f"{most_bytes / 2**20:g}") if most_bytes else ()),
    )  # fmt: skip
