"""Rules about any environment variable: names that nothing reads, relics, what must stay unset, torch's watchdog."""

from repro.cluster import variables
from repro.cluster.rule import CXI, ERROR, HPE, OURS, PYTORCH, WARNING, rule

OBSOLETE = {
    "FI_CXI_ATS": "off by default in the current provider",
    "CXI_FORK_SAFE": "kernels from 5.12 copy what is registered when they fork",
    "CXI_FORK_SAFE_HP": "kernels from 5.12 copy what is registered when they fork",
    "FI_CXI_DISABLE_CQ_HUGETLB": "now FI_CXI_DISABLE_EQ_HUGETLB, and no longer advised",
}
FORCED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NCHANNELS_PER_PEER",
          "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS")  # fmt: skip
HEARTBEAT, DEEPSPEED_MINUTES = 480, 30  # torch's and DeepSpeed's defaults
COVERED = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", *OBSOLETE, *FORCED}


@rule(
    "unknown-variable",
    25,
    ERROR,
    "table of known names, variables.csv",
    "nothing reads this name, and nothing complains about it",
)
def unknown_variable(facts):
    for name, where in _exported(facts):
        if variables.misspelt(name) and (near := variables.nearest(name)) is not None:
            yield f"{name}: no such variable", f"{near}", where


@rule("unlisted-variable", 25, WARNING, "table of known names, variables.csv", "no library is known to read this name")
def unlisted_variable(facts):
    for name, where in _exported(facts):
        if variables.misspelt(name) and variables.nearest(name) is None:
            near = variables.nearest(name, 0.0)
            yield f"{name}: not among {len(variables.known())} known names", f"nearest: {near}", where


def _exported(facts):
    if facts.file is None:
        return
    for name, settings in facts.file.script.settings.items():
        if first := next((s for s in settings if s.value is not None), None):
            yield name, first.where
    for step in facts.file.steps:
        for name, told in step.own.items():
            if name not in facts.file.script.settings:
                yield name, told.where


@rule("not-exported", None, WARNING, "bash(1), export", "a variable that is not exported reaches no program")
def not_exported(facts):
    for name, settings in (facts.file.script.settings if facts.file is not None else {}).items():
        watched = variables.FAMILY.match(name) or name in ("OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS")
        if watched and not any(s.exported or s.value is None for s in settings) and not any(s.task for s in settings):
            yield f"{name} is set and not exported", f"export {name}", settings[0].where


@rule(
    "obsolete-variable",
    26,
    WARNING,
    f"{CXI}; {HPE}",
    "a relic of older software: without effect, or under another name now",
)
def obsolete_variable(facts):
    for name, (_, renamed) in variables.known().items():
        if renamed or name in OBSOLETE:
            for _, told in facts.ever(name)[:1]:
                yield (
                    f"{name}: {OBSOLETE.get(name, 'renamed')}",
                    renamed if name not in OBSOLETE else f"no {name}",
                    told.where,
                )


@rule(
    "forced-algorithm",
    27,
    WARNING,
    PYTORCH,
    "OLCF trusts RCCL's own tuner; Ring broke a coalesced reduce-scatter elsewhere",
)
def forced_algorithm(facts):
    for name in FORCED:
        told = facts.variable(name)
        if told:
            yield f"{name}={told.value.text}", f"no {name}", told.where


@rule(
    "heartbeat",
    43,
    WARNING,
    f"pytorch PRs 112518, 133028; {OURS}",
    "the watchdog ends the job before the wait of its process group is over",
)
def heartbeat(facts):
    if facts.main is None:
        return
    waits = []
    minutes = facts.argument("distributed-timeout-minutes")
    if minutes and minutes.value is not True and minutes.value.whole:
        waits.append((minutes.value.whole * 60, "--distributed-timeout-minutes", minutes.where))
    told = facts.variable("DEEPSPEED_TIMEOUT")
    if told and told.value.whole:
        waits.append((told.value.whole * 60, "DEEPSPEED_TIMEOUT", told.where))
    beat = facts.variable("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    if beat is None and not waits:
        return
    if not waits and facts.argument("deepspeed") is not None:
        waits.append((DEEPSPEED_MINUTES * 60, "DeepSpeed's default", facts.main.where))
    seconds = HEARTBEAT if beat is None else beat.value.whole
    for wait, name, where in [max(waits)] if waits and seconds is not None else []:
        if seconds < wait:
            default = " by default" if beat is None else ""
            what = f"heartbeat of {seconds} s{default}, {name} of {wait} s"
            yield what, f"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC={wait}", beat.where if beat else where


@rule("leave-unset", None, WARNING, "the site file, unset", "the site says that this variable must stay unset")
def leave_unset(facts):
    for one in facts.site.unset:
        told = facts.variable(one.name)
        if told and one.name not in COVERED and one.name != "NCCL_NET_GDR_LEVEL" and told.value.text not in ("", "0"):
            yield f"{one.name}={told.value.text}: {one.why}", f"unset {one.name}", told.where


RULES = (unknown_variable, unlisted_variable, not_exported, obsolete_variable, forced_algorithm, heartbeat, leave_unset)
