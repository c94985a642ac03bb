"""The 1F1B timeline: of projected stage times in the event simulation, and of real ranks' timestamps beside it."""

import json
from statistics import median, quantiles

from repro.errors import InputError
from repro.exhibits import points
from repro.records.table import Row, Table
from repro.report.grid import Grid

EXHIBIT = "timeline"
STAGES, MICRO_BATCHES = 4, 8
TINY_STAGES, TINY_STEPS = 2, 8
PASSES = ("forward", "backward")
SENDS = ("send activation", "send gradient")


def central(machine):
    """A machine with the constants in the middle of what is believed."""
    from repro.projection import belief as beliefs

    machine, belief = beliefs.calibrated(machine)
    return belief.central(machine)


def stage_times(recipe, machine):
    """``(forward, backward, p2p, filling, waiting)`` projected at a machine's own constants, see :func:`central`.

    Seconds of a micro-batch on each stage and of a message; then what filling and draining, and waiting for slower
    stages, take of a step, in percent. A backward takes 2 forwards, and one more where it recomputes.
    """
    from repro.projection import step
    from repro.projection import work as works

    work = works.of_recipes([recipe])
    bare = step.step(work, machine, without=("messages between stages",))
    whole = step.step(work, machine)
    pp, parts = recipe.parallel.pp, 4 if recipe.compute.recompute == "full" else 3
    kinds = [_kind(recipe, work, stage) for stage in range(pp)]
    seconds = [float(bare.stage_seconds[0, 0, kind]) for kind in kinds]
    # the first stage has one neighbour, hence two transfers a micro-batch
    p2p = float((whole.stage_seconds - bare.stage_seconds)[0, 0, 0]) / 2 if pp > 1 else 0.0
    share = {name: 100 * float(value[0, 0] / whole.seconds[0, 0]) for name, value in whole.items.items()}
    forward = [one / parts for one in seconds]
    backward = [one - part for one, part in zip(seconds, forward, strict=True)]
    return forward, backward, p2p, share["filling and draining"], share["stage imbalance"]


def _kind(recipe, work, stage):
    """Which kind of stage of a :class:`repro.projection.work.Work` it is: first, last, else by its layers."""
    if stage in (0, recipe.parallel.pp - 1):
        return min(stage, 1)
    layers = [n if count else None for n, count in zip(work.layers[0], work.multiplicity[0], strict=True)]
    return 2 + layers[2:].index(recipe.stage_layers[stage])


def table(name, machine, scale, folder, seed=1234):
    """A step's passes and messages on every stage, by their times.

    At scale ``paper`` those of the recipe ``name`` on few stages of a machine, simulated. At scale ``tiny`` real ranks
    run here and leave their timestamps; the simulation beside them is fed with the medians of the same run.
    """
    from repro.recipe import load

    if scale == "tiny":
        changes = {"parallel.pp": TINY_STAGES, "parallel.dp": 1, "seed": seed}
        recipe = load("tiny", changes | {"batch.global": 2 * MICRO_BATCHES, "batch.micro": 2})
        steps = _train(recipe, folder / "timeline")
        rows, times, run = _measured(steps), _medians(steps), (folder / "timeline").name
        source = f"simulated from the medians of run {run}"
        return rows + _simulated(recipe, *times, source)
    from repro.projection.belief import calibrated

    changes = {"parallel.pp": STAGES, "parallel.dp": 1, "parallel.stage_layers": []}
    recipe = load(name, {**changes, "batch.global": MICRO_BATCHES * load(name).batch.micro})
    forward, backward, p2p, *_ = stage_times(recipe, central(machine))
    found, belief = calibrated(machine)
    source = f"simulated, {recipe.name} on {points.source_of(found, belief.points)}{points.too_large(recipe, found)}"
    return _simulated(recipe, forward, backward, p2p, source)


def _train(recipe, folder):
    from repro.engine.launch import train_local
    from repro.progress import Silent

    train_local(recipe, folder, steps=TINY_STEPS, wandb="off", progress=Silent(), threads=1, timeline=True)
    return read(folder)


