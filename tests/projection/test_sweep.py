"""A sweep's rows against recipes built one by one: which are valid, how long they take, how much memory they need."""

import numpy as np
import pytest

from repro.errors import InputError
from repro.projection import belief, peak, step, sweep, work
from repro.projection.memory import memory
from repro.recipe import load

RECIPES = ("175b", "1t", "22b", "lumi-175b", "tiny-3d")


def all_rows(recipe):
    """Every combination of a few sizes, valid or not, as the mask takes them."""
    axes = [(1, 2, 3, 4, 8), (1, 2, 3, 5, 16, 200), (1, 2, 6), (1, 2, 3), (4, 24, 96, 640), (0, 1)]
    found = np.meshgrid(*(np.array(a) for a in axes), indexing="ij")
    rows = dict(zip(("tp", "pp", "dp", "micro", "global_batch", "flash"), (f.ravel() for f in found), strict=True))
    return rows | {"recompute": np.ones_like(rows["tp"]), "devices": rows["tp"] * rows["pp"] * rows["dp"]}


@pytest.mark.parametrize("name", RECIPES)
def test_the_mask_allows_exactly_what_recipes_allow(name):
    recipe = load(name, {"parallel.stage_layers": None})
    rows = all_rows(recipe)
    allowed = sweep.valid(recipe, rows)
    assert allowed.any() and not allowed.all()
    draw = np.random.default_rng(0)
    chosen = [*draw.choice(np.flatnonzero(allowed), 25), *draw.choice(np.flatnonzero(~allowed), 25)]
    for row in chosen:
        try:
            load(recipe, sweep.overrides(rows, row))
            built = True
        except InputError:
            built = False
        assert built == allowed[row], sweep.overrides(rows, row)


@pytest.mark.parametrize("name", ["175b", "1t", "22b", "1.4b"])
def test_rows_are_those_of_recipes_one_by_one(name):
    recipe, machine = load(name), belief.calibrated("frontier")[0]
    columns = sweep.grid(recipe, devices=[64, 512], global_batch=[640, 1280], micro=[1, 2], recompute=["none", "full"],
                         attention=["flash", "unfused"])  # fmt: skip
    found = sweep.sweep(columns, machine, items=True)
    for row in np.random.default_rng(1).choice(len(found["seconds"]), 12):
        one = load(recipe, sweep.overrides(columns, row))
        alone = step.step(work.of_recipes([one]), machine)
        assert found["seconds"][row] == pytest.approx(alone.seconds.item(), rel=1e-12)
        for item, value in alone.items.items():
            assert found[item][row] == pytest.approx(value.item(), rel=1e-9, abs=1e-12)
        stages = {0, min(1, one.parallel.pp - 1), one.parallel.pp - 1}
        exact = max(memory(one, stage).peak_bytes for stage in stages)
        bound = peak.ERROR if exact > 2**30 else 0.03
        assert found["peak_gib"][row] * 2**30 == pytest.approx(exact, rel=bound)
        assert found["fits"][row] == (found["peak_gib"][row] <= 64)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 7}, "tp"),
        ({"devices": 1009}, "nearest valid: devices"),
        ({"tp": 0}, "from 1 to"),
        ({"tp": []}, "at least one"),
        ({"recompute": "some"}, "recompute"),
        ({"micro": [1.5]}, "whole numbers"),
    ],
)
def test_a_grid_of_nothing_says_why_in_one_line(given, said):
    with pytest.raises(InputError) as refusal:
        sweep.grid(load("175b"), **given)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)
