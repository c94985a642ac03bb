"""Text of a shell script -> tokens: words in parts, operators, ends of lines. Nothing is run.

What is read is what people write in job scripts: quotes, ``$`` in all its forms, arrays, here-documents, comments,
continued lines. Each character is looked at a bounded number of times, whatever the text holds.
"""

import re
from dataclasses import dataclass, field

PLAIN = re.compile(r"[^\s\\'\"$`;&|()<>]+")
PLAIN_QUOTED = re.compile(r"[^\\\"$`]+")
OPERATOR = re.compile(r"&&|\|\||;;&|;&|;;|\|&|&>>|&>|<<<|<<-|<<|>>|>&|<&|>\||[;&|()<>]")
NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*?$#!-]")
ASSIGNED = re.compile(r"[A-Za-z_]\w*(?:\[[^\]\s]*\])?\+?=")
BLANK = re.compile(r"(?:[^\S\n]|\\\n)+")
CLOSE = {"(": ")", "{": "}"}


@dataclass(frozen=True)
class Part:
    """A piece of a word.

    Attributes:
        kind: "text", "var" (``$X`` or ``${X:-3}``), "run" (``$(...)``) or "sum" (``$((...))``).
        text: what stands between the braces or parentheses.
    """

    kind: str
    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Token:
    """A "word" (of parts), an "op" (its text), a "line" (end of one) or a "here" (the body of a here-document).

    Attributes:
        at: line in the file, from 1.
        array: words of ``NAME=(...)``, else None.
        spaced: whether white space stands before it.
    """

    kind: str
    at: int
    text: str = ""
    parts: tuple = ()
    array: tuple | None = None
    spaced: bool = True


