"""``repro scorecard --log``: a Megatron-DeepSpeed log examined, its rates corrected."""

from dataclasses import asdict, dataclass

from repro import devices
from repro.errors import InputError
from repro.records import deepspeed_json, launch_script, megatron_log
from repro.records.megatron_log import positive
from repro.report import log_check, log_setup

SHOWN = 20  # iterations in a terminal


@dataclass(frozen=True)
class Examined:
    """A log and what is wrong with it.

    Attributes:
        findings: :class:`repro.report.log_check.Finding`, errors first.
        iterations: ``{iteration, seconds, printed, corrected, in_mean}``, TFLOP/s per device.
        printed_tflops, corrected_tflops, model_tflops, seconds: means over iterations fit for one; None where unknown.
            ``corrected`` counts the FLOPs executed on samples processed, ``model`` those without recompute.
        counted_samples, processed_samples: of a step.
        notes: what was left out or could not be known.
    """

    log: str
    device: str
    peak_tflops: float
    findings: tuple
    iterations: tuple
    seconds: float | None
    printed_tflops: float | None
    corrected_tflops: float | None
    corrected_share_of_peak: float | None
    model_tflops: float | None
    counted_samples: int | None
    processed_samples: int | None
    notes: tuple

    def to_dict(self):
        return asdict(self)


def examine(log, deepspeed=None, script=None, device="mi250x-gcd"):
    """The :class:`Examined` of files.

    Raises:
        InputError: a file that cannot be read or is not what it should be; an unknown device.
    """
    known = devices.get(device)
    config = None if deepspeed is None else deepspeed_json.read(deepspeed)
    options = None if script is None else launch_script.read_script(script)
    read = megatron_log.read_log(log)
    setup = log_setup.setup(read, config, options)
    peak = known.peak("bf16" if setup.precision == "bf16" else "fp16")
    if peak is None:
        raise InputError(f"{known.name} has no 16-bit peak in devices.toml")
    mean = log_check.timed(read)
    chosen = {id(i) for i in mean}
    rows = tuple(_row(read, setup, i, id(i) in chosen) for i in read.iterations)
    batch = next((c for i in mean if (c := log_check.counted(read, setup, i))), None)
    real = log_check.samples(setup, batch) if batch else None
    corrected = _mean(rows, "corrected")
    work = log_check.model_flops(setup, real) if real else None
    seconds = sum(i.milliseconds for i in mean) / 1e3 / len(mean) if mean else None
    return Examined(
        log=str(log),
        device=known.name,
        peak_tflops=peak,
        findings=log_check.findings(read, setup, peak),
        iterations=rows,
        seconds=seconds,
        printed_tflops=_mean(rows, "printed"),
        corrected_tflops=corrected,
        corrected_share_of_peak=corrected / peak if corrected else None,
        model_tflops=work / (seconds * setup.world * 1e12) if work and setup.world and seconds else None,
        counted_samples=batch,
        processed_samples=real,
        notes=tuple(_notes(read, setup)),
    )


def _row(log, setup, iteration, in_mean):
    seconds = positive(iteration.milliseconds)
    seconds = seconds / 1e3 if seconds else None
    count, corrected = log_check.counted(log, setup, iteration), None
    if seconds and count:
        real = log_check.samples(setup, count)
        work = log_check.step_flops(setup, real, log_check.factor(setup))
        if work is not None and setup.world:
            corrected = work / (seconds * setup.world * 1e12)
        elif positive(iteration.tflops):
            corrected = iteration.tflops * real / count  # the shape is not known: trust the formula, not the batch
    return {
        "iteration": iteration.number,
        "seconds": seconds,
        "printed": positive(iteration.tflops),
        "corrected": corrected,
        "in_mean": in_mean,
    }


def _mean(rows, column):
    """Over time, not over iterations: total work by total seconds."""
    chosen = [row for row in rows if row["in_mean"] and row[column] is not None]
    total = sum(row["seconds"] for row in chosen)
    return sum(row[column] * row["seconds"] for row in chosen) / total if total else None


def _notes(log, s):
    if log.cut:
        yield f"{log.cut} lines of iterations are cut short and left out"
    if log.long:
        yield f"{log.long} lines are longer than {megatron_log.LINE_BYTES} bytes and left out"
    missing = [name for name in ("layers", "hidden", "seq", "world", "dp", "micro") if getattr(s, name) is None]
    if missing:
        yield f"not told by log or script: {', '.join(missing)}; what needs them is not checked"
    elif s.vocab is None:
        yield "the padded vocabulary is not told: FLOPs of the output layer are left out"
    if s.engine_micro is None:
        yield "DeepSpeed's micro-batch is not told; give its JSON with --deepspeed"


def show(found):
    """Print an :class:`Examined`."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"TFLOP/s of one {found.device}")
    for name in ("iteration", "seconds", "printed", "corrected", "in the mean"):
        table.add_column(name, justify="right")
    for row in found.iterations[:SHOWN]:
        cells = (_number(row[name]) for name in ("seconds", "printed", "corrected"))
        table.add_row(str(row["iteration"]), *cells, "yes" if row["in_mean"] else "no")
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)
    if len(found.iterations) > SHOWN:
        print(f"and {len(found.iterations) - SHOWN:,} iterations more")
    for finding in found.findings:
        print(f"{finding.severity}: {finding.kind}: {finding.text}")
    if not found.findings:
        print("nothing found wrong")
    for note in found.notes:
        print(f"note: {note}")
    print(f"printed     {_number(found.printed_tflops)} TFLOP/s on each device")
    share = f", {found.corrected_share_of_peak:.1%} of {found.peak_tflops:g}" if found.corrected_share_of_peak else ""
    print(f"corrected   {_number(found.corrected_tflops)} TFLOP/s{share}, recompute counted as work")
    if found.model_tflops:
        print(f"model FLOPs {_number(found.model_tflops)} TFLOP/s, without recompute")


def _number(value):
    return "" if value is None else f"{value:.2f}"
