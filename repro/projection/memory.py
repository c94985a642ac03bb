"""Memory of a rank in bytes: what stays between steps, and the highest point of a step, item by item. No torch.

Nothing is fitted: sizes follow from the recipe, lifetimes from the code of model and engine, see
:mod:`repro.projection.replay`. Allocator fragmentation, the device's context and the buffers of the
communication library come on top.
"""

from dataclasses import dataclass

from repro.errors import InputError
from repro.projection import engine as pipeline
from repro.projection import states
from repro.projection.counts import dtype_bytes
from repro.projection.replay import Ledger, Tensor

ENGINES = ("deepspeed", "megatron")
VERSIONS = ("0.19.8", "2023")
MASK = "causal mask and ALiBi bias"


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank.

    Attributes:
        between: ``{item: bytes}`` that stay between steps.
        peak: ``{item: bytes}`` at the highest point of a step, which was in ``phase``.
        pipeline_peak: as ``peak``, before gradients are reduced.
    """

    between: dict
    peak: dict
    phase: str
    pipeline_peak: dict

    @property
    def between_bytes(self):
        return sum(self.between.values())

    @property
    def peak_bytes(self):
        return sum(self.peak.values())

    @property
    def pipeline_peak_bytes(self):
        return sum(self.pipeline_peak.values())


def memory(recipe, stage, micro_batches=None, engine="deepspeed", deepspeed="0.19.8"):
    """The :class:`Memory` of a rank of a stage (replica 0, whose ZeRO shard is a full one).

    Args:
        micro_batches: of a step, instead of the recipe's.
        engine: ``megatron`` leaves out what DeepSpeed holds and Megatron-LM would not; the rest stays as it is.
        deepspeed: ``2023`` is Megatron-DeepSpeed of mid-2023 on the bf16 way: 16-bit gradients stay after the
            step and are dropped, not zeroed, when the next backward begins; they are reduced in two halves;
            attention scores before the softmax live until the attention returns.
    """
    for name, value, valid in (("engine", engine, ENGINES), ("deepspeed", deepspeed, VERSIONS)):
        if value not in valid:
            raise InputError(f"{name} {value!r} is not one of {', '.join(valid)}")
    left_out = (*pipeline.ONLY_DEEPSPEED, *states.ONLY_DEEPSPEED) if engine == "megatron" else ()
    ledger = Ledger(left_out)
    m = micro_batches or recipe.accumulation
    held = states.States(recipe, stage, ledger, deepspeed)
    mask = Tensor(ledger, MASK, _mask(recipe))
    running = pipeline.Engine(recipe, stage, ledger, held, scores_stay=deepspeed == "2023")
    gradients = running.layers.gradients
    for _ in range(2):  # the first step leaves in the buffers what the second finds there
        ledger.restart_peak()
        running.run(m)
        before = _items(ledger.peak_live)
        held.reduce(gradients)
        held.step()
        if deepspeed != "2023":
            gradients.clear()
    found = Memory(_items(ledger.live), _items(ledger.peak_live), ledger.peak_phase, before)
    del mask
    return found


def _mask(recipe):
    s = recipe.shape
    if recipe.compute.attention == "flash":
        return 0
    bias = recipe.batch.micro * s.heads // recipe.parallel.tp * s.seq * dtype_bytes(recipe)
    return s.seq**2 + (bias if s.positions == "alibi" else 0)


def _items(live):
    return {name: size for name, size in sorted(live.items(), key=lambda item: -item[1]) if size}
