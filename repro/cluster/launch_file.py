"""A user's job or launch script: directives, modules, steps and their arguments. It is read, never run."""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path

from repro.cluster import slurm_options
from repro.cluster.slurm_options import Told
from repro.errors import InputError, shortened
from repro.records import launch_script
from repro.records.shell_values import Text

SPAWNERS = ("torchrun", "deepspeed", "accelerate")
CONTAINERS = ("singularity", "apptainer", "shifter", "podman-hpc")
PYTHON = re.compile(r"(pypy|python)[\d.]*$")
# options of Megatron that no other program has
MEGATRON = {"num-layers", "hidden-size", "num-attention-heads", "micro-batch-size", "tensor-model-parallel-size",
            "pipeline-model-parallel-size", "global-batch-size", "seq-length", "max-position-embeddings"}  # fmt: skip


@dataclass(frozen=True)
class ModuleUse:
    """``module load NAME`` and the like; verb: load, unload or purge."""

    verb: str
    name: str
    where: str
    index: int
    sure: bool


@dataclass(frozen=True)
class Step:
    """A command that starts programs: srun, torchrun, deepspeed, or Python itself.

    Attributes:
        launcher: srun, mpirun or "".
        flags: of srun, ``{long name: Text or True}``.
        program: the words behind them.
        spawner: torchrun, deepspeed or accelerate where one starts further processes, with ``spawn``, its options.
        arguments: options of the program, Megatron's among them.
        own: ``{name: Told(Text)}`` that only this step's tasks get.
        inner: commands of a ``bash -c`` of this step.
    """

    command: object
    launcher: str
    flags: dict
    program: tuple
    spawner: str
    spawn: dict
    arguments: dict
    own: dict
    inner: tuple

    @property
    def where(self):
        return self.command.where

    @property
    def index(self):
        return self.command.index

    @property
    def texts(self):
        """Words of the program and of commands inside it."""
        return [w.text for w in self.program] + [w.text for c in self.inner for w in c.words]

    @property
    def trains(self):
        texts = self.texts
        python = any(PYTHON.fullmatch(t.rpartition("/")[2]) for t in texts)
        script = any(t.endswith(".py") for t in texts) or (python and "-m" in texts)
        ours = any(a.rpartition("/")[2] == "repro" and b == "train" for a, b in pairwise(texts))
        return bool(self.spawner) or script or ours or bool(MEGATRON & set(self.arguments))


@dataclass(frozen=True)
class LaunchFile:
    script: launch_script.Script
    directives: dict
    late: tuple

    @property
    def name(self):
        return self.script.name

    @property
    def commands(self):
        return self.script.commands

    @property
    def sourced(self):
        return self.script.sourced

    @cached_property
    def modules(self):
        """Every :class:`ModuleUse`, in order."""
        return tuple(use for command in self.commands for use in _module_uses(command))

    @cached_property
    def steps(self):
        """Every :class:`Step` of the batch script, in order."""
        return tuple(step for c in self.commands if not c.task and (step := self._step(c)) is not None)

    @cached_property
    def main(self):
        """The step that trains: the one with most of Megatron's arguments, else the last; None without any."""
        trains = [step for step in self.steps if step.trains]
        return max(trains, key=lambda s: (len(MEGATRON & set(s.arguments)), s.index), default=None)

    def settings(self, name):
        """Every :class:`~repro.records.shell_scope.Setting` of a variable, the main step's own among them."""
        return self.script.settings.get(name, ())

    def variable(self, name):
        """What the main step's tasks find in a variable: :class:`Told` of a Text, or None."""
        own = self.main.own.get(name) if self.main is not None else None
        if own is not None:
            return own
        end = len(self.commands) if self.main is None else self.main.index
        before = [s for s in self.settings(name) if s.index <= end or s.task]
        if not before or before[-1].value is None:
            return None
        return Told(_scalar(before[-1].value), before[-1].where)

    def ever(self, name):
        """Every value that a variable is given anywhere, as :class:`Told` of a Text."""
        own = [step.own[name] for step in self.steps if name in step.own]
        return [*(Told(_scalar(s.value), s.where) for s in self.settings(name) if s.value is not None), *own]

    def loaded(self, kind, before=None):
        """The module of a kind (``rocm`` of ``rocm/7.1.1``) that is loaded at a command, else None."""
        now = None
        for use in self.modules:
            if before is not None and use.index > before:
                break
            if use.verb == "purge" or (use.verb == "unload" and use.name.partition("/")[0] == kind):
                now = None
            elif use.verb == "load" and use.name.partition("/")[0] == kind:
                now = use
        return now

    def _step(self, command):
        launcher = command.called if command.called in ("srun", "mpirun", "mpiexec") else ""
        flags, program = {}, command.program
        if launcher:
            flags, program = slurm_options.parsed(program[1:])
        elif command.called not in (*SPAWNERS, *CONTAINERS, "repro") and not PYTHON.fullmatch(command.called):
            return None
        inner = self._inside(command)
        words = list(program) + [w for c in inner for w in c.words]
        spawn_at = next((i for i, w in enumerate(words) if w.text.rpartition("/")[2] in SPAWNERS), None)
        module_at = next((i for i, w in enumerate(words) if w.text == "torch.distributed.run"), None)
        spawn_at = module_at if spawn_at is None else spawn_at
        spawner = (
            "" if spawn_at is None else "torchrun" if spawn_at == module_at else words[spawn_at].text.rpartition("/")[2]
        )
        code = next(
            (i for i, w in enumerate(words) if w.text.endswith(".py")), len(words) if spawn_at is not None else 0
        )
        return Step(
            command, launcher, flags, tuple(program), spawner,
            launch_script.options_of(words[spawn_at:code]) if spawn_at is not None else {},
            launch_script.options_of(words[code if code < len(words) else 0 :]),
            self._own(command, flags, inner), inner,
        )  # fmt: skip

    def _inside(self, command):
        """Commands of a script that is an argument of this one."""
        return tuple(takewhile(lambda later: later.task, self.commands[command.index + 1 :]))

    def _own(self, command, flags, inner):
        found = {name: Told(_scalar(value), command.where) for name, value in command.assigned}
        if isinstance(export := flags.get("export"), Text):
            for part in export.text.split(","):
                name, equals, value = part.partition("=")
                if equals:
                    found[name] = Told(Text(value, export.known or "$" not in value), command.where)
        for one in inner:
            found.update({name: Told(_scalar(value), one.where) for name, value in one.assigned})
        return found


