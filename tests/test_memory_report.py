"""The notebook on models and memory: its numbers, its figures, several traces at once, its record."""

import json
import multiprocessing
import re
from dataclasses import replace

import pytest

from repro import devices, reproduce
from repro.errors import InputError, RunFailed
from repro.notebook import Run, completion
from repro.projection.memory import memory
from repro.recipe import load
from repro.records.table import read
from repro.report import figures, layout_figure, memory_figures, memory_numbers, memory_tables, models
from repro.tracing import survey
from repro.tracing.several import Job, trace_several
from repro.tracing.trace import trace

GCD = devices.get("mi250x-gcd")
GIB = 2**30


@pytest.fixture(scope="module")
def small_models():
    return [load("tiny-3d", {"name": "a"}), load("tiny-3d", {"name": "b", "compute.attention": "unfused"})]


@pytest.fixture(scope="module")
def surveyed(small_models):
    return survey.survey(small_models, lumi=False)


def cells(grid):
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


# Models


def test_models_come_smallest_first_and_bad_lists_are_refused():
    assert [r.name for r in models.chosen(["1t", "22b"])] == ["22b", "1t"]
    for recipes in ([], ["22b", "22b"]):
        with pytest.raises(InputError, match="at least one, none of them twice"):
            models.chosen(recipes)
    with pytest.raises(InputError, match="unknown recipe"):
        models.chosen(["23b"])


@pytest.mark.parametrize("name", ["1t", "lumi-175b", "tiny"])
def test_small_relatives_say_so(name):
    whole, small = load(name), models.reduced(load(name))
    assert small.name == f"{name} reduced"
    assert small.stage_layers == (1,) * min(whole.parallel.pp, 4)
    assert small.shape.hidden == whole.shape.hidden
    assert small.accumulation == 8


def test_the_authors_totals_follow_from_the_closed_form():
    total, unique, true = cells(models.authors_log())
    assert (total["published"], total["difference"]) == ("175,429,877,760", "+100,663,296")
    assert (unique["published"], unique["difference"]) == ("174,706,360,320", "+0")
    assert true["projected (closed form)"] == "174,609,555,456"


def test_replicated_parameters_are_why_unique_is_above_the_true_count():
    recipe = load("175b-log")
    h, tp = recipe.shape.hidden, recipe.parallel.tp
    once_per_shard = recipe.shape.layers * 6 * h + 2 * h + recipe.shape.seq * h  # norms, row biases, positions
    assert cells(models.authors_log())[2]["difference"] == f"{(tp - 1) * once_per_shard:+,}"


def test_a_model_without_a_middle_stage_has_no_count_of_it():
    found = {
        row["parameters (projected: closed form)"]: row for row in cells(models.counts(models.chosen(["22b", "tiny"])))
    }
    assert found["a rank of the middle stage"]["tiny"] == "-"
    assert found["each parameter once"]["22b"] == "22,068,768,768"


def test_sums_of_bytes_per_parameter_add_up():
    for size, parts, _, _ in models.READINGS:
        if " + " in parts:
            assert size == sum(int(part.rsplit(" ", 1)[1]) for part in parts.split(" + "))


def test_quoted_memory_is_bytes_times_the_nominal_size_and_says_what_is_not_confirmed():
    found = cells(models.printed())
    assert [row["confidence"] for row in found] == ["unconfirmed", "unconfirmed", "secondary", "confirmed"]
    assert {row["bytes x nominal size"] for row in found} == {"+0.0%"}


# Memory without running anything


def test_lumi_stands_in_gib_with_its_source():
    table = memory_tables.lumi()
    [row] = table.select(series="dp 2", x=0, metric="peak", provenance="published")
    assert row.value == pytest.approx(48803.4 / 1024)
    assert "LUMI" in row.source.upper()
    assert row.source.endswith("; confirmed")
    for row in table.select(metric="peak", provenance="projected"):
        [published] = table.select(series=row.series, x=row.x, metric="peak", provenance="published")
        assert row.value == pytest.approx(published.value, rel=0.01)


