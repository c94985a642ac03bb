"""A site as data: one TOML file says how jobs are asked for there, how ranks are bound, what RCCL needs.

A shipped site is loaded by name, another by path; ``extends`` names the site it varies. Every fact carries
its source and a date, and what is contested says so.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from repro.errors import InputError, shortened, unknown

SITES = Path(__file__).parent / "sites"
MOST_BYTES = 200_000
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]  # of a variable: it goes into a script
Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./:@%+=,-]+$")]  # a word that needs no quoting
Flag = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./:@%+=,{}-]+$")]  # with places to fill in
Text = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")]  # one line: it may stand in a comment
Value = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]
Date = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
Count = Annotated[int, Field(ge=1, le=10**6)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Binding(Part):
    """One rank of a node: its GCD and the PCI bus of that, its cores (``1-7``), the NUMA domain and NIC near them."""

    local_rank: Annotated[int, Field(ge=0, le=1023)]
    gpu: Annotated[int, Field(ge=0, le=1023)]
    cores: Annotated[str, Field(pattern=r"^\d+-\d+$")]
    numa: Annotated[int, Field(ge=0, le=1023)]
    nic: Token | None = None
    bus: Annotated[str, Field(pattern=r"^[0-9a-f]{2}$")] | None = None

    @property
    def core_numbers(self):
        first, last = map(int, self.cores.split("-"))
        return tuple(range(first, last + 1))

    @property
    def mask(self):
        """Bit mask of the cores, as ``--cpu-bind=mask_cpu`` takes it."""
        return f"0x{sum(1 << core for core in self.core_numbers):x}"


class Node(Part):
    """``visible_gpus`` is what a task sees: 1, or all of a node's. 0: a node without any."""

    tasks: Count
    cores_per_task: Count
    usable_cores: Count
    visible_gpus: Annotated[int, Field(ge=0, le=1024)]
    binding: tuple[Binding, ...] = Field(default=(), strict=False)
    source: Text


class Partition(Part):
    """Nodes and hours that go together; ``chain`` false forbids dependencies and requeueing."""

    name: Token
    qos: Token | None = None
    min_nodes: Count = 1
    max_nodes: Count
    hours: Annotated[float, Field(gt=0, le=10_000, strict=False)]
    chain: bool = True
    exclusive: bool = True
    source: Text


class Module(Part):
    """A module to load, in order; one that is only needed at run time, not to build."""

    name: Token
    why: Text
    source: Text
    run_time_only: bool = False


class Removed(Part):
    """Software that the site no longer has: a regular expression over module names and paths."""

    pattern: Text
    why: Text
    source: Text


class Toolchain(Part):
    """Versions that must go together; ``pairs`` of programming environment and ROCm that the site supports.

    ``cpe_default`` is loaded without asking: the libraries of others are found only with ``prepend_library_path``.
    """

    rocm: Token
    torch: Token
    wheel: Token
    cpe: Token | None = None
    cpe_default: Token | None = None
    pairs: tuple[Annotated[tuple[str, str], Field(strict=False)], ...] = Field(default=(), strict=False)
    prepend_library_path: Name | None = None
    source: Text


class Variable(Part):
    """An environment variable; ``pair`` names the :class:`Pair` that it belongs to."""

    name: Name
    value: Value
    meaning: Text
    source: Text
    date: Date
    when: Literal["always", "multi-node", "single-node"] = "always"
    pair: str | None = None
    contested: Text | None = None


class Unset(Part):
    """A variable that must not be set."""

    name: Name
    why: Text
    source: Text


class Pair(Part):
    """Variables and an option of Slurm that help only together."""

    name: Text
    sbatch_option: Token
    why: Text
    source: Text


class Rung(Part):
    """One step of the ladder to climb down when a job hangs. Rungs add up: rung 3 does what 1 and 2 do, too."""

    number: Annotated[int, Field(ge=1, le=100)]
    title: Text
    set: dict[Name, Value] = Field(default_factory=dict)
    drop: tuple[Name, ...] = Field(default=(), strict=False)
    drop_pairs: tuple[str, ...] = Field(default=(), strict=False)
    why: Text
    source: Text
    loud: bool = False


class LocalStorage(Part):
    """Storage of the node, to which the environment is unpacked; ``$USER`` in the path is the shell's."""

    path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./$-]*$")]
    constraint: Token | None = None
    unpack_cores: Count
    source: Text


