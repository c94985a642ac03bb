"""What a rank does, seen at torch's dispatcher: FLOPs, transfers, and live memory. Real or fake tensors.

FLOPs are those of matrix products and attention. Attention is counted in full, causal or not. The flash
kernel's backward computes the scores again, which counts (10 b n s^2 d against 8 of the unfused one).
"""

import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from torch.utils._python_dispatch import TorchDispatchMode

PHASES = ("build", "forward", "recompute", "backward", "reduction", "step")
LABELS = ("parameters", "gradients", "optimizer states", "activations", "buffers", "temporary")
# A new storage is named by the phase it is born in, until it is found to be something that stays.
BORN = {
    "build": "temporary",
    "forward": "activations",
    "recompute": "activations",
    "backward": "temporary",
    "reduction": "temporary",
    "step": "temporary",
}
INSTRUCTION_PHASE = {
    "LoadMicroBatch": "forward",
    "RecvActivation": "forward",
    "ForwardPass": "forward",
    "SendActivation": "forward",
    "RecvGrad": "backward",
    "BackwardPass": "backward",
    "SendGrad": "backward",
    "ReduceTiedGrads": "reduction",
    "ReduceGrads": "reduction",
    "OptimizerStep": "step",
}


@dataclass(frozen=True)
class Transfer:
    """One collective, or one half of a point-to-point message.

    Attributes:
        ranks: members of the group in order; for ``send`` and ``recv`` the peer alone.
        bytes: of the tensor this rank puts in, or gets from a ``recv``.
    """

    phase: str
    kind: str
    ranks: tuple
    bytes: int


@dataclass(frozen=True)
class Peak:
    """A highest point of live memory, by label, and the phase it was reached in."""

    bytes: int = 0
    by_label: dict = field(default_factory=dict)
    phase: str = "build"


@dataclass
class Memory:
    """Bytes alive now, by label, and the highest point so far."""

    now: Counter = field(default_factory=Counter)
    total: int = 0
    peak: Peak = field(default_factory=Peak)

    def add(self, label, size, phase):
        self.now[label] += size
        self.total += size
        if self.total > self.peak.bytes:
            self.peak = Peak(self.total, dict(self.now), phase)

    def remove(self, label, size):
        self.now[label] -= size
        self.total -= size

    def restart_peak(self, phase):
        self.peak = Peak(self.total, dict(self.now), phase)


