"""Projections a second in a sweep on one core, and one from a cold shell. Exit code 3 where a target is missed.

python benchmarks/projection.py [--json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TARGET_RATE = 20_000  # complete projections a second on one core
TARGET_SECONDS = 1.5  # one projection from a cold shell
REPEATS = 5
COLD = "import sys; from repro.cli import main\ntry: main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"


def sweep_rate():
    """``(layouts, projections a second in the sweep, the same one recipe at a time)``, in one process."""
    from repro.projection import belief, step, sweep, work
    from repro.recipe import load

    recipe = load("175b")
    machine, learned = belief.calibrated("frontier")
    machine = learned.central(machine)
    grid = {"devices": [128, 256, 512, 1024], "global_batch": [640, 1280, 2560, 5120, 8000], "micro": [1, 2, 4]}
    columns = sweep.grid(recipe, **grid, recompute=["none", "full"], attention=["unfused", "flash"])
    count = len(columns["tp"])
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        sweep.sweep(columns, machine, items=True)
        rates.append(count / (time.perf_counter() - start))
    recipes = [load(recipe, sweep.overrides(columns, row)) for row in range(0, count, count // 20)]
    start = time.perf_counter()
    for one in recipes:
        step.step(work.of_recipes([one]), machine)
    return count, statistics.median(rates), len(recipes) / (time.perf_counter() - start)


def cold_seconds():
    """``(median seconds, whether torch was loaded)`` of ``repro project 1t --machine frontier --json``."""
    call = [sys.executable, "-c", COLD, "project", "1t", "--machine", "frontier", "--json"]
    times, torch = [], False
    for _ in range(REPEATS):
        start = time.perf_counter()
        done = subprocess.run(call, capture_output=True, text=True, check=True, timeout=60)
        times.append(time.perf_counter() - start)
        json.loads(done.stdout)
        torch = torch or done.stderr.strip() == "True"
    return statistics.median(times), torch


def one_core():
    """The sweep is measured on one core; libraries read this when numpy loads, which is later."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    one_core()
    count, rate, single = sweep_rate()
    cold, torch = cold_seconds()
    found = {
        "layouts": count,
        "projections_per_second": rate,
        "one_at_a_time_per_second": single,
        "sweep_over_one_at_a_time": rate / single,
        "cold_seconds": cold,
        "torch_loaded": torch,
    }
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"sweep of {count:,} layouts: {rate:,.0f} projections a second on one core, with items, memory and fit")
        print(f"  {rate / single:,.0f} times as many as one at a time ({single:,.0f}; time alone, without memory)")
        print(f"one projection of 1t from a cold shell: {cold:.2f} s, torch {'LOADED' if torch else 'not loaded'}")
    missed = rate < TARGET_RATE or cold > TARGET_SECONDS or torch
    if missed:
        print(f"missed: {TARGET_RATE:,} a second, {TARGET_SECONDS} s, no torch", file=sys.stderr)
    sys.exit(3 if missed else 0)


if __name__ == "__main__":
    main()
