"""Where each rank really sits, against the site's table of local rank, device, cores and NIC. No torch."""

from collections import Counter
from dataclasses import asdict, dataclass, field

from repro.cluster.preflight import FAILED, NOT_CHECKED, OK, Check

WRONG = "wrong"
FILTERS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # HIP reads the second only where the first is not set


@dataclass(frozen=True)
class Seen:
    """What one rank sees of its node.

    Attributes:
        visible: variables that choose devices, as the rank found them.
        devices: how many torch sees; ``device``: the index that the rank takes; ``bus``: its PCI bus.
        cores: physical ones that the rank may run on, by their first hardware thread.
        numa: domains of these cores; ``nics``: network interfaces of these domains, empty where unknown.
        interface: that gloo would take.
    """

    rank: int
    host: str
    local_rank: int
    visible: dict = field(default_factory=dict)
    devices: int = 0
    device: int | None = None
    bus: str | None = None
    cores: tuple = ()
    numa: tuple = ()
    nics: tuple = ()
    interface: str = ""

    def to_dict(self):
        return asdict(self)

    @classmethod
    def from_dict(cls, data):
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


@dataclass(frozen=True)
class Bound:
    """One row of the table: a rank, where it sits, where it should, and what to change."""

    rank: int
    host: str
    local_rank: int
    gcd: str
    cores: str
    numa: str
    nic: str
    expected: str
    state: str
    why: str = ""
    fix: str = ""

    def to_dict(self):
        return asdict(self)


def judge(seen, site=None):
    """A :class:`Bound` for every rank, in order.

    Args:
        seen: :class:`Seen` of all ranks.
        site: :class:`repro.cluster.site.Site`; without one nothing is known to compare with.
    """
    shared = _shared_devices(seen)
    return tuple(_row(one, site, shared) for one in sorted(seen, key=lambda one: one.rank))


def check(rows):
    """The :class:`repro.cluster.preflight.Check` over the rows: any wrong one is named with what to change."""
    wrong = [row for row in rows if row.state == WRONG]
    if wrong:
        first = wrong[0]
        more = f" (and {len(wrong) - 1} more ranks)" if len(wrong) > 1 else ""
        return Check("binding", FAILED, f"rank {first.rank} on {first.host}: {first.why}{more}", first.fix)
    unknown = [row for row in rows if row.state == NOT_CHECKED]
    if unknown:
        return Check("binding", NOT_CHECKED, unknown[0].why)
    return Check("binding", OK, f"all {len(rows)} ranks sit as the site's table says")


def placement(seen):
    """The :class:`repro.cluster.preflight.Check` that each node holds consecutive ranks, numbered from 0 in it.

    Tensor-parallel groups are consecutive ranks: dealt out in any other way they would cross nodes.
    """
    by_host = {}
    for one in sorted(seen, key=lambda one: one.rank):
        by_host.setdefault(one.host, []).append(one)
    fix = "srun -m block:cyclic, and the same number of tasks on every node (--ntasks-per-node)"
    for host, ranks in by_host.items():
        first = ranks[0].rank
        for place, one in enumerate(ranks):
            if one.rank != first + place:
                why = (
                    f"node {host} holds ranks {first} and {one.rank} but not all between them: ranks are not in blocks"
                )
                return Check("placement", FAILED, why, fix)
            if one.local_rank != place:
                why = f"rank {one.rank} is number {place} of {host}, but its local rank is {one.local_rank}"
                return Check("placement", FAILED, why, fix)
    sizes = Counter(len(ranks) for ranks in by_host.values())
    if len(sizes) > 1:
        why = f"nodes hold {' or '.join(str(n) for n in sorted(sizes))} ranks, not the same number each"
        return Check("placement", FAILED, why, fix)
    each = next(iter(sizes))
    return Check("placement", OK, f"{len(by_host)} node{'s' * (len(by_host) > 1)}, {each} consecutive ranks on each")


