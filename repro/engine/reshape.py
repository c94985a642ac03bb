"""A checkpoint of one layout in an engine of another: every parameter put together, and cut anew.

Not DeepSpeed's universal checkpoint: its converter expects Megatron's own files beside DeepSpeed's, reads with
pickle, and writes all states a second time. What it would do is simple here. Each ZeRO-1 file holds flat parts of
the fp32 weights and of Adam's two moments, with a table of names; over replicas the parts of a shard follow each other,
over shards the axis of each parameter is known. A rank reads the files of those parameters that it holds, mapped into
memory, one parameter at a time, and writes its own cut into its own partition. Nothing is written to disk.
"""

from functools import cache, lru_cache

import torch

from repro.engine.checkpoint_io import safe_load
from repro.errors import RunFailed
from repro.recipe import from_toml

STATES = ("fp32", "exp_avg", "exp_avg_sq")


def load_split_anew(engine, checkpoint, place):
    """Load a checkpoint of another layout into this rank's engine: weights, Adam's states, counters, loss scale.

    Args:
        checkpoint: :class:`repro.records.checkpoints.Checkpoint`, its files known to be as written.

    Returns:
        The path that was read.

    Raises:
        RunFailed: a parameter is not there, or not whole.
    """
    old = _Old(checkpoint)
    optimizer = engine.optimizer
    with torch.no_grad():
        groups = getattr(optimizer, "bit16_groups", None) or optimizer.bf16_groups
        for group, parameters in zip(optimizer.optimizer.param_groups, groups, strict=True):
            _fill(optimizer, group["params"][0], parameters, old, engine.module)
    optimizer._load_global_state(old.file(0, 0, 0))  # the loss scale, its window and hysteresis
    common = old.common_state()
    engine.global_steps, engine.skipped_steps = common["global_steps"], common["skipped_steps"]
    engine.global_samples = common["global_samples"]
    engine.lr_scheduler.load_state_dict(common["lr_scheduler"])
    return str(checkpoint.path)


def _fill(optimizer, partition, parameters, old, module):
    """Write one group's weights, and this rank's flat partition of its fp32 weights and moments."""
    axes = _axes(module)
    state = optimizer.optimizer.state[partition]
    for key in STATES[1:]:
        if key not in state:
            state[key] = torch.zeros_like(partition)
    flat = {key: state[key] for key in STATES[1:]} | {"fp32": partition}
    for parameter in parameters:
        name = optimizer.param_names[parameter]
        for key in STATES:
            mine = old.cut(name, key, parameter.shape, axes.get(id(parameter)), module.tp)
            if key == "fp32":
                parameter.copy_(mine)
            if parameter._hp_mapping is not None:
                part, whole = parameter._hp_mapping.hp_fragment_address, parameter._hp_mapping.lp_fragment_address
                flat[key].narrow(0, part.start, part.numel).copy_(
                    mine.flatten()[whole.start : whole.start + whole.numel]
                )
    step = old.step_of(optimizer.param_names[parameters[0]])
    state["step"] = step.to(partition.device, copy=True)  # where torch's fused kernel wants it


def _axes(module):
    """The axis over which each sharded parameter is cut, by its id; all others are whole on every shard."""
    from repro.model.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

    found = {}
    for part in module.modules():
        if isinstance(part, ColumnParallelLinear):
            found |= {id(part.weight): 0, id(part.bias): 0}
        elif isinstance(part, RowParallelLinear):
            found[id(part.weight)] = 1
        elif isinstance(part, VocabParallelEmbedding):
            found[id(part.weight)] = 0
    return found


