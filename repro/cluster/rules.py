"""Every rule, and what they find in a recipe, a script and a DeepSpeed JSON at a site."""

from dataclasses import dataclass
from pathlib import Path

from repro.cluster import (
    launch_file,
    rules_allocation,
    rules_engine,
    rules_launch,
    rules_layout,
    rules_network,
    rules_run,
    rules_script,
    rules_software,
    rules_storage,
    rules_variables,
)
from repro.cluster.facts import Facts
from repro.cluster.rule import ERROR
from repro.cluster.slurm_options import Told
from repro.errors import InputError
from repro.records import deepspeed_json, megatron_log

RULES = tuple(
    one
    for module in (rules_script, rules_allocation, rules_launch, rules_layout, rules_engine, rules_network,
                   rules_variables, rules_software, rules_storage, rules_run)
    for one in module.RULES
)  # fmt: skip
ENGINE_KEYS = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
               "fp16", "bf16", "gradient_clipping"}  # fmt: skip
MACHINES = Path(__file__).parent.parent / "machines"


@dataclass(frozen=True)
class Checked:
    """Attributes:
    findings: errors first, in the order of the file.
    notes: what could not be known, one line each.
    subject: what was checked.
    """

    findings: tuple
    notes: tuple
    subject: str

    @property
    def errors(self):
        return sum(finding.severity == ERROR for finding in self.findings)

    @property
    def warnings(self):
        return len(self.findings) - self.errors


def check(recipe, site, script=None, deepspeed=None):
    """Every :class:`~repro.cluster.rule.Finding`, errors first; see :func:`examine`."""
    return list(examine(recipe, site, script, deepspeed).findings)


def examine(recipe, site, script=None, deepspeed=None, log=None):
    """A recipe, a user's script, or both at a site, held against every rule.

    Args:
        recipe: or None. With a script that gives Megatron's arguments the two must agree.
        script: path of a job or launch script; without one the script of the recipe's own job is checked.
        deepspeed: path of the engine's JSON; else the one that the script writes or names is read.
        log: path of a training log, of which the rates are checked.

    Raises:
        InputError: neither recipe nor script; a file that cannot be read or is not what it should be.
    """
    if script is None and recipe is None:
        raise InputError("nothing to check: give a recipe, or a script with --script")
    file = launch_file.read(script) if script is not None else _own(recipe, site)
    engine, name = _engine(file, deepspeed, Path(script).parent if script is not None else None)
    most, peak = _logged(log, site)
    return judge(Facts(site, recipe, file, engine, name, most, peak))


def of_job(recipe, site, text):
    """Every finding about a recipe's job with this script, as it is about to be submitted."""
    file = launch_file.from_text(text, f"job of {recipe.name}")
    engine, name = _engine(file, None, None)
    return list(judge(Facts(site, recipe, file, engine, name, *_logged(None, site))).findings)


def judge(facts):
    """Facts against every rule."""
    found = [finding for one in RULES for finding in one.findings(facts)]
    unique = list(dict.fromkeys(found))
    unique.sort(key=lambda f: (f.severity != ERROR, _line(f.where)))
    subject = facts.file.name if facts.file is not None else ""
    return Checked(tuple(unique), tuple(_notes(facts)), subject)


def _line(where):
    number = where.partition(",")[0].rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def _own(recipe, site):
    """The script of the recipe's own job at this site."""
    from repro.cluster import job

    plan = job.plan(recipe, site, "runs/RUN")
    return launch_file.from_text(job.script(plan), f"job of {recipe.name}")


def _engine(file, path, folder):
    """Settings of the DeepSpeed JSON and its name: as given, else as the script writes or names it."""
    if path is not None:
        return deepspeed_json.settings(deepspeed_json.read(path)), Path(path).name
    for text, name in launch_file.written_json(file):
        try:
            config = deepspeed_json.parse(text, name)
            if ENGINE_KEYS & config.keys():
                return deepspeed_json.settings(config), name
        except InputError:
            continue  # parts of it only a run would fill in
    named = file.main.arguments.get("deepspeed-config") if file.main is not None else None
    if folder is not None and named is not None and named is not True and named.known:
        beside = folder / named.text
        if len(named.text) < 1000 and "\0" not in named.text and beside.is_file():
            return deepspeed_json.settings(deepspeed_json.read(beside)), named.text
    return None, ""


def _logged(log, site):
    if log is None:
        return None, None
    rates = [(i.tflops, i.number) for i in megatron_log.read_log(log).iterations if megatron_log.positive(i.tflops)]
    most = Told(max(rates)[0], f"{Path(log).name}, iteration {max(rates)[1]}") if rates else None
    return most, _peak(site)


def _peak(site):
    """TFLOP/s of the site's device in 16 bits, or None where it is not known."""
    import tomllib

    from repro import devices

    if site.machine is None:
        return None
    profile = tomllib.loads((MACHINES / f"{site.machine}.toml").read_text(encoding="utf-8"))
    return devices.get(profile["device"]).peak("fp16")


def _notes(facts):
    file = facts.file
    if file is None:
        return
    for name in dict.fromkeys(file.sourced):
        yield f"{name} is sourced and was not read: what it sets is not known"
    if file.script.unclosed is not None:
        yield f"a quote in line {file.script.unclosed} is never closed: what follows was taken as its text"
    if file.main is None:
        yield "no step that trains was found: srun, torchrun, deepspeed or python with a program"
        return
    if facts.nodes is None:
        yield "the number of nodes is not in the script: limits of the queue and of the layout are not checked"
    if facts.slurm("account", step_first=False) is None and facts.site.account_required and file.directives:
        yield "no account in the script: give it to sbatch with -A"
    named = file.main.arguments.get("deepspeed-config")
    if facts.engine is None and named is not None:
        yield "the DeepSpeed JSON was not found: give it with --deepspeed"
