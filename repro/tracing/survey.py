"""What the notebook on memory needs from traces, as rows of the tidy table."""

from repro import flops
from repro.records.table import Row, Table
from repro.tracing import real
from repro.tracing.several import Job, trace_several

GIB = 2**30
LUMI_REPLICAS = (2, 4)  # the runs of lumi-175b whose memory is known
METRIC = "hardware FLOPs of a micro-batch"
QUANTITIES = ("parameters", "FLOPs", "transfers", "bytes transferred", "live after the step", "peak")


def survey(models, lumi=True):
    """Every trace of the notebook, several at a time.

    Args:
        models: recipes, smallest first.
        lumi: also the run on LUMI whose memory is known, at dp 2 and 4.

    Returns:
        The table of exhibits ``stages`` (each stage of each model), ``timeline`` (first stage of the middle
        model), ``flops`` (whole models) and ``lumi``.
    """
    middle = models[len(models) // 2]
    jobs = [("lumi", f"dp {dp}", _job("lumi-175b", {"parallel.dp": dp}, all_stages=True)) for dp in LUMI_REPLICAS]
    jobs = jobs if lumi else []  # first, as they take longest
    jobs += [("stages", model.name, _job(model, all_stages=True)) for model in models]
    jobs.append(("timeline", middle.name, _job(middle, stage=0)))
    for model in models:
        changes = _other_attention(model)
        jobs += [
            ("flops", model.name, _job(model, changes, stage=s, micro_batches=1)) for s in _roles(model) if changes
        ]
    rows, whole = [], {}
    for (exhibit, series, job), stages in zip(jobs, trace_several([job for _, _, job in jobs]), strict=True):
        if exhibit == "timeline":
            rows += _timeline(series, stages[0])
        elif exhibit != "flops":
            rows += _stages(exhibit, series, stages)
        if exhibit in ("flops", "stages"):
            m = job.options.get("micro_batches", job.recipe.accumulation)
            whole.setdefault((series, job.recipe), {}).update(
                {_role(job.recipe, stage.stage): (stage.rank, stage.hardware_flops // m) for stage in stages}
            )
    for (series, recipe), per_role in whole.items():
        rows += _flops(series, recipe, per_role)
    return Table(rows)


def _job(recipe, changes=None, **options):
    from repro.recipe import load

    return Job(load(recipe, changes), options)


def _other_attention(recipe):
    """The change to the kernel that a recipe does not use; ``None`` where it cannot: flash takes no ALiBi bias."""
    if recipe.compute.attention == "flash":
        return {"compute.attention": "unfused"}
    return {"compute.attention": "flash"} if recipe.shape.positions != "alibi" else None


def _roles(recipe):
    """One stage of each kind: stages of equal layers between first and last do the same."""
    stages, pp = {}, recipe.parallel.pp
    for stage in range(pp):
        stages.setdefault(_role(recipe, stage), stage)
    return list(stages.values())


def _role(recipe, stage):
    return stage == 0, stage == recipe.parallel.pp - 1, recipe.stage_layers[stage]


def _stages(exhibit, series, stages):
    for stage in stages:
        note = ", peak continued from 3 and 4 micro-batches in flight" if stage.continued else ""
        source = f"fake rank {stage.rank}{note}"
        sizes = {
            **stage.peak_by_label,
            "peak": stage.peak_bytes,
            "live after the step": sum(stage.persistent_bytes.values()),
        }
        for metric, size in sizes.items():
            yield _row(exhibit, series, stage.stage, metric, size / GIB, "GiB", "traced", source)


def _timeline(series, stage):
    for number, (instruction, live, peak) in enumerate(stage.timeline):
        for metric, size in (("live", live), ("peak within", peak)):
            source = f"fake rank {stage.rank}, {instruction}"
            yield _row("timeline", series, number, metric, size / GIB, "GiB", "traced", source)
    count = stage.traced_micro_batches
    yield _row("timeline", series, 0, "micro-batches", count, "1", "traced", f"fake rank {stage.rank}")


def _flops(series, recipe, per_role):
    """FLOPs of one micro-batch of a replica: a traced rank of each role times their number, and the formula."""
    traced = sum(per_role[_role(recipe, stage)][1] for stage in range(recipe.parallel.pp)) * recipe.parallel.tp
    formula = flops.hardware_flops(recipe, recipe.batch.micro)
    source = "fake ranks " + ", ".join(str(rank) for rank, _ in per_role.values())
    for value, provenance, where in (
        (traced, "traced", source),
        (formula, "projected", "Narayanan et al. 2021, eq. 3"),
    ):
        yield _row("flops", series, recipe.compute.attention, METRIC, value, "FLOP", provenance, where)


def compare(recipe):
    """Each rank of a small recipe, measured on this machine and traced: the table of exhibit ``agreement``."""
    from repro.recipe import load

    recipe = load(recipe)
    measured = real.measure(recipe)
    traced = trace_several([Job(recipe, {"rank": rank}) for rank in range(recipe.world_size)])
    rows = []
    for rank, (one, [other]) in enumerate(zip(measured, traced, strict=True)):
        for provenance, values in (("measured", _of_real(one)), ("traced", _of_fake(other))):
            source = f"{'real' if provenance == 'measured' else 'fake'} rank {rank} of {recipe.name}"
            for metric, value in zip(QUANTITIES, values, strict=True):
                unit = {"FLOPs": "FLOP", "parameters": "1", "transfers": "1"}.get(metric, "byte")
                rows.append(_row("agreement", f"rank {rank}", rank, metric, value, unit, provenance, source))
    return Table(rows)


def _of_real(found):
    flops_of_step = sum(sum(kinds.values()) for kinds in found["flops"].values())
    sent = [transfer["bytes"] for transfer in found["transfers"]]
    live = sum(found["persistent_bytes"].values())
    return found["parameters"], flops_of_step, len(sent), sum(sent), live, found["peak_bytes"]


def _of_fake(found):
    count = sum(transfer["count"] for transfer in found.transfers)
    size = sum(transfer["count"] * transfer["bytes"] for transfer in found.transfers)
    live = sum(found.persistent_bytes.values())
    return found.parameters, found.hardware_flops, count, size, live, found.peak_bytes


def _row(exhibit, series, x, metric, value, unit, provenance, source):
    return Row(exhibit, series, x, metric, value, unit, None, None, provenance, source)
