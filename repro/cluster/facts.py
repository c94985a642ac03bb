"""What a script, its DeepSpeed JSON and a recipe say about one run: the numbers that rules compare.

Each value carries where it was given. What nobody says, or only a run would tell, is None: rules then keep silent.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from repro.cluster import slurm_options
from repro.cluster.launch_file import MEGATRON
from repro.cluster.slurm_options import Told
from repro.records.shell_values import Text

WHOLE = {"tp": "tensor-model-parallel-size", "pp": "pipeline-model-parallel-size", "micro": "micro-batch-size",
         "batch": "global-batch-size", "layers": "num-layers", "hidden": "hidden-size", "heads": "num-attention-heads",
         "ffn": "ffn-hidden-size", "seq": "seq-length"}  # fmt: skip
RECIPE = {
    "tp": "parallel.tp", "pp": "parallel.pp", "dp": "parallel.dp", "micro": "batch.micro", "batch": "batch.global",
    "layers": "shape.layers", "hidden": "shape.hidden", "heads": "shape.heads", "ffn": "shape.ffn", "seq": "shape.seq",
    "precision": "precision.dtype", "clip": "optimizer.clip", "zero": "zero.stage",
}  # fmt: skip
FLASH = ("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-v2", "use-flash-attn-triton", "use-flash-attn-builder")
EVERY_TASK_ITS_GPU = re.compile(r"(verbose,)?(closest|single:1|per_task:1|map_gpu:|mask_gpu:)")


@dataclass(frozen=True)
class Facts:
    """Attributes:
    site: :class:`~repro.cluster.site.Site`.
    recipe: or None; file: :class:`~repro.cluster.launch_file.LaunchFile` or None.
    engine: :func:`~repro.records.deepspeed_json.settings` of the JSON, or None; engine_where: its name.
    log: highest rate that a training log prints in TFLOP/s, :class:`Told`, or None; peak: of its device.
    """

    site: object
    recipe: object = None
    file: object = None
    engine: dict | None = None
    engine_where: str = ""
    log: object = None
    peak: float | None = None

    @property
    def main(self):
        return self.file.main if self.file is not None else None

    @property
    def begins(self):
        """Where to point for what is missing in the whole script."""
        return f"{self.file.name}:1" if self.file is not None else ""

    # what Slurm is asked for

    def slurm(self, name, step_first=True):
        """An option of the main step, else of the job: :class:`Told` of text or True, else None."""
        if self.file is None:
            return None
        value = self.main.flags.get(name) if self.main is not None and step_first else None
        if value is None:
            return self.file.directives.get(name)
        if value is True:
            return Told(True, self.main.where)
        return Told(value.text, self.main.where) if value.known else Told(None, self.main.where)

    def count(self, name, step_first=True):
        """As :meth:`slurm`, a number or None."""
        told = self.slurm(name, step_first)
        if told is None or not isinstance(told.value, str) or not re.fullmatch(r"[1-9][0-9]{0,8}", told.value):
            return None
        return Told(int(told.value), told.where)

    @cached_property
    def nodes(self):
        return self.count("nodes") or self._spawn("nnodes") or self._spawn("num-nodes")

    @cached_property
    def tasks(self):
        """Tasks of the main step."""
        if self.slurm("ntasks") is not None:
            return self.count("ntasks")
        each = self.count("ntasks-per-node")
        if each and self.nodes:
            return Told(each.value * self.nodes.value, each.where)
        return None

    @cached_property
    def tasks_per_node(self):
        if self.slurm("ntasks") is not None and self.tasks and self.nodes:
            each = self.tasks.value / self.nodes.value
            return Told(int(each) if each == int(each) else each, self.tasks.where)
        return self.count("ntasks-per-node")

    @cached_property
    def cores_per_task(self):
        if (given := self.count("cpus-per-task")) is not None:
            return given
        named = self.variable("SRUN_CPUS_PER_TASK")
        return Told(named.value.whole, named.where) if named and _counts(named.value.whole) else None

    @cached_property
    def processes(self):
        """Processes that a task starts: those of torchrun or deepspeed, else 1; None where unknown."""
        if self.main is None or not self.main.spawner:
            return 1
        given = self._spawn("nproc-per-node") or self._spawn("num-gpus")
        return given.value if given else None

    def _spawn(self, name):
        value = self.main.spawn.get(name) if self.main is not None else None
        return Told(value.whole, self.main.where) if isinstance(value, Text) and _counts(value.whole) else None

    @cached_property
    def world(self):
        """Ranks of the run."""
        if self.main is not None and self.main.spawner and not self.main.launcher:
            nodes = self._spawn("nnodes") or self._spawn("num-nodes") or Told(1, self.main.where)
            return Told(nodes.value * self.processes, self.main.where) if self.processes else None
        if self.tasks and self.processes:
            return Told(self.tasks.value * self.processes, self.tasks.where)
        return None

    @cached_property
    def hours(self):
        told = self.slurm("time", step_first=False)
        limit = slurm_options.seconds(told.value) if told and isinstance(told.value, str) else None
        return Told(limit / 3600, told.where) if limit else None

    @cached_property
    def one_gpu(self):
        """:class:`Told` of what shows each task one GPU only, or None."""
        if self.main is None or self.processes != 1:
            return None
        each, bind = self.slurm("gpus-per-task"), self.slurm("gpu-bind")
        if each and isinstance(each.value, str) and each.value.rpartition(":")[2] == "1":
            return Told("--gpus-per-task=1", each.where)
        if bind and isinstance(bind.value, str) and EVERY_TASK_ITS_GPU.match(bind.value):
            return Told(f"--gpu-bind={bind.value}", bind.where)
        for name in ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            seen = self.variable(name)
            if seen and (seen.value.whole is not None or re.fullmatch(r"\$\{SLURM_LOCALID\}", seen.value.text)):
                return Told(f"{name}={seen.value.text}", seen.where)
        return None

    # variables and modules

    def variable(self, name):
        """What the main step's tasks find in a variable: :class:`Told` of a Text, or None."""
        return self.file.variable(name) if self.file is not None else None

    def ever(self, *names):
        """``(name, Told)`` for every value that one of these variables is given anywhere."""
        if self.file is None:
            return []
        return [(name, told) for name in names for told in self.file.ever(name)]

    @property
    def plugin_module(self):
        """The module that sets the site's RCCL variables, where it is loaded."""
        return self.file.loaded("rccl-net-plugin") if self.file is not None else None

    def missing(self, name):
        """Whether nothing in sight sets a variable: no command, no module, no file that could not be read."""
        f = self.file
        return (
            f is not None and self.main is not None and not self.ever(name) and not f.sourced and not self.plugin_module
        )

    # the run itself

    @cached_property
    def megatron(self):
        """Whether the script itself gives Megatron's arguments."""
        return self.main is not None and bool(MEGATRON & set(self.main.arguments))

    def argument(self, name):
        """An argument of the program: :class:`Told` of a Text or True, or None."""
        value = self.main.arguments.get(name) if self.main is not None else None
        return None if value is None else Told(value, self.main.where)

    @cached_property
    def asked(self):
        """What the script asks Megatron for, ``{name: Told}``; None where it is not known."""
        if not self.megatron:
            return {}
        found = {name: self._whole(option) for name, option in WHOLE.items()}
        for name in ("tp", "pp"):
            if self.argument(WHOLE[name]) is None:
                found[name] = Told(1, self.main.where)  # Megatron's default
        if found["ffn"] is None and found["hidden"] and self.argument(WHOLE["ffn"]) is None:
            found["ffn"] = Told(4 * found["hidden"].value, found["hidden"].where)
        if (
            self.world
            and found["tp"]
            and found["pp"]
            and not self.world.value % (found["tp"].value * found["pp"].value)
        ):
            found["dp"] = Told(self.world.value // (found["tp"].value * found["pp"].value), self.world.where)
        if found["batch"] is None and self.argument(WHOLE["batch"]) is None and found["micro"] and "dp" in found:
            found["batch"] = Told(found["micro"].value * found["dp"].value, self.main.where)  # Megatron's default
        half = [name for name in ("bf16", "fp16") if self.argument(name) is not None]
        found["precision"] = Told(half[0] if half else "fp32", self.main.where) if len(half) < 2 else None
        clip, zero = self._real("clip-grad"), self._real("zero-stage")
        found["clip"] = Told(1.0, self.main.where) if self.argument("clip-grad") is None else clip
        found["zero"] = Told(int(zero.value), zero.where) if zero and zero.value == int(zero.value) else None
        return {name: told for name, told in found.items() if told is not None}

    def _whole(self, option):
        told = self.argument(option)
        number = told.value.whole if told and isinstance(told.value, Text) else None
        return Told(number, told.where) if _counts(number) else None

    def _real(self, option):
        told = self.argument(option)
        if told is None or not isinstance(told.value, Text) or not told.value.known:
            return None
        try:
            number = float(told.value.text)
        except ValueError:
            return None
        return Told(number, told.where) if 0 <= number < 1e9 else None

    @cached_property
    def planned(self):
        """The same of the recipe."""
        if self.recipe is None:
            return {}
        found = {}
        for name, field in RECIPE.items():
            section, leaf = field.split(".")
            found[name] = Told(
                getattr(getattr(self.recipe, section), {"global": "global_"}.get(leaf, leaf)), f"recipe {field}"
            )
        return found

    def fact(self, name):
        """What the script asks for, or the recipe where the script gives no arguments of Megatron: Told or None."""
        return self.asked.get(name) if self.megatron else self.planned.get(name)

    def facts(self, *names):
        """Several facts at once: their values, or None where one is not known."""
        found = [self.fact(name) for name in names]
        return None if None in found else [told.value for told in found]

    @cached_property
    def micro_batches(self):
        """Micro-batches of a step on each replica, where the batch divides."""
        known = self.facts("batch", "micro", "dp")
        if known is None or known[0] % (known[1] * known[2]):
            return None
        return known[0] // (known[1] * known[2])

    @cached_property
    def flash(self):
        """Where flash attention is asked for, or None."""
        if self.megatron:
            return next((self.main.where for name in FLASH if self.argument(name) is not None), None)
        return (
            "recipe compute.attention" if self.recipe is not None and self.recipe.compute.attention == "flash" else None
        )

    def forced(self, name):
        """A setting of the DeepSpeed JSON: :class:`Told`, or None where there is none, or it says auto."""
        value = (self.engine or {}).get(name)
        return None if value is None else Told(value, self.engine_where)

    @cached_property
    def forced_micro(self):
        """DeepSpeed's micro-batch: as given, or as it follows from batch, accumulation and replicas."""
        if (given := self.forced("micro")) is not None:
            return given
        batch, steps, dp = self.forced("batch"), self.forced("accumulation"), self.fact("dp")
        if batch and steps and dp and not batch.value % (steps.value * dp.value):
            return Told(batch.value // (steps.value * dp.value), batch.where)
        return None


def _counts(number):
    """Whether it is a number that something can have: above 0 and below any that would make a rule count for ever."""
    return number is not None and 0 < number < 10**9