def test_what_was_reserved_is_a_column_of_its_own():
    grid = memory_numbers.lumi(memory_tables.lumi())
    reserved = [float(row["reserved less peak, published"]) for row in cells(grid)]
    assert len(reserved) == 16
    assert 9 < min(reserved) < max(reserved) < memory_tables.TIGHT_GIB + 0.1


def test_the_fullest_stage_of_a_layout_is_found_among_three():
    for tp, pp, micro in ((1, 4, 1), (2, 2, 4), (4, 4, 1)):
        recipe = load("tiny", {"parallel.tp": tp, "parallel.pp": pp, "batch.micro": micro, "batch.global": 64})
        metric, size = memory_tables._least_or_peak(recipe, GCD)
        assert metric == "peak"
        assert size == max(memory(recipe, stage).peak_bytes for stage in range(pp))


@pytest.mark.parametrize(("dtype", "zero"), [("fp32", 0), ("fp32", 1), ("bf16", 1), ("fp16", 1)])
@pytest.mark.parametrize("dp", [1, 4])
def test_states_alone_are_a_lower_bound(dtype, zero, dp):
    changes = {"parallel.tp": 2, "parallel.pp": 2, "parallel.dp": dp, "zero.stage": zero, "batch.global": 64}
    accumulated = "fp16" if dtype == "fp16" else "fp32"
    recipe = load("tiny", {**changes, "precision.dtype": dtype, "precision.grad_accum": accumulated})
    metric, size = memory_tables._least_or_peak(recipe, replace(GCD, memory_gib=0))
    assert metric == "states alone"
    assert 0 < size <= max(memory(recipe, stage).peak_bytes for stage in range(2))


# Traces


def test_traces_of_several_recipes_are_those_of_each_alone():
    jobs = [Job("tiny-3d", {"stage": 1}), Job("tiny", {}), Job("tiny-3d", {"all_stages": True})]
    seen = []
    found = trace_several(jobs, progress=lambda done, of: seen.append((done, of)))
    assert [[stage.stage for stage in stages] for stages in found] == [[1], [0], [0, 1]]
    assert found[0] == trace("tiny-3d", stage=1)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_bad_job_is_the_users_input_and_a_killed_one_a_failure():
    with pytest.raises(InputError, match="valid are 0 to 1"):
        trace_several([Job("tiny-3d", {"stage": 2}), Job("tiny-3d")])

    def kill(*_):
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(RunFailed, match="ended without a word"):
        trace_several([Job("tiny-3d", {"stage": 0})] * 8, progress=kill)


def test_no_process_is_left_behind():
    trace_several([Job("tiny-3d")] * 3)
    for process in multiprocessing.active_children():
        process.join(5)
        assert not process.is_alive()


def test_parts_of_a_traced_peak_add_up_and_the_closed_form_agrees(surveyed, small_models):
    table = surveyed + memory_tables.stages(small_models)
    for peak in table.select(exhibit="stages", metric="peak", provenance="traced"):
        parts = table.select(exhibit="stages", series=peak.series, x=peak.x, metric=memory_figures.PARTS)
        assert sum(row.value for row in parts) == pytest.approx(peak.value)
        [projected] = table.select(
            series=peak.series, x=peak.x, metric="peak", provenance="projected", exhibit="stages"
        )
        assert projected.value == pytest.approx(peak.value, rel=2e-2)


def test_traced_flops_are_those_of_the_formula_but_for_the_scores_of_flash(surveyed):
    for name in "ab":
        found = {(row.x, row.provenance): row.value for row in surveyed.select(exhibit="flops", series=name)}
        assert found["unfused", "traced"] == found["unfused", "projected"]
        s = load("tiny").shape
        scores = 2 * s.layers * 2 * s.seq**2 * s.hidden  # 2 samples
        assert found["flash", "traced"] == found["flash", "projected"] + scores
    assert len(memory_numbers.flops(surveyed).rows) == 4