@dataclass
class _Lexer:
    text: str
    first: int
    at: int = 0
    line: int = 0
    counted: int = 0
    tokens: list = field(default_factory=list)
    waiting: list = field(default_factory=list)  # here-documents: delimiter, quoted, tabs stripped
    unclosed: int | None = None
    missing: set = field(default_factory=set)  # closing marks that do not come any more

    def here(self):
        """The line of the current place."""
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        return self.first + self.line

    def run(self):
        spaced = True
        while self.at < len(self.text):
            if blank := BLANK.match(self.text, self.at):
                self.at, spaced = blank.end(), True
                continue
            self.token(spaced)
            spaced = self.tokens[-1].kind != "word" if self.tokens else True
        return self

    def token(self, spaced):
        c = self.text[self.at]
        if c == "\n":
            self.tokens.append(Token("line", self.here()))
            self.at += 1
            self.bodies()
        elif c == "#" and spaced:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif self.text.startswith("[[", self.at) and spaced and self.text[self.at + 2 : self.at + 3].isspace():
            self.until("]]")
        elif self.text.startswith("((", self.at) and self.at_command():
            self.until("))")
        elif operator := OPERATOR.match(self.text, self.at):
            if operator[0] in "<>" and self.text[operator.end() : operator.end() + 1] == "(":
                self.word(spaced)  # <(...)
                return
            self.tokens.append(Token("op", self.here(), operator[0], spaced=spaced))
            self.at = operator.end()
            if operator[0] in ("<<", "<<-"):
                self.delimiter(operator[0] == "<<-")
        else:
            self.word(spaced)

    def at_command(self):
        last = self.tokens[-1] if self.tokens else None
        return last is None or last.kind in ("line", "op") or last.text in ("for", "if", "while", "then", "do", "else")

    def until(self, close):
        """``[[ ... ]]`` and ``(( ... ))`` as one word, as written."""
        end = -1 if close in self.missing else self.text.find(close, self.at + 2)
        if end < 0:
            self.missing.add(close)
        stop = self.text.find("\n", self.at) if end < 0 else end + 2
        stop = len(self.text) if stop < 0 else stop
        text, line = self.text[self.at : stop], self.here()
        self.at = stop
        self.tokens.append(Token("word", line, text, (Part("text", text, True),)))

    def word(self, spaced=True):
        line, start, parts, array = self.here(), self.at, [], None
        while self.at < len(self.text):
            c = self.text[self.at]
            if c.isspace():
                break
            if c in ";&|()<>":
                if c == "(" and len(parts) == 1 and not parts[0].quoted and ASSIGNED.fullmatch(parts[0].text):
                    array = self.array()
                elif c in "<>" and not parts and self.text[self.at + 1 : self.at + 2] == "(":
                    self.at += 1
                    parts.append(Part("run", self.between("(")))
                break
            parts += self.piece(c)
        text = self.text[start : self.at]
        self.tokens.append(Token("word", line, text, _joined(parts), array, spaced))

    def piece(self, c):
        if c == "\\":
            self.at += 2
            following = self.text[self.at - 1 : self.at]
            return [] if following == "\n" else [Part("text", following, True)]
        if c == "'":
            return [Part("text", self.single(), True)]
        if c == '"':
            self.at += 1
            return self.double()
        if c == "$":
            if self.text[self.at + 1 : self.at + 2] == "'":
                self.at += 1
                return [Part("text", self.single(), True)]
            if self.text[self.at + 1 : self.at + 2] == '"':
                self.at += 1
                return []
            return [self.dollar(False)]
        if c == "`":
            return [Part("run", self.back(), False)]
        plain = PLAIN.match(self.text, self.at)
        self.at = plain.end()
        return [Part("text", plain[0])]

    def single(self):
        end = self.text.find("'", self.at + 1)
        return self.to(end, self.at + 1, 1)

    def back(self):
        end = self.text.find("`", self.at + 1)
        return self.to(end, self.at + 1, 1)

    def to(self, end, start, skip):
        """Text up to ``end``; the rest of the file where the closing mark is missing."""
        if end < 0:
            self.unclosed = self.unclosed or self.here()
            end = len(self.text)
        self.at = min(end + skip, len(self.text))
        return self.text[start:end]

    def double(self, closed=True):
        """Parts up to the closing ``"``, which an empty pair has, too; ``closed`` false: up to the end of the text."""
        parts, line = [Part("text", "", True)], self.here()
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == '"':
                self.at += 1
                if closed:
                    return parts
                parts.append(Part("text", c, True))
            elif c == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                text = "" if following == "\n" else following if following in '$`"\\' else "\\" + following
                parts.append(Part("text", text, True))
                self.at += 2
            elif c == "$":
                parts.append(self.dollar(True))
            elif c == "`":
                parts.append(Part("run", self.back(), True))
            else:
                plain = PLAIN_QUOTED.match(self.text, self.at)
                parts.append(Part("text", plain[0], True))
                self.at = plain.end()
        if closed:
            self.unclosed = self.unclosed or line
        return parts

    def dollar(self, quoted):
        if self.text.startswith("$((", self.at):
            self.at += 1
            inside = self.between("(")
            if inside.startswith("(") and inside.endswith(")"):
                return Part("sum", inside[1:-1], quoted)
            return Part("run", inside, quoted)
        following = self.text[self.at + 1 : self.at + 2]
        if following in ("(", "{"):
            self.at += 1
            return Part("run" if following == "(" else "var", self.between(following), quoted)
        if name := NAME.match(self.text, self.at + 1):
            self.at = name.end()
            return Part("var", name[0], quoted)
        self.at += 1
        return Part("text", "$", quoted)

    def between(self, opening):
        """Text between ``(`` or ``{`` here and the mark that closes it, quotes and pairs inside skipped."""
        closing, depth, start, i = CLOSE[opening], 0, self.at + 1, self.at
        marks = re.compile(rf"[\\'\"{re.escape(opening + closing)}]")
        while mark := marks.search(self.text, i):
            c, i = mark[0], mark.end()
            if c == "\\":
                i += 1
            elif c in "'\"":
                end = self.text.find(c, i)
                while c == '"' and end > 0 and self.text[end - 1] == "\\":
                    end = self.text.find(c, end + 1)
                if end < 0:
                    break
                i = end + 1
            else:
                depth += 1 if c == opening else -1
                if depth == 0:
                    return self.to(mark.start(), start, 1)
        return self.to(-1, start, 1)

    def array(self):
        """Words between the parentheses of ``NAME=(...)``."""
        self.at += 1
        words, outer = [], self.tokens
        while self.at < len(self.text) and self.text[self.at] != ")":
            c = self.text[self.at]
            if c.isspace():
                self.at += 1
            elif c == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif c in ";&|(<>":
                self.at += 1
            else:
                self.tokens = []
                self.word()
                words += self.tokens
        self.tokens = outer
        self.at += 1
        return tuple(words)

    def delimiter(self, strip):
        if blank := BLANK.match(self.text, self.at):
            self.at = blank.end()
        count = len(self.tokens)
        if self.at < len(self.text) and self.text[self.at] not in "\n;&|()<>":
            self.word()
        if len(self.tokens) > count:
            word = self.tokens.pop()
            self.waiting.append(("".join(p.text for p in word.parts), any(p.quoted for p in word.parts), strip))

    def bodies(self):
        """Bodies of the here-documents that the line before has opened."""
        for name, quoted, strip in self.waiting:
            line, lines = self.here(), []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                one = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                one = one.lstrip("\t") if strip else one
                if one.rstrip("\r") == name:
                    break
                lines.append(one)
            body = "\n".join(lines)
            parts = (Part("text", body, True),) if quoted else parts_of(body)
            self.tokens.append(Token("here", line, body, parts))
        self.waiting = []


def tokens(text, line=1):
    """``(tokens, line of a quote that is never closed or None)`` of a script whose first line has number ``line``."""
    lexer = _Lexer(text, line).run()
    return lexer.tokens, lexer.unclosed


def parts_of(text):
    """Parts of text in which only ``$``, `````` and backslashes mean something, as in a here-document."""
    return _joined(_Lexer(text, 1).double(closed=False))


def _joined(parts):
    """Neighbouring texts as one."""
    found = []
    for part in parts:
        if found and part.kind == "text" and found[-1].kind == "text" and part.quoted == found[-1].quoted:
            found[-1] = Part("text", found[-1].text + part.text, part.quoted)
        else:
            found.append(part)
    return tuple(found)
