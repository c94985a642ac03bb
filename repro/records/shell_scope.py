"""Variables of a shell script and the branches and loops around them, while it is read.

Both sides of a branch are read. What only one of them does is not ``sure``; a variable that they leave different is
unknown afterwards. A loop is read once, a function where it stands, as if it were called there.
"""

from dataclasses import dataclass, field

from repro.errors import InputError
from repro.records.shell_values import Text

DEEPEST = 200


@dataclass(frozen=True)
class Setting:
    """A variable set, or unset where ``value`` is None, at the command of that ``index``.

    Attributes:
        value: :class:`~repro.records.shell_values.Text`, or a tuple of them for an array.
        where: ``script.sh:12``.
        sure: false where only one branch sets it.
        task: set for the tasks of a step only, not in the script itself.
    """

    name: str
    value: object
    index: int
    where: str
    sure: bool
    exported: bool
    task: bool


@dataclass
class Frame:
    """What is open: "if", "loop", "case", "group" or "subshell".

    Attributes:
        times: how often a loop runs, None where unknown.
        saved: values before the frame of what it sets.
        branches: values at the ends of the branches so far.
        condition: still between ``if`` and ``then``.
    """

    kind: str
    times: int | None = 1
    saved: dict = field(default_factory=dict)
    branches: list = field(default_factory=list)
    otherwise: bool = False
    condition: bool = False

    @property
    def runs(self):
        """Whether what stands in it is run for sure."""
        return self.kind in ("group", "subshell") or (self.kind == "loop" and bool(self.times))


@dataclass
class Scope:
    variables: dict = field(default_factory=dict)
    exports: set = field(default_factory=set)
    settings: dict = field(default_factory=dict)
    frames: list = field(default_factory=list)
    all_exported: bool = False
    maybe: bool = False  # what follows && or || after a test

    @property
    def sure(self):
        return not self.maybe and all(frame.runs for frame in self.frames)

    @property
    def times(self):
        times = 1
        for frame in self.frames:
            if frame.times is None:
                return None
            times = min(times * frame.times, 10**9)
        return times

    @property
    def condition(self):
        return bool(self.frames) and self.frames[-1].condition

    def set(self, name, value, index, where, exports=False, task=False):
        if exports:
            self.exports.add(name)
        exported = exports or name in self.exports or self.all_exported
        self.settings.setdefault(name, []).append(Setting(name, value, index, where, self.sure, exported, task))
        for frame in self.frames[-1:]:
            frame.saved.setdefault(name, self.variables.get(name))
        if self.maybe and value != self.variables.get(name):
            value = unknown(name, value)
        if value is None:
            self.exports.discard(name)
        self.restore(name, value)

    def restore(self, name, value):
        if value is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = value

    def open(self, kind, condition=False):
        if len(self.frames) >= DEEPEST:
            raise InputError(f"a script with more than {DEEPEST} branches and loops inside each other is not read")
        self.frames.append(Frame(kind, condition=condition))
        return self.frames[-1]

    def begin(self):
        """``then`` or ``do``."""
        for frame in self.frames[-1:]:
            frame.condition = False

    def alternative(self, otherwise=False):
        """The next branch starts from the values that the first one started from."""
        for frame in self.frames[-1:]:
            frame.branches.append({name: self.variables.get(name) for name in frame.saved})
            frame.otherwise |= otherwise
            frame.condition = not otherwise and frame.kind == "if"
            for name, old in frame.saved.items():
                self.restore(name, old)

    def close(self, kind):
        """Up to the innermost frame of this kind; nothing where none is open."""
        if any(frame.kind == kind for frame in self.frames):
            while self.pop().kind != kind:
                pass

    def pop(self):
        frame = self.frames.pop()
        for name, old in frame.saved.items():
            new = self.variables.get(name)
            ends = [new, *(branch.get(name, old) for branch in frame.branches)]
            if not frame.runs and not (frame.kind == "if" and frame.otherwise):
                ends.append(old)
            if frame.kind == "subshell":
                self.restore(name, old)
            elif any(end != new for end in ends):
                self.restore(name, unknown(name, *ends))
            for outer in self.frames[-1:]:
                outer.saved.setdefault(name, old)
        return frame


def unknown(name, *values):
    """What is left of a variable that may have one of several values."""
    return Text(f"${{{name}}}", False, " ".join(v.origin for v in values if isinstance(v, Text))[:1000])
