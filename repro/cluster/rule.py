"""A rule and what it finds."""

from collections.abc import Callable
from dataclasses import dataclass

ERROR, WARNING = "error", "warning"
OLCF = "OLCF Frontier user guide, 2026-07-07"
PYTORCH = "OLCF, PyTorch on Frontier, 2026-07-07"
CXI = "libfabric, provider cxi: fi_cxi(7), cxip_info.c"
HPE = "HPE shs-ccl-docs, 2026-04-30"
DEEPSPEED = "DeepSpeed, engine and configuration"
MEGATRON = "Megatron-DeepSpeed, arguments.py and training.py, 2025-07"
LUMI = "LUMI-AI-Guide, 2026-05 to 2026-09"
SBATCH = "Slurm, sbatch and srun"
OURS = "judged"  # a threshold of our own


@dataclass(frozen=True)
class Finding:
    """One fault of a run's settings.

    Attributes:
        rule: short name, number: in the list of rules that this project started from, or None.
        severity: "error": the job fails or its numbers are wrong; "warning": it may.
        what, why, fix: sentences; the fix names the nearest valid value.
        where: ``job.sh:12`` or ``recipe batch.micro``.
    """

    rule: str
    number: int | None
    severity: str
    what: str
    why: str
    fix: str
    source: str
    where: str


@dataclass(frozen=True)
class Rule:
    """``find`` takes :class:`~repro.cluster.facts.Facts` and yields ``(what, fix, where)``."""

    id: str
    number: int | None
    severity: str
    why: str
    source: str
    find: Callable

    def findings(self, facts):
        for what, fix, where in self.find(facts):
            yield Finding(self.id, self.number, self.severity, what, self.why, fix, self.source, where)


def rule(id, number, severity, source, why):
    """Makes a :class:`Rule` of a function that finds."""
    return lambda find: Rule(id, number, severity, why, source, find)
