"""The machine that we stand on, for local ranks: a judged core, its speed set by one measured run. No torch.

Ranks are processes that share cores. While every rank has a core of its own a step takes what
:func:`repro.projection.step.step` says; beyond that, cores are never idle as long as some rank has work, so
that a step takes at least all ranks' work over all cores: the larger of both.

All that a rank does here is a core's work, messages to its neighbours included. So the run sets one number, how
many times faster than judged a core is; what of a step is products, memory, calls or messages remains as uncertain
as judged, and the band shows it.
"""

from dataclasses import dataclass, replace

import numpy as np

from repro import devices
from repro.errors import InputError
from repro.projection import belief as beliefs
from repro.projection import step as steps
from repro.projection import work as works
from repro.projection.machine import Constant, Machine

WAITING = ("stage imbalance", "filling and draining", "slowest device")
MOST_RANKS = 16  # devices of the node; more ranks count as if they were on another one
PEAK_TFLOPS = 0.06  # of a core in fp32: two 256-bit fused multiply-adds at some 2 to 3 GHz; a yardstick, not measured
RUN_ERROR = 0.05  # of the logarithm of a time of some steps on a machine that other processes use as well
CPU = "judged: eager PyTorch on a CPU, tensors of some KiB"
GLOO = "judged: gloo over loopback, where each step of a ring wakes another process"
# value, low, high, why
JUDGED = {
    "gemm_ceiling": (0.5, 0.2, 1.0, CPU),
    "gemm_bandwidth": (2.0, 0.5, 8.0, CPU),
    "memory_efficiency": (0.3, 0.1, 1.0, CPU),
    "flash_forward": (0.2, 0.05, 0.8, CPU),
    "flash_backward": (0.2, 0.05, 0.8, CPU),
    "kernel_seconds": (6e-6, 2e-6, 2e-5, CPU),
    "link_efficiency": (0.5, 0.1, 1.0, GLOO),
    "hop_seconds": (3e-4, 5e-5, 2e-3, GLOO),
    "call_seconds": (1e-4, 2e-5, 5e-4, GLOO),
    "nic_collective": (0.5, 0.1, 1.0, GLOO),
    "nic_decline": (0.0, 0.0, 0.0, "no network here"),
    "nic_message": (0.5, 0.1, 1.0, GLOO),
    "nic_hop_seconds": (3e-4, 5e-5, 2e-3, GLOO),
    "message_seconds": (3e-4, 5e-5, 2e-3, GLOO),
    "device_spread": (0.03, 0.01, 0.1, "judged: other processes on the machine"),
    "step_seconds": (5e-3, 1e-3, 2e-2, "judged: optimizer and DeepSpeed's host work"),
    "cold_stage_seconds": (0.0, 0.0, 0.0, "first steps are left out of the means"),
}


@dataclass(frozen=True)
class LocalMachine(Machine):
    """A node of single cores, one a rank.

    Attributes:
        cores: that the ranks share.
        run, recipe, step_seconds: the measured run of one rank that it is calibrated on.
        speed: of a core, over the judged one's.
    """

    cores: int = 1
    run: str = ""
    recipe: object = None
    step_seconds: float = 0.0
    speed: float = 1.0


def calibrated(recipe, step_seconds, run, cores, memory_gib=None):
    """The :class:`LocalMachine` of a measured run of one rank.

    Args:
        step_seconds: mean step time of the run.
        run: its name, for the source.
        memory_gib: free memory; unlimited where it is not known.

    Raises:
        InputError: a run of several ranks, whose time would also be communication.
    """
    if recipe.world_size != 1:
        raise InputError(f"run {run} has {recipe.world_size} ranks; this machine is calibrated on a run of one rank")
    judged = _judged(recipe, step_seconds, run, cores, memory_gib)
    middle = np.median(seconds(works.of_recipes([recipe]), judged, beliefs.prior(judged).constants(judged)))
    return _faster(judged, float(middle) / step_seconds)


def _faster(machine, times):
    """Every time of a machine shorter by one factor."""
    device = replace(
        machine.device,
        memory_bandwidth_gbytes=machine.device.memory_bandwidth_gbytes * times,
        peak_tflops={dtype: peak * times for dtype, peak in machine.device.peak_tflops.items()},
    )
    constants = {
        name: replace(c, value=c.value / times, low=c.low / times, high=c.high / times)
        if name.endswith("_seconds") else c for name, c in machine.constants.items()
    }  # fmt: skip
    links = {"switch_gbytes": machine.switch_gbytes * times, "nic_gbytes": machine.nic_gbytes * times}
    return replace(machine, device=device, constants=constants, speed=machine.speed * times, **links)


def _judged(recipe, step_seconds, run, cores, memory_gib):
    device = devices.Device(
        name="core",
        title="one core of this machine",
        match=(),
        memory_gib=memory_gib or float("inf"),
        memory_bandwidth_gbytes=30.0,
        peak_tflops={"fp32": PEAK_TFLOPS, "bf16": PEAK_TFLOPS},
        source="judged; the constants are shares of it",
    )
    return LocalMachine(
        name="this-machine",
        title=f"This machine, {cores} cores",
        device=device,
        order=tuple(range(MOST_RANKS)),
        links={},
        switch_gbytes=2.0,
        nics=1,
        nic_gbytes=2.0,
        constants={name: Constant(*numbers, "judged", why) for name, (*numbers, why) in JUDGED.items()},
        operation={},
        sources={},
        calibration={},
        cores=cores,
        run=run,
        recipe=recipe,
        step_seconds=step_seconds,
    )


def believed(machine, samples=beliefs.SAMPLES, seed=beliefs.SEED):
    """Samples of a local machine's constants that explain its run, a :class:`repro.projection.belief.Belief`.

    One run cannot tell kernel calls from products in a small model: samples differ in what they blame.
    """
    drawn = beliefs.prior(machine, beliefs.DRAWN, seed)
    work = works.of_recipes([machine.recipe])
    off = np.log(seconds(work, machine, drawn.constants(machine))[:, 0] / machine.step_seconds) / RUN_ERROR
    logs = -0.5 * off**2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    places = (np.arange(samples) + 0.5) / samples  # systematic: a sample of weight w comes w x samples times
    index = np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)
    index = np.random.default_rng(seed).permutation(index)
    return drawn.take(index, (machine.run,), float(1 / np.sum(weights**2)))


def seconds(work, machine, given=None):
    """Seconds of a step ``[samples, n]`` on a local machine, whose ranks share its cores."""
    found = steps.step(work, machine, given)
    c = work.layouts
    ranks = (c.tp * c.pp * c.dp)[:, 0]
    busy = sum(value for name, value in found.items.items() if name not in WAITING)
    return np.maximum(found.seconds, busy * ranks / machine.cores)
