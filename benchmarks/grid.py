"""Counts and memory of the projection against traces, over a grid of small recipes; exits 1 where they part.

FLOPs and transfers must be equal. Memory may differ by 1 %: a trace also counts scalars.
``tests/test_counts.py`` and ``tests/test_memory.py`` take a sample of the same recipes.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from repro.projection.counts import flops, transfers
from repro.projection.memory import memory
from repro.recipe import build

MOST_PERCENT = 1.0
PRECISIONS = (("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"))
QUANTITIES = ("flops", "transfers", "between_percent", "peak_percent", "pipeline_peak_percent")


def recipes(sample, seed):
    """``sample`` recipes drawn from every combination of what the projection tells apart."""
    drawn = random.Random(seed)
    return [_recipe(drawn, number) for number in range(sample)]


def _recipe(drawn, number):
    pick = drawn.choice
    tp, pp, dp, micro = pick((1, 2, 4, 8)), pick((1, 2, 3, 4)), pick((1, 2, 4)), pick((1, 2))
    dtype, accumulation = pick(PRECISIONS)
    m = pick((pp, pp + 1, 2 * pp + 3))
    alibi = pick((False, False, True))
    hidden, layers, bucket = pick((256, 384, 512)), pick((4, 5, 7)), pick((100_000, 500_000, 3_000_000, 20_000_000))
    uneven = pp > 1 and pick((False, False, True))
    parallel = {"tp": tp, "pp": pp, "dp": dp, "sequence_parallel": tp > 1 and pick((False, True))}
    if uneven:
        parallel["stage_layers"] = [layers - pp + 1, *[1] * (pp - 1)]
    return build(
        {
            "name": f"grid-{number}",
            "shape": {
                "layers": layers,
                "hidden": hidden,
                "heads": 8,
                "ffn": pick((3, 4)) * hidden,
                "seq": pick((128, 192)),
                "vocab": 1000,
                "tied": pick((False, True)),
                "positions": "alibi" if alibi else "learned",
                "embedding_norm": pick((False, alibi)),
                "dropout": pick((0.0, 0.1)),
            },
            "parallel": parallel,
            "batch": {"micro": micro, "global": micro * dp * m},
            "precision": {"dtype": dtype, "grad_accum": accumulation},
            "zero": {
                "stage": pick((0, 1)) if dtype == "fp32" else 1,
                "reduce_bucket": bucket,
                "allgather_bucket": bucket,
            },
            "compute": {
                "recompute": pick(("none", "full")),
                "attention": "unfused" if alibi else pick(("flash", "unfused")),
            },
            "optimizer": {"clip": pick((0.0, 1.0))},
        }
    )


def stages(recipe):
    """One stage of each kind: what differs is the place, the layers, and the micro-batches in flight."""
    pp, seen = recipe.parallel.pp, {}
    for stage in range(pp):
        kind = (stage == 0, stage == pp - 1, recipe.stage_layers[stage], min(pp - stage, recipe.accumulation))
        seen.setdefault(kind, stage)
    return tuple(seen.values())


def compare(recipe, stage):
    """What differs on one stage: ``{quantity: difference}``, of FLOPs and transfers the number of rows."""
    from repro.tracing.rank import trace_rank

    rank, m = recipe.layout.rank(stage, 0, 0), recipe.accumulation
    traced, projected = trace_rank(recipe, rank), memory(recipe, stage)
    counted = {
        (phase, kind): m * count for phase, kinds in flops(recipe, stage).items() for kind, count in kinds.items()
    }
    executed = {(phase, kind): count for phase, kinds in traced.flops.items() for kind, count in kinds.items()}
    seen = Counter((t.phase, t.kind, tuple(sorted(t.ranks)), t.bytes) for t in traced.transfers)
    expected = Counter()
    for t in transfers(recipe, stage):
        expected[t.phase, t.kind, members(recipe.layout, rank, t.group), t.bytes] += t.count
    return {
        "flops": len({k for k in counted.keys() | executed.keys() if counted.get(k, 0) != executed.get(k, 0)}),
        "transfers": len((seen - expected) + (expected - seen)),
        "between_percent": _percent(projected.between_bytes, sum(traced.persistent_bytes.values())),
        "peak_percent": _percent(projected.peak_bytes, traced.peak_bytes),
        "pipeline_peak_percent": _percent(projected.pipeline_peak_bytes, traced.pipeline_peak_bytes),
    }


def members(layout, rank, group):
    """Ranks of a named group, in order; of a message, the peer."""
    from repro.tracing.groups import model_group

    c = layout.coordinate(rank)
    if group in ("next", "previous"):
        return (layout.rank(c.stage + (1 if group == "next" else -1), c.replica, c.shard),)
    named = {
        "tensor": layout.tensor_group,
        "data": layout.data_group,
        "pipeline": layout.pipeline_group,
        "tied": layout.tied_group,
        "model": lambda rank: model_group(layout, rank),
    }
    return tuple(sorted(named[group](rank)))


def _percent(value, reference):
    return 100 * (value / reference - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=200, help="recipes (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a row per stage is added here; rows that are there are not redone")
    options = parser.parse_args()
    done = {}
    if options.out and options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
        done = {(r["seed"], r["recipe"], r["stage"]): r for r in rows}
    found, started = [], time.monotonic()
    for number, recipe in enumerate(recipes(options.sample, options.seed), 1):
        for stage in stages(recipe):
            key = (options.seed, recipe.name, stage)
            if key not in done:
                done[key] = {"seed": options.seed, "recipe": recipe.name, "stage": stage, **compare(recipe, stage)}
                if options.out:
                    with options.out.open("a") as file:
                        file.write(json.dumps(done[key]) + "\n")
            found.append(done[key])
        print(f"\r{number} of {options.sample} recipes, {time.monotonic() - started:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(f"{options.sample} recipes, {len(found)} stages")
    for quantity in QUANTITIES:
        worst = max(found, key=lambda row: abs(row[quantity]))
        print(f"  {quantity:<22} worst {worst[quantity]:.5g}, {worst['recipe']} stage {worst['stage']}")
    wrong = any(r["flops"] or r["transfers"] or any(abs(r[q]) > MOST_PERCENT for q in QUANTITIES[2:]) for r in found)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
