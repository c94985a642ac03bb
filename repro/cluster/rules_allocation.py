"""Rules about what a job asks Slurm for: nodes and hours, tasks and cores, the end of its time."""

import re

from repro.cluster.rule import ERROR, OLCF, SBATCH, WARNING, rule
from repro.errors import unknown

MOST_SRUNS = 100


def partition(facts):
    """Rows of the site that the job falls under; none where its partition does not exist or is not known."""
    told, qos = facts.slurm("partition", step_first=False), facts.slurm("qos", step_first=False)
    if told and not isinstance(told.value, str):
        return ()
    site = facts.site
    name = told.value if told else site.default_partition
    rows = [p for p in site.partitions if p.name == name]
    asked = qos.value if qos else None
    return tuple([p for p in rows if p.qos == asked] or [p for p in rows if p.qos is None])


@rule("unknown-partition", None, ERROR, SBATCH, "sbatch refuses a job for a partition that the site does not have")
def unknown_partition(facts):
    told = facts.slurm("partition", step_first=False)
    known = sorted({p.name for p in facts.site.partitions})
    if told and isinstance(told.value, str) and told.value not in known:
        yield str(unknown("partition", told.value, known)), f"one of {', '.join(known)}", told.where


@rule("bin-limit", 1, ERROR, f"{OLCF}, batch bins", "a job outside the limits of its queue is refused or never starts")
def bin_limit(facts):
    rows = partition(facts)
    nodes, hours = facts.count("nodes", step_first=False) or facts.nodes, facts.hours
    if not rows or nodes is None:
        return
    label = rows[0].name + (f" (qos {rows[0].qos})" if rows[0].qos else "")
    fits = [p for p in rows if p.min_nodes <= nodes.value <= p.max_nodes]
    if not fits:
        most, least = max(p.max_nodes for p in rows), min(p.min_nodes for p in rows)
        nearest = most if nodes.value > most else least
        yield f"{nodes.value:,} nodes; {label} takes {least:,} to {most:,}", f"--nodes={nearest}", nodes.where
    elif hours is not None and hours.value > max(p.hours for p in fits):
        most = max(p.hours for p in fits)
        longer = [p for p in rows if p.hours >= hours.value and p.min_nodes > nodes.value]
        more = f", or {min(p.min_nodes for p in longer)} nodes at least" if longer else ""
        other = {p.name for p in facts.site.partitions if p.qos is None and p.name != rows[0].name
                 and p.min_nodes <= nodes.value <= p.max_nodes and p.hours >= hours.value}  # fmt: skip
        more += f", or partition {min(other)}" if other else ""
        what = f"{hours.value:g} hours on {nodes.value:,} nodes; {label} gives {most:g} at that size"
        yield what, f"--time={int(most):02d}:00:00{more}", hours.where


@rule(
    "debug-chain", 1, ERROR, f"{OLCF}, debug QOS", "this queue is for one short job; chained jobs are against its rules"
)
def debug_chain(facts):
    rows = partition(facts)
    if not rows or any(p.chain for p in rows) or facts.file is None:
        return
    label = f"qos {rows[0].qos}" if rows[0].qos else rows[0].name
    for name in ("dependency", "requeue"):
        if (told := facts.slurm(name, step_first=False)) is not None:
            yield f"--{name} in {label}", f"no --{name}, or a queue that allows it", told.where
    for command in facts.file.commands:
        texts = [w.text for w in command.program]
        if texts[:1] == ["sbatch"] or texts[:2] == ["scontrol", "requeue"]:
            yield f"{' '.join(texts[:2])} in a job of {label}", "submit the next job by hand", command.where