class Recorder(TorchDispatchMode):
    """Records while it is active, from before the engine is built.

    Attributes:
        flops: ``{(phase, kind): FLOPs}``.
        transfers: every :class:`Transfer` in order.
        timeline: ``(instruction, live bytes after it, peak bytes within it)`` of each pipeline instruction.
        pipeline_peak: the :class:`Peak` before the reduction began.
    """

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # torch's guard against its own compiler, on every call

    def __init__(self):
        super().__init__()
        import torch
        import torch.distributed as dist
        from torch._subclasses.fake_tensor import FakeTensor

        self.phase = "build"
        self.flops, self.transfers, self.timeline = Counter(), [], []
        self.memory, self.live, self.pipeline_peak = Memory(), {}, Peak()
        self._torch, self._dist, self._fake = torch, dist, FakeTensor
        self._device = torch.ops.prim.device.default
        self._formulas = formulas()
        self._groups = {}
        self._streams = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is self._device and isinstance(args[0], self._fake):
            return args[0].fake_device
        result = function(*args, **kwargs) if kwargs else function(*args)
        if (formula := self._formulas.get(function)) is not None:
            kind, count = formula
            self.flops[self._phase(), kind] += count(args, result)
        elif function.namespace == "c10d":
            self._transfer(function, args)
        if isinstance(result, self._torch.Tensor):
            self._see(result)
        elif isinstance(result, tuple | list):
            for item in result:
                if isinstance(item, self._torch.Tensor):
                    self._see(item)
        return result

    def _phase(self):
        return "recompute" if self._streams is not None and self._streams.recomputing else self.phase

    def _see(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live:
            return
        phase = self._phase()
        size, label = storage.nbytes(), BORN[phase]
        if size and tensor.device.type != "meta":  # DeepSpeed keeps shapes as meta tensors: no memory
            self.live[key] = [weakref.ref(storage, lambda _, key=key: self._free(key)), size, label]
            self.memory.add(label, size, phase)

    def _free(self, key):
        _, size, label = self.live.pop(key)
        self.memory.remove(label, size)

    def relabel(self, tensors, label):
        """Name the storages of tensors for what they have turned out to be."""
        for tensor in tensors:
            entry = self.live.get(tensor.untyped_storage()._cdata)
            if entry is not None and entry[2] != label:
                self.memory.now[entry[2]] -= entry[1]
                self.memory.now[label] += entry[1]
                entry[2] = label

    def _transfer(self, function, args):
        kind = function._schema.name.removeprefix("c10d::").strip("_")
        tensors, group = _operands(kind, args, self._dist)
        if group is None:
            return
        if group not in self._groups:
            self._groups[group] = tuple(self._dist.get_process_group_ranks(group))
        ranks = self._groups[group]
        if kind in ("send", "recv"):
            ranks = (ranks[args[2]],)
        size = sum(t.numel() * t.element_size() for t in tensors)
        self.transfers.append(Transfer(self._phase(), _NAMES.get(kind, kind), ranks, size))

    def restart(self):
        """Forget what was counted; what is alive stays known."""
        self.flops.clear()
        self.transfers.clear()
        self.timeline.clear()
        self.memory.restart_peak(self.phase)
        self.pipeline_peak = Peak()

    @contextmanager
    def following(self, engine):
        """Phases follow the instructions of the engine's own schedule inside the block."""
        kind = type(engine)
        self._streams = engine.module.tp.streams
        watched = {i: self._watched(i.__name__, f) for i, f in kind._INSTRUCTION_MAP.items()}
        label_persistent(self, engine)
        self.restart()
        with patch.object(kind, "_INSTRUCTION_MAP", watched):
            yield
        label_persistent(self, engine)

    def _watched(self, name, original):
        def run(engine, *args, **kwargs):
            self.phase = INSTRUCTION_PHASE[name]
            before = self.memory.peak
            self.memory.restart_peak(self.phase)
            result = original(engine, *args, **kwargs)
            within = self.memory.peak
            self.timeline.append((name, self.memory.total, within.bytes))
            self.memory.peak = max(before, within, key=lambda peak: peak.bytes)
            if self.phase in ("forward", "backward"):
                self.pipeline_peak = self.memory.peak
            self.relabel(engine._grad_layer_buf, "buffers")
            if name == "BackwardPass":
                self.relabel((p.grad for p in engine.module.parameters() if p.grad is not None), "gradients")
            return result

        return run


def label_persistent(recorder, engine):
    """Name what stays between steps: parameters, gradient accumulators, master weights and moments."""
    import torch

    optimizer = engine.optimizer
    basic = engine.basic_optimizer
    masters = [p for group in basic.param_groups for p in group["params"]]
    moments = [v for state in basic.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    flat = [t for t in getattr(optimizer, "fp32_groups_gradients_flat", []) if t is not None]
    recorder.relabel([*masters, *moments], "optimizer states")
    recorder.relabel(engine.module.parameters(), "parameters")
    recorder.relabel(flat, "gradients")
    recorder.relabel((p.grad for p in engine.module.parameters() if p.grad is not None), "gradients")
    shared = [m.scores for m in engine.module.modules() if hasattr(m, "scores")]
    recorder.relabel([t for s in shared for t in (s.future, s.bias) if t is not None], "buffers")


_NAMES = {
    "allreduce": "all_reduce",
    "allgather_base": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter_base": "reduce_scatter",
    "recv_any_source": "recv",
}


def _operands(kind, args, dist):
    """Tensors that this rank puts in (or receives, for ``recv``), and the process group."""
    import torch

    group = next((a for a in args if isinstance(a, torch.ScriptObject)), None)
    if group is None:
        return (), None
    group = dist.ProcessGroup.unbox(group)
    # base forms are (output, input, group); list forms (tensors, group); gathers of lists (outputs, inputs, group)
    position = 1 if kind in ("allgather_base", "reduce_scatter_base", "allgather", "gather", "scatter") else 0
    tensors = args[position]
    if isinstance(tensors, torch.Tensor):
        return (tensors,), group
    return [t for t in tensors if isinstance(t, torch.Tensor)], group


def formulas():
    """``{operator: (kind, function of arguments and result)}``; FLOPs are twice the multiply-adds."""
    import torch

    aten = torch.ops.aten

    def product(a, b):
        return 2 * a.numel() * b.shape[-1]

    def flash(q, k, times):
        b, n, s, d = q.shape
        return times * b * n * s * k.shape[2] * d

    found = {
        aten.mm.default: ("matrix", lambda a, _: product(a[0], a[1])),
        aten.addmm.default: ("matrix", lambda a, _: product(a[1], a[2])),
        aten.bmm.default: ("attention", lambda a, _: product(a[0], a[1])),
        aten.baddbmm.default: ("attention", lambda a, _: product(a[1], a[2])),
    }
    for name, times in (("", 4), ("_backward", 10)):
        shift = 1 if name else 0  # the gradient comes first in backward
        for kernel in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"):
            op = getattr(aten, kernel + name).default
            found[op] = ("attention", lambda a, _, i=shift, n=times: flash(a[i], a[i + 1], n))
    return found
