"""Recipe -> this rank's DeepSpeed engine. Real and fake ranks both come through here."""

import contextlib
import logging
import os
import warnings
from unittest.mock import patch


def quiet_deepspeed():
    """Import DeepSpeed on a machine of any kind without compiling, and without its chatter.

    The shared-memory op of the CPU backend is switched off: DeepSpeed would compile it at every
    start, and a build that was killed leaves a lock on which all later runs hang in silence.
    """
    import torch

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    warnings.filterwarnings("ignore", category=UserWarning, module="torch.autograd.graph")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    import deepspeed
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    with patch.object(torch, "compile", lambda function=None, **_: function or (lambda f: f)):
        # imported by every engine, used by none of ours: decorated, it would load all of torch's compiler
        import deepspeed.runtime.zero.muon.muon_optimizer
    return deepspeed


def tensor_parallel(recipe, rank, device, topology):
    """The :class:`repro.model.tensor_parallel.TensorParallel` of a rank; makes the groups of all ranks."""
    import torch.distributed as dist

    from repro.model.streams import Streams
    from repro.model.tensor_parallel import TensorParallel

    p, coordinate = recipe.parallel, recipe.layout.coordinate(rank)
    group = None
    if p.tp > 1:
        for ranks in topology.get_axis_comm_lists("model"):
            made = dist.new_group(ranks=ranks)
            if rank in ranks:
                group = made
    streams = Streams(recipe.seed, coordinate, device, separate=p.tp > 1 and recipe.shape.dropout > 0)
    return TensorParallel(group, coordinate.shard, p.tp, p.sequence_parallel, streams)


def optimizer_for(recipe, parameters):
    """Adam as the recipe has it: no weight decay on biases, norms and other vectors."""
    import torch

    o = recipe.optimizer
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": o.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    build = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o.name]
    # torch's own fused kernel: nothing to compile, on CPU, CUDA and ROCm alike
    return build(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps, fused=True)


def scheduler_for(recipe, optimizer):
    """The recipe's learning rate as a scheduler without state but the step."""
    import torch

    from repro.engine.config import learning_rate

    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(recipe, step) / recipe.optimizer.lr)


@contextlib.contextmanager
def default_dtype(name):
    """Parameters made inside the block have the recipe's dtype, so that no fp32 copy is made first."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype({"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name])
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build_engine(recipe, rank, device):
    """This rank's ``PipelineEngine``, its settings checked against the recipe.

    Needs an initialized process group of ``recipe.world_size`` ranks.

    Returns:
        engine, streams, the settings in force.
    """
    import torch

    from repro.engine.config import deepspeed_config, require_in_force

    deepspeed = quiet_deepspeed()
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    from repro.engine.pipeline import GPTPipeline

    p = recipe.parallel
    topology = PipeModelDataParallelTopology(num_pp=p.pp, num_mp=p.tp, num_dp=p.dp)
    tp = tensor_parallel(recipe, rank, device, topology)
    with torch.device(device), default_dtype(recipe.precision.dtype):
        module = GPTPipeline(recipe, tp, topology)
    optimizer = optimizer_for(recipe, list(module.parameters()))
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        lr_scheduler=lambda basic: scheduler_for(recipe, basic),
        config=deepspeed_config(recipe),
    )
    return engine, tp.streams, require_in_force(recipe, engine)
