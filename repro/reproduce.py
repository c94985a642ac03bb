"""The main job: every notebook of the story at the scale of this machine, then what lies where."""

import sys
from dataclasses import dataclass
from pathlib import Path

from repro.errors import InputError

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


@dataclass(frozen=True)
class Job:
    """A notebook and the parameters it runs with."""

    notebook: str
    parameters: dict


JOBS = (Job("02_train", {"recipe": "tiny-3d"}),)


def reproduce(root=".", say=None):
    """Run every job under ``root``: records in ``runs/``, figures in ``figures/``.

    Returns:
        One dictionary per job: notebook, run folder, executed copy, figures, summary, seconds.

    Raises:
        InputError: the notebooks are not beside the package.
        RunFailed: the first job that failed.
    """
    from repro.notebook.runner import run_notebook
    from repro.records.run_folder import RunFolder

    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    root = Path(root).absolute()
    done = []
    for job in JOBS:
        source = NOTEBOOKS / f"{job.notebook}.ipynb"
        if not source.is_file():
            raise InputError(f"{source} is missing; run from a checkout of the repository (pip install --editable)")
        say(f"{job.notebook}: " + ", ".join(f"{k} {v}" for k, v in job.parameters.items()))
        figures = root / "figures"
        run = run_notebook(source, {**job.parameters, "figures": str(figures)}, progress=say)
        done.append(
            {
                "notebook": job.notebook,
                "run_folder": str(run.folder),
                "executed_notebook": str(run.output),
                "figures": [str(p) for p in sorted(figures.glob(f"{job.notebook}*"))],
                "summary": RunFolder.open(run.folder).status()["summary"],
                "seconds": run.seconds,
            }
        )
    return done
