"""Which mechanism explains the published loss of strong scaling: each candidate alone, then all that is measured.

The paper's strong scaling loses 11 to 13 %, its weak scaling nothing. A mechanism has to explain both: what grows
with the machine breaks weak scaling; what a step costs once, however many ranks there are, does not. No torch.
"""

from dataclasses import dataclass, field

from repro.projection import belief as beliefs
from repro.projection import calibrate, step
from repro.records import published_runs
from repro.records.published_run import EFFICIENCIES

CLOSE = 2.0  # points
SLOW_RCCL = 10  # times: RCCL against PCCL's all-reduce at 2,048 GCDs, arXiv 2504.18658
FILL_FACTOR = 4.5  # filling and draining cost so many times the ideal: an older hypothesis, no physics known
COLD = ("cold first step",)
NETWORK = ("gradient reduction", "parameter gathering", "tied embedding")
MESSAGES = ("messages between stages",)
SLOWEST = ("slowest device",)
FIXED = ("optimizer", "rest of a step")
SWITCHED = (*COLD, *NETWORK, *MESSAGES, *SLOWEST, *FIXED)  # off, but where a candidate has them


@dataclass(frozen=True)
class Candidate:
    """A mechanism: items of a step that it switches on, with the kind of evidence that its size rests on."""

    name: str
    what: str
    kind: str
    items: tuple = ()
    steps_averaged: int = 1
    fill_factor: float = 1.0
    slower_nics: float = 1.0


CANDIDATES = (
    Candidate("pipeline alone", "filling, draining and unequal stages", "fitted"),
    Candidate("NICs shared by groups", "reduction and gathering over NICs of eight groups", "measured", NETWORK),
    Candidate(
        "slow RCCL",
        f"the same, {SLOW_RCCL} times slower",
        "measured",
        NETWORK,
        slower_nics=SLOW_RCCL,
    ),
    Candidate("blocking messages", "messages between stages that nothing hides", "measured", MESSAGES),
    Candidate("slowest device", "more devices have a slower slowest one", "judged", SLOWEST),
    Candidate("fixed cost of a step", "optimizer, host, waiting before the step", "fitted", FIXED),
    Candidate("cold first step", "one timed step, the first: stages warm up one after the other", "measured", COLD),
    Candidate("cold first of three", "three timed steps with the cold first", "measured", COLD, steps_averaged=3),
    Candidate("fill and drain x 4.5", "filling and draining dearer than possible", "judged", fill_factor=FILL_FACTOR),
    Candidate("all but slow RCCL and x 4.5", "one timed step, and everything else", "measured", SWITCHED),
)


@dataclass(frozen=True)
class Mechanism:
    """A candidate's scaling efficiencies in the likely readings.

    Attributes:
        values: ``{run id: percent}``.
        explains: runs whose published value it meets within :data:`CLOSE` points.
        breaks: runs that the pipeline alone meets and it does not.
    """

    candidate: Candidate
    values: dict
    explains: tuple
    breaks: tuple = field(default=())


def mechanisms():
    """Every :class:`Mechanism` on Frontier, its constants calibrated on 22B alone."""
    machine, belief = beliefs.calibrated("frontier")
    machine = belief.central(machine)
    runs = [run for run in published_runs.runs(machine="frontier") if run.metric in EFFICIENCIES]
    found = []
    for candidate in CANDIDATES:
        values = {run.id: efficiency(run, machine, candidate) for run in runs}
        near = tuple(run.id for run in runs if abs(values[run.id] - run.value) <= CLOSE)
        alone = found[0].explains if found else ()
        found.append(Mechanism(candidate, values, near, tuple(one for one in alone if one not in near)))
    return found


def efficiency(run, machine, candidate):
    """Percent: the rate of a device in the run over that in its base."""
    nics = machine.constants["nic_collective"].value / candidate.slower_nics
    machine = machine.with_constants(nic_collective=nics)
    off = tuple(item for item in SWITCHED if item not in candidate.items)
    pair = [run, run.base()]
    result = step.step(calibrate.work_of(pair), machine, None, off, 1 / candidate.steps_averaged)
    seconds = result.seconds[0] + (candidate.fill_factor - 1) * result.items["filling and draining"][0]
    rate = [one.step_flops / one.gpus / time for one, time in zip(pair, seconds, strict=True)]
    return float(100 * rate[0] / rate[1])
