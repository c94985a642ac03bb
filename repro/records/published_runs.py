"""The published runs that a projection is validated against: data in ``published/runs/*.csv``, and its loader.

One row is one number that somebody printed of one run, with everything that a projection needs to know of the
run. A new row, or a new file of the same columns, is validated against without any code. Add a value read off a
figure of the paper to ``paper-figures.csv``, which waits for rows: those values stand only in images. What each
column means is told in ``published/runs/README.md``. No torch.

A cell of the run's description may hold alternatives where the source leaves it open: ``2048|4096``, the likely
one first. A global batch ``1600/replica`` is 1600 for each replica. :meth:`PublishedRun.readings` gives every
combination that is a possible run; the :class:`PublishedRun` itself is the likely one.
"""

import csv
import math
import re
from dataclasses import fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

from repro.errors import InputError, shortened, unknown
from repro.records.published_run import COLUMNS, EFFICIENCIES, PERCENT_OF_PEAK, PublishedRun

RUNS = Path(__file__).parent / "published" / "runs"
WORDS = {
    "machine": ("frontier", "lumi", "a100-selene", "a100-jeanzay"),
    "positions": ("learned", "alibi"),
    "embedding_norm": ("yes", "no"),
    "tied": ("yes", "no"),
    "partition": ("transformer", "embedding-counts"),
    "recompute": ("full", "none"),
    "attention": ("flash", "unfused"),
    "precision": ("fp16", "bf16"),
    "grad_accum": ("fp16", "bf16", "fp32"),
    "launch_blocking": ("yes", "no", "unknown"),
    "metric": ("seconds", "tflops", "percent_of_peak", *EFFICIENCIES),
    "formula": ("", "eq3 x4", "eq3 x3", "layers x4", "layers x3"),
    "confidence": ("confirmed", "secondary", "unconfirmed", "doubtful"),
}
UNITS = {
    "seconds": r"s",
    "tflops": r"TFLOP/s per GPU",
    "percent_of_peak": PERCENT_OF_PEAK,
    "strong_efficiency": r"%",
    "weak_efficiency": r"%",
}
COUNTS = tuple(field.name for field in fields(PublishedRun) if field.type is int)
CHOICES = ("positions", "embedding_norm", "tied", "partition", "recompute", "attention", "precision", "grad_accum")
OPEN = (*COUNTS, *CHOICES, "base_gpus")  # may hold alternatives; the rest tells what was printed, and by whom
TEXTS = ("exhibit", "source", "group")


def runs(exhibit=None, machine=None, folder=RUNS):
    """All published runs in the order of files and lines, or those of one exhibit, of one machine.

    Raises:
        InputError: no such exhibit or machine, or a row that is not valid, by file and line.
    """
    paths = sorted(Path(folder).glob("*.csv"))
    found = _all(tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths))
    exhibits = list(dict.fromkeys(run.exhibit for run in found))
    for name, wanted, known in (("exhibit", exhibit, exhibits), ("machine", machine, WORDS["machine"])):
        if wanted is not None and wanted not in known:
            raise unknown(name, wanted, known)
    return tuple(r for r in found if exhibit in (None, r.exhibit) and machine in (None, r.machine))


@lru_cache(maxsize=4)
def _all(files):
    """Every run of ``(path, time, size)`` files: reading takes a tenth of a second, and one projection asks often."""
    found, seen = [], {}
    for path, *_ in files:
        for number, run in _read(path):
            if run.id in seen:
                raise InputError(f"{path} line {number}: id {run.id} stands already in {seen[run.id]}")
            seen[run.id] = f"{path.name} line {number}"
            found.append(run)
    return tuple(found)


