"""Tokens of a shell script -> simple commands, with the variables as they would be. Nothing is run."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from repro.errors import InputError
from repro.records.shell_command import Command
from repro.records.shell_scope import Scope
from repro.records.shell_tokens import Part, Token, parts_of, tokens
from repro.records.shell_values import UNKNOWN, Text, expand, words
from repro.records.small_file import SCRIPT_BYTES, contents

MOST_COMMANDS, MOST_WORDS, MOST_NESTED, MOST_INSIDE = 10_000, 200_000, 200, 4
ENDS = ("&&", "||", ";", "&", "|", "|&", "(", ")", ";;", ";&", ";;&")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]\s]*\])?(\+?)=(.*)", re.DOTALL)
CLOSING = {"fi": "if", "done": "loop", "esac": "case", "}": "group"}
TESTS = re.compile(r"\[|test$|grep$|command$|which$|type$|\(\(")
DECLARING = ("export", "declare", "typeset", "local", "readonly")
READING = ("read", "mapfile", "readarray", "let", "getopts")
LAUNCHERS = ("srun", "mpirun", "mpiexec", "singularity", "apptainer", "torchrun")
# what activates an environment of Python or modules sets none of the variables that are looked at here
HARMLESS = re.compile(r"(activate|conda\.sh|mamba\.sh|\.?bashrc|\.?bash_profile|\.?profile|.*modules?\.sh|bash|init)$")


@dataclass
class Reader:
    """Reads scripts; see :func:`repro.records.launch_script.parse`."""

    name: str
    folder: Path | None
    scope: Scope = field(default_factory=Scope)
    commands: list = field(default_factory=list)
    sourced: list = field(default_factory=list)
    task: bool = False
    inside: int = 0
    nested: int = 0
    worded: int = 0
    tested: bool = False
    function: bool = False  # between its name and its body

    def read(self, text, first=1):
        """Every command of ``text``; the line of a quote that is never closed, or None."""
        found, unclosed = tokens(text, first)
        current, before, pattern = [], "", False
        for token in [*found, Token("line", 0)]:
            if pattern and token.text != "esac":  # of a case, up to its parenthesis
                pattern = not (token.kind == "op" and token.text == ")")
                continue
            pattern = False
            if token.kind == "here":
                self.document(token)
            elif token.kind == "line" or (token.kind == "op" and token.text in ENDS):
                if token.text == "(" and len(current) == 1:
                    self.function, current = True, []
                    continue
                after = "" if token.kind == "line" else token.text
                self.statement(current, before, after)
                current, before = [], after if after in ("&&", "||", "|", "|&") else ""
                if after == "(":
                    self.scope.open("subshell")
                elif after == ")" and not self.function:
                    self.scope.close("subshell")
                elif after in (";;", ";&", ";;&"):
                    self.scope.alternative()
                    pattern = bool(self.scope.frames)
            else:
                current.append(token)
                if token.text == "in" and current[0].text == "case":
                    self.scope.open("case")
                    current, pattern = [], True
            if len(self.commands) > MOST_COMMANDS or self.worded > MOST_WORDS:
                most = f"{MOST_COMMANDS:,} commands or {MOST_WORDS:,} words"
                raise InputError(f"{self.name} has more than {most}; a launch script has fewer")
        return unclosed

    def statement(self, found, before, after):
        """Reserved words at the front, then a simple command."""
        while found and found[0].kind == "word":
            first = found[0].text
            if first in ("then", "do"):
                self.scope.begin()
            elif first in ("else", "elif"):
                self.scope.alternative(first == "else")
            elif first == "if":
                self.scope.open("if", condition=True)
            elif first in ("while", "until"):
                self.scope.open("loop", condition=True).times = None
            elif first in ("for", "select"):
                return self.loop(found[1:])
            elif first == "{":
                self.scope.open("group")
                self.function = False
            elif first in CLOSING:
                self.scope.close(CLOSING[first])
            elif first == "function":
                self.function, found = True, found[1:]
            elif first not in ("!", "time"):
                return self.simple(found, before, after)
            found = found[1:]
        return self.simple(found, before, after) if found else None

    def loop(self, found):
        """``for NAME in WORDS``: the number of words, where known, is how often it runs."""
        frame = self.scope.open("loop")
        frame.times = None
        if not found or not found[0].text.isidentifier():
            return
        if len(found) > 2:
            values = [w for token in found[2:] for w in _counted(token, self.scope.variables)]
            frame.times = len(values) if all(w.known and not re.search(r"[*?]", w.text) for w in values) else None
        name = found[0].text
        self.set(name, Text(f"${{{name}}}", False), f"{self.name}:{found[0].at}")

    def simple(self, found, before, after):
        given, assigned, redirected, place = [], [], [], 0
        self.scope.maybe = before == "||" or (before == "&&" and (self.scope.maybe or self.tested))
        while place < len(found):
            token = found[place]
            if token.kind == "op":
                if given and not token.spaced and found[place - 1].text in ("0", "1", "2"):
                    given.pop()  # of 2>
                if token.text not in ("<<", "<<-") and found[place + 1 : place + 2]:
                    place += 1
                    redirected.append((token.text, expand(found[place].parts, self.scope.variables)))
            elif (not given or given[0].text in DECLARING) and (one := self.assignment(token)) is not None:
                assigned.append(one)
            else:
                given += words(token.parts, self.scope.variables)
            place += 1
        self.worded += len(given) + sum(len(value) if isinstance(value, tuple) else 1 for _, value in assigned)
        where = f"{self.name}:{found[0].at}"
        self.effects(given, assigned, where)
        scope = self.scope
        command = Command(len(self.commands), tuple(given), tuple(assigned), tuple(redirected), None, where, before,
                          after, scope.condition, scope.sure, scope.times, self.task)  # fmt: skip
        self.commands.append(command)
        self.tested = bool(TESTS.match(command.name))
        self.follow(command, found[0].at)

    def assignment(self, token):
        """``(name, value)`` of ``NAME=...``, ``NAME+=...``, ``NAME=(...)``; None for another word."""
        first = token.parts[0] if token.parts else None
        match = ASSIGNED.match(first.text) if first is not None and first.kind == "text" and not first.quoted else None
        if match is None:
            return None
        name, index, more, rest = match.groups()
        variables = self.scope.variables
        old = variables.get(name)
        if token.array is not None:
            value = tuple(w for one in token.array for w in words(one.parts, variables))
            before = () if old is None or not more else old if isinstance(old, tuple) else (old,)
            return name, (before + value)[:4_000]
        value = expand((Part("text", rest), *token.parts[1:]), variables)
        value = replace(value, origin=f"{token.text[:500]} {value.origin}"[:1000])
        if index:
            return name, UNKNOWN
        if more:
            before = Text("") if old is None else old if isinstance(old, Text) else UNKNOWN
            return name, Text((before.text + value.text)[:16_000], before.known and value.known, value.origin)
        return name, value

    def effects(self, given, assigned, where):
        """What a command does to variables."""
        name, names = given[0].text if given else "", [w.text for w in given[1:] if w.text.isidentifier()]
        exports = name == "export" or (name in DECLARING and any(w.text.startswith("-x") for w in given[1:]))
        if not given or name in DECLARING:
            for one, value in assigned:
                self.set(one, value, where, exports)
            for one in names if exports else ():
                self.set(one, self.scope.variables.get(one, Text(f"${{{one}}}", False)), where, True)
        elif name == "unset":
            for one in names:
                self.set(one, None, where)
        elif name in READING:
            for one in names:
                self.set(one, Text(f"${{{one}}}", False), where)
        elif name == "set":
            flags = [w.text for w in given[1:]]
            self.scope.all_exported |= "allexport" in flags or any(re.fullmatch(r"-\w*a\w*", flag) for flag in flags)

    def set(self, name, value, where, exports=False):
        self.scope.set(name, value, len(self.commands), where, exports, self.task)

    def document(self, token):
        """The body of a here-document belongs to the command that opened it."""
        if self.commands:
            body = expand(token.parts, self.scope.variables)
            self.commands[-1] = replace(self.commands[-1], here=body)
            if body.text.lstrip().startswith("#!"):
                self.again(body.text.lstrip(), token.at, task=True)

    def follow(self, command, at):
        """Commands inside commands: ``source``, ``eval``, ``bash -c``."""
        texts = [w.text for w in command.words]
        if command.name in ("source", ".") and len(texts) > 1:
            self.source(command.words[1])
        elif command.name == "eval":
            self.again(" ".join(texts[1:]), at, self.task)
        elif (
            shell := next((i for i, t in enumerate(texts) if t.rpartition("/")[2] in ("bash", "sh")), None)
        ) is not None:
            flag = next((i for i in range(shell + 1, len(texts)) if re.fullmatch(r"-\w{0,3}c", texts[i])), None)
            if flag is not None and flag + 1 < len(texts):
                self.again(texts[flag + 1], at, self.task or any(t in LAUNCHERS for t in texts[:shell]))

    def source(self, word):
        """Read a script that this one sources where it lies beside it; remember it where it cannot be read."""
        name = word.text.rpartition("/")[2]
        if HARMLESS.fullmatch(name):
            return
        text = None
        if word.known and self.folder is not None and self.inside < MOST_INSIDE and self.nested < MOST_NESTED:
            try:
                text = decoded(contents(self.folder / word.text, "script", SCRIPT_BYTES), name)
            except (InputError, ValueError):
                text = None
        if text is None:
            self.sourced.append(word.text)
        else:
            self.again(text.replace("\r\n", "\n"), 1, self.task, name)

    def again(self, text, at, task, name=None):
        """Read ``text`` as if it stood here; variables that it sets stay, unless only tasks of a step run it."""
        if self.inside >= MOST_INSIDE or self.nested >= MOST_NESTED:
            return
        self.nested += 1
        state, scope, own = (self.name, self.task), self.scope, task and not self.task
        self.name, self.task, self.inside = name or self.name, task, self.inside + 1
        maybe, depth = scope.maybe, len(scope.frames)
        scope.open("subshell" if own else "group")
        self.read(text, at)
        while len(scope.frames) > depth:
            scope.pop()
        self.name, self.task = state
        self.inside, scope.maybe = self.inside - 1, maybe


def _counted(token, variables):
    """Words of a loop's list, ``{1..200}`` and ``$(seq 200)`` counted."""
    if (braces := re.fullmatch(r"\{(\d{1,5})\.\.(\d{1,5})\}", token.text)) is not None:
        return [Text("")] * (abs(int(braces[2]) - int(braces[1])) + 1)
    if len(token.parts) != 1 or token.parts[0].kind != "run":
        return words(token.parts, variables)
    inside = expand(parts_of(token.parts[0].text), variables).text.split()
    numbers = [int(n) for n in inside[1:] if re.fullmatch(r"\d{1,5}", n)]
    if inside[:1] != ["seq"] or len(numbers) != len(inside) - 1 or len(numbers) not in (1, 2, 3):
        return [UNKNOWN]
    first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1]), 3: tuple(numbers)}[len(numbers)]
    return [Text("")] * len(range(first, last + 1, step)) if step else [UNKNOWN]


def decoded(data, name):
    """Text of a script's bytes.

    Raises:
        InputError: the bytes are no text.
    """
    if b"\0" in data:
        raise InputError(f"{name} is a binary file, not a script")
    return data.decode("utf-8", errors="replace")
