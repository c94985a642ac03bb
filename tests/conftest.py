"""Small recipes and one way to run their ranks, for every test that needs real ranks."""

import shutil
import tempfile
from pathlib import Path

import pytest

from repro.recipe import build

SMALL = {
    "name": "small",
    "shape": {
        "layers": 2,
        "hidden": 32,
        "heads": 4,
        "ffn": 128,
        "seq": 16,
        "vocab": 250,  # padded: to 256, or 384 with tp 3
        "dropout": 0.0,
    },
    "batch": {"micro": 2, "global": 8},
    "precision": {"dtype": "fp32", "grad_accum": "fp32"},
    "zero": {"reduce_bucket": 50_000, "allgather_bucket": 50_000},
    "compute": {"recompute": "none"},
    "optimizer": {"name": "adamw", "lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 2, "decay_steps": 10, "init_std": 0.05},
    "steps": 10,
}


def merged(base, top):
    """Nested dictionaries, the second on top."""
    out = dict(base)
    for key, value in top.items():
        out[key] = merged(base[key], value) if isinstance(value, dict) and key in base else value
    return out


def pytest_terminal_summary(terminalreporter):
    """The fault matrix as a table: what each test of it noted under ``fault``."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    calls = [report for report in reports if getattr(report, "when", None) == "call"]
    rows = [value for report in calls for key, value in report.user_properties if key == "fault"]
    if rows:
        from fault_table import lines

        terminalreporter.section("fault matrix")
        for line in lines(rows):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def small():
    """Builds a variant of one small recipe: ``small(parallel={"tp": 2}, steps=3)``."""
    return lambda **changes: build(merged(SMALL, changes))


@pytest.fixture(scope="session")
def train_small():
    """Trains a recipe on real ranks and returns its run folder; equal recipes are trained once."""
    from repro.engine.launch import train_local
    from repro.progress import Silent

    root, done = Path(tempfile.mkdtemp(prefix="repro-tests-")), {}

    def train(recipe):
        key = recipe.to_toml()
        if key not in done:
            done[key] = train_local(
                recipe, root / f"run-{len(done)}", wandb="off", deadline_seconds=60, progress=Silent()
            ).folder
        return done[key]

    yield train
    shutil.rmtree(root, ignore_errors=True)
