"""What is wrong with the numbers of a log: each check yields what it finds, and nothing where it cannot tell."""

import math
from dataclasses import dataclass
from statistics import median

from repro import flops
from repro.records.megatron_log import PLAUSIBLE, positive

CLOSE = 0.02  # a printed number that differs more from what follows from others does not follow from them
COLD, SLOW = 1.1, 1.05  # times the median: a first iteration, and one with an evaluation inside


@dataclass(frozen=True)
class Finding:
    """One fault; an error makes a number of the log wrong, a warning doubtful."""

    kind: str
    severity: str
    text: str


def findings(log, setup, peak_tflops):
    """Every :class:`Finding`, errors first.

    Args:
        peak_tflops: of one device, in TFLOP/s.
    """
    found = [finding for check in CHECKS for finding in check(log, setup, peak_tflops)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "error"))


def samples(setup, counted):
    """Samples really processed in a step that counts ``counted``.

    Each step Megatron sets DeepSpeed's batch; DeepSpeed divides by its own micro-batch to get the number of
    micro-batches, while the data loader goes on handing out Megatron's.
    """
    s = setup
    if not (s.micro and s.engine_micro and s.dp) or s.micro == s.engine_micro:
        return counted
    return counted // (s.engine_micro * s.dp) * s.micro * s.dp


def factor(setup):
    """Passes of the formula that a step executes: 4 with full recompute, else 3; selective counts as 3."""
    return 4 if setup.recompute == "full" else 3


def step_flops(setup, count, passes):
    """FLOPs of a step of ``count`` samples by eq. 3 of arXiv 2104.04473; None where the shape is not known."""
    s = setup
    if None in (s.layers, s.hidden, s.ffn, s.seq):
        return None
    # Megatron's formula lets the output layer grow with the passes: three times at 4 of them
    return passes * (_layers(s, count) + flops.forward_head(s, s.vocab or 0, count) * 3 / 4)


def _layers(setup, count):
    return flops.forward_layers(setup, count)


def model_flops(setup, count):
    """As :func:`step_flops`, without recompute, and the output layer three times."""
    return None if step_flops(setup, count, 3) is None else step_flops(setup, count, 4) - _layers(setup, count)


def counted(log, setup, iteration):
    return iteration.global_batch or setup.batch


def timed(log):
    """Iterations fit for a mean: not the cold first, none with an evaluation or a checkpoint inside."""
    usable = [i for i in log.iterations if positive(i.milliseconds)]
    out = {id(i) for i in (*_cold(log), *_held_up(log))}
    return [i for i in usable if id(i) not in out]


def _cold(log):
    usable = [i for i in log.iterations if positive(i.milliseconds)]
    if len(usable) < 3:
        return []
    rest = median(i.milliseconds for i in usable[1:])
    return usable[:1] if usable[0].milliseconds > COLD * rest else []


def _held_up(log):
    usable = [i for i in log.iterations if positive(i.milliseconds)]
    quiet = [i.milliseconds for i in usable[1:] if not i.before]
    if not quiet:
        return []
    return [i for i in usable[1:] if i.before and i.milliseconds > SLOW * median(quiet)]


def micro_batch(log, s, _):
    if s.micro and s.engine_micro and s.micro != s.engine_micro:
        text = f"Megatron's micro-batch is {s.micro}, DeepSpeed's {s.engine_micro}"
        batch = next((count for i in log.iterations if (count := counted(log, s, i))), None)
        if batch and s.dp:
            real = samples(s, batch)
            text += f": of {batch} samples counted in a step {real} are processed"
            text += f", so that printed rates are {batch / real:g} times the real ones" if real else ""
        yield Finding("micro-batch", "error", text)


def peak(log, _, peak_tflops):
    printed = [(i.tflops, i.number) for i in log.iterations if positive(i.tflops)]
    if not printed:
        return
    most, number = max(printed)
    where = f"{most:g} TFLOP/s, iteration {number}, of a peak of {peak_tflops:g}"
    if most > peak_tflops:
        yield Finding("above peak", "error", f"printed {where}: impossible")
    elif most > PLAUSIBLE * peak_tflops:
        yield Finding("implausible", "warning", f"printed {where}: {most / peak_tflops:.0%}, above {PLAUSIBLE:.0%}")


def formula(log, s, _):
    """Whether printed TFLOP/s follow from the printed time; old versions count full recompute by granularity as 3."""
    passes = {"none": (3,), "selective": (3, 4), "full": (4, 3)}[s.recompute]
    worst = None
    for i in log.iterations:
        count = counted(log, s, i)
        if not (positive(i.tflops) and positive(i.milliseconds) and count and s.world):
            continue
        work = [step_flops(s, count, c) for c in passes]
        if None in work:
            return
        follows = [w / (i.milliseconds / 1e3 * s.world * 1e12) for w in work]
        off, near = min((abs(i.tflops / value - 1), value) for value in follows)
        if off > CLOSE and (worst is None or off > worst[0]):
            worst = off, near, i
    if worst:
        off, near, i = worst
        yield Finding("formula", "error", f"iteration {i.number} prints {i.tflops:g} TFLOP/s; from its time, batch and "
                      f"shape follow {near:.4g}, {off:.0%} apart")  # fmt: skip


