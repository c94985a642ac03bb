"""A simple command of a shell script, as it was read."""

import re
from dataclasses import dataclass

from repro.records.shell_values import Text

# programs that start another one; between them stand their options, numbers and assignments
BEFORE = ("time", "exec", "nohup", "command", "stdbuf", "timeout", "numactl", "env", "nice", "sudo")


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: with variables filled in.
        assigned: ``((name, value), ...)`` that stand before it or are all of it.
        redirected: ``((operator, Text), ...)``; here: the :class:`Text` of a here-document.
        where: ``script.sh:12``.
        before, after: the operators around it (``&&``, ``||``, ``|``, ``&``, ``;`` or "").
        condition: stands between ``if`` and ``then``, or ``while`` and ``do``.
        times: how often loops around it run it, None where unknown.
        task: in a script that the tasks of a step run, not in the batch script.
    """

    index: int
    words: tuple
    assigned: tuple
    redirected: tuple
    here: Text | None
    where: str
    before: str
    after: str
    condition: bool
    sure: bool
    times: int | None
    task: bool

    @property
    def name(self):
        """The first word."""
        return self.words[0].text if self.words else ""

    @property
    def program(self):
        """The words from the program on that it is about: without ``timeout 20``, ``env A=1`` and the like."""
        place = 0
        while place < len(self.words):
            text = self.words[place].text
            if text.rpartition("/")[2] not in BEFORE and not (place and re.match(r"-|\d|\w+=", text)):
                break
            place += 1
        return self.words[place:]

    @property
    def called(self):
        """Name of that program, without its folder."""
        program = self.program
        return program[0].text.rpartition("/")[2] if program else ""
