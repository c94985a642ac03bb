"""Where two runs first differ. Equal recipe, seed and machine must give equal metrics but for times."""

from dataclasses import dataclass

from repro.records.continuing import differences

CLOCKED = (
    "seconds",
    "tokens_per_second",
    "hardware_tflops",
    "model_tflops",
    "hfu",
    "mfu",
    "peak_memory_bytes",
    "time",
    "warmup",
)


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found.

    Attributes:
        steps: number of steps that both runs hold.
        first: ``(step, column, value, other value)`` of the first difference, or ``None``.
        relative: largest relative difference of the losses over the common steps.
        recipes: ``{field: (value, other value)}`` where the recipes differ.
        missing: steps that only one of them holds.
    """

    steps: int
    first: tuple | None
    relative: float
    recipes: dict
    missing: tuple

    @property
    def equal(self):
        return self.first is None and not self.missing


def compare(one, other):
    """The :class:`Comparison` of two :class:`repro.records.run_folder.RunFolder`; times and memory are left out.

    Raises:
        InputError: a record is broken.
    """
    ours, theirs = ({row["step"]: row for row in folder.metrics()} for folder in (one, other))
    first, relative = None, 0.0
    common = sorted(ours.keys() & theirs.keys())
    for step in common:
        a, b = ours[step], theirs[step]
        for column in (*(c for c in a if c in b), *sorted(a.keys() ^ b.keys())):
            if column not in CLOCKED and a.get(column) != b.get(column):
                first = first or (step, column, a.get(column), b.get(column))
        if isinstance(a.get("loss"), float) and isinstance(b.get("loss"), float):
            relative = max(relative, abs(a["loss"] - b["loss"]) / max(abs(b["loss"]), 1e-300))
    missing = tuple(sorted(ours.keys() ^ theirs.keys()))
    return Comparison(len(common), first, relative, differences(one.recipe(), other.recipe()), missing)
