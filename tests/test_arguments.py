"""`repro run -p NAME VALUE` reads as papermill's does."""

import pytest

from repro.errors import InputError
from repro.notebook.arguments import join, split


def test_pairs_come_through():
    words = [
        "run",
        "-p",
        "recipe",
        "tiny",
        "x.ipynb",
        "--parameter",
        "note",
        "a=b",
        "-p",
        "n=-5",
        "-p",
        "e",
        "",
        "--json",
    ]
    joined = join(words)
    assert joined == [
        "run",
        "-p",
        "recipe=tiny",
        "x.ipynb",
        "--parameter",
        "note=a=b",
        "-p",
        "n=-5",
        "-p",
        "e=",
        "--json",
    ]
    assert split(w for w in joined if "=" in w) == {"recipe": "tiny", "note": "a=b", "n": "-5", "e": ""}
    assert join(["run", "x.ipynb", "-p"]) == ["run", "x.ipynb", "-p"], "the command line's own parser says what lacks"


def test_broken_pairs_are_refused():
    with pytest.raises(InputError, match="-p recipe lacks a value"):
        join(["run", "-p", "recipe"])
    with pytest.raises(InputError, match="is not NAME VALUE"):
        split(["re-cipe=1"])
    with pytest.raises(InputError, match="given twice"):
        split(["a=1", "a=2"])
