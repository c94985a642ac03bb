"""Rules about settings that are given twice: the script's, the DeepSpeed JSON's and the recipe's must agree."""

from repro.cluster.rule import DEEPSPEED, ERROR, MEGATRON, WARNING, rule
from repro.recipe_rules import nearest_multiples
from repro.records.megatron_log import PLAUSIBLE

COMPARED = ("tp", "pp", "dp", "micro", "batch", "layers", "hidden", "heads", "ffn", "seq", "precision", "clip", "zero")


def _names(facts):
    return "the script" if facts.megatron else "the recipe"


@rule(
    "micro-batch",
    9,
    ERROR,
    f"{MEGATRON}; authors' 175B log",
    "the engine drops samples that the log counts: printed rates are multiples of the real ones",
)
def micro_batch(facts):
    asked, forced = facts.fact("micro"), facts.forced_micro
    if asked and forced and asked.value != forced.value:
        times = forced.value / asked.value
        effect = f": printed rates are {times:g} times the real ones" if times > 1 and facts.megatron else ""
        what = f"micro-batch {asked.value} in {_names(facts)}, {forced.value} in the DeepSpeed JSON{effect}"
        yield what, f'"train_micro_batch_size_per_gpu": {asked.value}', f"{asked.where}, {forced.where}"


@rule(
    "train-batch-size",
    10,
    ERROR,
    f"{DEEPSPEED}; issue 1306",
    "two batch sizes: steps, rates and learning-rate schedule follow different ones",
)
def train_batch_size(facts):
    asked, forced = facts.fact("batch"), facts.forced("batch")
    if asked and forced and asked.value != forced.value:
        what = f"global batch {asked.value} in {_names(facts)}, {forced.value} in the DeepSpeed JSON"
        yield what, f'"train_batch_size": {asked.value}', f"{asked.where}, {forced.where}"


@rule(
    "batch-divides",
    11,
    ERROR,
    f"{MEGATRON}; starcoder issues 41, 77",
    "each replica must get the same whole number of micro-batches",
)
def batch_divides(facts):
    known = facts.facts("batch", "micro", "dp")
    if known and known[0] % (known[1] * known[2]):
        batch, micro, dp = known
        what = f"global batch {batch} is no multiple of micro-batch {micro} x dp {dp} = {micro * dp}"
        yield what, f"global batch {nearest_multiples(batch, micro * dp, micro * dp)}", facts.fact("batch").where


@rule(
    "accumulation", None, ERROR, DEEPSPEED, "DeepSpeed asserts that its batch is micro-batch x accumulation x replicas"
)
def accumulation(facts):
    batch, steps = facts.forced("batch") or facts.fact("batch"), facts.forced("accumulation")
    micro, dp = facts.forced("micro") or facts.fact("micro"), facts.fact("dp")
    if batch and steps and micro and dp and batch.value != micro.value * steps.value * dp.value:
        right, left = divmod(batch.value, micro.value * dp.value)
        what = (
            f"micro-batch {micro.value} x accumulation {steps.value} x dp {dp.value} is not the batch of {batch.value}"
        )
        unit = micro.value * dp.value
        fix = (
            f'"gradient_accumulation_steps": {right}'
            if not left
            else f"batch {nearest_multiples(batch.value, unit, unit)}"
        )
        yield what, fix, steps.where


@rule("zero-stage", 12, ERROR, MEGATRON, "the engine follows its JSON, memory and messages are not those asked for")
def zero_stage(facts):
    asked, forced = facts.fact("zero"), facts.forced("zero")
    if asked and forced and asked.value != forced.value:
        what = f"ZeRO stage {asked.value} in {_names(facts)}, {forced.value} in the DeepSpeed JSON"
        yield what, f'"zero_optimization": {{"stage": {asked.value}}}', f"{asked.where}, {forced.where}"


@rule("zero-pipeline", None, ERROR, DEEPSPEED, "DeepSpeed's pipeline engine refuses ZeRO stages 2 and 3")
def zero_pipeline(facts):
    zero, pp = facts.forced("zero") or facts.fact("zero"), facts.fact("pp")
    if zero and pp and zero.value >= 2 and pp.value > 1 and facts.argument("no-pipeline-parallel") is None:
        yield f"ZeRO stage {zero.value} with {pp.value} pipeline stages", "ZeRO stage 1", zero.where


