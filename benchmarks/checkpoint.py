"""What a checkpoint costs, in steps: extra wall time of the cycle that holds one, over the time of a plain step.

    python benchmarks/checkpoint.py

One run writes a checkpoint every ``EVERY`` steps. The steps in the second half of a cycle are plain: the write is long
done. What the first half took beyond as many plain steps is the cost of the checkpoint. Written beside training and
between steps, by turns, so that what else this machine does meets both.
"""

import argparse
import json
import statistics
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from repro.engine.keeper import Keeping
from repro.engine.launch import train_local
from repro.progress import Silent
from repro.records import checkpoints

EVERY, CYCLES = 20, 4
SHAPE = {"shape.layers": 4, "shape.hidden": 256, "shape.ffn": 1024, "shape.heads": 8, "batch.global": 8}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="repro-checkpoint-") as root:
        for turn in range(chosen.rounds):
            for background, costs in found.items():
                folder = Path(root) / f"{turn}-{background}"
                costs += cost(folder, background)
        size = sum(length for length, _ in checkpoints.complete(folder)[-1].files.values())
    answer = {
        ("beside training" if background else "between steps"): {
            "steps_per_checkpoint": round(statistics.median(costs), 2),
            "fastest": round(min(costs), 2),
            "slowest": round(max(costs), 2),
            "checkpoints": len(costs),
        }
        for background, costs in found.items()
    }
    answer["bytes_of_a_checkpoint"] = size
    if chosen.json:
        return print(json.dumps(answer))
    print(f"a checkpoint of {size / 1e6:.1f} MB on this machine, in plain steps (median, fastest to slowest):")
    for name in ("beside training", "between steps"):
        one = answer[name]
        print(
            f"  {name:16} {one['steps_per_checkpoint']:.2f} ({one['fastest']:.2f} to {one['slowest']:.2f}, "
            f"{one['checkpoints']} checkpoints): every {EVERY} steps {one['steps_per_checkpoint'] / EVERY:.1%}"
        )
    return None


def cost(folder, background):
    """Cost of each checkpoint of one run but the first, in plain steps."""
    steps = EVERY * (CYCLES + 1)
    summary = train_local(
        "tiny-3d",
        folder,
        overrides={**SHAPE, "steps": steps},
        wandb="off",
        progress=Silent(),
        keeping=Keeping(EVERY, keep=1, background=background),
    )
    stamps = [datetime.fromisoformat(row["time"]).timestamp() for row in summary.rows]
    walls = [after - before for before, after in pairwise(stamps)]  # of steps 1, 2, ...
    costs = []
    for first in range(EVERY, steps - EVERY + 1, EVERY):  # a checkpoint is taken before step ``first``
        cycle = walls[first - 1 : first - 1 + EVERY]
        if len(cycle) == EVERY:
            half = EVERY // 2
            plain = statistics.median(cycle[half:])
            costs.append(sum(cycle[:half]) / plain - half)
    return costs


if __name__ == "__main__":
    sys.exit(main())
