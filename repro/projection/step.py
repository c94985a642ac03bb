"""Time of a step, item by item: work x a machine's constants, for many layouts and many samples at once. No torch.

Shapes: constants ``[samples, 1, 1]`` or numbers, work ``[n, k]`` (:mod:`repro.projection.work`), items
``[samples, n]``. Times are seconds.
"""

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import numpy as np

from repro.errors import unknown
from repro.projection import pipeline
from repro.projection.machine import CONSTANTS, NINE_IN_TEN
from repro.projection.network import fabric

# item of a step: the constants that it rests on besides the device's peak, memory bandwidth and links
ITEMS = {
    "matrix products": ("gemm_ceiling",),
    "operands of products": ("gemm_bandwidth",),
    "attention": ("gemm_ceiling", "memory_efficiency", "flash_forward", "flash_backward"),
    "element-wise operations": ("memory_efficiency",),
    "gradient accumulation": ("memory_efficiency",),
    "between kernels": ("kernel_seconds",),
    "tensor-parallel collectives": ("link_efficiency", "nic_collective", "hop_seconds", "nic_hop_seconds",
                                    "call_seconds"),
    "messages between stages": ("nic_message", "link_efficiency", "message_seconds"),
    "slowest device": ("device_spread",),
    "stage imbalance": (),
    "filling and draining": (),
    "gradient reduction": ("nic_collective", "nic_decline", "link_efficiency", "hop_seconds", "nic_hop_seconds"),
    "parameter gathering": ("nic_collective", "nic_decline", "link_efficiency", "hop_seconds", "nic_hop_seconds"),
    "tied embedding": ("nic_collective", "link_efficiency"),
    "optimizer": ("memory_efficiency",),
    "rest of a step": ("step_seconds",),
    "cold first step": ("cold_stage_seconds",),
}  # fmt: skip
PER_MICRO_BATCH = tuple(ITEMS)[:8]
COMPUTE = PER_MICRO_BATCH[:6]

# Element-wise traffic of a block per token, in passes over [s, b, h] elements: (not sharded, sharded by tp).
# Forward: two norms read and write (4), two bias-dropout-adds read two, write one and a mask (7); sharded: GELU of
# 4 h (8), q, k, v and the context moved into place (8). Backward: norms 5 each, dropouts 2.5 each, residual sums 3
# each, bias gradients 2; sharded: GELU 12, moves 8, bias gradients 7.
FORWARD, BACKWARD = (11, 16), (23, 27)
KERNELS_FORWARD, KERNELS_BACKWARD = 16, 33  # of a block, attention apart
SCORES_FORWARD, SCORES_BACKWARD = 9, 11  # passes over [b, n, s, s] between the products of unfused attention
MEASURED_NODES = 4  # up to here the rate of a ring across nodes was measured not to fall (LUMI, dp 2 and 4)
LOGITS = 46  # bytes moved for one logit by the fp32 cross entropy, forward and backward


@dataclass(frozen=True)
class Step:
    """A projected step; arrays ``[samples, n]``.

    Attributes:
        items: ``{item: seconds}``, which add up to ``seconds``.
        stage_seconds: time of one micro-batch on each kind of stage ``[samples, n, k]``.
    """

    seconds: np.ndarray
    items: dict
    stage_seconds: np.ndarray


def constants(machine, deviations=None):
    """The machine's constants as a namespace: values, or at ``{name: standard deviations}``, arrays ``[samples]``."""
    found = {}
    for name, constant in machine.constants.items():
        if deviations is None or name not in deviations or constant.low == constant.high:
            found[name] = constant.value
        else:
            z = np.asarray(deviations[name], float)[:, None, None]
            found[name] = np.minimum(at(constant, z), CONSTANTS[name][2])  # a range's tail may pass all of the peak
    return SimpleNamespace(**found)


def at(constant, z):
    """A constant at so many standard deviations, as :meth:`repro.projection.machine.Constant.at`, for arrays."""
    if constant.value <= 0:
        return constant.value
    low, high = (np.log(side / constant.value) / NINE_IN_TEN for side in (constant.low, constant.high))
    return constant.value * np.exp(np.where(z > 0, high, low) * np.abs(z))