def read(folder):
    """``{step: rows}`` of all ranks of the first replica and shard of a run, warm-up left out.

    Raises:
        InputError: the run recorded no timeline.
    """
    from repro.engine.timeline import FOLDER
    from repro.records.run_folder import RunFolder

    recipe, steps = RunFolder.open(folder).recipe(), {}
    for stage in range(recipe.parallel.pp):
        path = folder / FOLDER / f"rank-{recipe.layout.rank(stage, 0, 0)}.jsonl"
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise InputError(f"run folder {folder} has no timeline of stage {stage}: {error}") from None
        for line in lines:
            if line["step"] >= recipe.timing_warmup:
                steps.setdefault(line["step"], []).append(line)
    return steps


def _pipeline(rows):
    """Start and end of a step's passes: what the simulation covers, without reduction and optimizer."""
    passes = [row for row in rows if row["kind"] in PASSES]
    return min(row["start"] for row in passes), max(row["end"] for row in passes)


def _length(rows):
    start, end = _pipeline(rows)
    return end - start


def _measured(steps):
    """The step of median length."""
    number, rows = sorted(steps.items(), key=lambda pair: _length(pair[1]))[len(steps) // 2]
    start, end = _pipeline(rows)
    source = f"timestamps of the ranks, step {number}"
    kept = [row for row in rows if row["start"] >= start - 1e-9 and row["end"] <= end + 1e-9]
    return Table(
        _row(
            row["stage"], row["kind"], row["micro_batch"], row["start"] - start, row["end"] - start, "measured", source
        )
        for row in sorted(kept, key=lambda row: (row["stage"], row["start"]))
    )


def _medians(steps):
    """``(forward, backward, p2p)`` of a run: medians on each stage, and a send's lowest tenth, which did not wait."""
    rows = [row for one in steps.values() for row in one]
    stages = range(1 + max(row["stage"] for row in rows))
    passes = [
        [median(r["end"] - r["start"] for r in rows if (r["stage"], r["kind"]) == (stage, kind)) for stage in stages]
        for kind in PASSES
    ]
    return (*passes, quantiles([r["end"] - r["start"] for r in rows if r["kind"] in SENDS], n=10)[0])


def _simulated(recipe, forward, backward, p2p, source):
    from repro.projection.simulate import simulate

    played = simulate(forward, backward, recipe.accumulation, p2p)
    rows = []
    for stage, events in enumerate(played.stages):
        for kind, micro_batch, _, start, end in events:
            # on both sides of a transfer; the receiver's side is named as the engine names it
            rows.append(_row(stage, kind, micro_batch, start, end, "projected", source))
    return Table(rows)


def _row(stage, kind, micro_batch, start, end, provenance, source):
    start, seconds = (float(f"{value:.6g}") for value in (start, end - start))
    metric = f"{kind}, micro-batch {micro_batch}"
    return Row(EXHIBIT, f"stage {stage}", start, metric, seconds, "s", None, None, provenance, source)


def numbers(found):
    """Length of the pipeline's part of a step, and how much of it each stage computes."""
    grid = []
    for provenance in dict.fromkeys(row.provenance for row in found):
        rows = found.select(provenance=provenance)
        total = max(row.x + row.value for row in rows)
        for stage in dict.fromkeys(row.series for row in rows):
            busy = sum(row.value for row in rows.select(series=stage) if row.metric.partition(",")[0] in PASSES)
            grid.append(
                (provenance, stage, f"{total:.4g}", f"{100 * busy / total:.0f}", f"{100 - 100 * busy / total:.0f}")
            )
    columns = ("provenance", "stage", "first to last pass (s)", "computes (%)", "waits or sends (%)")
    return Grid(columns, tuple(grid))


def figure(found, scale, machine, into="figures"):
    """The timelines, one above the other, saved as ``04_timeline``; at scale ``tiny`` as ``04_timeline_tiny``."""
    from repro.report import schedule_figure

    note = "Not modelled: jitter" + (", waiting for a core." if scale == "tiny" else ".")
    note = note if scale == "tiny" else f"Held out: {points.held_out(machine)}. {note}"
    return schedule_figure.timelines(found, "04_timeline" + ("_tiny" if scale == "tiny" else ""), note, into)
