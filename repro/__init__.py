"""Open reproduction of *Optimizing Distributed Training on Frontier for Large Language Models*.

The same calls that the command line makes, for notebooks and scripts.
"""

__version__ = "0.1.0"


def load(name, **overrides):
    """The :class:`repro.recipe.Recipe` of a shipped name or a TOML path.

    Args:
        overrides: dotted fields with ``__`` for the dot, e.g. ``batch__global=16``.
    """
    from repro.recipe import load as load_recipe

    return load_recipe(name, {key.replace("__", "."): value for key, value in overrides.items()})


def trace(recipe, **options):
    """Trace fake ranks of a recipe; see :func:`repro.tracing.trace.trace`."""
    from repro.tracing.trace import trace as trace_recipe

    return trace_recipe(recipe, **options)


def project(recipe, machine, **options):
    """Project a recipe's time, rates, memory and cost on a machine; see :func:`repro.projection.project.project`."""
    from repro.projection.project import project as project_recipe

    return project_recipe(recipe, machine, **options)


def train(recipe, **options):
    """Train on ranks started on this machine; see :func:`repro.engine.launch.train_local`."""
    from repro.engine.launch import train_local

    return train_local(recipe, **options)


def carry_out(recipe, run_folder, mode="auto", site="", job_options=None, wandb="offline"):
    """Train where a notebook's parameters say: ``local`` ranks, a job (``slurm``), or ``auto``: a job if ``site``.

    Returns:
        The run folder of the completed run.
    """
    if mode == "slurm" or (mode == "auto" and site):
        return job(recipe, site, run_folder, wandb, **(job_options or {}))
    return train(recipe, run_folder=run_folder, wandb=wandb).folder


def job(recipe, site, run_folder, wandb="offline", show=print, **options):
    """Train as a job of a site: rules, submission (once), following; see :func:`repro.cluster.run.run_job`.

    Args:
        show: called with each new line about the job.
        options: of :class:`repro.cluster.job.Options`: ``account``, ``env``, ``nodes``, ``hours`` and so on.

    Returns:
        The run folder of the completed run.
    """
    from repro.cluster.run import options_from, run_job

    return run_job(recipe, site, run_folder, options_from({"wandb": wandb, **options}), show)
