"""Rules about the script as text: what sbatch and the shell make of it, unlike what was meant."""

import re

from repro.cluster.rule import ERROR, SBATCH, WARNING, rule

BASH = "bash(1)"


def _lines(facts):
    if facts.file is not None:
        for number, line in enumerate(facts.file.script.lines, 1):
            yield line, f"{facts.file.name}:{number}"


@rule("no-interpreter", None, ERROR, SBATCH, "sbatch refuses a file whose first line does not name its interpreter")
def no_interpreter(facts):
    if facts.file is not None and facts.file.directives and not facts.file.script.lines[0].startswith("#!"):
        yield "#SBATCH lines in a file that does not begin with #!", "#!/bin/bash as the first line", facts.begins


@rule("dos-lines", None, ERROR, SBATCH, "sbatch refuses a script with DOS line breaks")
def dos_lines(facts):
    where = next((where for line, where in _lines(facts) if line.endswith("\r")), None)
    if where is not None:
        yield "lines end with carriage return and line feed", "dos2unix FILE", where


@rule("late-directive", None, WARNING, SBATCH, "sbatch stops to read #SBATCH lines at the first command")
def late_directive(facts):
    for text, where in facts.file.late if facts.file is not None else ():
        yield f"{text!r} comes after a command and is ignored", "above the first command", where


@rule(
    "directive-variable",
    None,
    ERROR,
    SBATCH,
    "no shell reads #SBATCH lines: a variable in one is taken as it is written",
)
def directive_variable(facts):
    for name, told in (facts.file.directives if facts.file is not None else {}).items():
        if isinstance(told.value, str) and re.search(r"\$\{?[A-Za-z_]|\$\(", told.value):
            patterns = name in ("output", "error", "chdir", "job-name")
            fix = "sbatch's own patterns, e.g. %j for the job" if patterns else "the value itself"
            yield f"--{name}={told.value}", fix, told.where


@rule(
    "broken-line",
    None,
    ERROR,
    BASH,
    "only a backslash at the very end continues a line: what follows is another command",
)
def broken_line(facts):
    lines = list(_lines(facts))
    for place, (line, where) in enumerate(lines[:-1]):
        below = lines[place + 1][0]
        if line.lstrip().startswith("#"):
            continue
        if re.search(r"\s\\[ \t]+$", line) and re.match(r"\s*--?\w", below):
            yield "white space after the backslash: the options below are lost", "nothing after the backslash", where
        elif line.endswith("\\") and re.match(r"\s*#", below):
            following = lines[place + 2][0] if place + 2 < len(lines) else ""
            if re.match(r"\s*--?\w", following):
                yield "a comment among continued lines: the options below are lost", "no comment there", where


RULES = (no_interpreter, dos_lines, late_directive, directive_variable, broken_line)