def _read(path):
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file, strict=True)
            if tuple(next(lines, ())) != COLUMNS:
                raise InputError(f"{path} line 1: the columns must be {','.join(COLUMNS)}")
            for cells in lines:
                try:
                    yield lines.line_num, _run(cells)
                except InputError as error:
                    raise InputError(f"{path} line {lines.line_num}: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _run(cells):
    """The run of one line, its other readings inside."""
    if len(cells) != len(COLUMNS):
        raise InputError(f"{len(cells)} cells instead of {len(COLUMNS)}")
    options = {c: _options(c, text) for c, text in zip(COLUMNS, cells, strict=True)}
    possible, used = [], set()
    for picked in product(*options.values()):
        run, problem = _reading(options, dict(zip(COLUMNS, picked, strict=True)))
        if problem and not possible:
            raise InputError(problem)  # the likely reading comes first and has to be a run
        if not problem:
            possible.append(run)
            used |= {(column, str(value)) for column, value in zip(COLUMNS, picked, strict=True)}
    for column in OPEN:
        for value in options[column]:
            if (column, str(value)) not in used:
                raise InputError(f"{column} {value} fits none of the other cells, so it is no alternative")
    return replace(possible[0], others=tuple(possible[1:]))


def _options(column, text):
    texts = text.split("|") if column in OPEN else [text]
    if len(set(texts)) != len(texts):
        raise InputError(f"{column} {text!r} names an alternative twice")
    return tuple(_parse(column, t) for t in texts)


def _parse(column, text):
    if column in WORDS and text not in WORDS[column]:
        raise unknown(column, text, WORDS[column])
    if column in COUNTS or (column == "base_gpus" and text):
        whole = text.removesuffix("/replica") if column == "gbs" else text
        if not re.fullmatch(r"0|[1-9]\d{0,11}", whole) or (whole == "0" and column != "zero"):
            raise InputError(f"{column} {shortened(text)} is not a whole number of at least {int(column != 'zero')}")
        return int(text) if whole == text else text
    if column == "value" or (column == "printed_tflops" and text):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise InputError(f"{column} {shortened(text)} is not a number above 0")
        return number
    if column in ("base_gpus", "printed_tflops"):
        return None
    if column == "inferred":
        return tuple(_inferred(entry) for entry in text.split(";") if text)
    pattern = {"id": r"\w[\w .+-]{0,49}", "date": r"\d{4}(-\d\d){0,2}"}.get(column, r".+" if column in TEXTS else r".*")
    if not re.fullmatch(pattern, text):
        raise InputError(f"{column} {shortened(text)} must match {pattern}")
    return text


def _inferred(entry):
    column, sep, how = entry.strip().partition(": ")
    if column not in COLUMNS:
        raise unknown("column in inferred", column, COLUMNS)
    if not sep or not how.strip():
        raise InputError(f"inferred {shortened(entry)} does not say how; write {column}: how")
    return column, how.strip()


def _reading(options, cells):
    """The run that takes these cells, and why it cannot be (None where it can)."""
    differs = [f"{c}={cells[c]}" for c in OPEN if cells[c] != options[c][0]]
    if isinstance(cells["gbs"], str):
        cells["gbs"] = int(cells["gbs"].removesuffix("/replica")) * cells["dp"]
    run = PublishedRun(**cells, choice=", ".join(differs))
    smaller = [v for v in options["vocab"] if v < run.vocab and v % (128 * run.tp) == 0]
    return run, f"vocab {run.vocab} is not the least padded one at tp {run.tp}" if smaller else _problem(run)


def _problem(r):
    """The first rule that a run breaks, as text, or None."""
    per_replica, share = r.mbs * r.dp, r.tp * r.pp
    rules = (
        (r.gpus == share * r.dp, f"gpus {r.gpus} is not tp x pp x dp = {share * r.dp}"),
        (r.hidden % r.heads == 0, f"hidden {r.hidden} is not divisible by heads {r.heads}"),
        (r.heads % r.tp == 0, f"heads {r.heads} is not divisible by tp {r.tp}"),
        (r.vocab % (128 * r.tp) == 0, f"vocab {r.vocab} is not padded to a multiple of 128 x tp = {128 * r.tp}"),
        (min(r.stage_layers) > 0, f"{r.layers} layers by {r.partition} leave one of {r.pp} stages without a layer"),
        (r.gbs % per_replica == 0, f"gbs {r.gbs} is not a multiple of mbs x dp = {per_replica}"),
        (r.interleave == 1 or r.layers % (r.pp * r.interleave) == 0, "interleave x pp does not divide layers"),
        (r.interleave == 1 or r.micro_batches % r.pp == 0, "interleave needs micro-batches in multiples of pp"),
        (re.fullmatch(UNITS[r.metric], r.unit), f"unit {r.unit!r} of {r.metric} must match {UNITS[r.metric]}"),
        (r.metric != "percent_of_peak" or r.value <= 100, f"{r.value} % of peak is above the peak"),
        (r.formula or r.metric in ("seconds", *EFFICIENCIES), f"formula is missing: {r.metric} follows one"),
        (r.formula or r.printed_tflops is None, "formula is missing: printed_tflops follows one"),
        (r.formula[-1:] in ("", "4" if r.recompute == "full" else "3"), f"{r.formula} with recompute {r.recompute}"),
        ((r.base_gpus is None) == (r.metric not in EFFICIENCIES), f"base_gpus {r.base_gpus} with metric {r.metric}"),
    )
    broken = next((text for holds, text in rules if not holds), None)
    if broken or r.base_gpus is None:
        return broken
    if r.base_gpus % share or r.base_gpus >= r.gpus:
        return f"base_gpus {r.base_gpus} is not a multiple of tp x pp = {share} below gpus {r.gpus}"
    base = r.base()
    return (
        None if base.gbs % (base.mbs * base.dp) == 0 else f"gbs {base.gbs} does not divide over base_gpus {r.base_gpus}"
    )