class _Old:
    """The files of a checkpoint in the layout that wrote them."""

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint
        self.recipe = from_toml(checkpoint.manifest["recipe"])
        self.tp, self.pp, self.dp = (getattr(self.recipe.parallel, axis) for axis in ("tp", "pp", "dp"))
        self.file = lru_cache(maxsize=64)(self._file)
        self.stage = cache(self._stage)

    def _file(self, stage, replica, shard):
        name = f"zero_pp_rank_{replica}_mp_rank_{stage * self.tp + shard:02d}_optim_states.pt"
        path = next((self.checkpoint.path / n for n in (name, f"bf16_{name}") if n in self.checkpoint.files), None)
        if path is None:
            raise RunFailed(f"{self.checkpoint.path} holds no {name}")
        return safe_load(path, mmap=True)["optimizer_state_dict"]

    def common_state(self):
        return safe_load(self.checkpoint.path / "mp_rank_00_model_states.pt", "cpu")

    def _stage(self, stage):
        """``{parameter: (group, replicas that hold a part of it)}``; the same on every shard."""
        found = {}
        for replica in range(self.dp):
            for group, names in enumerate(self.file(stage, replica, 0)["param_slice_mappings"]):
                for name in names:
                    found.setdefault(name, (group, []))[1].append(replica)
        return found

    def place(self, name):
        """Stage, group and replicas of a parameter; of a tied one those of its first stage."""
        for stage in range(self.pp):
            if name in (held := self.stage(stage)):
                return stage, *held[name]
        raise RunFailed(f"{self.checkpoint.path} holds no parameter {name}")

    def step_of(self, name):
        stage, group, replicas = self.place(name)
        return torch.as_tensor(self.file(stage, replicas[0], 0)["base_optimizer_state"]["state"][group]["step"])

    def shard(self, name, key, shard):
        """One old shard of a parameter's state, flat."""
        stage, group, replicas = self.place(name)
        parts = []
        for replica in replicas:
            file = self.file(stage, replica, shard)
            address = file["param_slice_mappings"][group][name]
            flat = (
                file["single_partition_of_fp32_groups"][group]
                if key == "fp32"
                else file["base_optimizer_state"]["state"][group][key]
            )
            parts.append(flat.narrow(0, address.start, address.numel))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def cut(self, name, key, shape, axis, tp):
        """This rank's shard of a parameter's state, of the given shape.

        Args:
            axis: over which it is sharded, or ``None``.
            tp: :class:`repro.model.tensor_parallel.TensorParallel` of the new layout.
        """
        if axis is None:
            return self._shaped(name, self.shard(name, key, 0), shape)
        length, rows = shape[axis], shape[axis] * tp.size
        stored = self._stored_length(name, key, shape, axis, rows)
        pieces, first = [], tp.rank * length
        for old in range(self.tp):
            start, stop = max(first, old * stored), min(first + length, (old + 1) * stored)
            if start < stop:
                whole = self._shaped(name, self.shard(name, key, old), _with(shape, axis, stored))
                pieces.append(whole.narrow(axis, start - old * stored, stop - start))
        found = sum(piece.shape[axis] for piece in pieces)
        if found < length:  # the vocabulary is padded to a multiple of tp: rows that no token has
            pieces.append(torch.zeros(_with(shape, axis, length - found)))
        return torch.cat(pieces, dim=axis)

    def _stored_length(self, name, key, shape, axis, rows):
        """Length of an old shard along the axis; ``rows``: of the whole in the new layout, padding included."""
        across = 1
        for dim, size in enumerate(shape):
            across *= size if dim != axis else 1
        stored, left = divmod(self.shard(name, key, 0).numel(), across)
        padded = self.recipe.padded_vocab // self.tp
        if left or (stored * self.tp != rows and stored != padded):
            raise RunFailed(f"{name} has {stored} x {across} elements in a shard of {self.checkpoint.path}")
        return stored

    def _shaped(self, name, flat, shape):
        if flat.numel() != torch.Size(shape).numel():
            raise RunFailed(f"{name} has {flat.numel()} elements in {self.checkpoint.path}, {tuple(shape)} is needed")
        return flat.view(torch.Size(shape))


def _with(shape, axis, length):
    return torch.Size(length if dim == axis else size for dim, size in enumerate(shape))