def _row(one, site, shared):
    rows = {row.local_rank: row for row in site.node.binding} if site else {}
    row, gcd = rows.get(one.local_rank), device_number(one, rows.values())
    have = {
        "rank": one.rank,
        "host": one.host,
        "local_rank": one.local_rank,
        "gcd": "" if gcd is None else str(gcd),
        "cores": cores_text(one.cores),
        "numa": ",".join(map(str, one.numa)),
        "nic": ",".join(one.nics),
        "expected": f"GCD {row.gpu}, cores {row.cores}, NUMA {row.numa}, {row.nic}" if row else "",
    }
    if one.rank in shared:
        why = f"it shares device {one.bus} with rank {shared[one.rank]}"
        return Bound(**have, state=WRONG, why=why, fix=_gpu_fix(one, site))
    if not one.devices:
        return Bound(**have, state=NOT_CHECKED, why="there is no GPU on this node")
    if not rows:
        why = "the site has no table of devices and cores" if site else "no site was given to compare with"
        return Bound(**have, state=NOT_CHECKED, why=why)
    if row is None:
        why = f"local rank {one.local_rank} is not in the site's table of {len(rows)} ranks a node"
        return Bound(**have, state=WRONG, why=why, fix=f"--ntasks-per-node={len(rows)}")
    problems = list(_problems(one, row, gcd, site))
    if problems:
        return Bound(**have, state=WRONG, why="; ".join(p[0] for p in problems), fix=problems[0][1])
    if gcd is None:
        return Bound(**have, state=NOT_CHECKED, why="nothing tells which of the node's devices this rank sees")
    if not one.cores:
        return Bound(**have, state=NOT_CHECKED, why="the system does not tell which cores this rank may use")
    few = len(one.cores) < len(parse_cores(row.cores))
    return Bound(**have, state=OK, why=f"{len(one.cores)} of the cores of its region" if few else "")


def _problems(one, row, gcd, site):
    if gcd is not None and gcd != row.gpu:
        yield f"it sees GCD {gcd}, the table says {row.gpu}", _gpu_fix(one, site)
    wanted = parse_cores(row.cores)
    if one.cores and not set(one.cores) <= wanted:
        fix = f"srun -c {site.node.cores_per_task} --cpu-bind=threads -m block:cyclic"
        yield f"it may run on cores {cores_text(one.cores)}, the table says {row.cores}", fix
    if one.nics and row.nic and row.nic not in one.nics:
        yield (
            f"the NIC near its cores is {', '.join(one.nics)}, the table says {row.nic}",
            "bind cores as the table says",
        )


def _gpu_fix(one, site):
    set_ones = [name for name in FILTERS if one.visible.get(name)]
    if site is not None and site.node.visible_gpus == 1:
        if set_ones:
            return f"unset {' and '.join(set_ones)}: with one device for each task it filters a second time"
        return "srun --gpus-per-task=1 --gpu-bind=closest, all 8 tasks of the node in the step"
    if site is not None:
        return f"show all {site.node.visible_gpus} devices to each task and take the one of the local rank"
    return "bind one device to each task (srun --gpus-per-task=1 --gpu-bind=closest)"


def _shared_devices(seen):
    """``{rank: the earlier rank of its node that has the same PCI bus}``."""
    first, found = {}, {}
    for one in sorted(seen, key=lambda one: one.rank):
        if one.bus is not None:
            other = first.setdefault((one.host, one.bus), one.rank)
            if other != one.rank:
                found[one.rank] = other
    return found


def device_number(one, rows=()):
    """Number of the rank's device in its node, or ``None`` where nothing tells.

    Its PCI bus where the table has buses; else what Slurm's ROCR_VISIBLE_DEVICES left of the node's devices, and
    what HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES, which count among those, left of them.
    """
    buses = {_bus(row.bus): row.gpu for row in rows if getattr(row, "bus", None)}
    if one.bus is not None and _bus(one.bus) in buses:
        return buses[_bus(one.bus)]
    if one.device is None:
        return None
    left = _numbers(one.visible.get("ROCR_VISIBLE_DEVICES"))
    for name in FILTERS:
        chosen = _numbers(one.visible.get(name))
        if chosen is not None:
            left = chosen if left is None else [left[i] for i in chosen if i < len(left)]
            break
    if left is None:
        texts = [one.visible.get(name) for name in ("ROCR_VISIBLE_DEVICES", *FILTERS)]
        # nothing filters: torch's numbers are the node's, if it sees as many as the table has
        return one.device if not any(texts) and rows and one.devices == len(list(rows)) else None
    return left[one.device] if one.device < len(left) else None


def _numbers(text):
    """``"4,5"`` as numbers; ``None`` where it is unset or names devices otherwise, by UUID say."""
    parts = [part.strip() for part in (text or "").split(",")]
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else None


def _bus(text):
    """``0000:d1:00.0``, ``0xd1`` or ``d1`` as the bus alone."""
    parts = str(text).lower().split(":")
    return (parts[1] if len(parts) == 3 else parts[0]).removeprefix("0x").lstrip("0") or "0"


def parse_cores(text):
    """``"1-7,9"`` as a set of numbers."""
    found = set()
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found


def cores_text(cores):
    """Numbers as ``"1-7,9"``."""
    parts, cores = [], sorted(set(cores))
    for number in cores:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
