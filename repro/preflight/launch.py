"""Start a preflight: all ranks on this machine, or this process as one rank of those that srun or torchrun started."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from repro.errors import InputError, RunFailed, RunInterrupted
from repro.preflight.results import NAME, TABLE, Results
from repro.records.run_folder import RunFolder, default_path

MOST_SECONDS = 86_400
SPARE_SECONDS = 20.0  # of the launcher's own deadline, so that the ranks' comes first


@dataclass(frozen=True)
class Preflight:
    """A preflight that has ended: its folder, and what ``preflight.json`` says."""

    folder: Path
    data: dict

    @property
    def passed(self):
        return self.data["state"] == "completed"

    @property
    def table(self):
        """The measured network, empty where it did not come to that."""
        from repro.records.table import Table, read

        path = self.folder / TABLE
        return read(path) if path.is_file() else Table()


def rank_main(recipe, place, report, **options):
    """Body of a local rank; imported late, so that the launching process needs no torch."""
    from repro.preflight.rank import run_rank

    run_rank(recipe, place, report, **options)


def local(recipe, folder=None, site=None, rung=0, deadline_seconds=60.0, start_seconds=60.0, most_bytes=None,
          main=rank_main, options=None):  # fmt: skip
    """Run a preflight on ranks started here.

    Args:
        recipe: name, TOML path or :class:`repro.recipe.Recipe`.
        folder: a new one; ``runs/preflight-<recipe>-<time>`` by default.
        site: name, path or :class:`repro.cluster.site.Site` to compare with.
        rung: of the site's ladder of fallbacks that is in use.
        deadline_seconds: the longest that a group may take for one thing; ``start_seconds``: all ranks to start.
        most_bytes: of one measured tensor.
        main: body of a rank, and more ``options`` for it.

    Returns:
        The :class:`Preflight`, passed or not.

    Raises:
        InputError: nothing was started.
        RunInterrupted: Ctrl-C or SIGTERM.
    """
    from repro.engine.launch import record_end, run_ranks
    from repro.recipe import load

    recipe, site = load(recipe), load_site(site)
    check_deadlines(deadline_seconds, start_seconds)
    check_ranks(recipe)
    made = RunFolder.create(folder or default_path(f"preflight-{recipe.name}"), recipe)
    options = {"folder": str(made.path), "site": site, "rung": rung, "deadline_seconds": deadline_seconds,
               "start_seconds": start_seconds, "most_bytes": most_bytes, **(options or {})}  # fmt: skip
    silence = max(deadline_seconds, start_seconds) + SPARE_SECONDS
    try:
        run_ranks(recipe, main, options, silence, made.path / "logs")
    except RunInterrupted as error:
        record_end(made, "interrupted", str(error))
        raise
    except InputError as error:
        record_end(made, "failed", str(error))
        made.discard()
        raise
    except RunFailed as error:
        if "killed by SIGUSR1" in str(error):  # the launcher was asked to stop, and asked the ranks
            record_end(made, "interrupted", "interrupted by a signal")
            raise RunInterrupted("interrupted by a signal") from None
        Results(made.path, recipe, site, rung, _backend()).ended(str(error))
    return read(made.path)


def as_rank(recipe, place, folder, site=None, rung=0, deadline_seconds=60.0, start_seconds=300.0, most_bytes=None):
    """Take this process's place in a preflight that srun or torchrun started.

    Returns:
        The :class:`Preflight` on rank 0, ``None`` on the others.

    Raises:
        InputError: the launcher started another number of ranks.
        RunFailed: this rank failed; where a group stalls, the process ends with code 3 and no return.
    """
    from repro.preflight.rank import run_rank

    if place.world_size != recipe.world_size:
        p = recipe.parallel
        raise InputError(
            f"the launcher started {place.world_size} ranks, recipe {recipe.name} needs {recipe.world_size} "
            f"(tp {p.tp} x pp {p.pp} x dp {p.dp}); start {recipe.world_size}, or override parallel.dp"
        )
    check_deadlines(deadline_seconds, start_seconds)
    if folder is None:
        raise InputError("ranks of a preflight need --run-folder: every rank has to know where the result goes")
    run_rank(recipe, place, _silent, folder, load_site(site), rung, deadline_seconds, start_seconds, most_bytes)
    return read(folder) if place.rank == 0 else None


def read(folder):
    """The :class:`Preflight` in a folder.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    path = Path(folder) / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{folder} holds no preflight: {path.name}: {why}") from None
    if not isinstance(data, dict) or not {"state", "checks", "binding", "groups"} <= data.keys():
        raise InputError(f"{path} is broken: it is not what a preflight writes")
    return Preflight(Path(folder), data)


def load_site(site):
    """A site by name or path; ``None`` stays."""
    if site is None or not isinstance(site, str | os.PathLike):
        return site
    from repro.cluster.site import load_site as load

    return load(site)


def check_deadlines(*seconds):
    """Raise :class:`InputError` for a deadline that no clock takes."""
    for value in seconds:
        if not 0 < value <= MOST_SECONDS:
            raise InputError(f"deadline {value:g} s must be above 0 and at most {MOST_SECONDS:,}")


def check_ranks(recipe):
    """Refuse more local ranks than this machine can start; no weights are made, so memory does not matter.

    Raises:
        InputError: with the number that would do.
    """
    from repro.engine.host import RANKS_PER_CORE, cores, has_gpu

    most = RANKS_PER_CORE * cores()
    if not has_gpu() and recipe.world_size > most:
        raise InputError(
            f"recipe {recipe.name} needs {recipe.world_size} ranks, this machine has {cores()} cores and no GPU: "
            f"at most {most} local ranks; give --site to run it there, or override parallel.tp, pp and dp"
        )


def _backend():
    from repro.engine.host import has_gpu

    return "nccl" if has_gpu() else "gloo"


def _silent(kind, value):
    pass
