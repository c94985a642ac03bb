"""How DeepSpeed's checkpoint files are written and read: beside training, summed, and without pickled code."""

import os
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from repro.records.checkpoints import Summed


class Files(TorchCheckpointEngine):
    """DeepSpeed's checkpoint engine of one rank.

    ``save`` takes a copy of the state in the host's memory and returns; one thread writes the copies.
    ``load`` refuses a file that would run code: only tensors, plain values and the classes of
    :func:`safe_classes` are unpickled.
    """

    def __init__(self):
        super().__init__()
        self.zipfile_serialization = True
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._waiting = {}

    def preserves_storage_sharing(self):
        return False  # the copy below takes each tensor's own elements only

    def save(self, state_dict, path):
        self._waiting[Path(path).name] = self._writer.submit(_write, _copied(state_dict), Path(path))

    def load(self, path, map_location=None):
        return safe_load(path, map_location)

    @property
    def writing(self):
        return any(not one.done() for one in self._waiting.values())

    def written(self):
        """``{name: (bytes, checksum)}`` of what this rank wrote since the last call; waits for it.

        Raises:
            OSError: a file could not be written. No file of this rank is open then.
        """
        waiting, self._waiting = self._waiting, {}
        try:
            return {name: one.result() for name, one in waiting.items()}
        finally:
            for one in waiting.values():
                one.cancel()
            wait(one for one in waiting.values() if not one.cancelled())


def _write(state, path):
    with path.open("wb") as file:
        summed = Summed(file)
        try:
            torch.save(state, summed)
        except RuntimeError as error:
            raise summed.error or error from None
        file.flush()
        os.fsync(file.fileno())
    return summed.size, summed.digest


def _copied(value):
    """The same structure, each tensor a copy in the host's memory that the next step cannot change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in (dict, list, tuple):
        copies = [_copied(one) for one in (value.values() if type(value) is dict else value)]
        return dict(zip(value, copies, strict=True)) if type(value) is dict else type(value)(copies)
    if isinstance(value, dict):
        return type(value)((key, _copied(one)) for key, one in value.items())
    return value


def safe_load(path, map_location=None, mmap=False):
    """What ``torch.save`` wrote, if it holds nothing but tensors, plain values and :func:`safe_classes`.

    Args:
        mmap: map the file instead of reading it; on the CPU.

    Raises:
        pickle.UnpicklingError: it holds anything else.
    """
    with torch.serialization.safe_globals(safe_classes()):
        if mmap:
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
        return torch.load(path, map_location=map_location, weights_only=True)


def safe_classes():
    """Classes of DeepSpeed that its own checkpoints hold, all without code in their state."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
