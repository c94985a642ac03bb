"""Rules about modules, wheels and compiled operators: what has gone, and what does not fit together."""

import re
from itertools import pairwise

from repro.cluster.rule import DEEPSPEED, ERROR, OLCF, OURS, PYTORCH, WARNING, rule

JIT_NODES = 8
BUILDS = re.compile(r"DS_BUILD_\w+")
WHEEL = re.compile(r"(?:whl/(?:test/|nightly/)?|\+)rocm(\d+\.\d+)")
TORCH = re.compile(r"torch(?:==|~=|>=)(\d+\.\d+)")


def _minor(version):
    """``7.1`` of ``7.1.1``."""
    match = re.match(r"\d+\.\d+", version or "")
    return match[0] if match else None


def _version(use):
    return use.name.partition("/")[2] if use is not None else ""


@rule(
    "removed-software",
    28,
    ERROR,
    "OLCF software news, 2026-06-30",
    "it cannot be loaded any more: the job ends, or runs with something else",
)
def removed_software(facts):
    if facts.file is None:
        return
    for gone in facts.site.removed:
        for use in facts.file.modules:
            if use.verb == "load" and re.search(gone.pattern, use.name):
                yield f"module {use.name}: {gone.why}", f"{_instead(facts.site, use.name)}", use.where
        if gone.pattern.startswith("^"):
            continue
        for name, settings in facts.file.script.settings.items():
            for one in settings:
                if one.value is not None and re.search(gone.pattern, _text(one.value)):
                    yield (
                        f"{name} names {_found(gone.pattern, one.value)}: {gone.why}",
                        "no fixed path of it",
                        one.where,
                    )


def _text(value):
    return " ".join(v.text for v in value) if isinstance(value, tuple) else value.text


def _found(pattern, value):
    return re.search(pattern, _text(value))[0]


def _instead(site, name):
    kind = name.partition("/")[0]
    return next((m.name for m in site.modules if m.name.partition("/")[0] == kind), "what the site loads now")


@rule(
    "cpe-rocm-pair",
    29,
    ERROR,
    f"{OLCF}, table of versions",
    "GPU-aware libraries of this programming environment were not built for this ROCm",
)
def cpe_rocm_pair(facts):
    tools = facts.site.toolchain
    if facts.file is None or tools is None or not tools.pairs:
        return
    end = facts.main.index if facts.main is not None else None
    cpe, rocm = facts.file.loaded("cpe", end), facts.file.loaded("rocm", end)
    if not _version(cpe) or not _minor(_version(rocm)):
        return
    pair = (_version(cpe), _minor(_version(rocm)))
    if pair not in {tuple(p) for p in tools.pairs}:
        with_cpe = [f"rocm {r}" for c, r in tools.pairs if c == pair[0]]
        with_rocm = [f"cpe/{c}" for c, r in tools.pairs if r == pair[1]]
        fix = " or ".join([*with_rocm[:1], *([f"{', '.join(with_cpe)} with {cpe.name}"] if with_cpe else [])])
        yield f"{cpe.name} with {rocm.name}", fix or f"cpe/{tools.cpe} with rocm/{tools.rocm}", rocm.where


@rule("cpe-library-path", 30, WARNING, PYTORCH, "its libraries are found only behind those of the default environment")
def cpe_library_path(facts):
    tools = facts.site.toolchain
    if facts.file is None or tools is None or not tools.prepend_library_path:
        return
    cpe = facts.file.loaded("cpe", facts.main.index if facts.main is not None else None)
    if not _version(cpe) or _version(cpe) == tools.cpe_default:
        return
    paths = [told.value.origin + told.value.text for _, told in facts.ever("LD_LIBRARY_PATH")]
    if not any(tools.prepend_library_path in path for path in paths):
        fix = f"export LD_LIBRARY_PATH=${tools.prepend_library_path}:$LD_LIBRARY_PATH"
        yield f"{cpe.name} is not the default, and its libraries are not in front", fix, cpe.where


def _installs(facts):
    """Commands of pip, with their text."""
    for command in facts.file.commands if facts.file is not None else ():
        texts = [w.text for w in command.words]
        if "install" in texts and any(re.fullmatch(r"(uv|pip[\d.]*)", t.rpartition("/")[2]) for t in texts):
            yield command, " ".join(texts)


