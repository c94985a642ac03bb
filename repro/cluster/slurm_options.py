"""Options of sbatch and srun as people write them: long and short, with ``=``, a space or nothing between."""

import re
import shlex
from dataclasses import dataclass

from repro.records.shell_values import Text

SHORT = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "i": "input", "J": "job-name", "L": "licenses",
    "m": "distribution", "M": "clusters", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "r": "relative", "S": "core-spec", "t": "time", "T": "threads", "W": "wait", "w": "nodelist", "x": "exclude",
    "B": "extra-node-info",
}  # fmt: skip
# without a value, or with one behind = only
FLAGS = {
    "contiguous", "disable-status", "exact", "exclusive", "external-launcher", "get-user-env", "hold", "ignore-pbs",
    "interactive", "kill-on-bad-exit", "label", "mem-bind-sort", "multi-prog", "nice", "no-allocate", "no-bell",
    "no-kill", "no-requeue", "overcommit", "overlap", "oversubscribe", "parsable", "preserve-env", "propagate", "pty",
    "quiet", "requeue", "spread-job", "stepmgr", "test-only", "unbuffered", "use-min-nodes", "verbose",
}  # fmt: skip
SHORT_FLAGS = {
    "K": "kill-on-bad-exit", "l": "label", "u": "unbuffered", "k": "no-kill", "O": "overcommit", "s": "oversubscribe",
    "H": "hold", "I": "immediate", "Q": "quiet", "v": "verbose", "E": "preserve-env", "X": "disable-status",
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """A value and where it was given: ``job.sh:12`` or ``recipe batch.micro``."""

    value: object
    where: str


def parsed(words):
    """``({long name: Text or True}, the words behind the options)`` of the words behind ``srun``."""
    found, words, place = {}, list(words), 0
    while place < len(words):
        text = words[place].text
        following = words[place + 1] if place + 1 < len(words) else None
        if text == "--":
            place += 1
            break
        if not text.startswith("-") or text == "-":
            break
        place += 1
        name, equals, value = text[2:].partition("=") if text.startswith("--") else ("", "", "")
        if text.startswith("--"):
            if equals:
                found[name] = Text(value, words[place - 1].known, words[place - 1].origin)
            elif name in FLAGS or following is None:
                found[name] = True
            else:
                found[name], place = following, place + 1
        elif text[1] in SHORT:
            rest = text[2:].removeprefix("=")
            if rest:
                found[SHORT[text[1]]] = Text(rest, words[place - 1].known)
            elif following is not None:
                found[SHORT[text[1]]], place = following, place + 1
        else:
            found.update({SHORT_FLAGS[c]: True for c in text[1:] if c in SHORT_FLAGS})
    return found, tuple(words[place:])


def directives(lines, name):
    """``({long name: Told}, [(text, where) of those that sbatch no longer reads])`` of ``#SBATCH`` lines.

    sbatch stops to read them at the first command. Values are text or True; sbatch fills in no variables.
    """
    found, late, started = {}, [], False
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r")
        where = f"{name}:{number}"
        if not line.startswith("#SBATCH"):
            started |= bool(line.strip()) and not line.lstrip().startswith("#")
            continue
        if line[7:8].strip():
            continue  # another word, as in #SBATCHX
        if started:
            late.append((line.strip(), where))
            continue
        for option, value in parsed(Text(word) for word in _split(line[7:]))[0].items():
            found[option] = Told(value if value is True else value.text, where)
    return found, late


def _split(text):
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def seconds(text):
    """Seconds of a time limit of Slurm (minutes, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M:S``), or None."""
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,3}))?(?::(\d{1,3}))?", text.strip())
    if match is None:
        return None
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, secs = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:
        hours, (minutes, secs) = 0, [*parts, 0][:2]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + secs