@rule(
    "precision",
    None,
    ERROR,
    "authors' launch_gpt1T_bf16.slurm",
    "the engine runs in its JSON's precision, whatever the script is called",
)
def precision(facts):
    asked, forced = facts.fact("precision"), facts.forced("precision")
    if asked and forced and asked.value != forced.value:
        what = f"{asked.value} in {_names(facts)}, {forced.value} in the DeepSpeed JSON"
        other = {"bf16": "fp16", "fp16": "bf16"}.get(asked.value)
        fix = f'"{asked.value}": {{"enabled": true}}' if other else 'neither "fp16" nor "bf16" in the JSON'
        yield what, fix, f"{asked.where}, {forced.where}"


@rule("two-precisions", None, ERROR, MEGATRON, "Megatron takes one of them")
def two_precisions(facts):
    told = facts.argument("fp16")
    if told is not None and facts.argument("bf16") is not None:
        yield "--fp16 and --bf16", "--bf16, which OLCF advises on MI250X, or --fp16 as in the paper", told.where


@rule(
    "clipping",
    None,
    ERROR,
    f"{DEEPSPEED}; authors' 175B log",
    "without the key the engine clips at 0.0, that is not at all",
)
def clipping(facts):
    asked, forced = facts.fact("clip"), facts.forced("clip")
    if asked and forced and asked.value != forced.value:
        default = " by Megatron's default" if facts.megatron and facts.argument("clip-grad") is None else ""
        who = f"{_names(facts)}{default}"
        what = f"gradients clipped at {asked.value:g} in {who}, at {forced.value:g} in the DeepSpeed JSON"
        yield what, f'"gradient_clipping": {asked.value:g}', f"{asked.where}, {forced.where}"


@rule(
    "deepspeed-flag",
    None,
    WARNING,
    MEGATRON,
    "without --deepspeed Megatron runs its own engine: JSON and ZeRO stage have no effect",
)
def deepspeed_flag(facts):
    if not facts.megatron or facts.argument("deepspeed") is not None:
        return
    for name in ("deepspeed-config", "zero-stage"):
        if (told := facts.argument(name)) is not None:
            yield f"--{name} without --deepspeed", "--deepspeed", told.where
            return


@rule("recipe-differs", None, ERROR, "the recipe given", "the script does not run what the recipe describes")
def recipe_differs(facts):
    if not facts.megatron:
        return
    for name in COMPARED:
        asked, planned = facts.asked.get(name), facts.planned.get(name)
        if asked and planned and asked.value != planned.value:
            field = planned.where.removeprefix("recipe ")
            yield (
                f"{name} {asked.value} in the script, {planned.value} in the recipe",
                f"one of them: {field}",
                asked.where,
            )


@rule(
    "logged-rate",
    13,
    WARNING,
    "judged: 0.55 of the peak; the best trainings published reach 0.4",
    "no training on this device comes near; look for a batch that is counted but not processed",
)
def logged_rate(facts):
    if facts.log and facts.peak and PLAUSIBLE * facts.peak < facts.log.value <= facts.peak:
        share = facts.log.value / facts.peak
        fix = "repro scorecard --log FILE says what is wrong with it"
        yield f"{facts.log.value:g} TFLOP/s logged, {share:.0%} of the peak of {facts.peak:g}", fix, facts.log.where


@rule(
    "logged-above-peak", 13, ERROR, "the device's peak", "a device cannot exceed its peak: the rate is counted wrongly"
)
def logged_above_peak(facts):
    if facts.log and facts.peak and facts.log.value > facts.peak:
        fix = "repro scorecard --log FILE says what is wrong with it"
        yield f"{facts.log.value:g} TFLOP/s logged, above the peak of {facts.peak:g}", fix, facts.log.where


RULES = (micro_batch, train_batch_size, batch_divides, accumulation, zero_stage, zero_pipeline, precision,
         two_precisions, clipping, deepspeed_flag, recipe_differs, logged_rate, logged_above_peak)  # fmt: skip
