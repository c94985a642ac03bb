"""Rules about how ranks are started: which GPU each one takes, where they meet, how many threads they have."""

import re

from repro.cluster.rule import DEEPSPEED, ERROR, LUMI, OLCF, PYTORCH, WARNING, rule
from repro.cluster.rules_allocation import partition
from repro.cluster.slurm_options import Told
from repro.records.shell_values import Text

LOCAL = re.compile(r"localhost|127\.|::1|0\.0\.0\.0|login", re.IGNORECASE)
SUBMITTED = re.compile(r"SLURM_SUBMIT_HOST|SLURM_LAUNCH_NODE")
BY_POSITION = re.compile(
    r"\$\{SLURM_(JOB_|STEP_)?NODELIST\s*:\s*\d|NODELIST.*\|\s*(cut\s+-[bc]|head\s+-c|awk.*substr)|"
    r"NODELIST[\"'\])]*\s*\[\s*-?\d*\s*:"
)


@rule(
    "local-rank",
    5,
    ERROR,
    f"{OLCF}; Megatron initialize.py",
    "a task that sees one GPU has device 0 only, whatever its rank",
)
def local_rank(facts):
    one = facts.one_gpu
    if one is None:
        return
    for name, told in _given(facts, ["LOCAL_RANK"], "local-rank"):
        number = told.value.whole
        if number or re.search(r"SLURM_LOCALID|COMM_WORLD_LOCAL_RANK", f"{told.value.text} {told.value.origin}"):
            yield f"{name} is {told.value.text} with {one.value}", "LOCAL_RANK=0", told.where


@rule(
    "visible-devices",
    6,
    ERROR,
    f"{OLCF}; {DEEPSPEED}",
    "Slurm shows each task its GPU; a second filter indexes into that one",
)
def visible_devices(facts):
    one = facts.one_gpu
    if one is None or not one.value.startswith("--"):
        return
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        told = facts.variable(name)
        if told and told.value.text not in ("", "0"):
            yield f"{name}={told.value.text} with {one.value}", f"unset {name}", told.where


@rule("mask-length", 49, ERROR, f"{LUMI}, ch. 5", "ranks beyond the list share cores with others")
def mask_length(facts):
    told, each = facts.slurm("cpu-bind"), facts.tasks_per_node
    match = re.match(r"(?:\w+,)*(mask_cpu|map_cpu):(.*)", str(told.value)) if told else None
    if match and each and "$" not in match[2]:
        count = len([one for one in match[2].split(",") if one])
        if count != each.value:
            yield (
                f"{count} entries of {match[1]} for {each.value:g} tasks a node",
                f"{each.value:g} entries",
                told.where,
            )


def _given(facts, names, *options):
    """``(name, Told)`` of variables and of options of the program or of what spawns it."""
    found = facts.ever(*names)
    for option in options:
        for given in (facts.main.spawn, facts.main.arguments) if facts.main is not None else ():
            if isinstance(value := given.get(option), Text):
                found.append((f"--{option}", Told(value, facts.main.where)))
    return found


def _addresses(facts):
    return _given(facts, ["MASTER_ADDR"], "master-addr", "rdzv-endpoint", "init-method")


@rule(
    "submit-host",
    40,
    ERROR,
    "OLCF training 2023-10, export_DDP_vars.sh",
    "a job is submitted from a login node, on which no rank runs",
)
def submit_host(facts):
    for name, told in _addresses(facts):
        if SUBMITTED.search(f"{told.value.text} {told.value.origin}"):
            fix = 'the first node: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
            yield f"{name} is the host of submission", fix, told.where


@rule("local-rendezvous", None, ERROR, f"{PYTORCH}", "ranks of other nodes cannot reach this address")
def local_rendezvous(facts):
    if facts.nodes is None or facts.nodes.value < 2:
        return
    for name, told in _addresses(facts):
        if told.value.known and LOCAL.match(re.sub(r"^\w+://", "", told.value.text)):
            yield (
                f"{name} {told.value.text} on {facts.nodes.value} nodes",
                "the first node of the allocation",
                told.where,
            )


@rule(
    "node-list-by-position",
    None,
    ERROR,
    "authors' dh_utils.py",
    "a node list is no fixed text: one node, or mixed ranges, break it",
)
def node_list_by_position(facts):
    for number, line in enumerate(facts.file.script.lines if facts.file is not None else (), 1):
        if not line.lstrip().startswith("#") and BY_POSITION.search(line):
            yield (
                "a node list is cut by character",
                'scontrol show hostnames "$SLURM_JOB_NODELIST"',
                f"{facts.file.name}:{number}",
            )


@rule(
    "master-port",
    41,
    WARNING,
    f"{LUMI}; {PYTORCH}",
    "another job on the node may have the port, or no user may open it",
)
def master_port(facts):
    rows = partition(facts)
    shared = bool(rows) and not any(p.exclusive for p in rows)
    for name, told in _given(facts, ["MASTER_PORT"], "master-port"):
        port = told.value.whole
        if port is not None and port < 1024:
            yield f"{name} {port} is reserved for the system", "a port from 1024, e.g. 3442", told.where
        elif port is not None and shared:
            fix = "derived from the job's number: $((20000 + SLURM_JOB_ID % 20000))"
            yield f"{name} {port} is fixed in partition {rows[0].name}, which shares nodes", fix, told.where


@rule("omp-threads", 42, WARNING, OLCF, "threads beyond a rank's cores wait for each other")
def omp_threads(facts):
    told = facts.variable("OMP_NUM_THREADS")
    cores = (
        facts.cores_per_task.value if facts.cores_per_task and facts.processes == 1 else facts.site.node.cores_per_task
    )
    cores = min(cores, facts.site.node.cores_per_task)
    if told and told.value.whole and told.value.whole > cores:
        yield f"OMP_NUM_THREADS={told.value.whole} on {cores} cores", f"OMP_NUM_THREADS={cores}", told.where


@rule(
    "torchrun",
    None,
    WARNING,
    f"{PYTORCH}; LUMI differs (contested)",
    "workers of one task share its cores: more than ten times slower was seen",
)
def torchrun(facts):
    main, node = facts.main, facts.site.node
    if main is None or main.spawner != "torchrun" or not node.binding:
        return
    if node.visible_gpus == 1:
        yield "torchrun starts the ranks of a node inside one task", f"srun with {node.tasks} tasks a node", main.where
    elif "numa-binding" not in main.spawn:
        yield (
            "torchrun without --numa-binding",
            "--numa-binding=exclusive, or srun with a mask for each task",
            main.where,
        )


@rule(
    "ssh-launcher",
    None,
    ERROR,
    "gpt-neox issues 811, 734; PR 859",
    "compute nodes take no ssh from each other inside a job",
)
def ssh_launcher(facts):
    if facts.file is None:
        return
    main = facts.main
    several = facts.nodes is not None and facts.nodes.value > 1
    if main is not None and main.spawner == "deepspeed" and several and not main.launcher:
        launcher = main.spawn.get("launcher")
        if (
            "hostfile" in main.spawn
            or launcher is None
            or getattr(launcher, "text", "") in ("pdsh", "openmpi", "mvapich")
        ):
            yield "the deepspeed launcher reaches other nodes by ssh", "srun, with a rank for each task", main.where
    for command in facts.file.commands:
        if command.called in ("ssh", "pdsh"):
            yield f"{command.called} inside a job", "srun --ntasks-per-node=1", command.where


RULES = (local_rank, visible_devices, mask_length, submit_host, local_rendezvous, node_list_by_position, master_port,
         omp_threads, torchrun, ssh_launcher)  # fmt: skip
