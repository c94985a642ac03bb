"""A trace for people: memory of each stage against a device, transfers, and which layouts would fit."""

GIB = 2**30


def fit(stage, device):
    """Whether a stage's peak of allocated memory stays below the device's, and by how much.

    Fragmentation, RCCL and library workspaces come on top of it and are not in it.
    """
    spare = device.memory_gib - stage.peak_bytes / GIB
    return {"fits": spare >= 0, "spare_gib": spare}


def closed_form(recipe, device):
    """Whether a recipe fits by the closed forms, in a moment: the fullest stage, item by item, and layouts that fit.

    Returns:
        ``fits``, ``stage``, ``peak_bytes``, ``items`` and, where it does not fit, ``nearest_layouts``.
    """
    stage, found = _fullest(recipe)
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


def _fullest(recipe):
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
            peak = _fullest(other)[1].peak_bytes
            if peak <= device.memory_gib * GIB:
                found.append({"tp": tp, "pp": pp, "ranks_per_replica": tp * pp, "peak_gib": peak / GIB})
                break  # more stages fit too, and are farther
    return sorted(found, key=lambda layout: layout["ranks_per_replica"])


def show_refusal(recipe, device, answer):
    """Print what does not fit, by how much, and what would."""
    p = recipe.parallel
    print(
        f"{recipe.name} at tp {p.tp} pp {p.pp} dp {p.dp} does not fit {device.title}: stage {answer['stage']} needs "
        f"{answer['peak_bytes'] / GIB:,.0f} GiB in {answer['phase']}, {-answer['spare_gib']:,.0f} more than "
        f"{device.memory_gib} (projected by the closed forms, not traced; --anyway traces it)"
    )
    for item, size in sorted(answer["items"].items(), key=lambda pair: -pair[1])[:6]:
        print(f"  {size / GIB:10,.1f} GiB  {item}")
    near = [f"tp {x['tp']} pp {x['pp']} ({x['peak_gib']:.0f} GiB)" for x in answer["nearest_layouts"]]
    print("nearest layouts that fit: " + (", ".join(near) or "none with up to 128 stages of equal length and tp 8"))


def show(recipe, stages, device, found):
    """Print a trace: one line a stage; for a single one also its FLOPs and transfers."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{recipe.name}: traced on fake ranks of {recipe.world_size:,}, GiB against {device.title}")
    columns = ("stage", "rank", "layers", "in flight", "weights", "gradients", "optimizer", "activations", "other")
    for column in (*columns, "peak", "in", f"of {device.memory_gib}"):
        table.add_column(column, justify="right", no_wrap=True)
    for stage in stages:
        p = {label: size / GIB for label, size in stage.peak_by_label.items()}
        spare = fit(stage, device)["spare_gib"]
        table.add_row(
            *(str(v) for v in (stage.stage, stage.rank, stage.layers, stage.in_flight)),
            *(f"{p[k]:.2f}" for k in ("parameters", "gradients", "optimizer states", "activations")),
            f"{p['buffers'] + p['temporary']:.2f}",
            f"{stage.peak_bytes / GIB:.2f}",
            stage.peak_phase,
            "fits" if spare >= 0 else f"{-spare:.1f} too much",
        )
    (console if console.is_terminal else Console(width=160)).print(table)
    if len(stages) == 1:
        _details(recipe, stages[0])
    if "match" in found:
        m = found["match"]
        print(f"match: {m['problem'] or 'every transfer of ' + str(m['ranks']) + ' stages finds its partner'}")
    print("peak: of allocated memory; fragmentation, RCCL and library workspaces come on top")


def _details(recipe, stage):
    m = recipe.accumulation
    print(f"rank {stage.rank}: {stage.parameters:,} parameters, {m:,} micro-batches a step")
    for phase, kinds in stage.flops.items():
        for kind, count in kinds.items():
            print(f"  FLOPs {phase:10} {kind:10} {count:.6e}")
    print(f"  FLOPs of a step: {stage.hardware_flops:.6e} hardware, {stage.model_flops:.6e} model")
    for t in stage.transfers:
        where = f"{t['group']} ({t['size']})" if t["kind"] not in ("send", "recv") else t["group"]
        print(f"  {t['phase']:10} {t['kind']:15} {where:16} {t['bytes']:>15,} bytes x {t['count']:,}")
