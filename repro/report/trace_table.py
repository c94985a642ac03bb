"""A trace for people: memory of each stage against a device, transfers, and which layouts would fit."""

GIB = 2**30
MOST_LAYOUTS = 5


def fit(stage, device):
    """Whether a stage's peak of allocated memory stays below the device's, and by how much.

    Fragmentation, RCCL and library workspaces come on top of it and are not in it.
    """
    spare = device.memory_gib - stage.peak_bytes / GIB
    return {"fits": spare >= 0, "spare_gib": spare}


def nearest_layouts(recipe, device):
    """Layouts (tp, pp) near the recipe's that fit by the closed forms, fewest ranks per replica first.

    Tensor parallelism stays within 8 ranks; dp is kept. ``[]`` where none of up to 8 x 128 ranks fits.
    """
    from repro.errors import InputError
    from repro.projection.memory import peak_gib
    from repro.recipe import load

    found = []
    for tp in (1, 2, 4, 8):
        for pp in sorted({d for d in range(1, 129) if recipe.shape.layers % d == 0}):
            changes = {"parallel.tp": tp, "parallel.pp": pp, "parallel.sequence_parallel": False}
            try:
                other = load(recipe, {**changes, "parallel.stage_layers": []})
            except InputError:
                continue
            peak = peak_gib(other)
            if peak <= device.memory_gib:
                found.append({"tp": tp, "pp": pp, "ranks_per_replica": tp * pp, "peak_gib": peak})
                break  # more stages fit too, and are farther
    return sorted(found, key=lambda layout: layout["ranks_per_replica"])[:MOST_LAYOUTS]


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
    if layouts := found.get("nearest_layouts"):
        near = ", ".join(f"tp {x['tp']} pp {x['pp']} ({x['peak_gib']:.0f} GiB)" for x in layouts)
        print(f"nearest layouts that fit, by the closed forms: {near}")
    elif "nearest_layouts" in found:
        print("no layout of up to 8 x 128 ranks a replica fits")
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
