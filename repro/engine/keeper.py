"""Checkpoints of a run from inside its ranks: when to write, when one counts, when to stop."""

import contextlib
from dataclasses import dataclass
from unittest.mock import patch

from repro.errors import InputError, RunFailed
from repro.records import checkpoints

MOST = 10**9


@dataclass(frozen=True)
class Keeping:
    """How a run keeps checkpoints.

    Attributes:
        every: steps between two; 0 writes none but the one that a signal asks for.
        keep: how many complete ones stay.
        background: write beside the next steps, not between them.
    """

    every: int = 0
    keep: int = 2
    background: bool = True

    def __post_init__(self):
        for name, least in (("every", 0), ("keep", 1)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MOST:
                raise InputError(f"checkpoint {name} {value!r} must be a whole number from {least} to {MOST:,}")


class Keeper:
    """Called by every rank after every step, in step with the others.

    Args:
        keeping: :class:`Keeping`.
        folder: :class:`repro.records.run_folder.RunFolder`; every rank sees the same one.
        stop: :class:`repro.engine.stop.Stop` of this rank.
        report: as in :func:`repro.engine.worker.run_rank`.

    Attributes:
        done: steps done; set to those of the checkpoint that a run continues from.
    """

    def __init__(self, engine, recipe, place, folder, keeping, stop, report):
        from repro.engine.checkpoint_io import Files

        self.engine, self.recipe, self.place, self.folder = engine, recipe, place, folder
        self.keeping, self.stop, self.report, self.done = keeping, stop, report, 0
        self.owner = place.rank == recipe.layout.loss_rank
        self.files = engine.checkpoint_engine = Files()
        self.pending = None

    def after(self, done):
        """Take note that ``done`` steps are done.

        Returns:
            Whether to stop here: a signal asked some rank, and a checkpoint of this step is complete.

        Raises:
            RunFailed: a checkpoint could not be written; names the last complete one.
        """
        fresh, self.done = done > self.done, done
        stopping, writing = self._any(bool(self.stop.asked), self.files.writing)
        last = done == self.recipe.steps
        if self.pending is not None and not writing:
            self.finish()
        every = self.keeping.every
        if fresh and (stopping or (every and (done % every == 0 or last))):
            self.finish()
            self._start(done)
        if stopping or last or not self.keeping.background:
            self.finish()
        return stopping and not last

    def _start(self, done):
        import torch.distributed as dist

        self.report("phase", f"taking the checkpoint of step {done}")
        error = None
        if self.owner:
            try:
                checkpoints.leftover(self.folder.path, done)
                (checkpoints.folder_of(self.folder.path) / checkpoints.name_of(done)).mkdir(parents=True)
            except OSError as found:
                error = found.strerror
        self._agree(done, error)
        quietly = contextlib.redirect_stdout(None)
        # its recovery scripts do not know pipelines, and a folder of data needs no programs
        with quietly, patch.object(type(self.engine), "_copy_recovery_script", lambda *_: None):
            self.engine.save_checkpoint(
                str(checkpoints.folder_of(self.folder.path)), tag=checkpoints.name_of(done), save_latest=False
            )
        self.pending = done
        dist.barrier()

    def finish(self):
        """Wait for the files of the pending checkpoint and make it count."""
        if self.pending is None:
            return
        from repro.records.environment import describe

        done, self.pending = self.pending, None
        self.report("phase", f"writing the checkpoint of step {done}")
        error, written = None, {}
        try:
            written = self.files.written()
        except (OSError, RuntimeError) as found:  # torch wraps some of what a full disk says
            error = getattr(found, "strerror", None) or str(found).splitlines()[0]
        files = {}
        for one in self._agree(done, error, written):
            files.update(one)
        error = None
        if self.owner:
            try:
                self.folder.sync()
                checkpoints.commit(self.folder.path, done, self.recipe, files, describe()["versions"])
                checkpoints.prune(self.folder.path, self.keeping.keep)
            except OSError as found:
                error = found.strerror
        self._agree(done, error)

    def _agree(self, done, error, value=None):
        """What every rank has to say, in order.

        Raises:
            RunFailed: one of them says an error.
        """
        import torch.distributed as dist

        heard = [None] * self.place.world_size
        dist.all_gather_object(heard, (error, value))
        for rank, (error, _) in enumerate(heard):
            if error:
                if self.owner:
                    checkpoints.leftover(self.folder.path, done)  # on a full disk, room for the record
                raise RunFailed(
                    f"the checkpoint of step {done} cannot be written: {error} (rank {rank}); "
                    f"{last_complete(self.folder.path)}"
                )
        return [value for _, value in heard]

    def _any(self, *flags):
        """Each flag, true if it is true on any rank."""
        import torch
        import torch.distributed as dist

        found = torch.tensor([int(flag) for flag in flags], device=self.engine.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return [bool(one) for one in found.tolist()]


def last_complete(run_folder):
    """In words: where a run could go on."""
    found = checkpoints.complete(run_folder)
    return f"last complete checkpoint: step {found[-1].step}" if found else "there is no complete checkpoint"
