"""One rank of a run that torchrun or srun has started."""

import sys
import traceback

from repro.errors import InputError, RunFailed
from repro.records.run_folder import RunFolder, default_path


def train_as_rank(recipe, place, run_folder=None, wandb="offline", deadline_seconds=600.0):
    """Take this process's place in the run; the rank that owns the loss makes the run folder.

    Raises:
        InputError: the launcher started another number of ranks, or the run folder exists.
        RunFailed: this rank failed; the status says so too.
    """
    from repro import progress
    from repro.engine.worker import run_rank

    if place.world_size != recipe.world_size:
        p = recipe.parallel
        raise InputError(
            f"the launcher started {place.world_size} ranks, recipe {recipe.name} needs {recipe.world_size} "
            f"(tp {p.tp} x pp {p.pp} x dp {p.dp}); start {recipe.world_size}, or override parallel.dp"
        )
    owner = place.rank == recipe.layout.loss_rank
    path = run_folder or default_path(recipe.name)
    folder = RunFolder.create(path, recipe) if owner else None
    shown = progress.Plain() if owner else progress.Silent()
    shown.start(recipe)
    phase = "starting"

    def report(kind, value):
        nonlocal phase
        if kind == "row":
            shown.row(value)
        else:
            phase = value

    try:
        run_rank(recipe, place, folder and folder.path, report, wandb, deadline_seconds)
    except InputError as error:
        if folder:
            folder.set_status("failed", str(error))
        raise
    except Exception as error:
        traceback.print_exc()
        reason = (
            f"rank {place.rank} failed in phase {phase!r}: {type(error).__name__}: {str(error).splitlines()[0][:500]}"
        )
        if folder:
            folder.set_status("failed", reason)
        raise RunFailed(reason) from None
    if owner:
        print(f"run folder: {folder.path}", file=sys.stderr)
