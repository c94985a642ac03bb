"""Go on from a checkpoint: the newest whose every byte is as written, split anew where the layout differs."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from repro.errors import InputError, RunFailed
from repro.recipe import from_toml
from repro.records.checkpoints import LATEST, broken, complete, folder_of, open_checkpoint
from repro.records.continuing import require_continuation, same_layout
from repro.records.lock import RECORD, held
from repro.records.run_folder import RunFolder, default_path, free_name, require_writable

FRESH, AUTO = "never", "auto"
SETTINGS = ("betas", "eps", "weight_decay", "initial_lr")


@dataclass(frozen=True)
class Start:
    """How a run begins.

    Attributes:
        folder: :class:`repro.records.run_folder.RunFolder` that takes the record.
        sources: paths of complete checkpoints, newest first; none for a run from its first step.
        named: how the recipe differs from the one they were written with, in words.
        done: the folder holds this run already, completed.
    """

    folder: RunFolder
    sources: tuple = ()
    named: tuple = ()
    done: bool = False


@contextlib.contextmanager
def opened(recipe, run_folder=None, resume=FRESH):
    """The :class:`Start` of :func:`open_run`, whose folder belongs to this process inside the block.

    Raises:
        InputError: the folder or the recipe does not allow it, or another run holds the folder.
    """
    start = open_run(recipe, run_folder or default_path(recipe.name), resume)
    with contextlib.ExitStack() as locks:
        if not start.done:
            require_writable(start.folder.path)
            locks.enter_context(held(start.folder.path))
            with held(start.folder.path, RECORD):
                pass  # the ranks of a launcher that was killed are gone, too
            if resume == AUTO:  # another run may have gone on there until a moment ago
                start = open_run(recipe, start.folder.path, AUTO)
        yield start


def open_run(recipe, run_folder, resume=FRESH):
    """The :class:`Start` that a user asks for; nothing is written but a new run folder.

    Args:
        resume: ``never``: a new folder, from the first step. ``auto``: go on in ``run_folder`` where it
            stopped, or begin it. A path: a new folder that goes on from another run, or from one checkpoint.

    Raises:
        InputError: the folder or the recipe does not allow it.
    """
    if resume == FRESH:
        return Start(RunFolder.create(run_folder, recipe))
    if resume != AUTO:
        found = _checkpoints_at(resume)
        named = require_continuation(from_toml(found[-1].manifest["recipe"]), recipe, found[-1].step, same_folder=False)
        return Start(RunFolder.create(run_folder, recipe), _newest_first(found), tuple(named))
    folder = RunFolder.adopt(run_folder, recipe)
    before, found = folder.recipe(), complete(folder.path)
    with contextlib.suppress(InputError):  # a status that a crash left broken says nothing
        if folder.status()["state"] == "completed" and before.steps >= recipe.steps:
            require_continuation(before, recipe, 0, same_folder=True)
            return Start(folder, done=True)
    if not found:
        _require_none_was_written(folder)
    named = require_continuation(before, recipe, found[-1].step if found else 0, same_folder=True)
    return Start(folder, _newest_first(found), (*named, *broken(folder.path)))


def _require_none_was_written(folder):
    """Refuse to begin a run anew that had come to a checkpoint: whoever lost those wants to know first."""
    path, state = folder_of(folder.path), None
    with contextlib.suppress(InputError):
        state = folder.status()["state"]
    if os.path.lexists(path) and not path.is_dir():
        raise InputError(f"{path} is no folder: no checkpoint can be read from it or written to it")
    if os.path.lexists(path / LATEST) or (state == "completed" and folder.metrics()):
        raise InputError(
            f"run folder {folder.path} has {len(folder.metrics())} recorded steps and no complete checkpoint any more; "
            f"nothing was touched. Begin anew in another folder, e.g. {free_name(folder.path)}"
        )


def _checkpoints_at(path):
    path = Path(path)
    if (path / "recipe.toml").is_file():
        found = complete(path)
        if not found:
            raise InputError(f"run {path} has no complete checkpoint to resume from")
        return found
    if not path.is_dir():
        raise InputError(f"resume {str(path)!r} is not auto, never, a run folder or a checkpoint in one")
    return [open_checkpoint(path)]


def _newest_first(found):
    return tuple(str(one.path) for one in reversed(found))


def restore(engine, recipe, place, sources, report):
    """Load the newest sound checkpoint of ``sources`` into the engine, on every rank.

    Returns:
        The number of steps behind it, and what was passed over and why.

    Raises:
        InputError: the recipes do not go together.
        RunFailed: no checkpoint is sound, or loading one leaves another step in force.
    """
    checkpoint, passed = _newest_sound(sources, place, report)
    before = from_toml(checkpoint.manifest["recipe"])
    require_continuation(before, recipe, checkpoint.step, same_folder=False)
    report("phase", f"loading the checkpoint of step {checkpoint.step}")
    with contextlib.redirect_stdout(None), _recipe_in_force(engine):
        if same_layout(before, recipe):
            path, _ = engine.load_checkpoint(str(checkpoint.path.parent), tag=checkpoint.path.name)
        else:
            from repro.engine.reshape import load_split_anew

            path = load_split_anew(engine, checkpoint, place)
    if path is None or engine.global_steps != checkpoint.step:
        raise RunFailed(f"{checkpoint.path} was loaded, but step {engine.global_steps} is in force")
    return checkpoint.step, passed


@contextlib.contextmanager
def _recipe_in_force(engine):
    """Loading inside the block brings states only: rates, betas, decay and clipping stay those of the recipe.

    A checkpoint of DeepSpeed holds the settings of the run that wrote it, and loading puts them in force.
    """
    groups = [{k: v for k, v in group.items() if k in SETTINGS} for group in engine.basic_optimizer.param_groups]
    bases, clip = list(engine.lr_scheduler.base_lrs), getattr(engine.optimizer, "clip_grad", None)
    yield
    scheduler = engine.lr_scheduler
    scheduler.base_lrs = bases
    rates = [base * factor(scheduler.last_epoch) for base, factor in zip(bases, scheduler.lr_lambdas, strict=True)]
    scheduler._last_lr = rates
    for group, own, rate in zip(engine.basic_optimizer.param_groups, groups, rates, strict=True):
        group.update(own, lr=rate)
    if clip is not None:
        engine.optimizer.clip_grad = clip


def require_same_data(source, data):
    """Whether a run trained on the same tokens until ``source``, one of its checkpoints; where it is not known, yes.

    Raises:
        InputError: a data set of another size or content has taken the place of the old one.
    """
    try:
        before = RunFolder(Path(source).parents[1]).environment()["data"]
        old, kind = before["sha256"], before.get("text", before["kind"])
    except (InputError, KeyError, TypeError, AttributeError, IndexError):
        return
    now = data.describe()
    if old != now["sha256"]:
        raise InputError(
            f"the data are not those that the checkpoint was trained on: {kind}, {before.get('tokens')} tokens, "
            f"sha256 {str(old)[:12]} then; {now.get('text', now['kind'])}, {now['tokens']} tokens, "
            f"sha256 {now['sha256'][:12]} now"
        )


def _newest_sound(sources, place, report):
    import torch.distributed as dist

    passed = []
    for source in sources:
        checkpoint = open_checkpoint(source)
        report("phase", f"checking the checkpoint of step {checkpoint.step}")
        heard = [None] * place.world_size
        dist.all_gather_object(heard, checkpoint.damaged(sorted(checkpoint.files)[place.rank :: place.world_size]))
        damage = [why for one in heard for why in one]
        if not damage:
            return checkpoint, passed
        passed.append(f"checkpoint of step {checkpoint.step} passed over: {damage[0]}")
    raise RunFailed(f"no checkpoint is sound: {'; '.join(passed)}")
