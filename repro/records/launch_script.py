"""A job or launch script as the commands it would run and the variables it would set, read without running it."""

import re
from dataclasses import dataclass
from pathlib import Path

from repro.records.shell_reader import Reader, decoded
from repro.records.shell_scope import Scope
from repro.records.shell_values import Text
from repro.records.small_file import SCRIPT_BYTES, contents


@dataclass(frozen=True)
class Script:
    """What was read.

    Attributes:
        name: of its file, as it stands in ``where``.
        lines: as written.
        commands: :class:`~repro.records.shell_command.Command`.
        settings: ``{name: (Setting, ...)}`` in order, see :class:`~repro.records.shell_scope.Setting`.
        sourced: files that it sources and that were not read, but for those that only activate an environment.
        unclosed: line of a quote that is never closed, or None.
    """

    name: str
    lines: tuple
    commands: tuple
    settings: dict
    sourced: tuple
    unclosed: int | None


def parse(text, name, folder=None, given=None):
    """The :class:`Script` in ``text``.

    Args:
        folder: where files that it sources are looked for.
        given: ``{name: text}`` of variables that stand when it starts.

    Raises:
        InputError: more commands, or deeper nested, than any launch script.
    """
    reader = Reader(name, folder, Scope({one: Text(value) for one, value in (given or {}).items()}))
    unclosed = reader.read(text.replace("\r\n", "\n"))
    settings = {one: tuple(all_of) for one, all_of in reader.scope.settings.items()}
    return Script(name, tuple(text.split("\n")), tuple(reader.commands), settings, tuple(reader.sourced), unclosed)


def read(path):
    """The :class:`Script` of a file.

    Raises:
        InputError: no such file, too large, no text.
    """
    return parse(text_of(path), Path(path).name, Path(path).parent)


def text_of(path):
    """The text of a script.

    Raises:
        InputError: no such file, too large, no text.
    """
    return decoded(contents(path, "script", SCRIPT_BYTES), Path(path).name)


def options_of(given):
    """``{"micro-batch-size": Text, ...}`` of the words of a command; True for those without a value."""
    found, given = {}, list(given)
    for place, word in enumerate(given):
        name, equals, value = word.text[2:].partition("=")
        if not word.text.startswith("--") or not name[:1].isalpha():
            continue
        following = given[place + 1] if place + 1 < len(given) else None
        if equals:
            one = Text(value, word.known, word.origin)
        else:
            one = True if following is None or re.match(r"-(?!\d)", following.text) else following
        found[name.replace("_", "-")] = one
    return found


def assigned_words(command):
    """Words of what a command assigns: a variable may hold options itself, as in Megatron's examples."""
    for _, value in command.assigned:
        if isinstance(value, tuple):
            yield from value
        else:
            yield from (Text(one, value.known or "$" not in one, value.origin) for one in value.text.split())


def read_script(path):
    """Options of all commands and variables of a launch script, ``{"micro-batch-size": "1"}``; the last one counts.

    Raises:
        InputError: as :func:`read`.
    """
    found = {}
    for command in read(path).commands:
        found.update(options_of(assigned_words(command)))
        found.update(options_of(command.words))
    return {name: value if value is True else value.text for name, value in found.items()}