def step(work, machine, given=None, without=(), cold_share=0.0):
    """The :class:`Step` of every layout of ``work`` on a machine.

    Args:
        given: constants as :func:`constants` returns them, instead of the machine's values.
        without: items left out, for ablations.
        cold_share: of the cold first step that counts into this time: 1/n where the mean is over n steps.

    Raises:
        InputError: no such item.
    """
    for item in without:
        if item not in ITEMS:
            raise unknown("item of a step", item, ITEMS)
    k = given or constants(machine)
    c, net = work.layouts, fabric(machine)
    peak = machine.device.peak("bf16") * 1e12
    memory = machine.device.memory_bandwidth_gbytes * 1e9
    micro = _compute(work, c, k, peak, memory)
    micro |= _network(work, c, k, net)
    for item in without:
        if item in micro:
            micro[item] = np.zeros_like(micro[item])
    spread = k.device_spread * slowest_of(c.tp * c.pp * c.dp) * ("slowest device" not in without)
    compute = sum(micro[name] for name in COMPUTE)
    stages = compute * (1 + spread) + sum(micro[name] for name in PER_MICRO_BATCH if name not in COMPUTE)
    items = _schedule(work, c, micro, compute * spread, stages, without)
    items |= _per_step(work, c, k, net, memory)
    items["cold first step"] = np.asarray(cold_share) * (k.cold_stage_seconds * c.pp)[..., 0]
    shape = np.broadcast_shapes((1, 1), *(np.shape(v) for v in items.values()))
    items = {
        name: np.broadcast_to(np.zeros(()) if name in without else items[name], shape) + np.zeros(shape)
        for name in ITEMS
    }
    return Step(sum(items.values()), items, np.broadcast_to(stages, (*shape, stages.shape[-1])))


def _compute(work, c, k, peak, memory):
    t, e, h, f = c.tp, c.element, c.hidden, c.ffn
    tokens = c.seq * c.micro
    products, operands, elements = k.gemm_ceiling * peak, k.gemm_bandwidth * memory, k.memory_efficiency * memory
    passes = 3 + c.recompute
    size = e * _operands(tokens, h, f, t)
    head = work.last * 3 * e * (tokens * c.vocab / t + c.vocab * h / t + tokens * h)
    outer = np.where(c.sequence_parallel, 1 / t, 1)  # of [s, b, h] outside the sharded regions
    again = 1 + c.recompute
    activations = tokens * h * e
    moved = activations * (again * (FORWARD[0] * outer + FORWARD[1] / t) + BACKWARD[0] * outer + BACKWARD[1] / t)
    ends = work.first * 12 * activations * outer + work.last * LOGITS * tokens * c.vocab / t
    update = np.where(c.accumulate > e, 16, 3 * e)  # += in the weights' dtype; fp32 on top: read both, write
    kernels = again * (KERNELS_FORWARD + np.where(c.flash, 1, 5)) + KERNELS_BACKWARD + np.where(c.flash, 3, 8)
    return {
        "matrix products": work.matrix_flops / products,
        "operands of products": (work.layers * passes * size + head) / operands,
        "attention": _attention(work, c, k, peak, elements),
        "element-wise operations": (work.layers * moved + ends) / elements,
        "gradient accumulation": work.parameters * update / elements,
        "between kernels": (work.layers * kernels + 30 * work.last + 10 * work.first) * k.kernel_seconds,
    }


def _operands(tokens, h, f, t):
    """Elements read and written by the four products of a block, forward; either product of backward moves as many."""
    products = ((h, 3 * h / t), (h / t, h), (h, f / t), (f / t, h))
    return sum(tokens * a + a * b + tokens * b for a, b in products)


def _attention(work, c, k, peak, elements):
    """Flash: two rates. Unfused: batched products that move the scores, and passes over the scores between them."""
    forward, backward = work.attention_forward, work.attention_flops - work.attention_forward
    flash = forward / (k.flash_forward * peak) + backward / (k.flash_backward * peak)
    again, e = 1 + c.recompute, c.element
    scores = work.layers * c.micro * c.heads / c.tp * c.seq**2 * e
    heads = work.layers * c.seq * c.micro * c.hidden / c.tp * e
    unfused = (forward + backward) / (k.gemm_ceiling * peak)
    unfused = unfused + (2 * again + 4) * (scores + 2 * heads) / elements
    unfused = unfused + (again * SCORES_FORWARD + SCORES_BACKWARD) / 2 * scores / elements
    return np.where(c.flash, flash, unfused)


def _network(work, c, k, net):
    ring, crosses = net.group(c.tp.astype(int), np.ones_like(c.tp, int), (c.tp * c.dp * c.pp).astype(int))
    rate = 1e9 * ring * np.where(crosses, k.nic_collective, k.link_efficiency)
    hop = np.where(crosses, k.nic_hop_seconds, k.hop_seconds)
    stride = (c.tp * c.dp).astype(int)
    width, far = net.messages(stride, c.pp.astype(int))
    message = 1e9 * width * np.where(far, k.nic_message, k.link_efficiency)
    # of DeepSpeed's shards only the message before one waits for the host: the measured rate of a shard holds its own
    small = work.messages / np.where(c.deepspeed * (c.tp > 1) * (1 - c.sequence_parallel), 2, 1)
    # Megatron sends and receives at once, v times as often with v chunks; DeepSpeed one after the other
    one_way = np.where(c.deepspeed, 1, c.interleave / 2)
    return {
        "tensor-parallel collectives": work.ring_bytes / rate + work.ring_hops * hop + work.ring_calls * k.call_seconds,
        "messages between stages": one_way * (work.message_bytes / message + small * k.message_seconds),
    }


