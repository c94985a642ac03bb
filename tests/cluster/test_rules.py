"""Every rule finds its fault and no rule finds another; scripts without fault, our own among them, have no findings."""

import json

import pytest
from rule_cases import CASES, ELSEWHERE, FRONTIER, LUMI, ONE_NODE, changed

from repro import recipe
from repro.cluster.rules import RULES, check, examine
from repro.cluster.site import load_site
from repro.errors import InputError


def rules_of(found):
    return sorted({finding.rule for finding in found})


@pytest.fixture
def script(tmp_path):
    def write(text, name="job.sh"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


@pytest.fixture
def ds(tmp_path):
    def write(**config):
        path = tmp_path / "other.json"
        path.write_text(json.dumps(config))
        return path

    return write


@pytest.mark.parametrize(("text", "site"), [(FRONTIER, "frontier"), (ONE_NODE, "frontier"), (LUMI, "lumi")])
def test_scripts_without_fault(text, site, script):
    found = examine(None, load_site(site), script(text))
    assert [f"{f.rule}: {f.what}" for f in found.findings] == []
    assert found.notes == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.told}"[:60])
def test_each_fault_is_found_and_no_other(case, script):
    found = check(None, load_site(case.site), script(case.text))
    assert rules_of(found) == [case.rule], [(f.rule, f.what) for f in found]
    assert any(case.told in f"{f.what} {f.fix}" for f in found), [(f.what, f.fix) for f in found]
    rule = next(rule for rule in RULES if rule.id == case.rule)
    for finding in found:
        assert (finding.severity, finding.number) == (rule.severity, rule.number)
        assert finding.why and finding.source
        line = finding.where.removeprefix("job.sh:").partition(",")[0].partition(" ")[0]
        assert 1 <= int(line) <= case.text.count("\n")


def test_every_rule_has_a_case_and_every_number_a_rule():
    assert {case.rule for case in CASES} | ELSEWHERE == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert {rule.number for rule in RULES} - {None} == set(range(1, 50))


@pytest.mark.parametrize("name", recipe.names())
def test_our_own_job_breaks_no_rule(name):
    loaded = recipe.load(name)
    if loaded.world_size > 8 and loaded.world_size % 8:
        pytest.skip("its ranks do not fill nodes")
    found = examine(loaded, load_site("frontier"))
    about_the_recipe = {"bubble", "head-dim-multiple", "unequal-stages"}  # warned of wherever it runs
    assert [(f.rule, f.what) for f in found.findings if f.rule not in about_the_recipe] == []
    assert found.errors == 0


@pytest.mark.parametrize(("name", "nodes"), [("175b", 16), ("175b", 128), ("1t", 384)])
def test_jobs_of_the_paper(name, nodes):
    loaded = recipe.load(name)
    dp = nodes * 8 // (loaded.parallel.tp * loaded.parallel.pp)
    loaded = recipe.load(name, {"parallel.dp": dp, "batch.global": 320 * dp})
    assert check(loaded, load_site("frontier")) == []


@pytest.mark.parametrize("rung", range(6))
def test_rungs_of_the_ladder(rung, script):
    from repro.cluster import job

    plan = job.plan(recipe.load("175b"), load_site("frontier"), "run", job.Options(rung=rung))
    found = check(recipe.load("175b"), load_site("frontier"), script(job.script(plan)))
    assert rules_of(found) == (["sockets"] if rung == 5 else [])


def test_a_script_that_does_not_run_the_recipe_given(script):
    frontier, path = load_site("frontier"), script(FRONTIER)
    assert check(recipe.load("175b"), frontier, path) == []
    found = check(recipe.load("175b", {"batch.global": 320, "optimizer.clip": 0.5}), frontier, path)
    assert rules_of(found) == ["recipe-differs"]
    assert {f.what for f in found} == {
        "batch 640 in the script, 320 in the recipe",
        "clip 1.0 in the script, 0.5 in the recipe",
    }


def test_a_json_against_a_recipe(ds):
    path = ds(train_micro_batch_size_per_gpu=4, zero_optimization={"stage": 1}, bf16={"enabled": True})
    found = check(recipe.load("175b"), load_site("frontier"), deepspeed=path)
    assert rules_of(found) == ["clipping", "micro-batch", "precision"]
    assert "recipe batch.micro" in next(f.where for f in found if f.rule == "micro-batch")


def test_unequal_stages():
    loaded = recipe.load("tiny", {"shape.layers": 5, "parallel.pp": 4, "parallel.dp": 2, "batch.global": 64})
    [finding] = [f for f in check(loaded, load_site("frontier")) if f.rule == "unequal-stages"]
    assert "2, 1, 1, 1" in finding.what


