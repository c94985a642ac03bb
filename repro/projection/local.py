"""The machine that we stand on, for local ranks: judged constants, moved by one measured run. No torch.

Ranks are processes that share cores. While every rank has a core of its own a step takes what
:func:`repro.projection.step.step` says; beyond that, cores are never idle as long as some rank has work, so
that a step takes at least all ranks' work over all cores: the larger of both.
"""

from dataclasses import dataclass

import numpy as np

from repro.projection import step as steps
from repro.projection.machine import Machine

WAITING = ("stage imbalance", "filling and draining", "slowest device")


@dataclass(frozen=True)
class LocalMachine(Machine):
    """A node of single cores, one a rank.

    Attributes:
        cores: that the ranks share.
    """

    cores: int = 1


def seconds(work, machine, given=None):
    """Seconds of a step ``[samples, n]`` on any machine; on a :class:`LocalMachine` ranks share its cores."""
    found = steps.step(work, machine, given)
    if not isinstance(machine, LocalMachine):
        return found.seconds
    c = work.layouts
    ranks = (c.tp * c.pp * c.dp)[:, 0]
    busy = sum(value for name, value in found.items.items() if name not in WAITING)
    return np.maximum(found.seconds, busy * ranks / machine.cores)
