"""Rules about the layout over ranks and the shape of the model: what must divide what."""

from math import gcd

from repro.cluster.rule import ERROR, MEGATRON, OLCF, OURS, WARNING, rule
from repro.recipe_rules import nearest_divisor, nearest_multiples

CK_HEAD_DIM = 256
FEW = 4  # micro-batches a stage under which the bubble is large


@rule("world-size", 7, ERROR, MEGATRON, "ranks that belong to no stage, replica and shard: the start fails")
def world_size(facts):
    world, known = facts.world, facts.facts("tp", "pp")
    if world is None or known is None:
        return
    tp, pp = known
    dp = facts.planned.get("dp") if not facts.megatron else None
    if dp is not None and tp * pp * dp.value != world.value:
        ranks = tp * pp * dp.value
        per = facts.site.node.tasks
        fix = f"{ranks} tasks, that is {-(-ranks // per)} nodes" + ("" if ranks % per else f" of {per}")
        yield f"tp {tp} x pp {pp} x dp {dp.value} = {ranks}, not the {world.value} ranks started", fix, world.where
    elif world.value % (tp * pp):
        per = facts.site.node.tasks
        unit = tp * pp * per // gcd(tp * pp, per)
        fix = f"{nearest_multiples(world.value, unit, unit)} ranks"
        yield f"{world.value} ranks are no multiple of tp {tp} x pp {pp} = {tp * pp}", fix, world.where


@rule(
    "tensor-parallel-size",
    8,
    ERROR,
    f"{OLCF}, links between GCDs",
    "all-reduces of every layer would cross the network, or pair GCDs unevenly",
)
def tensor_parallel_size(facts):
    tp, tasks = facts.fact("tp"), facts.site.node.tasks
    if tp and tasks % tp.value:
        sizes = [d for d in range(1, tasks + 1) if tasks % d == 0]
        nearest = nearest_divisor(tp.value, tasks)
        yield f"tp {tp.value} on nodes of {tasks}", f"tp {nearest}, one of {', '.join(map(str, sizes))}", tp.where


@rule(
    "layers-over-stages", 14, ERROR, MEGATRON, "Megatron gives each stage the same number of layers, and refuses others"
)
def layers_over_stages(facts):
    layers, pp = facts.fact("layers"), facts.fact("pp")
    if facts.megatron and layers and pp and layers.value % pp.value:
        fix = f"pp {nearest_divisor(pp.value, layers.value)}, or {nearest_multiples(layers.value, pp.value)} layers"
        yield f"{layers.value} layers over {pp.value} stages", fix, layers.where


@rule("unequal-stages", None, WARNING, "DeepSpeed PR 4312", "the longest stage sets the pace of all")
def unequal_stages(facts):
    if facts.recipe is None or facts.megatron:
        return
    counts, pp = facts.recipe.stage_layers, facts.recipe.parallel.pp
    if len(set(counts)) > 1:
        shown = ", ".join(map(str, counts[:8])) + (", ..." if len(counts) > 8 else "")
        fix = f"pp {nearest_divisor(pp, facts.recipe.shape.layers)}"
        yield f"{facts.recipe.shape.layers} layers over {pp} stages: {shown}", fix, "recipe parallel.pp"


@rule("tensor-parallel-divides", 15, ERROR, MEGATRON, "each shard holds whole heads and equal slices of every matrix")
def tensor_parallel_divides(facts):
    tp, known = facts.fact("tp"), [(name, facts.fact(name)) for name in ("heads", "hidden", "ffn")]
    known = [(name, told) for name, told in known if told]
    bad = [(name, told) for name, told in known if tp and told.value % tp.value]
    if bad:
        nearest = nearest_divisor(tp.value, gcd(facts.site.node.tasks, *(told.value for _, told in known)))
        what = " and ".join(f"{name} {told.value}" for name, told in bad)
        yield f"{what} not divisible by tp {tp.value}", f"tp {nearest}", bad[0][1].where


@rule("heads-divide", None, ERROR, MEGATRON, "a head is a whole slice of the hidden size")
def heads_divide(facts):
    known = facts.facts("hidden", "heads")
    if known and known[0] % known[1]:
        fix = f"heads {nearest_divisor(known[1], known[0])}, or hidden {nearest_multiples(*known)}"
        yield f"hidden {known[0]} is not divisible by {known[1]} heads", fix, facts.fact("heads").where


def _head_dim(facts):
    known = facts.facts("hidden", "heads")
    return known[0] // known[1] if known and known[0] % known[1] == 0 else None


@rule("head-dim-flash", 16, WARNING, "ROCm/flash-attention, README", "the CK backend takes head dimensions up to 256")
def head_dim_flash(facts):
    size, triton = _head_dim(facts), facts.variable("FLASH_ATTENTION_TRITON_AMD_ENABLE")
    if not facts.megatron or facts.argument("use-flash-attn-triton") is not None:
        return
    if triton and triton.value.text.upper() in ("TRUE", "1"):
        return
    if size and size > CK_HEAD_DIM and facts.flash:
        fix = f"the Triton backend, or {-(-facts.fact('hidden').value // CK_HEAD_DIM)} heads at least"
        yield f"head dimension {size} with flash attention's CK backend", fix, facts.fact("heads").where


@rule(
    "head-dim-multiple",
    None,
    WARNING,
    "flash attention kernels",
    "kernels work in multiples of 8: others are padded, slow or refused",
)
def head_dim_multiple(facts):
    size = _head_dim(facts)
    if size and size % 8 and facts.flash:
        heads, hidden = facts.fact("heads"), facts.fact("hidden")
        fix = f"hidden {nearest_multiples(hidden.value, 8 * heads.value)} for {heads.value} heads"
        yield f"head dimension {size} with flash attention", fix, heads.where


@rule(
    "micro-batches-over-stages",
    None,
    ERROR,
    "torchtitan issue 775",
    "stages wait for micro-batches that never come, or idle",
)
def micro_batches_over_stages(facts):
    count, pp = facts.micro_batches, facts.fact("pp")
    if count is not None and pp and count < pp.value:
        unit = facts.fact("micro").value * facts.fact("dp").value
        fix = f"global batch {unit * pp.value} at least, or pp {count}"
        yield f"{count} micro-batches for {pp.value} stages", fix, facts.fact("batch").where


@rule(
    "bubble", None, WARNING, f"1F1B schedule; {OURS}: {FEW} a stage", "stages idle while the pipeline fills and drains"
)
def bubble(facts):
    count, pp = facts.micro_batches, facts.fact("pp")
    if count is not None and pp and 1 < pp.value <= count < FEW * pp.value:
        idle = (pp.value - 1) / (count + pp.value - 1)
        unit = facts.fact("micro").value * facts.fact("dp").value
        what = f"{count} micro-batches for {pp.value} stages: {idle:.0%} of a step is idle"
        yield what, f"global batch {unit * FEW * pp.value}", facts.fact("batch").where


RULES = (world_size, tensor_parallel_size, layers_over_stages, unequal_stages, tensor_parallel_divides, heads_divide,
         head_dim_flash, head_dim_multiple, micro_batches_over_stages, bubble)  # fmt: skip