@pytest.mark.parametrize(("rate", "rule"), [(60, None), (149.5, "logged-rate"), (383.0, "logged-above-peak")])
def test_rates_of_a_log(rate, rule, script, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f" iteration 1/ 5 | elapsed time per iteration (ms): 1000.0 | TFLOPs: {rate} |\n")
    found = examine(None, load_site("frontier"), script(FRONTIER), log=log).findings
    assert rules_of(found) == ([rule] if rule else [])


@pytest.mark.parametrize("value", ["auto", None])
def test_auto_is_no_number(value, script, ds):
    path = ds(
        train_batch_size=value,
        train_micro_batch_size_per_gpu=value,
        gradient_accumulation_steps=value,
        gradient_clipping="auto",
        zero_optimization={"stage": "auto"},
        fp16={"enabled": "auto"},
    )
    assert check(None, load_site("frontier"), script(FRONTIER), path) == []


def test_micro_batch_follows_from_batch_and_accumulation(script, ds):
    path = ds(train_batch_size=640, gradient_accumulation_steps=80, gradient_clipping=1.0, fp16={"enabled": True},
              zero_optimization={"stage": 1})  # fmt: skip
    found = check(None, load_site("frontier"), script(FRONTIER), path)
    assert "4 in the DeepSpeed JSON" in next(f.what for f in found if f.rule == "micro-batch")


def test_a_json_that_the_script_names_is_read_beside_it(script, tmp_path):
    start, end = FRONTIER.index("cat <<EOF"), FRONTIER.index("EOF\n\n") + 4
    path = script(FRONTIER[:start] + FRONTIER[end:])
    missing = "the DeepSpeed JSON was not found: give it with --deepspeed"
    assert examine(None, load_site("frontier"), path).notes == (missing,)
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "fp16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps({**config, "zero_optimization": {"stage": 1}}))
    assert rules_of(check(None, load_site("frontier"), path)) == ["micro-batch"]


def test_what_only_a_run_tells_is_not_guessed(script):
    text = changed(
        FRONTIER,
        ("--micro-batch-size 1", "--micro-batch-size $MBS"),
        ("=kdreg2", "=$MONITOR"),
        ("NODES=16", "NODES=$1"),
        ("#SBATCH -N 16\n", ""),
        ("CQ_SIZE=131072", "CQ_SIZE=$(size)"),
        ('per_gpu": 1', 'per_gpu": $MBS'),
    )
    found = examine(None, load_site("frontier"), script(text))
    assert [(f.rule, f.what) for f in found.findings] == []
    assert found.notes == (
        "the number of nodes is not in the script: limits of the queue and of the layout are not checked",
    )


def test_a_file_that_was_not_read_may_set_what_seems_to_be_missing(script):
    text = changed(FRONTIER, ("export NCCL_NET=OFI\n", "source /lustre/elsewhere/env.sh\n"))
    found = examine(None, load_site("frontier"), script(text))
    assert found.findings == ()
    assert found.notes == ("/lustre/elsewhere/env.sh is sourced and was not read: what it sets is not known",)


def test_variables_of_slurm_follow_from_the_directives(script):
    text = changed(FRONTIER, ("NODES=16", "NODES=${SLURM_NNODES:-1}"), ("#SBATCH -N 16", "#SBATCH -N 15"))
    assert rules_of(check(None, load_site("frontier"), script(text))) == ["world-size"]


def test_the_default_programming_environment_needs_no_path(script):
    text = changed(
        FRONTIER, ("cpe/26.03", "cpe/24.11"), ("rocm/7.1.1", "rocm/6.2.4"), ("export LD_LIBRARY", "export X")
    )
    assert check(None, load_site("frontier"), script(text)) == []


def test_errors_come_first_and_then_the_order_of_the_file(script):
    found = check(None, load_site("frontier"), script(changed(FRONTIER, ("=kdreg2", "=memhooks"), (" || exit 1", ""),
                  ("#SBATCH --signal=B:USR1@600\n", ""))))  # fmt: skip
    assert [f.rule for f in found] == ["sbcast-unchecked", "cache-monitor", "time-limit-plan"]


def test_no_input(script):
    for arguments, told in ((("x",), "no such file"), ((None,), "nothing to check")):
        with pytest.raises(InputError, match=told):
            examine(None, load_site("frontier"), *arguments)
    with pytest.raises(InputError, match="is no job or launch script"):
        examine(None, load_site("frontier"), script("Dear reader,\nthis is a letter.\n"))