class Site(Part):
    """A site. Raises :class:`InputError` on construction through :func:`load_site` when it contradicts itself.

    Attributes:
        machine: profile of :mod:`repro.machines`, for projections; ``None`` where there is none.
        environment: ``packed`` (an archive of a conda environment, unpacked on each node), ``prefix`` (a folder
            that all nodes see), ``container`` or ``none``.
        sbatch, srun: flags of the job and of its step; ``{cores}`` of a task, ``{gpus}`` of a node and ``{masks}``,
            the bit masks of the binding's cores, are filled in.
        module_paths: folders that modules are looked for in, beside the usual ones.
        unset: what nothing may set; the script takes it out of what it finds, also where a module had set it.
        port: of the rendezvous; ``job``: derived from the job's number.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    title: Text
    machine: str | None = None
    runnable: bool = True
    why_not: Text | None = None
    date: Date
    scheduler: Literal["slurm"] = "slurm"
    backend: Literal["nccl", "gloo"] = "nccl"
    account_required: bool = False
    account_pattern: str | None = None
    node: Node
    partitions: tuple[Partition, ...] = Field(strict=False)
    module_paths: tuple[Token, ...] = Field(default=(), strict=False)
    modules: tuple[Module, ...] = Field(default=(), strict=False)
    unload: tuple[Token, ...] = Field(default=(), strict=False)
    removed: tuple[Removed, ...] = Field(default=(), strict=False)
    toolchain: Toolchain | None = None
    variables: tuple[Variable, ...] = Field(default=(), strict=False)
    unset: tuple[Unset, ...] = Field(default=(), strict=False)
    pairs: tuple[Pair, ...] = Field(default=(), strict=False)
    ladder: tuple[Rung, ...] = Field(default=(), strict=False)
    proxies: dict[Name, Value] = Field(default_factory=dict)
    offline: dict[Name, Value] = Field(default_factory=dict)
    local_storage: LocalStorage | None = None
    sbatch: tuple[Flag, ...] = Field(default=(), strict=False)
    srun: tuple[Flag, ...] = Field(default=(), strict=False)
    signal_seconds: Annotated[int, Field(ge=10, le=3600)] = 600
    port: int | Literal["job"] = "job"
    environment: Literal["packed", "prefix", "container", "none"] = "prefix"
    container: Text | None = None

    @model_validator(mode="after")
    def _consistent(self):
        from repro.cluster.site_checks import problems

        for problem in problems(self):
            raise ValueError(problem)
        return self

    @property
    def default_partition(self):
        return self.partitions[0].name

    def bins(self, nodes, partition=None, qos=None):
        """The partitions that take so many nodes, in the order of the file."""
        return [
            p
            for p in self.partitions
            if p.min_nodes <= nodes <= p.max_nodes and partition in (None, p.name) and p.qos == qos
        ]


def names():
    """Names of the shipped sites."""
    return sorted(path.stem for path in SITES.glob("*.toml"))


def load_site(name):
    """A shipped site by name, or one by the path of its TOML file.

    A file may say ``extends``, a shipped name or a path as seen from the file: its tables then change the keys they
    name, its lists replace those of the other site as a whole.

    Raises:
        InputError: it does not exist, is broken, or contradicts itself; in one line.
    """
    return _build(_read(str(name), ()), name)


def _read(name, seen):
    import tomllib

    if name in seen:
        raise InputError(f"site {shortened(name)} extends itself")
    path = SITES / f"{name}.toml" if name in names() else Path(name)
    if path.suffix != ".toml" or not path.is_file():
        if path.suffix == ".toml" or "/" in name:
            raise InputError(f"site file {shortened(name)} does not exist; known sites: {', '.join(names())}")
        raise unknown("site", name, names())
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"site file {shortened(name)} is larger than {MOST_BYTES:,} bytes")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"site file {shortened(name)} cannot be read: {error}") from None
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise InputError(f"site file {shortened(name)}: extends must name a site")
    if base not in names():
        if not base.endswith(".toml"):
            raise InputError(f"site file {shortened(name)}: extends: {unknown('site', base, names())}")
        base = str((path.parent / base).resolve())
    return _merged(_read(base, (*seen, name)), data)


def _merged(base, changes):
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merged(base[key], value) if both else value
    return merged


def _build(data, name):
    try:
        return Site.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _fields_at(first["loc"][:-1])
            raise InputError(f"site {shortened(str(name))}: {unknown('key', first['loc'][-1], known)}") from None
        text = first["msg"].removeprefix("Value error, ")
        raise InputError(f"site {shortened(str(name))}: {where + ': ' if where else ''}{text}") from None


def _fields_at(location):
    """The keys that a part of a site has."""
    model = Site
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = next(m for m in _models(annotation))
    return list(model.model_fields)


def _models(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)
