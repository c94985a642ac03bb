"""Rules about variables of RCCL, libfabric and torch's process groups."""

from repro.cluster.rule import CXI, ERROR, HPE, LUMI, OURS, PYTORCH, WARNING, rule

OFI_NAMES = ("ofi", "aws libfabric", "libfabric")
LEAST_CQ, TX_RANGE, MANY_NODES = 131072, (16, 16384), 16
ZEROS = ("FI_CXI_RDZV_THRESHOLD", "FI_CXI_RDZV_EAGER_SIZE", "FI_CXI_RDZV_GET_MIN")


def _several(facts):
    return facts.nodes is not None and facts.nodes.value > 1


def _alt_read(facts):
    """What turns alt_read on: :class:`Told`, or None."""
    told = facts.variable("FI_CXI_RDZV_PROTO")
    if told is not None:
        return told if told.value.text.replace("-", "_") == "alt_read" else None
    settings = facts.file.settings("FI_CXI_RDZV_PROTO") if facts.file is not None else ()
    return None if settings else facts.plugin_module


def _network(facts):
    """Where ``--network=disable_rdzv_get`` stands, or None."""
    for told in (facts.slurm("network"), facts.slurm("network", step_first=False)):
        if told and "disable_rdzv_get" in str(told.value).split(","):
            return told.where
    return next((told.where for _, told in facts.ever("SBATCH_NETWORK", "SLURM_NETWORK")), None)


@rule(
    "alt-read-pair",
    17,
    ERROR,
    f"{PYTORCH}; {CXI}",
    "the other rendezvous and the network's own must not meet: both or neither",
)
def alt_read_pair(facts):
    if facts.file is None or (facts.nodes and facts.nodes.value == 1) or not facts.site.pairs:
        return
    on, network = _alt_read(facts), _network(facts)
    if on is not None and network is None and facts.main is not None:
        by = getattr(on, "name", "FI_CXI_RDZV_PROTO=alt_read")
        fix = "#SBATCH --network=disable_rdzv_get, or unset FI_CXI_RDZV_PROTO and the zeros that go with it"
        yield f"{by} without --network=disable_rdzv_get", fix, on.where
    elif network is not None and on is None and not facts.file.sourced:
        yield "--network=disable_rdzv_get without alt_read", "FI_CXI_RDZV_PROTO=alt_read, or no --network", network


@rule(
    "rendezvous-zeros",
    18,
    WARNING,
    f"{PYTORCH}; {CXI}",
    "without alt_read they send every message by a rendezvous that is slower",
)
def rendezvous_zeros(facts):
    if facts.file is None or _alt_read(facts) is not None:
        return
    for name in ZEROS:
        told = facts.variable(name)
        if told and told.value.whole == 0:
            yield f"{name}=0 without FI_CXI_RDZV_PROTO=alt_read", f"unset {name}, or alt_read", told.where


@rule("cache-monitor", 19, ERROR, f"{PYTORCH}; libfabric issue 9003", "this monitor can dead-lock with RCCL")
def cache_monitor(facts):
    for name, told in facts.ever("FI_MR_CACHE_MONITOR"):
        if told.value.text == "memhooks":
            yield f"{name}=memhooks", f"{name}={_monitor(facts)}", told.where


@rule("cache-monitor-disabled", 19, WARNING, f"{PYTORCH}; {HPE}", "every transfer registers its memory anew")
def cache_monitor_disabled(facts):
    for name, told in facts.ever("FI_MR_CACHE_MONITOR"):
        if told.value.text == "disabled":
            yield f"{name}=disabled", f"{name}={_monitor(facts)}", told.where


def _monitor(facts):
    return next((v.value for v in facts.site.variables if v.name == "FI_MR_CACHE_MONITOR"), "kdreg2 or userfaultfd")


@rule("transmit-queue", 20, ERROR, CXI, "a value outside is replaced by the small default, with a warning only")
def transmit_queue(facts):
    least, most = TX_RANGE
    for name, told in facts.ever("FI_CXI_DEFAULT_TX_SIZE"):
        number = told.value.whole
        if number is not None and not least <= number <= most:
            yield f"{name}={number}, outside {least} to {most}", f"{name}={min(max(number, least), most)}", told.where


@rule(
    "completion-queue",
    21,
    WARNING,
    f"{PYTORCH}; libfabric issue 9286",
    "completions overflow at scale, and ranks hang or end",
)
def completion_queue(facts):
    for name, told in facts.ever("FI_CXI_DEFAULT_CQ_SIZE"):
        number = told.value.whole
        if number is not None and number < LEAST_CQ:
            yield f"{name}={number}", f"{name}={LEAST_CQ}", told.where