@rule(
    "torch-rocm",
    31,
    ERROR,
    f"{PYTORCH}, wheels",
    "torch brings libraries of the ROCm that it was built for; two of them meet in one process",
)
def torch_rocm(facts):
    for command, text in _installs(facts):
        wheel = WHEEL.search(text)
        rocm = facts.file.loaded("rocm", facts.main.index if facts.main is not None else None)
        if wheel and _minor(_version(rocm)) and wheel[1] != _minor(_version(rocm)):
            yield (
                f"torch for ROCm {wheel[1]} with module {rocm.name}",
                f"the index rocm{_minor(_version(rocm))}",
                command.where,
            )


@rule(
    "jit-at-scale",
    46,
    ERROR,
    f"{DEEPSPEED}, op builder; issue 5205; {OURS}: beyond {JIT_NODES} nodes",
    "every node compiles, or all wait for one lock on a shared file system",
)
def jit_at_scale(facts):
    if facts.file is None or facts.main is None or facts.nodes is None or facts.nodes.value <= JIT_NODES:
        return
    fix = "operators built beforehand where rocminfo runs, e.g. DS_BUILD_FUSED_ADAM=1 DS_BUILD_UTILS=1"
    for name in ("TORCH_EXTENSIONS_DIR", "DS_BUILD_OPS"):
        told = facts.variable(name)
        if told and (name != "DS_BUILD_OPS" or told.value.text == "0"):
            yield (
                f"{name}={told.value.text} on {facts.nodes.value} nodes: operators are compiled as they are needed",
                fix,
                told.where,
            )
    for command in facts.file.commands:
        text = " ".join(w.text for w in command.words)
        if command.called in ("rm", "srun") and "torch_extensions" in text and re.search(r"\brm\b", text):
            yield f"torch_extensions is emptied before a start on {facts.nodes.value} nodes", fix, command.where


@rule(
    "prebuilt-operators",
    47,
    WARNING,
    f"{DEEPSPEED}, op builder",
    "operators built for another torch or HIP are refused at run time, and compiled again",
)
def prebuilt_operators(facts):
    if facts.file is None:
        return
    run = _minor(_version(facts.file.loaded("rocm", facts.main.index if facts.main is not None else None)))
    built = None
    for command, text in _installs(facts):
        building = any(BUILDS.fullmatch(name) for name, _ in command.assigned) or any(
            BUILDS.fullmatch(name) and any(s.index < command.index for s in settings)
            for name, settings in facts.file.script.settings.items()
        )
        if building and "deepspeed" in text.lower():
            built = command
            there = _minor(_version(facts.file.loaded("rocm", command.index)))
            if there and run and there != run:
                yield f"operators built with ROCm {there}, run with ROCm {run}", f"rocm/{run} for both", command.where
        elif built is not None and TORCH.search(text):
            version = TORCH.search(text)[1]
            yield (
                f"torch {version} is installed after operators were built",
                "torch first, then the operators",
                command.where,
            )


@rule(
    "mpi4py-order",
    48,
    WARNING,
    f"{PYTORCH}, troubleshooting",
    "torch starts ROCm before MPI does: Cray MPICH may abort with NIC_POLICY",
)
def mpi4py_order(facts):
    for command in facts.file.commands if facts.file is not None else ():
        texts = [w.text for w in command.words]
        if not any(re.search(r"python[\d.]*$", t) for t in texts):
            continue
        code = [b for a, b in pairwise(texts) if a == "-c"]
        for text in [*code, *([command.here.text] if command.here is not None else [])]:
            torch = re.search(r"^\s*(import|from)\s+torch\b|;\s*import\s+torch\b", text, re.MULTILINE)
            mpi = re.search(r"\b(import|from)\s+mpi4py\b", text)
            if torch and mpi and torch.start() < mpi.start():
                yield "mpi4py is imported after torch", "from mpi4py import MPI first", command.where


RULES = (removed_software, cpe_rocm_pair, cpe_library_path, torch_rocm, jit_at_scale, prebuilt_operators, mpi4py_order)
