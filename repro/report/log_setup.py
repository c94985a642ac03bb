"""What a run was asked for and what its engine ran with, out of a log, a DeepSpeed JSON and a script."""

from dataclasses import dataclass

from repro.records import deepspeed_json


@dataclass(frozen=True)
class Setup:
    """Asked by Megatron's arguments, in force by DeepSpeed's; None where no source tells.

    Attributes:
        recompute: "full" (``--checkpoint-activations`` too), "selective" or "none".
        engine_micro, engine_batch, engine_accumulation, engine_precision, engine_clip, engine_zero: of DeepSpeed.
        json_differs: where the JSON says otherwise than the log's engine: it is not what ran.
    """

    layers: int | None
    hidden: int | None
    ffn: int | None
    seq: int | None
    vocab: int | None
    world: int | None
    tp: int | None
    pp: int | None
    dp: int | None
    micro: int | None
    batch: int | None
    recompute: str
    precision: str | None
    clip: float | None
    zero: int | None
    engine_micro: int | None
    engine_batch: int | None
    engine_accumulation: int | None
    engine_precision: str | None
    engine_clip: float | None
    engine_zero: int | None
    json_differs: tuple = ()


def setup(log, config=None, options=None):
    """The :class:`Setup` of a log, its DeepSpeed JSON and the options of its script.

    Raises:
        InputError: a value of the JSON has a wrong type.
    """
    asked = _Asked(log.arguments, options or {})
    told, wanted = _engine(log), {} if config is None else deepspeed_json.settings(config)
    differs = tuple(
        f"{name}: {wanted[name]} in the JSON, {told[name]} in the log"
        for name in sorted(wanted)
        if told.get(name) is not None and wanted[name] is not None and told[name] != wanted[name]
    )
    force = {**wanted, **{name: value for name, value in told.items() if value is not None}}
    hidden, tp, pp = asked.whole("hidden_size"), asked.whole("tensor_model_parallel_size"), asked.whole(
        "pipeline_model_parallel_size"
    )  # fmt: skip
    world, dp = asked.whole("world_size"), asked.whole("data_parallel_size")
    if options and not log.arguments:
        tp, pp = tp or 1, pp or 1  # Megatron's defaults
    if world and tp and pp and dp is None:
        dp = world // (tp * pp) or None
    if world is None and tp and pp and dp:
        world = tp * pp * dp
    return Setup(
        layers=asked.whole("num_layers"),
        hidden=hidden,
        ffn=asked.whole("ffn_hidden_size") or (4 * hidden if hidden else None),
        seq=asked.whole("seq_length"),
        vocab=asked.whole("padded_vocab_size"),
        world=world,
        tp=tp,
        pp=pp,
        dp=dp,
        micro=asked.whole("micro_batch_size"),
        batch=asked.whole("global_batch_size"),
        recompute=_recompute(asked),
        precision=asked.precision(),
        clip=asked.real("clip_grad"),
        zero=None if (stage := asked.real("zero_stage")) is None else int(stage),
        engine_micro=force.get("micro"),
        engine_batch=force.get("batch"),
        engine_accumulation=force.get("accumulation"),
        engine_precision=force.get("precision"),
        engine_clip=force.get("clip"),
        engine_zero=force.get("zero"),
        json_differs=differs,
    )


@dataclass(frozen=True)
class _Asked:
    """Megatron's arguments: as the log dumps them, else as the script gives them."""

    arguments: dict
    options: dict

    def text(self, name):
        if name in self.arguments:
            return self.arguments[name]
        found = self.options.get(name.replace("_", "-"))
        return str(found) if found is not None else None

    def whole(self, name):
        number = self.real(name)
        return int(number) if number is not None and number == int(number) and number > 0 else None

    def real(self, name):
        try:
            number = float(self.text(name) or "")
        except ValueError:
            return None
        return number if 0 <= number < 1e15 else None

    def on(self, name):
        return self.text(name) == "True"

    def precision(self):
        if self.text("fp16") is None and self.text("bf16") is None and not self.arguments:
            return "fp32" if self.options else None
        known = self.text("fp16") is not None or self.text("bf16") is not None
        if not known:
            return None
        return "bf16" if self.on("bf16") else "fp16" if self.on("fp16") else "fp32"


def _recompute(asked):
    granularity = asked.text("recompute_granularity")
    if granularity in ("full", "selective"):
        return granularity
    return "full" if asked.on("checkpoint_activations") else "none"


def _engine(log):
    """What DeepSpeed printed of itself."""
    e = _Asked(log.engine, {})
    zero = e.real("zero_optimization_stage")
    half = {name: log.engine.get(name) for name in ("fp16_enabled", "bfloat16_enabled")}
    precision = None
    if any(value in ("True", "true") for value in half.values()):
        precision = "fp16" if half["fp16_enabled"] in ("True", "true") else "bf16"
    elif None not in half.values():
        precision = "fp32"
    return {
        "micro": log.micro_batch or e.whole("train_micro_batch_size_per_gpu"),
        "clip": e.real("gradient_clipping"),
        "zero": None if zero is None else int(zero),
        "precision": precision,
    }
