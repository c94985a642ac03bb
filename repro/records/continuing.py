"""What may differ between a run and its continuation. No torch."""

from repro.errors import InputError

# Weights, optimizer states or the numbers of the samples would no longer be those of the checkpoint.
FIXED = ("shape", "precision", "zero.stage", "batch.global", "data", "seed", "optimizer.name")
IGNORED = ("name", "title", "sources")


def differences(before, after):
    """``{field: (value before, value after)}`` of two recipes, dotted names."""
    old, new = _flat(before.to_dict()), _flat(after.to_dict())
    return {
        field: (old.get(field), new.get(field))
        for field in sorted(old.keys() | new.keys())
        if old.get(field) != new.get(field) and field.split(".")[0] not in IGNORED
    }


def same_layout(before, after):
    """Whether each rank finds its own states in a checkpoint of the other recipe."""
    a, b = before.parallel, after.parallel
    return (a.tp, a.pp, a.dp, before.stage_layers) == (b.tp, b.pp, b.dp, after.stage_layers)


def require_continuation(before, after, step, same_folder):
    """Whether ``after`` can go on where ``before`` stood after ``step`` steps.

    Returns:
        The differences, in words, that change how training goes on.

    Raises:
        InputError: they differ in what a checkpoint fixes, or there is nothing left to do.
    """
    found = differences(before, after)
    fixed = [field for field in found if any(field == f or field.startswith(f + ".") for f in FIXED)]
    if fixed:
        what = "; ".join(f"{field} was {found[field][0]}, is {found[field][1]}" for field in fixed)
        raise InputError(f"a checkpoint of another model or data cannot be continued: {what}")
    layout = [field for field in found if field.startswith("parallel.")]
    if layout and same_folder:
        what = "; ".join(f"{field} was {found[field][0]}, is {found[field][1]}" for field in layout)
        raise InputError(f"one record holds one layout: {what}; continue in a new run folder with --resume FOLDER")
    if not same_layout(before, after) and before.zero.stage == 0:
        raise InputError(
            "a checkpoint written without ZeRO (zero.stage 0) holds no states that can be split anew; "
            f"keep tp {before.parallel.tp}, pp {before.parallel.pp}, dp {before.parallel.dp}"
        )
    if step > after.steps:
        raise InputError(f"the checkpoint is of step {step}, the recipe ends at steps {after.steps}; set steps higher")
    return [f"{field}: {old} -> {new}" for field, (old, new) in found.items()]


def _flat(data, prefix=""):
    flat = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
