"""What the scorecard's numbers are made of: a number with its band; calibrations, traces and runs behind it."""

from dataclasses import dataclass, field
from functools import cached_property

from repro.errors import InputError

DIGITS = 5  # significant: what differs beyond, from one numpy to the next, is no result
INDEPENDENT = ("LUMI-175B-16n",)  # learned instead, where a claim is itself what the machine was calibrated on
MODELS = ("22b", "175b", "1t")


@dataclass(frozen=True)
class Ours:
    """Our number.

    Attributes:
        low, high: the band that holds it nine times in ten; of an exact number, what its reading leaves open.
        provenance: measured, traced or projected, as in the tidy table.
        exact: counted or measured, so that a match is a reproduction; otherwise it rests on a model of time.
        how: how it came about, in words.
    """

    value: float
    low: float
    high: float
    provenance: str
    exact: bool
    how: str


@dataclass(frozen=True)
class Sources:
    """What numbers are made from, each made once.

    Attributes:
        machine: name of a machine, or path of a profile.
        trace: count parameters on fake ranks; closed forms otherwise.
        runs: run folders of this project on that machine: their measured rates go before projections.
    """

    machine: str = "frontier"
    trace: bool = True
    runs: tuple = field(default=())

    @cached_property
    def projected(self):
        """``(machine, belief)`` calibrated as its file says."""
        from repro.projection import belief as beliefs

        return beliefs.calibrated(self.machine)

    @cached_property
    def independent(self):
        """The same machine, having learned runs of another site with the same GCDs."""
        from repro.projection import belief as beliefs

        machine = self.projected[0]
        return machine, beliefs.learn(machine, beliefs.named_runs(INDEPENDENT))

    @cached_property
    def measured(self):
        """``{(layers, hidden, seq): [(name of the run, its numbers)]}`` of the run folders.

        Raises:
            InputError: a run that is not complete, has no mean throughput, or ran on another device.
        """
        return _measured(self.runs, self.projected[0].device)

    @cached_property
    def counts(self):
        """Parameters on a rank of every stage of the authors' log, and the word for how they were counted."""
        return _log_counts(self.trace)


def exact(value, how, provenance="projected"):
    """A number that was counted; a whole one is not rounded, as a count has as many digits as it has."""
    value = value if isinstance(value, int) else float(f"{value:.10g}")
    return Ours(value, value, value, provenance, True, how)


def banded(value, low, high, how, provenance="projected", exact=False):
    """A number with a band, to :data:`DIGITS` digits."""
    value, low, high = (float(f"{float(number):.{DIGITS}g}") for number in (value, low, high))
    return Ours(value, low, high, provenance, exact, how)


def _measured(paths, device):
    from repro import devices
    from repro.records.metrics import checked, summarize
    from repro.records.run_folder import RunFolder

    found = {}
    for path in paths:
        folder = RunFolder.open(path)
        state = folder.status()["state"]
        if state != "completed":
            raise InputError(f"run folder {path} is {state}, not completed: it measured nothing to compare")
        rows = checked(folder.metrics())
        numbers, shape = summarize(rows), folder.recipe().shape
        ran_on = devices.recognise(str(folder.environment().get("device", "")))
        if numbers["hfu"] is None or ran_on is None or ran_on.name != device.name:
            reason = numbers["throughput_invalid"] or f"it did not run on {device.name}"
            raise InputError(f"run folder {path} cannot stand beside the paper: {reason}")
        found.setdefault((shape.layers, shape.hidden, shape.seq), []).append((folder.path.name, numbers))
    return found


def _log_counts(trace):
    from repro import parameters
    from repro.recipe import load

    recipe = load("175b-log")
    stages = range(recipe.parallel.pp)
    if not trace:
        return recipe, [parameters.per_rank(recipe, stage) for stage in stages], "projected"
    from repro.tracing.several import Job, trace_several

    last = recipe.parallel.pp - 1
    jobs = [Job(recipe, {"stage": stage, "micro_batches": 1}) for stage in (0, 1, last)]
    held = [found[0].parameters for found in trace_several(jobs)]
    return recipe, [held[0], *[held[1]] * (last - 1), held[2]], "traced"  # all stages between are alike