def _scalar(value):
    return value if isinstance(value, Text) else Text(" ".join(v.text for v in value), all(v.known for v in value))


def _module_uses(command):
    texts = [w.text for w in command.words]
    if not texts or texts[0] not in ("module", "ml") or command.task:
        return
    verb, names = (texts[1], texts[2:]) if texts[0] == "module" and len(texts) > 1 else ("ml", texts[1:])
    if verb == "ml":
        verb, names = (names[0], names[1:]) if names[:1] and names[0] in _VERBS else ("load", names)
    kind = _VERBS.get(verb)
    if kind == "swap":
        pairs = [("unload", names[0]), ("load", names[-1])] if names else []
    elif kind == "purge":
        pairs = [("purge", "")]
    else:
        pairs = [("unload" if n.startswith("-") else kind, n.lstrip("-")) for n in names] if kind else []
    for one, name in pairs:
        yield ModuleUse(one, name, command.where, command.index, command.sure)


_VERBS = {"load": "load", "add": "load", "try-load": "load", "unload": "unload", "rm": "unload", "del": "unload",
          "swap": "swap", "switch": "swap", "purge": "purge", "reset": "purge"}  # fmt: skip


def from_text(text, name="job.sh", folder=None):
    """The :class:`LaunchFile` in ``text``.

    Raises:
        InputError: nothing in it starts a program.
    """
    found, late = slurm_options.directives(text.split("\n"), name)
    script = launch_script.parse(text, name, folder, _told_by_slurm(found))
    file = LaunchFile(script, found, tuple(late))
    if not found and not file.steps and not file.modules and not _exports(script):
        raise InputError(
            f"{shortened(name)} is no job or launch script: it has no #SBATCH line, loads no module, exports no "
            "variable and starts nothing with srun, torchrun, deepspeed or python"
        )
    return file


def read(path):
    """The :class:`LaunchFile` of a file.

    Raises:
        InputError: no such file, too large, a binary, or nothing in it starts a program.
    """
    return from_text(launch_script.text_of(path), Path(path).name, Path(path).parent)


def _told_by_slurm(found):
    """Variables that follow from what the job asks for."""
    number = {name: told.value for name, told in found.items() if re.fullmatch(r"[1-9][0-9]{0,8}", str(told.value))}
    nodes, each, tasks = number.get("nodes"), number.get("ntasks-per-node"), number.get("ntasks")
    if tasks is None and nodes and each and "ntasks" not in found:
        tasks = str(int(nodes) * int(each))
    given = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": each, "SLURM_CPUS_PER_TASK": number.get("cpus-per-task"),
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def written_json(file):
    """``(text, name)`` of every here-document that may be a DeepSpeed JSON; unknown values are null in it."""
    for command in file.commands:
        body = command.here
        if body is not None and body.text.lstrip().startswith("{") and '"' in body.text:
            target = next((text.text for sign, text in command.redirected if sign.startswith(">")), None)
            text = re.sub(r"\$\{[^}]*\}|\$\([^)]*\)", "null", body.text)
            yield text, f"{command.where} ({target or 'here-document'})"


def _exports(script):
    return any(setting.exported for all_of in script.settings.values() for setting in all_of)