@rule(
    "completion-queue-unset",
    None,
    WARNING,
    f"libfabric issue 9286, legion issue 1270; {OURS}: from {MANY_NODES} nodes",
    "the default is small: a job froze at 16 nodes until it was raised",
)
def completion_queue_unset(facts):
    wanted = any(v.name == "FI_CXI_DEFAULT_CQ_SIZE" for v in facts.site.variables)
    if wanted and facts.nodes and facts.nodes.value >= MANY_NODES and facts.missing("FI_CXI_DEFAULT_CQ_SIZE"):
        yield (
            f"no FI_CXI_DEFAULT_CQ_SIZE on {facts.nodes.value} nodes",
            f"FI_CXI_DEFAULT_CQ_SIZE={LEAST_CQ}",
            facts.begins,
        )


def _net(facts):
    told = facts.variable("NCCL_NET")
    return told if told and told.value.text.lower() in OFI_NAMES else None


@rule(
    "plugin-on-one-node",
    22,
    ERROR,
    f"{PYTORCH}; {HPE}",
    "the fabric is not set up for one node, and the plugin will not start",
)
def plugin_on_one_node(facts):
    told = _net(facts)
    if told and facts.nodes and facts.nodes.value == 1:
        yield f"NCCL_NET={told.value.text} on one node", "unset NCCL_NET, or Socket", told.where


@rule(
    "plugin-name",
    23,
    ERROR,
    "ROCm/aws-ofi-rccl, nccl_ofi_net.c",
    "this plugin answers to 'AWS Libfabric' only: RCCL finds no network",
)
def plugin_name(facts):
    told = _net(facts)
    if told is None or told.value.text.lower() != "ofi":
        return
    for name in ("NCCL_NET_PLUGIN", "LD_LIBRARY_PATH"):
        path = facts.variable(name)
        if path and "aws-ofi-rccl" in f"{path.value.text} {path.value.origin}":
            yield (
                f"NCCL_NET={told.value.text} with aws-ofi-rccl",
                "NCCL_NET='AWS Libfabric', or rccl-net-plugin",
                told.where,
            )
            return
    if old := facts.file.loaded("aws-ofi-rccl"):
        yield (
            f"NCCL_NET={told.value.text} with module {old.name}",
            "NCCL_NET='AWS Libfabric', or rccl-net-plugin",
            told.where,
        )


@rule(
    "plugin-not-forced",
    24,
    WARNING,
    f"{PYTORCH}; {HPE}",
    "where the plugin is not found RCCL uses TCP, in silence and far slower",
)
def plugin_not_forced(facts):
    wanted = any(v.name == "NCCL_NET" for v in facts.site.variables)
    if wanted and _several(facts) and facts.missing("NCCL_NET"):
        yield f"no NCCL_NET on {facts.nodes.value} nodes", "NCCL_NET=OFI with the plugin's module", facts.begins


@rule(
    "sockets",
    None,
    WARNING,
    "rccl issue 1026; users' scripts of 2026 as a last resort",
    "RCCL goes through TCP: nothing measured says anything about the network",
)
def sockets(facts):
    told = facts.variable("NCCL_NET")
    if told and told.value.text.lower() == "socket" and _several(facts) and facts.site.backend == "nccl":
        yield f"NCCL_NET=Socket on {facts.nodes.value} nodes", "NCCL_NET=OFI, or leave it out", told.where


@rule(
    "gdr-level",
    49,
    ERROR,
    f"{LUMI}, PR 97; laifs-container-recipes issues 28, 30 (contested: OLCF sets PHB)",
    "multi-node start-up hangs with this site's ROCm 7 container",
)
def gdr_level(facts):
    if any(one.name == "NCCL_NET_GDR_LEVEL" for one in facts.site.unset):
        told = facts.variable("NCCL_NET_GDR_LEVEL")
        if told:
            yield f"NCCL_NET_GDR_LEVEL={told.value.text}", "unset NCCL_NET_GDR_LEVEL", told.where


@rule(
    "missing-monitor",
    49,
    WARNING,
    f"{LUMI}, PR 118; laifs-container-recipes issue 44",
    "a second process group may never finish its first collective",
)
def missing_monitor(facts):
    wanted = _monitor(facts)
    if wanted == "userfaultfd" and _several(facts) and facts.missing("FI_MR_CACHE_MONITOR"):
        yield "no FI_MR_CACHE_MONITOR", f"FI_MR_CACHE_MONITOR={wanted}", facts.begins


RULES = (alt_read_pair, rendezvous_zeros, cache_monitor, cache_monitor_disabled, missing_monitor, transmit_queue,
         completion_queue, completion_queue_unset, plugin_on_one_node, plugin_name, plugin_not_forced, sockets,
         gdr_level)  # fmt: skip
