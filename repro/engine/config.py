"""Recipe -> DeepSpeed config, and the check that what is in force is what the recipe says. No torch.

The config is generated, never written by hand: micro-batch, accumulation, precision, clipping and
ZeRO stage stand in one place only, so a script and a JSON file cannot disagree.
"""

import math

from repro.errors import RunFailed


def pipe_partitioned(recipe):
    """Whether activations between stages travel as one part per shard (not when already split by sequence)."""
    return recipe.parallel.tp > 1 and not recipe.parallel.sequence_parallel


def deepspeed_config(recipe):
    """The dictionary for ``deepspeed.initialize``."""
    precision = recipe.precision
    config = {
        "train_batch_size": recipe.batch.global_,
        "train_micro_batch_size_per_gpu": recipe.batch.micro,
        "gradient_accumulation_steps": recipe.accumulation,
        "gradient_clipping": recipe.optimizer.clip,
        "steps_per_print": 10**9,  # progress is ours; DeepSpeed prints nothing
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": recipe.zero.stage,
            "reduce_bucket_size": recipe.zero.reduce_bucket,
            "allgather_bucket_size": recipe.zero.allgather_bucket,
            "contiguous_gradients": True,
            "overlap_comm": False,  # the pipeline engine reduces once, after the last backward
        },
        "data_types": {"grad_accum_dtype": precision.grad_accum},
        "pipeline": {
            "pipe_partitioned": pipe_partitioned(recipe),
            "grad_partitioned": pipe_partitioned(recipe),
            "activation_checkpoint_interval": 1 if recipe.compute.recompute == "full" else 0,
        },
    }
    if precision.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if precision.dtype == "fp16":
        config["fp16"] = {
            "enabled": True,
            "loss_scale": 0,  # dynamic
            "initial_scale_power": precision.initial_loss_scale_power,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        }
    return config


def expected(recipe):
    """What :func:`in_force` must give on every rank, from the recipe alone."""
    o, p = recipe.optimizer, recipe.parallel
    return {
        "train_batch_size": recipe.batch.global_,
        "micro_batch_size": recipe.batch.micro,
        "micro_batches": recipe.accumulation,
        "gradient_clipping": o.clip,
        "zero_stage": recipe.zero.stage,
        "reduce_bucket": recipe.zero.reduce_bucket,
        "allgather_bucket": recipe.zero.allgather_bucket,
        "dtype": recipe.precision.dtype,
        "weights_dtype": recipe.precision.dtype,
        "grad_accum": recipe.precision.grad_accum,
        "initial_loss_scale": 2.0**recipe.precision.initial_loss_scale_power
        if recipe.precision.dtype == "fp16"
        else None,
        "tp": p.tp,
        "pp": p.pp,
        "dp": p.dp,
        "activation_checkpoint_interval": 1 if recipe.compute.recompute == "full" else 0,
        "pipe_partitioned": pipe_partitioned(recipe),
        "optimizer": {"adam": "Adam", "adamw": "AdamW"}[o.name],
        "lr": learning_rate(recipe, 0),
        "betas": [o.beta1, o.beta2],
        "eps": o.eps,
        "weight_decay": sorted({0.0, o.weight_decay}),
    }


def in_force(engine):
    """The same settings, read back from DeepSpeed's engine after it has been built."""
    optimizer = engine.basic_optimizer
    dtypes = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    model_dtype, accumulation = (dtypes[str(d).removeprefix("torch.")] for d in engine.get_data_types())
    weights = {dtypes[str(p.dtype).removeprefix("torch.")] for p in engine.module.parameters()}
    group = optimizer.param_groups[0]
    return {
        "train_batch_size": engine.train_batch_size(),
        "micro_batch_size": engine.micro_batch_size,
        "micro_batches": engine.micro_batches,
        "gradient_clipping": engine.gradient_clipping(),
        "zero_stage": int(engine.zero_optimization_stage()),
        "reduce_bucket": engine.zero_reduce_bucket_size(),
        "allgather_bucket": engine.zero_allgather_bucket_size(),
        "dtype": model_dtype,
        "weights_dtype": weights.pop() if len(weights) == 1 else sorted(weights),
        "grad_accum": accumulation,
        "initial_loss_scale": float(engine.optimizer.loss_scale) if engine.fp16_enabled() else None,
        "tp": engine.grid.get_slice_parallel_world_size(),
        "pp": engine.grid.get_pipe_parallel_world_size(),
        "dp": engine.grid.get_data_parallel_world_size(),
        "activation_checkpoint_interval": engine.module.activation_checkpoint_interval,
        "pipe_partitioned": engine.is_pipe_partitioned and engine.is_grad_partitioned,
        "optimizer": type(optimizer).__name__,
        "lr": float(group["lr"]),
        "betas": [float(b) for b in group["betas"]],
        "eps": float(group["eps"]),
        "weight_decay": sorted({float(g["weight_decay"]) for g in optimizer.param_groups}),
    }


def require_in_force(recipe, engine):
    """The settings in force.

    Raises:
        RunFailed: one of them differs from the recipe; names every difference.
    """
    asked, found = expected(recipe), in_force(engine)
    wrong = [f"{key}: asked {asked[key]}, in force {found[key]}" for key in asked if not _same(asked[key], found[key])]
    if wrong:
        raise RunFailed("settings in force differ from the recipe: " + "; ".join(wrong))
    return found


def _same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    return a == b


def learning_rate(recipe, step):
    """Rate of an optimizer step counted from 0: linear warm-up, then a cosine to ``min_lr`` at ``decay_steps``."""
    o = recipe.optimizer
    if step < o.warmup_steps:
        return o.lr * (step + 1) / o.warmup_steps
    done = min(1.0, (step - o.warmup_steps) / (o.decay_steps - o.warmup_steps))
    return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + math.cos(math.pi * done))