def test_a_recipe_that_flash_cannot_run_is_traced_as_it_is():
    assert survey._other_attention(load("lumi-175b")) is None


def test_the_timeline_ends_where_it_began(surveyed):
    live = surveyed.select(exhibit="timeline", metric="live").rows
    [count] = surveyed.select(exhibit="timeline", metric="micro-batches")
    assert count.value == 3
    assert {row.series for row in live} == {"b"}
    assert live[-1].value == pytest.approx(live[0].value, rel=0.05)
    phases = [memory_figures._phase(row.source) for row in live]
    assert phases.count("step") == 1
    assert set(phases) == {"forward", "backward", "reduction", "step"}


def test_real_ranks_did_what_the_trace_says():
    grid = memory_numbers.agreement(survey.compare("tiny-3d"))
    assert len(grid.rows) == 4 * len(survey.QUANTITIES)
    for row in cells(grid):
        difference = abs(int(row["difference"].replace(",", "")))
        expected = 24 if row["rank"] in ("rank 2", "rank 3") and re.search("step|peak", row["quantity"]) else 0
        # gloo lets go of what it sent when its threads get to it: a scalar of 8 bytes may still be held
        late = 8 if re.search("step|peak", row["quantity"]) else 0
        assert expected <= difference <= expected + late, row


# Figures


def drawn(surveyed, small_models, into):
    layouts = memory_tables.layouts(small_models, GCD)
    table = surveyed + memory_tables.stages(small_models) + memory_tables.lumi()
    return [
        memory_figures.stages(table, GCD, into),
        memory_figures.timeline(table, GCD, into),
        memory_figures.lumi(table, into),
        layout_figure.layouts(layouts, small_models, GCD, into),
    ]


@pytest.fixture(scope="module")
def exhibits(surveyed, small_models, tmp_path_factory):
    return drawn(surveyed, small_models, tmp_path_factory.mktemp("figures"))


def test_figures_are_byte_stable(exhibits, surveyed, small_models, tmp_path):
    for one, other in zip(exhibits, drawn(surveyed, small_models, tmp_path), strict=True):
        assert [path.read_bytes() for path in one.files] == [path.read_bytes() for path in other.files]


def test_figures_say_how_their_numbers_came_and_what_is_not_in(exhibits):
    for exhibit in exhibits:
        text = " ".join(re.findall(r">([^<]+)<", exhibit.svg.read_text()))
        for provenance in {row.provenance for row in read(exhibit.csv)}:
            assert provenance in text.lower(), exhibit
        assert "reserve" in text, exhibit


def test_nothing_stands_outside_the_picture(surveyed, small_models, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, *_: kept.append(figure))
    drawn(surveyed, small_models, tmp_path)
    assert len(kept) == 4
    for figure in kept:
        with figures.style():
            figure.canvas.draw()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert min(box.x0, box.y0) >= -0.02
        assert box.x1 <= width + 0.02
        assert box.y1 <= height + 0.02


@pytest.mark.parametrize(
    ("gib", "expected"), [(53.9, "fits"), (54.1, "tight"), (64.0, "tight"), (64.1, "does not fit")]
)
def test_a_layout_is_tight_when_what_is_reserved_would_not_fit(gib, expected):
    row = memory_tables._row("layouts", "a", "1 x 1", "peak", gib, "projected", "closed form")
    assert layout_figure.verdict(row, GCD) == expected


# The record


def test_the_record_is_the_table_and_its_hash(surveyed, tmp_path):
    run = Run("01_models_and_memory", {}, tmp_path / "run")
    run.record(surveyed)
    completion.write(run.folder, run.notebook, run.parameters)
    record = json.loads((run.folder / completion.NAME).read_text())
    assert set(record["files"]) == {"table.csv", "environment.json"}
    assert read(run.folder / "table.csv") == surveyed
    summary = reproduce._summary(run.folder)
    assert summary == {"numbers": {"traced": len(surveyed.select(provenance="traced")), "projected": 4}}
