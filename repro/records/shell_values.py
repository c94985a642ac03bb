"""Words of a shell script with their variables filled in, as far as the script alone tells. Nothing is run.

What it does not tell stays unknown: a word keeps the unknown part as written (``${USER}``, ``$(...)``) and says so.
"""

import ast
import re
from dataclasses import dataclass

from repro.records.shell_tokens import parts_of

MOST_TEXT, MOST_WORDS, MOST_ORIGIN, MOST_DEPTH = 16_000, 4_000, 1_000, 12
VARIABLE = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*?$#!-])(\[[^\]]*\])?(.*)", re.DOTALL)
REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
# set by Slurm, the login shell or modules before the script starts: a default after ``:-`` says nothing about them
OUTSIDE = re.compile(
    r"SLURM|CRAY|OLCF|ROCM|HIP|CONDA|PE_|LMOD|MODULE|USER$|HOME$|PATH$|PWD$|HOSTNAME|LD_LIBRARY_PATH|PYTHONPATH|"
    r"SCRATCH|TMP|MEMBERWORK|PROJWORK"
)
WHOLE = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True)
class Text:
    """A string of a script.

    Attributes:
        known: false where a part of it only a run would tell.
        origin: how it and the variables in it were written.
    """

    text: str
    known: bool = True
    origin: str = ""

    @property
    def whole(self):
        """The integer it is, else None."""
        return int(self.text) if self.known and WHOLE.fullmatch(self.text) else None

    def starts(self, *beginnings):
        """Whether it begins with one of these, whatever an unknown end is."""
        return self.text.startswith(beginnings)


UNKNOWN = Text("$(...)", False)


def joined(texts):
    """One text of several, cut where it is longer than any that people write."""
    texts = list(texts)
    text = "".join(t.text for t in texts)
    origin = " ".join(t.origin for t in texts if t.origin)
    return Text(text[:MOST_TEXT], all(t.known for t in texts) and len(text) <= MOST_TEXT, origin[:MOST_ORIGIN])


def expand(parts, variables, depth=0):
    """The :class:`Text` of a word that is not split, as in an assignment or between quotes."""
    return joined(
        joined(_spaced(value)) if isinstance(value, tuple) else value
        for value in (_value(part, variables, depth) for part in parts)
    )


def words(parts, variables):
    """The words, none to many, that a word becomes as an argument."""
    found, current = [], []

    def end():
        if current:
            found.append(joined(current))
            current.clear()

    for part in parts:
        value = _value(part, variables, 0)
        if isinstance(value, tuple):
            # "${A[@]}": one word an element
            for place, element in enumerate(value[:MOST_WORDS]):
                if place:
                    end()
                current.append(element)
        elif part.kind == "text" or part.quoted:
            current.append(value)
        else:
            pieces = value.text.split()
            if value.text[:1].isspace():
                end()
            for place, piece in enumerate(pieces[:MOST_WORDS]):
                if place:
                    end()
                known = value.known or ("$" not in piece and len(value.text) < MOST_TEXT)
                current.append(Text(piece, known, value.origin))
            if value.text[-1:].isspace():
                end()
    end()
    return found[:MOST_WORDS]


def _spaced(values):
    for place, value in enumerate(values):
        if place:
            yield Text(" ")
        yield value


def _value(part, variables, depth):
    if part.kind == "text":
        return Text(part.text)
    if depth > MOST_DEPTH:
        return UNKNOWN
    if part.kind == "var":
        value = _variable(part.text, variables, depth)
        return joined(_spaced(value)) if isinstance(value, tuple) and part.quoted and "[*]" in part.text else value
    if part.kind == "sum":
        number = arithmetic(part.text, variables)
        return _unknown("$((...))", part.text, variables) if number is None else Text(str(number))
    return _unknown("$(...)", f"$({part.text})", variables)


def _unknown(text, written, variables):
    """With the origins of the variables that are in it."""
    names = dict.fromkeys(REFERENCE.findall(written[:MOST_ORIGIN]))
    more = [v.origin for name in names if isinstance(v := variables.get(name), Text) and v.origin]
    return Text(text, False, " ".join([written, *more])[:MOST_ORIGIN])


def _variable(inside, variables, depth):
    written = f"${{{inside}}}"
    match = VARIABLE.fullmatch(inside)
    if match is None or (match[1] and match[2]):
        return _unknown(written.replace(" ", ""), written, variables)
    _, name, index, operator = match.groups()
    value = variables.get(name)
    if index is not None or isinstance(value, tuple):
        return _element(value, index, written) if not operator else _unknown(f"${{{name}}}", written, variables)
    if not operator:
        return _unknown(f"${{{name}}}", written, variables) if value is None else value
    colon, argument = operator[0] == ":", operator.lstrip(":")[1:]
    kind = operator.lstrip(":")[:1]
    if kind not in ("-", "=", "+", "?") or len(operator) - len(operator.lstrip(":")) > 1:
        return _unknown(f"${{{name}}}", written, variables)
    if value is None and (OUTSIDE.match(name) or not name.isidentifier()):
        return _unknown(f"${{{name}}}", written, variables)
    if value is not None and not value.known:
        return Text(f"${{{name}}}", False, value.origin)
    is_set = value is not None and not (colon and not value.text)
    if kind == "+":
        return expand(parts_of(argument), variables, depth + 1) if is_set else Text("")
    if is_set:
        return value
    return expand(parts_of(argument), variables, depth + 1) if kind in "-=" else _unknown(written, written, variables)


def _element(value, index, written):
    if value is None:
        return Text(written.replace(" ", ""), False, written)
    values = value if isinstance(value, tuple) else (value,)
    if index in ("[@]", "[*]"):
        return values
    place = "0" if index is None else index[1:-1]
    if place.isascii() and place.isdigit() and len(place) < 6 and int(place) < len(values):
        return values[int(place)]
    return Text(written.replace(" ", ""), False, written)


def arithmetic(text, variables):
    """The integer of ``NODES * 8``, or None where it is not this simple or not known."""
    if len(text) > 200:
        return None
    plain = expand(parts_of(text), variables)
    named = re.sub(r"[A-Za-z_]\w*", lambda name: _number(name[0], variables), plain.text)
    if not plain.known or len(named) > 400 or not re.fullmatch(r"[\d\s()+*/%-]+", named):
        return None
    try:
        return _evaluated(ast.parse(re.sub(r"\b0+(?=\d)", "", named.strip()), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _number(name, variables):
    value = variables.get(name)
    whole = value.whole if isinstance(value, Text) else None
    return "?" if whole is None else str(whole)


def _evaluated(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _evaluated(node.operand)
        return -number if isinstance(node.op, ast.USub) else number
    if not isinstance(node, ast.BinOp):
        raise ValueError("not simple")
    left, right = _evaluated(node.left), _evaluated(node.right)
    if max(abs(left), abs(right)) > 10**18:
        raise ValueError("too large")
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1) if right else 0
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div | ast.FloorDiv) and right:
        return quotient  # shells cut towards zero
    if isinstance(node.op, ast.Mod) and right:
        return left - right * quotient
    raise ValueError("not simple")
