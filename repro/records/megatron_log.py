"""Reading a Megatron-DeepSpeed log. What it holds is not trusted.

The log is read line by line, each line only as far as :data:`LINE_BYTES`; nothing of it is kept but numbers. Lines
are taken apart by splitting, not by patterns that a hostile line could make slow.
"""

import math
from dataclasses import dataclass, field

from repro.errors import InputError
from repro.records.small_file import regular

LOG_BYTES = 2**30
LINE_BYTES = 2**16
MOST_ITERATIONS = 200_000
MOST_SETTINGS = 10_000
PLAUSIBLE = 0.55  # of the peak; the best matrix products on a GCD reach 0.77, the best published trainings 0.4

# field of a training_log line -> attribute, type
FIELDS = {
    "elapsed time per iteration (ms)": ("milliseconds", float),
    "consumed samples": ("consumed_samples", int),
    "global batch size": ("global_batch", int),
    "lm loss": ("loss", float),
    "loss scale": ("loss_scale", float),
    "grad norm": ("grad_norm", float),
    "number of skipped iterations": ("skipped", int),
    "number of nan iterations": ("nan_iterations", int),
    "samples per second": ("samples_per_second", float),
    "tflops": ("tflops", float),
}


@dataclass(frozen=True)
class Iteration:
    """One line of the log; None for what is not in it or cannot be read.

    Attributes:
        before: whether an evaluation or a checkpoint stands between this line and the one before: its name, or "".
    """

    number: int
    milliseconds: float | None = None
    consumed_samples: int | None = None
    global_batch: int | None = None
    loss: float | None = None
    loss_scale: float | None = None
    grad_norm: float | None = None
    skipped: int | None = None
    nan_iterations: int | None = None
    samples_per_second: float | None = None
    tflops: float | None = None
    before: str = ""


@dataclass(frozen=True)
class Log:
    """What a log says.

    Attributes:
        arguments: Megatron's dump, ``{name: text}``.
        engine: DeepSpeed's dump of its own configuration, ``{name: text}``.
        micro_batch: that DeepSpeed's pipeline engine prints it runs with (``CONFIG: ... micro_batch_size=``).
        cut: lines of iterations that end early; long: lines beyond the length that is read.
    """

    arguments: dict
    engine: dict
    micro_batch: int | None
    iterations: tuple
    cut: int
    long: int


@dataclass
class _Reader:
    arguments: dict = field(default_factory=dict)
    engine: dict = field(default_factory=dict)
    micro_batch: int | None = None
    iterations: list = field(default_factory=list)
    cut: int = 0
    long: int = 0
    between: str = ""

    def line(self, text):
        if " ...." in text or "\t...." in text:
            self.setting(text)
        elif "validation loss at" in text:
            self.between = "evaluation"
        elif "iteration" in text and "|" in text:
            self.iteration(text)
        elif "padded vocab" in text and "new size:" in text:
            self.setting(f"padded_vocab_size .... {text.partition('new size:')[2].strip().rstrip(')')}")
        elif "world size:" in text and "data-parallel-size:" in text:
            self.world(text)
        elif "CONFIG:" in text and "micro_batch_size=" in text:
            value = _whole(text.partition("micro_batch_size=")[2].split(" ", 1)[0])
            self.micro_batch = value if value else self.micro_batch
        elif "successfully saved checkpoint" in text:
            self.between = self.between or "checkpoint"

    def setting(self, text):
        """``  hidden_size ........ 12288``, DeepSpeed's with ``[config.py:964:print]`` before it."""
        of_engine = "[config.py" in text
        name, _, value = text.partition(" ....")
        name = name.split()[-1] if name.split() else ""
        where = self.engine if of_engine else self.arguments
        if name.isidentifier() and len(where) < MOST_SETTINGS:
            # both print once; what a later copy says (other ranks, a restart in the same file) is the newer truth
            where[name] = value.lstrip(".").strip()[:200]

    def world(self, text):
        """``using world size: 128, data-parallel-size: 2, tensor-model-parallel size: 4, ...``"""
        for part in text.split(","):
            name, colon, value = part.rpartition(":")
            words = name.replace("-", " ").split()
            if colon and words[-1:] == ["size"] and len(words) < 12:
                name = "_".join(words[-2:] if "world" in words else words)
                self.arguments.setdefault(name, value.strip())

    def iteration(self, text):
        head, *parts = text.split("|")
        words = head.replace("/", " / ").split()
        place = len(words) - 1 - words[::-1].index("iteration") if "iteration" in words else None
        number = _whole(words[place + 1]) if place is not None and place + 1 < len(words) else None
        if number is None:
            return
        found = {}
        for part in parts:
            name, colon, value = part.rpartition(":")
            if colon and name.strip().lower() in FIELDS:
                key, kind = FIELDS[name.strip().lower()]
                found[key] = _whole(value) if kind is int else _real(value)
        if "milliseconds" not in found:
            self.cut += bool(parts)
            return
        if len(self.iterations) == MOST_ITERATIONS:
            raise InputError(f"more than {MOST_ITERATIONS:,} iterations in the log; give a part of it, e.g. by head")
        self.iterations.append(Iteration(number, before=self.between, **found))
        self.between = ""


def read_log(path):
    """The :class:`Log` in a file.

    Raises:
        InputError: no such file, too large, or no line of an iteration in it.
    """
    path = regular(path, LOG_BYTES, "log", "keep its lines with 'iteration', '....', 'CONFIG' and 'validation'")
    reader = _Reader()
    with path.open("rb") as file:
        while raw := file.readline(LINE_BYTES):
            if not raw.endswith(b"\n") and len(raw) == LINE_BYTES:
                reader.long += 1
                while (rest := file.readline(LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                continue
            reader.line(raw.decode("utf-8", errors="replace"))
    if not reader.iterations:
        cut = f", and {reader.cut} that are cut short" if reader.cut else ""
        raise InputError(
            f"{path} is no Megatron-DeepSpeed log: it has no line "
            f"'iteration N/ M | ... | elapsed time per iteration (ms): ...'{cut}"
        )
    return Log(reader.arguments, reader.engine, reader.micro_batch, tuple(reader.iterations), reader.cut, reader.long)


def _whole(text):
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def _real(text):
    text = text.strip()
    try:
        return float(text) if len(text) <= 40 else None
    except ValueError:
        return None


def positive(value):
    """The number if it is one above 0, else None."""
    return value if value is not None and math.isfinite(value) and value > 0 else None
