"""Where a site contradicts itself: each problem in one line, with the nearest name where one is unknown."""

import re
from itertools import combinations
from pathlib import Path
from string import Formatter

from repro.errors import unknown

MACHINES = Path(__file__).parent.parent / "machines"
PLACES = ("cores", "gpus", "masks")  # that flags may leave to be filled in
OWN = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "DEEPSPEED_TIMEOUT"}  # the script's


def problems(site):
    """Yields what is wrong with a :class:`repro.cluster.site.Site`."""
    yield from _itself(site)
    yield from _node(site.node)
    yield from _partitions(site.partitions)
    yield from _variables(site)
    yield from _ladder(site)
    yield from _flags(site)


def _itself(site):
    if not site.runnable and not site.why_not:
        yield "runnable is false but why_not does not say why"
    if site.environment == "packed" and site.local_storage is None:
        yield "environment packed needs local_storage to unpack to"
    if site.environment == "container" and not site.container:
        yield "environment container needs container, its path"
    if site.port != "job" and not 1024 <= site.port <= 65535:
        yield f'port {site.port} must be 1024 to 65535, or "job"'
    patterns = {f"removed pattern {one.pattern!r}": one.pattern for one in site.removed}
    for what, pattern in {**patterns, "account_pattern": site.account_pattern or ""}.items():
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"{what} is no regular expression: {error}"
    known = sorted(path.stem for path in MACHINES.glob("*.toml") if path.stem != "devices")
    if site.machine is not None and not site.machine.endswith(".toml") and site.machine not in known:
        yield str(unknown("machine", site.machine, known))


def _node(node):
    rows = node.binding
    if rows and [row.local_rank for row in rows] != list(range(node.tasks)):
        yield f"node.binding must list local ranks 0 to {node.tasks - 1} in order, it lists {len(rows)}"
    for row in rows:
        if not 1 <= len(row.core_numbers) <= node.cores_per_task:
            yield (
                f"node.binding gives local rank {row.local_rank} the cores {row.cores}; "
                f"node.cores_per_task = {node.cores_per_task}"
            )
    cores = [core for row in rows for core in row.core_numbers]
    if len(set(cores)) < len(cores):
        yield "node.binding gives a core to two ranks"
    gpus = [row.gpu for row in rows]
    if len(set(gpus)) < len(gpus):
        yield "node.binding gives a GPU to two ranks"
    if node.tasks * node.cores_per_task > node.usable_cores:
        yield f"{node.tasks} tasks of {node.cores_per_task} cores are more than the {node.usable_cores} usable ones"


def _partitions(partitions):
    if not partitions:
        yield "partitions must list one at least"
    for part in partitions:
        if part.min_nodes > part.max_nodes:
            yield f"partition {part.name} takes {part.min_nodes} to {part.max_nodes} nodes"
    for one, other in combinations(partitions, 2):
        apart = one.max_nodes < other.min_nodes or other.max_nodes < one.min_nodes
        if (one.name, one.qos) == (other.name, other.qos) and not apart:
            least = max(one.min_nodes, other.min_nodes)
            yield f"partition {one.name} is listed twice for {least} nodes: bins must not overlap"


def _variables(site):
    names, unset = [v.name for v in site.variables], {u.name for u in site.unset}
    for name in (*names, *site.offline, *site.proxies):
        if name in unset:
            yield f"{name} is set and in unset"
        if name in OWN:
            yield f"{name} follows from the job; a site cannot set it"
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        yield f"variables set {twice} twice"
    pairs = [pair.name for pair in site.pairs]
    for variable in site.variables:
        if variable.pair and variable.pair not in pairs:
            yield f"variable {variable.name}: {unknown('pair', variable.pair, pairs)}"
        if variable.pair and variable.when != "always":
            yield f"variable {variable.name} belongs to a pair, which is for several nodes as a whole; leave out when"
    for pair in site.pairs:
        if not any(v.pair == pair.name for v in site.variables):
            yield f"pair {pair.name} has no variable"
        if pair.sbatch_option in site.sbatch:
            yield f"{pair.sbatch_option} is in sbatch and in pair {pair.name}: it may only come with the pair"


def _ladder(site):
    if [rung.number for rung in site.ladder] != list(range(1, len(site.ladder) + 1)):
        yield "ladder must count its rungs from 1"
    owner = {v.name: v.pair for v in site.variables}
    pairs, unset, gone = [p.name for p in site.pairs], {u.name for u in site.unset}, set()
    for rung in site.ladder:
        where = f"rung {rung.number}"
        for name in rung.drop:
            if name not in owner:
                yield f"{where} drops {unknown('variable', name, owner)}"
            elif owner[name]:
                yield f"{where} drops {name} alone; it goes with its pair: drop_pairs = [{owner[name]!r}]"
        for name in rung.drop_pairs:
            if name not in pairs:
                yield f"{where} drops {unknown('pair', name, pairs)}"
        gone |= set(rung.drop_pairs)
        for name in rung.set:
            if name in unset:
                yield f"{where} sets {name}, which must stay unset"
            if owner.get(name) in gone:
                yield f"{where} sets {name}, whose pair {owner[name]} is dropped by then"
            owner.setdefault(name, None)


def _flags(site):
    for flag in (*site.sbatch, *site.srun):
        try:
            places = [place for _, place, _, _ in Formatter().parse(flag) if place is not None]
        except ValueError as error:
            yield f"flag {flag!r}: {error}"
            continue
        for place in places:
            if place not in PLACES:
                yield f"flag {flag!r}: {unknown('place', place, PLACES)}"
            elif place == "masks" and not site.node.binding:
                yield f"flag {flag!r} needs node.binding, from which masks follow"
