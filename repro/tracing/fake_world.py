"""The world of a fake rank: what must be replaced so that the engine's own code runs without its peers.

Tensors are fake (shapes and dtypes, no values) and the process group answers every collective at once.
Each replacement stands here with its reason and is undone on leaving; nothing else of the engine, of
DeepSpeed or of torch is touched. ``tests/test_fake_world.py`` fails when DeepSpeed changes one of them.
"""

import contextlib
import os
import warnings
from unittest.mock import patch


@contextlib.contextmanager
def fake_world(recipe, rank):
    """Be rank ``rank`` of ``recipe.world_size``; yields the torch device to build on.

    Raises:
        RuntimeError: a process group exists already in this process.
    """
    from repro.engine.build import quiet_deepspeed
    from repro.engine.worker import quietly

    with quietly():
        deepspeed = quiet_deepspeed()
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RuntimeError("a fake rank needs a process without a process group")
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # ZeRO asserts the alignment of flat buffers by address; a fake one has address 0, which is aligned.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        stack.enter_context(patch.dict(os.environ, {"LOCAL_RANK": "0", "RANK": str(rank)}))
        dist.init_process_group("fake", rank=rank, world_size=recipe.world_size, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        stack.callback(_forget_backend, deepspeed)
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
        for replacement in replacements(recipe):
            stack.enter_context(replacement)
        stack.enter_context(quietly())
        stack.enter_context(FakeTensorMode())
        stack.enter_context(_host_reads())
        yield torch.device("cpu")


def _forget_backend(deepspeed):
    """DeepSpeed keeps its own handle on the process group; the next fake rank needs a new one."""
    deepspeed.comm.comm.cdb = None


def replacements(recipe):
    """One patch per replaced function, in the order of their reasons."""
    import torch
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.pipe.topology import PipelineParallelGrid
    from deepspeed.runtime.utils import PartitionedTensor

    from repro.model import gpt, tensor_parallel

    exchange = _Exchange(recipe)
    return (
        # No arithmetic is done, so what this CPU can compute does not matter.
        patch.object(get_accelerator(), "is_fp16_supported", lambda: True),
        patch.object(get_accelerator(), "is_bf16_supported", lambda: True),
        # The module is built on its device and in its dtype; .to() and .half() have nothing to do, but
        # would swap each parameter for itself, which fake tensors refuse.
        patch.object(torch.nn.Module, "_apply", lambda self, function, recurse=True: self),
        # Weights have no values: nothing is drawn.
        patch.object(gpt, "normal_blocks_", lambda *_, **__: None),
        patch.object(tensor_parallel, "normal_blocks_", lambda *_, **__: None),
        # Pairs of neighbours, for a torch without send and recv; unused, and quadratic in the world size.
        patch.object(PipelineParallelGrid, "_build_p2p_groups", lambda grid: []),
        # Shapes travel as values in a small message, and a fake message has no values: it is sent and
        # received all the same, the shapes come from the recipe.
        patch.object(PipelineEngine, "_send_tensor_meta", exchange.send_meta),
        patch.object(PipelineEngine, "_recv_tensor_meta", lambda engine, stage: exchange.receive_meta(engine, stage)),
        patch.object(PartitionedTensor, "to_meta", exchange.to_meta),
        patch.object(PartitionedTensor, "from_meta", exchange.from_meta),
        # A CPU has no flash kernel with dropout and would fall back to the unfused one. On a GPU dropout
        # happens inside the kernel, its mask kept as a seed: no bytes and no matrix FLOPs of its own.
        patch.object(torch.nn.functional, "scaled_dot_product_attention", _without_dropout()),
    )


def _without_dropout():
    import torch

    original = torch.nn.functional.scaled_dot_product_attention
    return lambda q, k, v, dropout_p=0.0, is_causal=False: original(q, k, v, is_causal=is_causal)


class _Exchange:
    """What passes between stages, known from the recipe: activations [s(/t), b, h], whole or in tp parts."""

    def __init__(self, recipe):
        p, s = recipe.parallel, recipe.shape
        self.shape = [s.seq // p.tp if p.sequence_parallel else s.seq, recipe.batch.micro, s.hidden]

    @staticmethod
    def send_meta(engine, _buffer, stage):
        import torch
        from deepspeed.runtime.pipe import p2p
        from deepspeed.runtime.pipe.engine import TENSOR_META_SIZE

        p2p.send(torch.empty(TENSOR_META_SIZE, dtype=torch.int32, device=engine.device), stage)

    def receive_meta(self, engine, stage):
        import torch
        from deepspeed.runtime.pipe import p2p
        from deepspeed.runtime.pipe.engine import TENSOR_META_SIZE
        from deepspeed.runtime.utils import PartitionedTensor

        p2p.recv(torch.empty(TENSOR_META_SIZE, dtype=torch.int32, device=engine.device), stage)
        activation = torch.empty(self.shape, dtype=next(engine.module.parameters()).dtype, device=engine.device)
        if not engine.is_pipe_partitioned:
            return engine._allocate_or_extend_buffers(0, self.shape, activation.dtype)
        part = PartitionedTensor(activation, engine.grid.get_slice_parallel_group())
        parts = (part.to_meta(), part.data())
        return tuple(engine._allocate_or_extend_buffers(i, list(t.shape), t.dtype) for i, t in enumerate(parts))

    @staticmethod
    def to_meta(part):
        import torch

        length = 1 + len(part.orig_size) + 2 + len(part.partition)
        return torch.zeros(length, dtype=torch.long, device=part.orig_device)

    def from_meta(self, meta, local_part, group, device="cpu"):
        import torch
        from deepspeed.runtime.utils import PartitionedTensor

        part = PartitionedTensor(torch.ones(torch.distributed.get_world_size(group)), group)
        part.orig_size, part.orig_device, part.local_data = list(self.shape), device, local_part.detach()
        part.even_split = True  # the real one keeps what the dummy of one element a rank gave it
        return part


def _host_reads():
    """Values read on the host, by dtype: a flag is false, a scale or norm 1.0, a count 1, an overflow byte 0.

    With another choice the step takes another way: an overflow of 1 skips it, a norm of 0 divides by zero.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    device = torch.ops.prim.device.default
    reads = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)

    class HostReads(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls):
            return False  # torch's guard against its own compiler, on every call

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is device:
                return args[0].fake_device
            if function not in reads:
                return function(*args, **kwargs) if kwargs else function(*args)
            dtype = args[0].dtype
            if dtype == torch.bool:
                return False
            return 1.0 if dtype.is_floating_point else int(dtype != torch.uint8)

    return HostReads()
