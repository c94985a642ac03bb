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


JOBS = (
    Job("01_models_and_memory", {}),
    Job("02_train", {"recipe": "tiny-3d"}),
    Job("03_tensor_parallelism", {}),
    Job("03_tensor_parallelism", {"scale": "tiny"}),
    Job("04_pipeline_parallelism", {}),
    Job("04_pipeline_parallelism", {"scale": "tiny"}),
)


def reproduce(root=".", say=None):
    """Run every job under ``root``: records in ``runs/``, figures in ``figures/``.

    Returns:
        One dictionary per job: notebook, run folder, executed copy, figures, summary, seconds.

    Raises:
        InputError: the notebooks are not beside the package.
        RunFailed: the first job that failed.
    """
    from repro.notebook.runner import run_notebook

    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    root = Path(root).absolute()
    done = []
    for job in JOBS:
        source = NOTEBOOKS / f"{job.notebook}.ipynb"
        if not source.is_file():
            raise InputError(f"{source} is missing; run from a checkout of the repository (pip install --editable)")
        say(": ".join((job.notebook, *(f"{k} {v}" for k, v in job.parameters.items()))))
        figures = root / "figures"
        run = run_notebook(source, {**job.parameters, "figures": str(figures)}, progress=say)
        drawn = [Path(name).name for name in sorted(run.record["files"]) if Path(name).parts[0] == "figures"]
        done.append(
            {
                "notebook": job.notebook,
                "run_folder": str(run.folder),
                "executed_notebook": str(run.output),
                "figures": [str(figures / name) for name in drawn],
                "summary": _summary(run.folder),
                "seconds": run.seconds,
            }
        )
    return done


def _summary(folder):
    """Of a training run its own; of a notebook that trains nothing, how many numbers of each provenance it left."""
    from collections import Counter

    from repro.records.run_folder import RunFolder
    from repro.records.table import read

    if (folder / "table.csv").is_file():
        return {"numbers": dict(Counter(row.provenance for row in read(folder / "table.csv")))}
    return RunFolder.open(folder).status()["summary"]
