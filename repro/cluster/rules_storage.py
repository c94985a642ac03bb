"""Rules about where files lie: caches, environments and archives, on node-local or shared storage."""

import re

from repro.cluster.rule import ERROR, OLCF, OURS, PYTORCH, WARNING, rule

SBCAST = "OLCF, conda environments by sbcast, 2025-11-04"
SHARED = ("/ccs/", "/lustre/", "${HOME}", "~", "/autofs/", "${MEMBERWORK}", "${PROJWORK}", "/scratch/", "/project/",
          "/projappl/", "/flash/", "/pfs/", "/users/", "/home/", "/gpfs/")  # fmt: skip
HOMES = ("/ccs/", "${HOME}", "~", "/autofs/nccs", "/home/", "/users/")
CACHES = ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR")
MANY_NODES = 64


def _local(facts):
    """Beginning of paths on the site's node-local storage, or None."""
    storage = facts.site.local_storage
    return storage.path.partition("$")[0].rstrip("/") if storage is not None else None


@rule(
    "miopen-shared",
    32,
    ERROR,
    f"{PYTORCH}; MIOpen issues 1878, 2214",
    "its databases lock and break when many ranks share them over a network",
)
def miopen_shared(facts):
    for name, told in facts.ever(*CACHES):
        if told.value.starts(*SHARED):
            yield f"{name}={told.value.text}", f"{name}=/tmp/$USER/miopen-$SLURM_JOB_ID", told.where


@rule(
    "miopen-mkdir",
    33,
    WARNING,
    "LUMI-AI-Guide PR 108; OLCF PyTorch page",
    "ranks race to make it; a mkdir in the batch script runs on the first node only",
)
def miopen_mkdir(facts):
    told = next((told for name in CACHES if (told := facts.variable(name))), None)
    if told is None or told.value.starts(*SHARED) or facts.main is None:
        return
    makes = [c for c in facts.file.commands if any(w.text.rpartition("/")[2] == "mkdir" for w in c.words)]
    named = [c for c in makes if any((w.text and told.value.text.startswith(w.text.rstrip("/"))) or
                                     re.search(r"\$\{?MIOPEN|miopen", w.text, re.I) for w in c.words[1:])]  # fmt: skip
    everywhere = [c for c in named if c.called == "srun" or c.task]
    several = facts.nodes is None or facts.nodes.value > 1
    if not everywhere and not (named and not several):
        fix = 'srun --ntasks-per-node=1 mkdir -p "$MIOPEN_USER_DB_PATH"'
        yield f"{told.value.text} is not made on every node", fix, told.where


def _pythons(facts):
    """Where the environment of Python lies: ``(path, where)`` of the interpreter, of what is activated, of PATH."""
    if facts.file is None or facts.main is None:
        return
    main = facts.main
    for text in main.texts:
        if re.search(r"/bin/(python|torchrun|deepspeed)[\d.]*$", text):
            yield text, main.where
    for command in facts.file.commands:
        if command.index > main.index:
            break
        texts = [w.text for w in command.words]
        if command.name in ("source", ".", "conda", "mamba") and "activate" in " ".join(texts):
            for text in texts[1:]:
                if "/" in text and not text.endswith("conda.sh"):
                    yield text, command.where
    for _, told in facts.ever("PATH"):
        first = told.value.text.partition(":")[0]
        if first.endswith("/bin"):
            yield first, told.where


@rule(
    "environment-on-home",
    34,
    WARNING,
    f"{OLCF}, storage",
    "home and project areas are NFS: not for jobs, and slow when many ranks import",
)
def environment_on_home(facts):
    for path, where in _pythons(facts):
        if path.startswith(HOMES):
            fix = "on the parallel file system, or packed and sent to node-local storage by sbcast"
            yield f"Python comes from {path}", fix, where
            return


@rule(
    "environment-not-staged",
    35,
    WARNING,
    f"{SBCAST}; {OURS}: beyond {MANY_NODES} nodes",
    "an import took 2 s from NVMe, 51 s from Lustre and 236 s from NFS on 8 nodes",
)
def environment_not_staged(facts):
    local = _local(facts)
    if local is None or facts.site.environment != "packed" or facts.nodes is None or facts.nodes.value <= MANY_NODES:
        return
    paths = list(_pythons(facts))
    if facts.main is not None and not any(path.startswith((local, "/tmp/", "/dev/shm/")) for path, _ in paths):
        where = paths[0][1] if paths else facts.main.where
        fix = f"conda-pack, sbcast to {facts.site.local_storage.path}, unpack on each node"
        yield f"Python is not on node-local storage on {facts.nodes.value} nodes", fix, where


@rule("local-storage-constraint", 36, ERROR, f"{OLCF}, NVMe", "the path exists only on nodes that were asked for it")
def local_storage_constraint(facts):
    local, storage = _local(facts), facts.site.local_storage
    if facts.file is None or local is None or storage.constraint is None or not facts.file.directives:
        return
    told = facts.slurm("constraint", step_first=False)
    if told and storage.constraint in re.split(r"[&|,*\[\]()]", str(told.value)):
        return
    for command in facts.file.commands:
        values = [v for _, value in command.assigned for v in (value if isinstance(value, tuple) else (value,))]
        if any(local in w.text for w in (*command.words, *values)):
            yield (
                f"{local} without --constraint={storage.constraint}",
                f"#SBATCH -C {storage.constraint}",
                command.where,
            )
            return


@rule(
    "sbcast-unchecked",
    37,
    ERROR,
    SBCAST,
    "a broadcast that failed leaves part of a file behind, and the job goes on with it",
)
def sbcast_unchecked(facts):
    if facts.file is None:
        return
    commands = list(facts.file.commands)
    strict = facts.file.script.lines[0].startswith("#!") and bool(re.search(r"\s-\w*e", facts.file.script.lines[0]))
    for place, command in enumerate(commands):
        texts = [w.text for w in command.words]
        if command.name == "set":
            strict = (strict or any(re.fullmatch(r"-\w*e\w*", t) for t in texts[1:]) or "errexit" in texts) and not any(
                re.fullmatch(r"\+\w*e\w*", t) for t in texts[1:]
            )
        if command.called != "sbcast" or strict or command.condition or command.after in ("&&", "||"):
            continue
        after = commands[place + 1] if place + 1 < len(commands) else None
        seen = [] if after is None else [*after.words, *(v for _, v in after.assigned if not isinstance(v, tuple))]
        if not any("${?}" in w.text or "$?" in w.text for w in seen):
            yield "what sbcast ends with is not looked at", "sbcast ... || exit 1", command.where


RULES = (miopen_shared, miopen_mkdir, environment_on_home, environment_not_staged, local_storage_constraint,
         sbcast_unchecked)  # fmt: skip