@rule(
    "tasks-per-node",
    2,
    ERROR,
    f"{OLCF}, GPU mapping",
    "each GCD needs its own rank; the others would idle, or share one",
)
def tasks_per_node(facts):
    main, want = facts.main, facts.site.node.tasks
    if main is None or main.launcher != "srun":
        return
    each, processes = facts.tasks_per_node, facts.processes
    if each is None:
        asked = any(facts.slurm(name) for name in ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core"))
        if asked or processes != 1 or want == 1 or facts.nodes is None:
            return
        fix = f"srun -n {want * facts.nodes.value} --ntasks-per-node={want}"
        yield "no number of tasks: srun starts one on each node", fix, main.where
    elif processes is not None and each.value * processes != want and not (facts.nodes and facts.nodes.value == 1):
        fix = f"--ntasks-per-node={want}" if processes == 1 else f"--ntasks-per-node=1 with {want} processes"
        fix += f", that is -n {want * facts.nodes.value // (processes or 1)}" if facts.nodes else ""
        yield f"{each.value:g} tasks a node x {processes} processes for {want} GCDs", fix, each.where


@rule(
    "cores-per-task",
    3,
    ERROR,
    f"{OLCF}, core specialisation",
    "more cores than a node offers: the step is refused or never starts",
)
def cores_per_task(facts):
    cores, each, node = facts.cores_per_task, facts.tasks_per_node, facts.site.node
    if cores is None:
        return
    tasks = int(each.value) if each and each.value >= 1 else 1 if facts.processes != 1 else node.tasks
    special = facts.count("core-spec", step_first=False)
    usable = node.usable_cores + node.tasks if special and special.value == 0 and node.binding else node.usable_cores
    if cores.value * tasks > usable:
        yield f"{cores.value} cores x {tasks} tasks; {usable} can be used", f"-c {max(usable // tasks, 1)}", cores.where


@rule(
    "few-cores",
    4,
    WARNING,
    f"{OLCF}, GPU mapping",
    "data loading, RCCL's proxy threads and the rank share so few cores",
)
def few_cores(facts):
    main, node = facts.main, facts.site.node
    if main is None or main.launcher != "srun" or facts.processes != 1:
        return
    cores, each = facts.cores_per_task, facts.tasks_per_node
    if each and each.value != node.tasks:
        return
    if cores is None and facts.slurm("cpus-per-task") is None and facts.variable("SRUN_CPUS_PER_TASK") is None:
        if node.cores_per_task > 1:
            yield "no cores asked for: srun gives each task one", f"-c {node.cores_per_task}", main.where
    elif cores and cores.value < node.cores_per_task:
        yield f"{cores.value} of {node.cores_per_task} cores a task", f"-c {node.cores_per_task}", cores.where


@rule(
    "time-limit-plan",
    44,
    WARNING,
    f"{OLCF}, --signal; {SBATCH}",
    "at the time limit all since the last checkpoint is lost",
)
def time_limit_plan(facts):
    main = facts.main
    if main is None or not facts.file.directives:
        return
    signal = facts.slurm("signal", step_first=False)
    ends = facts.argument("exit-duration-in-mins")
    minutes = ends.value.whole if ends and ends.value is not True else None
    advice = f"#SBATCH --signal=B:USR1@{facts.site.signal_seconds} with a trap, or Megatron's --exit-duration-in-mins"
    if signal is None and ends is None:
        yield "neither --signal nor an end before the time limit", advice, facts.begins
    elif signal is None and minutes and facts.hours and minutes >= facts.hours.value * 60:
        fix = f"--exit-duration-in-mins {max(int(facts.hours.value * 60) - 15, 1)}"
        yield (
            f"--exit-duration-in-mins {minutes} is no earlier than the limit of {facts.hours.value:g} h",
            fix,
            ends.where,
        )
    elif (
        signal is not None
        and str(signal.value).startswith("B:")
        and not any(c.name == "trap" for c in facts.file.commands)
    ):
        yield f"--signal={signal.value} goes to the batch shell, which has no trap", "a trap, or no B:", signal.where


@rule(
    "many-steps",
    45,
    WARNING,
    f"{OLCF}, job steps",
    "Slurm's commands hang with more than about a hundred steps at once",
)
def many_steps(facts):
    if facts.file is None:
        return
    sruns = [(c, c.times or 1) for c in facts.file.commands if c.called == "srun" and not c.task]
    total = sum(times for _, times in sruns)
    if total > MOST_SRUNS:
        most = max(sruns, key=lambda one: one[1])[0]
        yield f"{total:,} calls of srun", "one srun over all tasks, or Flux inside the allocation", most.where


@rule("account", None, ERROR, SBATCH, "sbatch refuses an account that the site does not have")
def account(facts):
    told, pattern = facts.slurm("account", step_first=False), facts.site.account_pattern
    placeholder = told is not None and re.search(r"[<>$%]", str(told.value))
    if told and pattern and isinstance(told.value, str) and not placeholder and not re.fullmatch(pattern, told.value):
        yield f"account {told.value!r} does not match {pattern}", "your project's identifier", told.where


RULES = (unknown_partition, bin_limit, debug_chain, tasks_per_node, cores_per_task, few_cores, time_limit_plan,
         many_steps, account)  # fmt: skip
