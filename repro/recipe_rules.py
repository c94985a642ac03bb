"""What makes a recipe valid: each rule says what is wrong, why, and the nearest valid value. No torch."""

import re
from math import gcd, isqrt

from repro.errors import InputError, shortened, unknown
from repro.layout import split_layers

DATASETS = ("synthetic", "stdlib-bytes", "megatron")


def check(recipe):
    """Raise :class:`InputError` for the first rule that the recipe breaks."""
    for rule in (_name, _shape, _alibi, _tensor_parallel, _pipeline, _batch, _zero, _precision, _data, _schedule):
        rule(recipe)


def nearest_divisor(value, number):
    """The divisor of ``number`` nearest to ``value``, the smaller of two."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return min((*small, *(number // d for d in small)), key=lambda d: (abs(d - value), d))


def nearest_multiples(value, unit, least=1):
    """The multiples of ``unit`` around ``value`` and not under ``least``, as text: ``252 or 266``."""
    below = value // unit * unit
    above = max(below + unit, -(-least // unit) * unit)
    return f"{below} or {above}" if below >= max(least, 1) else str(above)


def _name(r):
    # folders and wandb runs are called after it
    if not re.fullmatch(r"\w[\w .+-]{0,49}", r.name):
        raise InputError(
            f"recipe field name = {shortened(r.name)}: it names folders: at most 50 letters, digits, spaces and "
            "any of . _ + -, the first a letter or digit, e.g. my-22b"
        )


def _shape(r):
    s = r.shape
    if s.hidden % s.heads:
        heads = nearest_divisor(s.heads, s.hidden)
        raise InputError(
            f"shape.hidden {s.hidden} is not divisible by shape.heads {s.heads}; "
            f"nearest valid: heads {heads}, or hidden {nearest_multiples(s.hidden, s.heads)}"
        )


def _alibi(r):
    if r.shape.positions == "alibi" and r.compute.attention == "flash":
        raise InputError(
            "shape.positions alibi adds a bias that the flash kernel does not take; nearest valid: "
            "compute.attention unfused, or shape.positions learned"
        )


def _tensor_parallel(r):
    s, tp = r.shape, r.parallel.tp
    for name, value in (("heads", s.heads), ("hidden", s.hidden), ("ffn", s.ffn)):
        if value % tp:
            nearest = nearest_divisor(tp, gcd(s.heads, s.hidden, s.ffn))
            raise InputError(
                f"shape.{name} {value} is not divisible by parallel.tp {tp}; nearest valid: parallel.tp {nearest}"
            )
    if r.parallel.sequence_parallel and s.seq % tp:
        raise InputError(
            f"shape.seq {s.seq} is not divisible by parallel.tp {tp}, which sequence parallelism needs; "
            f"nearest valid: seq {nearest_multiples(s.seq, tp)}"
        )
    if r.parallel.sequence_parallel and tp == 1:
        raise InputError("parallel.sequence_parallel needs parallel.tp of at least 2; set it to false or tp to 2")


def _pipeline(r):
    p = r.parallel
    split_layers(r.shape.layers, p.pp, p.stage_layers)
    if p.pp > 1 and r.zero.stage >= 2:
        raise InputError(
            f"zero.stage {r.zero.stage} with pipeline parallelism is refused: DeepSpeed accumulates gradients over "
            "micro-batches, which stages 2 and 3 shard away; nearest valid: zero.stage 1, or parallel.pp 1"
        )
    if r.zero.stage >= 2:
        raise InputError(
            f"zero.stage {r.zero.stage} is not part of this reproduction: every run goes through DeepSpeed's pipeline "
            "engine, also with pp 1, and that takes stages 0 and 1; nearest valid: zero.stage 1"
        )


def _batch(r):
    b, dp, pp = r.batch, r.parallel.dp, r.parallel.pp
    unit = b.micro * dp
    if b.global_ % unit:
        raise InputError(
            f"batch.global {b.global_} is not a multiple of batch.micro {b.micro} x parallel.dp {dp}; "
            f"nearest valid: batch.global {nearest_multiples(b.global_, unit, unit * pp)}"
        )
    if r.accumulation < pp:
        raise InputError(
            f"{r.accumulation} micro-batches for {pp} pipeline stages leave stages without work; "
            f"nearest valid: batch.global {unit * pp}"
        )


def _zero(r):
    if r.zero.stage == 0 and r.precision.dtype != "fp32":
        raise InputError(
            f"zero.stage 0 with {r.precision.dtype} is refused: DeepSpeed's pipeline engine gives wrong gradients "
            "(fp16) or does not run (bf16) there; nearest valid: zero.stage 1"
        )


def _precision(r):
    dtype, accum = r.precision.dtype, r.precision.grad_accum
    valid = {"fp32": ("fp32",), "bf16": ("fp32", "bf16"), "fp16": ("fp16",)}[dtype]
    if accum not in valid:
        raise InputError(
            f"precision.grad_accum {accum} with precision.dtype {dtype} is not something DeepSpeed's pipeline engine "
            f"does right; nearest valid: {valid[0]}"
        )


def _data(r):
    d = r.data
    if d.kind not in DATASETS:
        raise unknown("dataset", d.kind, DATASETS)
    if d.kind == "megatron" and not d.prefix:
        raise InputError("data.kind megatron needs data.prefix, the path of the .bin and .idx files without the ending")
    if d.kind != "megatron" and d.prefix:
        raise InputError(f"data.prefix {d.prefix!r} belongs to data.kind megatron, not {d.kind}; leave it out")
    if d.kind == "stdlib-bytes" and r.shape.vocab < 256:
        raise InputError(f"data.kind stdlib-bytes has 256 tokens, shape.vocab {r.shape.vocab}; nearest valid: 256")


def _schedule(r):
    o = r.optimizer
    if o.min_lr > o.lr:
        raise InputError(f"optimizer.min_lr {o.min_lr} is above optimizer.lr {o.lr}; the most is {o.lr}")
    if o.warmup_steps >= o.decay_steps:
        raise InputError(
            f"optimizer.warmup_steps {o.warmup_steps} leaves nothing of decay_steps {o.decay_steps}; "
            f"the most is {o.decay_steps - 1}"
        )


def warnings_for(r):
    """Legal, but probably not meant: one line each."""
    found = []
    if r.zero.stage == 1 and r.parallel.dp == 1:
        found.append("zero.stage 1 with parallel.dp 1 saves nothing: there is one replica to shard over")
    if r.zero.stage == 0 and r.optimizer.clip and r.precision.dtype == "fp32":
        found.append("zero.stage 0 in fp32: DeepSpeed reports no gradient norm, the record will hold null")
    if "grad_accum" not in r.precision.model_fields_set:
        found.append(f"precision.grad_accum was not given for {r.precision.dtype}; set to {r.precision.grad_accum}")
    if r.compute.attention == "flash" and r.shape.head_dim % 8:
        found.append(f"head_dim {r.shape.head_dim} is not a multiple of 8: flash attention kernels will not take it")
    if r.parallel.pp > 1 and r.accumulation < 4 * r.parallel.pp:
        idle = (r.parallel.pp - 1) / (r.accumulation + r.parallel.pp - 1)
        found.append(f"{r.accumulation} micro-batches on {r.parallel.pp} stages: the bubble is {idle:.0%} of the step")
    if r.timing_warmup >= r.steps:
        found.append(f"timing_warmup {r.timing_warmup} covers all {r.steps} steps: there will be no mean throughput")
    return found
