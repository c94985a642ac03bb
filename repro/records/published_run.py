"""One published run: what was printed, and the run it was printed of. Reading the files: published_runs. No torch."""

import re
from dataclasses import dataclass, field, fields, replace

from repro import flops
from repro.errors import InputError
from repro.layout import split_layers
from repro.recipe import build

EFFICIENCIES = ("strong_efficiency", "weak_efficiency")
PERCENT_OF_PEAK = r"% of (\d+(?:\.\d+)?) TFLOP/s"  # the unit of that metric, with the peak of one GPU


@dataclass(frozen=True)
class PublishedRun:
    """One published number of one run, in its likely reading; a GPU is one GCD on MI250X.

    ``choice`` names the cells in which this reading differs from the likely one. ``inferred`` holds pairs of a
    column and how its value was inferred. ``base_gpus`` is None but for an efficiency, ``printed_tflops``
    (TFLOP/s per GPU) where the source printed none beside its seconds.
    """

    id: str
    exhibit: str
    machine: str
    date: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    seq: int
    vocab: int
    positions: str
    embedding_norm: str
    tied: str
    tp: int
    pp: int
    dp: int
    gpus: int
    mbs: int
    gbs: int
    interleave: int
    partition: str
    recompute: str
    attention: str
    precision: str
    grad_accum: str
    zero: int
    launch_blocking: str
    metric: str
    value: float
    unit: str
    formula: str
    printed_tflops: float | None
    base_gpus: int | None
    source: str
    confidence: str
    inferred: tuple
    group: str
    note: str
    choice: str = ""
    others: tuple = field(default=(), repr=False, compare=False)

    def readings(self):
        """Every run that the row may mean, the likely one first."""
        yield self
        yield from self.others

    @property
    def micro_batches(self):
        """Micro-batches per step on each replica (``m``)."""
        return self.gbs // (self.mbs * self.dp)

    @property
    def stage_layers(self):
        """Transformer layers on each stage, as DeepSpeed's partitioner of 2022 and 2023 divided them.

        It makes the fullest stage as small as it can and fills stages from the first on, so that the last one
        takes what is left: 70 layers on 8 stages are seven times 9 and 7.
        """
        ends = self.partition == "embedding-counts"  # embedding and head then fill a layer's place each
        places = self.layers + 2 * ends
        each = -(-places // self.pp)
        counts = [each] * (self.pp - 1) + [places - each * (self.pp - 1)]
        counts[0] -= ends
        counts[-1] -= ends
        return tuple(counts)

    @property
    def peak_tflops(self):
        """Peak in TFLOP/s per GPU that a percentage of peak refers to, as its unit says; else None."""
        found = re.fullmatch(PERCENT_OF_PEAK, self.unit)
        return float(found[1]) if found else None

    @property
    def step_flops(self):
        """FLOPs of one step by the row's formula; without one, eq. 3 with the factor of its recompute.

        ``eq3`` is c x 24 B s l h^2 (1 + s/(6h) + V/(16 l h)), ``layers`` c x 24 B s l h^2, with c = 4 where
        layers run forward twice, else 3, and 24 h^2 as 8 h^2 + 4 h x ffn.
        """
        name, factor = (self.formula or f"eq3 x{4 if self.recompute == 'full' else 3}").split(" x")
        blocks = flops.forward_layers(self, self.gbs)
        if name == "layers":
            return int(factor) * (blocks - 4 * self.gbs * self.layers * self.seq**2 * self.hidden)
        return int(factor) * (blocks + flops.forward_head(self, self.vocab, self.gbs) * 3 / 4)

    def tflops(self, seconds):
        """TFLOP/s per GPU that the source would have printed for a step of so many seconds."""
        return self.step_flops / (self.gpus * seconds * 1e12)

    @property
    def seconds(self):
        """Seconds per step that the published value means in this reading; None for an efficiency."""
        if self.metric in EFFICIENCIES:
            return None
        if self.metric == "seconds":
            return self.value
        rate = self.value if self.metric == "tflops" else self.value / 100 * self.peak_tflops
        return self.tflops(1) / rate

    def base(self):
        """The run whose rate per GPU counts as 100 % of a scaling efficiency.

        Raises:
            InputError: the row is no efficiency.
        """
        if self.metric not in EFFICIENCIES:
            raise InputError(f"published run {self.id} is of metric {self.metric}: only an efficiency has a base")
        dp = self.dp * self.base_gpus // self.gpus
        gbs = self.gbs if self.metric == "strong_efficiency" else self.gbs // self.dp * dp
        return replace(self, gpus=self.base_gpus, dp=dp, gbs=gbs, value=100.0, others=())

    def recipe(self):
        """The run as a :class:`repro.recipe.Recipe`, but for what :meth:`not_in_recipe` names.

        The recipe's vocabulary is the padded one, so that padding changes nothing. Dropout, buckets and
        optimizer are the recipe's defaults: the sources rarely tell them.

        Raises:
            InputError: a rule of recipes refuses the run; its data stay usable.
        """
        balanced = split_layers(self.layers, self.pp)
        accum = "fp16" if self.precision == "fp16" else self.grad_accum
        shape = {
            name: getattr(self, name) for name in ("layers", "hidden", "heads", "ffn", "seq", "vocab", "positions")
        }
        source = {
            "fields": ["shape.*", "parallel.*", "batch.*", "precision.*", "zero.*", "compute.*"],
            "source": "; ".join((self.source, *(f"{column} {how}" for column, how in self.inferred))),
            "confidence": "unconfirmed" if self.confidence == "doubtful" else self.confidence,
        }
        try:
            return build(
                {
                    "name": self.id,
                    "title": f"{self.exhibit}, {self.id}" + (f" ({self.choice})" if self.choice else ""),
                    "shape": {**shape, "tied": self.tied == "yes", "embedding_norm": self.embedding_norm == "yes"},
                    "parallel": {
                        "tp": self.tp,
                        "pp": self.pp,
                        "dp": self.dp,
                        "stage_layers": None if self.stage_layers == balanced else self.stage_layers,
                    },
                    "batch": {"micro": self.mbs, "global": self.gbs},
                    "precision": {"dtype": self.precision, "grad_accum": accum},
                    "zero": {"stage": max(self.zero, 1)},
                    "compute": {"recompute": self.recompute, "attention": self.attention},
                    "sources": [source],
                }
            )
        except InputError as error:
            raise InputError(f"published run {self.id} is no recipe: {error}") from None

    def not_in_recipe(self):
        """What :meth:`recipe` leaves out or says otherwise, one line each; a projection has to know."""
        m, v = self.micro_batches, self.interleave
        found = []
        if v > 1:
            bubble = f"(pp - 1) / (v m) = {(self.pp - 1) / (v * m):.3f} of the work, not {(self.pp - 1) / m:.3f}"
            found.append(f"interleave {v}: recipes have one block of layers per stage; the bubble is {bubble}")
        if self.zero == 0:
            found.append(
                f"zero 0: recipes of {self.precision} have stage 1; here every replica updates all its weights"
            )
        if self.precision == "fp16" != self.grad_accum:
            found.append(f"grad_accum {self.grad_accum}: recipes of fp16 add gradients up in fp16")
        if self.launch_blocking == "yes":
            found.append("launch_blocking: each kernel was launched after the one before had ended (0 to 6 % slower)")
        if m < self.pp:
            found.append(f"{m} micro-batches for {self.pp} stages: refused by recipes")
        return tuple(found)


COLUMNS = tuple(f.name for f in fields(PublishedRun) if f.name not in ("choice", "others"))