def _schedule(work, c, micro, waiting, stages, without):
    """Items of the pipeline's ``m`` micro-batches: what a mean stage does, and what it waits."""
    m, pp, v = c.m[:, 0], c.pp[:, 0], c.interleave[:, 0]
    present = work.multiplicity > 0
    mean = {name: m * np.sum(work.multiplicity * value, axis=-1) / pp for name, value in micro.items()}
    mean["slowest device"] = m * np.sum(work.multiplicity * waiting, axis=-1) / pp
    busy = np.sum(work.multiplicity * stages, axis=-1)
    slowest = np.max(np.where(present, stages, 0), axis=-1)
    if "stage imbalance" in without:
        slowest = busy / pp
    # A transfer is on two ranks' account, but once on the way of the first and of the last micro-batch, where
    # nothing goes the other way: of Megatron's exchanges, which count one way only, both halves.
    sent = np.sum(work.multiplicity * micro["messages between stages"], axis=-1)
    seconds = pipeline.one_f_one_b(busy - np.where(c.deepspeed[:, 0], sent / 2, 0), slowest, m)
    if np.any(v > 1):
        seconds = np.where(v > 1, _interleaved(work, micro, stages, m, pp, v), seconds)
    mean["stage imbalance"] = m * (slowest - busy / pp)
    mean["filling and draining"] = seconds - m * slowest
    return mean


def _interleaved(work, micro, stages, m, pp, v):
    """Megatron's schedule, which sends and receives both ways at once between chunks."""
    # an exchange sends an activation and a gradient; the first stage's account has one neighbour, here all have two
    transfer = 2 * micro["messages between stages"][..., 0] / v
    alone = stages - micro["messages between stages"]
    first, last = alone[..., 0], alone[..., 1]
    inner = np.max(np.where(work.multiplicity > 0, alone, 0)[..., 2:], axis=-1, initial=0)
    inner = np.where(inner > 0, inner, np.minimum(first, last))  # two stages have none between them
    # layouts of one chunk get harmless numbers here, as the caller does not take the result
    p, chunks = np.maximum(pp, 2), np.maximum(v, 2)
    whole = np.ceil(m / p) * p
    seconds = pipeline.interleaved(
        inner / chunks, whole, p, chunks, np.maximum(first - inner, 0), np.maximum(last - inner, 0), transfer
    )
    return seconds * m / whole


def _per_step(work, c, k, net, memory):
    t, dp = c.tp.astype(int), c.dp.astype(int)
    ring, crosses = net.group(dp, t, t * dp * c.pp.astype(int))
    nodes = dp / np.maximum(net.devices // np.minimum(t, net.devices), 1)  # that the ring visits
    narrowed = k.nic_collective * np.maximum(nodes / MEASURED_NODES, 1) ** -k.nic_decline
    rate = 1e9 * ring * np.where(crosses, narrowed, k.link_efficiency)
    hop = np.where(crosses, k.nic_hop_seconds, k.hop_seconds)
    pair, apart = net.pairs(t * dp, c.pp.astype(int))
    tied = 1e9 * pair * np.where(apart, k.nic_collective, k.link_efficiency)
    elements = k.memory_efficiency * memory
    share = np.where(c.sharded, c.dp, 1)
    # fp32 state: cast, norm, unscale, Adam, cast back; 16-bit gradients: flattened, checked
    optimizer = work.parameters * (52 / share + 10) / elements
    rows = {
        "gradient reduction": work.reduce_bytes / rate + (dp > 1) * 2 * (dp - 1) * hop,
        "parameter gathering": work.gather_bytes / rate + (dp > 1) * c.sharded * (dp - 1) * hop,
        "tied embedding": work.tied_bytes / tied,
        "optimizer": optimizer,
    }
    present = work.multiplicity > 0
    found = {name: np.max(np.where(present, value, 0), axis=-1) for name, value in rows.items()}
    found["rest of a step"] = (k.step_seconds + 0 * c.m)[..., 0]
    return found


def slowest_of(count):
    """Expected maximum of ``count`` standard normal variables (Blom 1958)."""
    table = _maxima()
    return np.interp(np.log2(count), np.arange(len(table)), table)


@cache
def _maxima():
    from statistics import NormalDist

    return [0.0] + [NormalDist().inv_cdf((2**i - 0.375) / (2**i + 0.25)) for i in range(1, 25)]