def skipped(log, *_):
    told = [i for i in log.iterations if i.skipped is not None]
    bad = [i for i in told if i.skipped]
    if bad and len(bad) == len(told):
        yield Finding(
            "skipped", "error", f"every one of {len(told)} iterations skipped its update: no weight was changed"
        )
    elif bad:
        yield Finding("skipped", "warning", f"{len(bad)} of {len(told)} iterations skipped an update, the first is "
                      f"{bad[0].number}")  # fmt: skip


def evaluation(log, *_):
    for i in _held_up(log):
        yield Finding("evaluation" if i.before == "evaluation" else "checkpoint", "warning",
                      f"iteration {i.number} includes the {i.before} before it: {i.milliseconds / 1e3:.4g} s; "
                      "left out of the mean")  # fmt: skip


def cold(log, *_):
    for i in _cold(log):
        rest = median(o.milliseconds for o in log.iterations if positive(o.milliseconds) and o is not i)
        yield Finding("cold", "warning", f"the first iteration takes {i.milliseconds / rest - 1:.0%} longer than the "
                      "median of the others; left out of the mean")  # fmt: skip


def precision(_, s, __):
    if s.precision and s.engine_precision and s.precision != s.engine_precision:
        yield Finding("precision", "error", f"asked for {s.precision}, DeepSpeed runs {s.engine_precision}")


def clipping(_, s, __):
    if s.clip is not None and s.engine_clip is not None and s.clip != s.engine_clip:
        yield Finding(
            "clipping", "error", f"asked to clip gradients at {s.clip:g}, DeepSpeed clips at {s.engine_clip:g}"
        )


def zero(_, s, __):
    if s.zero is not None and s.engine_zero is not None and s.zero != s.engine_zero:
        yield Finding("zero", "error", f"asked for ZeRO stage {s.zero}, DeepSpeed runs stage {s.engine_zero}")


def batch(log, s, _):
    """The batch identity, in what was asked, in the JSON, and in what the log counts."""
    found = []
    if s.world and s.tp and s.pp and s.dp and s.tp * s.pp * s.dp != s.world:
        found.append(f"tp {s.tp} x pp {s.pp} x dp {s.dp} = {s.tp * s.pp * s.dp}, not the world of {s.world}")
    if s.batch and s.micro and s.dp and s.batch % (s.micro * s.dp):
        found.append(f"global batch {s.batch} is no multiple of micro-batch {s.micro} x dp {s.dp}")
    if s.batch and s.engine_batch and s.batch != s.engine_batch:
        found.append(f"global batch {s.batch}, in the DeepSpeed JSON {s.engine_batch}")
    parts = (s.engine_micro, s.engine_accumulation, s.dp)
    if s.engine_batch and None not in parts and math.prod(parts) != s.engine_batch:
        found.append(f"DeepSpeed JSON: {' x '.join(map(str, parts))} is not its batch of {s.engine_batch}")
    found += list(_counting(log))[:1]
    if found:
        yield Finding("batch", "error", "; ".join(found))


def _counting(log):
    before = None
    for i in log.iterations:
        rate, seconds = positive(i.samples_per_second), positive(i.milliseconds)
        if rate and seconds and i.global_batch and abs(rate * seconds / 1e3 / i.global_batch - 1) > CLOSE:
            yield f"iteration {i.number}: {rate:g} samples/s x {seconds / 1e3:.4g} s is no batch of {i.global_batch}"
        if before and None not in (i.consumed_samples, before.consumed_samples, i.global_batch):
            steps, more = i.number - before.number, i.consumed_samples - before.consumed_samples
            if steps > 0 and i.global_batch == before.global_batch and more != steps * i.global_batch:
                yield f"iteration {i.number}: {more} samples more than iteration {before.number}, with a batch of " \
                      f"{i.global_batch}"  # fmt: skip
        before = i


def loss(log, *_):
    bad = [i.number for i in log.iterations if i.nan_iterations or (i.loss is not None and not math.isfinite(i.loss))]
    if bad:
        yield Finding("loss", "error", f"the loss is no number in {len(bad)} iterations, the first is {bad[0]}")


def times(log, *_):
    bad = [i.number for i in log.iterations if not positive(i.milliseconds)]
    if bad:
        yield Finding("time", "error", f"the time of {len(bad)} iterations is no number above 0, the first is {bad[0]}")


def configuration(_, s, __):
    if s.json_differs:
        yield Finding("configuration", "warning", "the DeepSpeed JSON is not what ran: " + "; ".join(s.json_differs))


CHECKS = (micro_batch, peak, formula, skipped, evaluation, cold, precision, clipping, zero, batch, loss, times,
          configuration)  # fmt: skip
