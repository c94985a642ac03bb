"""The parameters cell of a notebook: literals only, and every value checked against the default there.

Text of Python, no notebook: the runner reads it from the file before anything runs, the kernel from
its own history. papermill injects values after that cell, so a value derived in it would be stale.
"""

import ast
import json
import math
import re
import tomllib

from repro.errors import InputError, unknown

INJECTED = "# Parameters"


def assignments(source, where):
    """``{name: value}`` of a cell that holds nothing but assignments of plain literals.

    Raises:
        InputError: anything else stands in the cell, or a name is assigned twice.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise InputError(f"{where} is not plain Python, line {error.lineno}: {error.msg}") from None
    values = {}
    for statement in body:
        name, value = _assignment(statement, where)
        if name in values:
            raise InputError(f"{where} assigns {name} twice; keep one line")
        values[name] = value
    return values


def is_literal_cell(source):
    """Whether the cell holds at least one assignment and nothing but assignments of plain literals."""
    try:
        return bool(assignments(source, ""))
    except InputError:
        return False


def is_injected(source):
    """Whether papermill wrote the cell: it has no other mark inside a kernel than its first line."""
    return source.lstrip().split("\n", 1)[0].strip() == INJECTED


def assigned_names(source):
    """Every name that a cell may bind outside of functions and classes; none if it is not plain Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    names, stack = set(), [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            stack.extend(ast.iter_child_nodes(node))
    return names


def merge(defaults, given):
    """The defaults with the given values in place, each checked.

    Raises:
        InputError: a name that the cell does not define, a value of another type than its default.
    """
    for name, value in given.items():
        if name not in defaults:
            raise unknown("parameter", name, defaults)
        check(name, value, defaults[name])
    return {**defaults, **given}


def check(name, value, default):
    """Raise :class:`InputError` unless ``value`` is plain and of the type of ``default``.

    A float takes an int; a default of None takes anything plain.
    """
    check_plain(name, value)
    wanted = type(default)
    if default is None or type(value) is wanted or (wanted is float and type(value) is int):
        return
    raise InputError(
        f"parameter {name} = {value!r} is {_a(type(value))}, its default {default!r} is {_a(wanted)}; "
        f"{_hint(value, wanted)}"
    )


def check_plain(name, value):
    """Raise :class:`InputError` for what papermill would turn into text: tuples, sets, numpy scalars, objects."""
    kind = type(value)
    if kind in (bool, int, str, type(None)):
        return
    if kind is float:
        if math.isfinite(value):
            return
        raise InputError(f"parameter {name} = {value} is not a finite number")
    if kind is list:
        for item in value:
            check_plain(name, item)
        return
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise InputError(f"parameter {name} has the key {key!r}; keys must be strings, e.g. {str(key)!r}")
            check_plain(name, item)
        return
    hint = "a list" if kind in (tuple, set, frozenset) else ".item()" if hasattr(value, "item") else "its repr"
    raise InputError(
        f"parameter {name} = {value!r} is {_a(kind)}; only None, bool, int, float, str, list, dict pass: use {hint}"
    )


def from_text(name, text, default):
    """The value that a command line meant by ``text``, read by the type of ``default``.

    Raises:
        InputError: the text cannot be read as that type.
    """
    if isinstance(default, str):
        return text
    if default is None:
        return _any_literal(text)
    if isinstance(default, bool):
        value = {"true": True, "false": False}.get(text.strip().lower(), text)
    elif isinstance(default, int):
        value = int(text) if re.fullmatch(r"\s*[+-]?\d+(_\d+)*\s*", text) else text
    elif isinstance(default, float):
        value = _float(text)
    else:
        value = _any_literal(text)
    check(name, value, default)
    return value


def _assignment(statement, where):
    text = ast.unparse(statement).split("\n", 1)[0]
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        targets = []
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        raise InputError(f"{where} may only assign literals to names, line {statement.lineno} does not: {text}")
    try:
        value = ast.literal_eval(statement.value)
        check_plain(targets[0].id, value)
    except InputError:
        raise
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise InputError(
            f"{where} holds a value that is not a literal, line {statement.lineno}: {text}; an injected parameter "
            "would leave it stale: compute it in a later cell"
        ) from None
    return targets[0].id, value


def _float(text):
    try:
        return float(text)
    except ValueError:
        return text


def _any_literal(text):
    for read in (lambda t: tomllib.loads(f"value = {t}")["value"], json.loads, ast.literal_eval):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return text


def _hint(value, wanted):
    if wanted is str:
        return f"write {str(value)!r} (papermill: -r instead of -p)"
    if wanted is int and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if isinstance(value, str):
        if wanted is bool:
            return "write true or false to repro run, True or False to papermill"
        if wanted is float:
            return "write a number (YAML reads 3e-4 as text; 3.0e-4 is a number)"
        if wanted is int and _float(value) != value and _float(value).is_integer():
            return f"write {int(float(value))}"
    return f"write {_example(wanted)}"


def _example(kind):
    examples = {bool: "true or false", int: "a whole number", list: "a list like [1, 2]", dict: 'a table like {"a": 1}'}
    return examples.get(kind, f"a value of type {kind.__name__}")


def _a(kind):
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    word = f"{module}{kind.__name__}"
    return "None" if kind is type(None) else f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
