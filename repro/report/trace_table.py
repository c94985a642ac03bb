"""A trace for people: memory of each stage against a device, transfers, and which layouts would fit."""

from repro.projection.fitting import GIB, closed_form

__all__ = ["GIB", "closed_form", "fit", "show", "show_refusal"]


def fit(stage, device):
    """Whether a stage's peak of allocated memory stays below the device's, and by how much.

    Fragmentation, RCCL and library workspaces come on top of it and are not in it.
    """
    spare = device.memory_gib - stage.peak_bytes / GIB
    return {"fits": spare >= 0, "spare_gib": spare}


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
