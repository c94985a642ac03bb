"""Time and memory of traces of the trillion-parameter run, each from a fresh process as a user starts it."""

import json
import resource
import subprocess
import sys
import time

ALONE = ("--set", "parallel.tp=1", "--set", "parallel.pp=1")
CASES = (
    ("1t, stage 0, every micro-batch in flight", ["trace", "1t", "--stage", "0", "--json"], 10, 600),
    ("1t, all 64 stages", ["trace", "1t", "--all-stages", "--json"], 60, None),
    ("175b at tp 1 pp 1, which cannot fit", ["trace", "175b", *ALONE, "--json"], 10, None),
)


def measure(arguments):
    """Wall seconds, peak resident MB and the JSON answer of one command."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "repro", *arguments], capture_output=True, text=True, timeout=600)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"repro {' '.join(arguments)} failed: {done.stderr}")
    # of the largest child so far: the cases are ordered by memory, smallest first, or the bound is not checked
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, json.loads(done.stdout)


def main():
    missed = False
    for title, arguments, most_seconds, most_mb in CASES:
        seconds, megabytes, answer = measure(arguments)
        stage = max(answer["stages"], key=lambda s: s["peak_bytes"]) if "stages" in answer else answer
        missed |= seconds > most_seconds or (most_mb is not None and megabytes > most_mb)
        verdict = "fits" if stage["fits"] else f"{-stage['spare_gib']:,.0f} GiB too much"
        print(
            f"{title}: {seconds:.1f} s (at most {most_seconds}), {megabytes:.0f} MB; fullest stage {stage['stage']}: "
            f"{stage['peak_bytes'] / 2**30:,.2f} GiB {answer['provenance']}, {verdict}"
        )
        if layouts := answer.get("nearest_layouts"):
            print("  nearest layouts that fit: " + ", ".join(f"tp {x['tp']} pp {x['pp']}" for x in layouts))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
