"""Names of variables that RCCL, libfabric, MIOpen, torch and the ROCm runtime know: they ignore others in silence."""

import csv
import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path

TABLE = Path(__file__).parent / "variables.csv"
# families whose every member is in the table; MIOPEN_DEBUG_ and CUDA-like ones are too many and too many change
FAMILY = re.compile(r"(NCCL|RCCL|FI_CXI|FI_MR|MIOPEN(?!_DEBUG)|TORCH_NCCL|HSA)_")
LIKE_A_FAMILY = re.compile(r"[A-Z]{2,}_[A-Z0-9_]+")
CLOSE = 0.8


@cache
def known():
    """``{name: (source, new name or "")}``."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["name"]: (row["source"], row["renamed_to"]) for row in csv.DictReader(file)}


def nearest(name, close=CLOSE):
    """The known name most like this one, or None where none is that close (1 is equal)."""
    near = get_close_matches(name, _family(name), n=1, cutoff=close)
    return near[0] if near else None


def _family(name):
    """Names to compare with: those of the same family, or all where the family itself is misspelt."""
    match = FAMILY.match(name)
    beginning = match[0] if match else ""
    found = [one for one in known() if one.startswith(beginning)]
    return found or list(known())


def misspelt(name):
    """Whether nothing reads this name although it looks as if: it is of a family, or very like a known name."""
    if name in known():
        return False
    if FAMILY.match(name):
        return True
    alike = LIKE_A_FAMILY.fullmatch(name) and 8 <= len(name) <= 60 and not name.startswith("MIOPEN_DEBUG")
    return bool(alike) and nearest(name, 0.93) is not None
