"""``-p NAME VALUE`` as papermill spells it, for a command line whose options take one word each."""

from repro.errors import InputError

FLAGS = ("-p", "--parameter")


def join(arguments):
    """The arguments with every ``-p NAME VALUE`` turned into ``-p NAME=VALUE``; a name has no equals sign.

    Raises:
        InputError: a name without a value.
    """
    joined, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        joined.append(word)
        if word in FLAGS and rest:
            name = rest.pop(0)
            if "=" not in name:
                if not rest:
                    raise InputError(f"{word} {name} lacks a value, e.g. {word} {name} 1")
                name = f"{name}={rest.pop(0)}"
            joined.append(name)
    return joined


def split(pairs):
    """``["name=value"]`` as a dictionary of strings.

    Raises:
        InputError: not a pair, or a name twice.
    """
    found = {}
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not separator or not name.isidentifier():
            raise InputError(f"-p {pair!r} is not NAME VALUE, e.g. -p recipe tiny")
        if name in found:
            raise InputError(f"parameter {name} is given twice")
        found[name] = value
    return found
