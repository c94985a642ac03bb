"""The two ways a command ends badly, each with its own exit code."""

from difflib import get_close_matches


class InputError(ValueError):
    """The user's input is wrong (exit code 2). One line: what, why, the nearest valid value."""


class RunFailed(RuntimeError):
    """The input was fine; the run started and failed (exit code 3)."""


class RunInterrupted(RuntimeError):
    """A signal or Ctrl-C ended the run (exit code 130; 0 where it is ``resumable``: stopped as asked, nothing lost)."""

    def __init__(self, text="", resumable=False):
        super().__init__(text)
        self.resumable = resumable


def unknown(kind, name, known):
    """An :class:`InputError` for a name that is not one of ``known``, with the nearest of them."""
    known = [str(k) for k in known]
    lowered = {k.lower(): k for k in known}
    near = get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.5)
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known: {', '.join(known)}"
    return InputError(f"unknown {kind} {shortened(str(name))}; {hint}")


def shortened(value, most=80):
    """``repr`` of what a user gave, cut in the middle where it would bury the message."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 4 :]}"
