"""Whether a layout fits into a device, and the nearest layouts that do, by the closed forms of memory. No torch."""

GIB = 2**30


def closed_form(recipe, device):
    """Whether a recipe fits by the closed forms, in a moment: the fullest stage, item by item, and layouts that fit.

    Returns:
        ``fits``, ``stage``, ``peak_bytes``, ``items`` and, where it does not fit, ``nearest_layouts``.
    """
    stage, found = fullest(recipe)
    fits = found.peak_bytes <= device.memory_gib * GIB
    answer = {
        "recipe": recipe.name,
        "provenance": "projected",
        "device": device.name,
        "fits": fits,
        "stage": stage,
        "peak_bytes": found.peak_bytes,
        "spare_gib": device.memory_gib - found.peak_bytes / GIB,
        "phase": found.phase,
        "items": found.peak,
    }
    return answer if fits else {**answer, "nearest_layouts": nearest_layouts(recipe, device)}


def fullest(recipe):
    """The stage with the highest peak and its memory: the first, the one behind it, or the last."""
    from repro.projection.memory import memory

    pp = recipe.parallel.pp
    found = [(stage, memory(recipe, stage)) for stage in sorted({0, min(1, pp - 1), pp - 1})]
    return max(found, key=lambda pair: pair[1].peak_bytes)


def nearest_layouts(recipe, device):
    """For each tp within 8 ranks the fewest stages that fit by the closed forms, fewest ranks first; dp is kept."""
    from repro.errors import InputError
    from repro.recipe import load

    found = []
    for tp in (1, 2, 4, 8):
        for pp in [d for d in range(1, 129) if recipe.shape.layers % d == 0]:
            sizes = {"parallel.tp": tp, "parallel.pp": pp, "parallel.sequence_parallel": False}
            try:
                other = load(recipe, sizes)
            except InputError:
                continue
            peak = fullest(other)[1].peak_bytes
            if peak <= device.memory_gib * GIB:
                found.append({"tp": tp, "pp": pp, "ranks_per_replica": tp * pp, "peak_gib": peak / GIB})
                break  # more stages fit too, and are farther
    return sorted(found, key=lambda layout: layout["ranks_per_replica"])
