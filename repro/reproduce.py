"""The main job: every notebook of the story at the scale of this machine, then what lies where."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from repro import freshness
from repro.errors import InputError
from repro.records.run_folder import write_atomic

STATE = "reproduce.json"
NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


@dataclass(frozen=True)
class Job:
    """A notebook and the parameters it runs with."""

    notebook: str
    parameters: dict

    @property
    def key(self):
        return " ".join((self.notebook, *(f"{name}={value}" for name, value in self.parameters.items())))


JOBS = (
    Job("01_models_and_memory", {}),
    Job("02_train", {"recipe": "tiny-3d"}),
    Job("03_tensor_parallelism", {}),
    Job("03_tensor_parallelism", {"scale": "tiny"}),
    Job("04_pipeline_parallelism", {}),
    Job("04_pipeline_parallelism", {"scale": "tiny"}),
    Job("06_throughput", {}),
    Job("06_throughput", {"scale": "tiny"}),
    Job("07_scaling", {}),
    Job("07_scaling", {"scale": "tiny"}),
    Job("08_frontier", {}),
    Job("09_scorecard", {}),
)


def reproduce(root=".", say=None, again=False):
    """Run every job under ``root`` whose inputs or results changed: records in ``runs/``, figures in ``figures/``.

    Args:
        again: run all of them.

    Returns:
        One dictionary per job: notebook, parameters, run folder, executed copy, figures, summary, seconds, and
        ``why`` it ran, empty where its results of an earlier run still hold.

    Raises:
        InputError: the notebooks are not beside the package.
        RunFailed: the first job that failed.
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    root = Path(root).absolute()
    memory = root / "runs" / STATE
    before = {} if again else _read(memory)
    done = []
    for number, job in enumerate(JOBS, start=1):
        source = NOTEBOOKS / f"{job.notebook}.ipynb"
        if not source.is_file():
            raise InputError(f"{source} is missing; run from a checkout of the repository (pip install --editable)")
        inputs = freshness.inputs(source, job.parameters)
        old = before.get(job.key, {})
        why = "asked for again" if again else _why(old, inputs)
        say(f"[{number}/{len(JOBS)}] {job.key}: {why or 'nothing changed'}")
        if why:
            before.pop(job.key, None)
            _write(memory, before)  # what is being redone no longer counts as done, whatever happens next
            old = {"inputs": inputs, "result": _run(job, source, root / "figures", say)}
            old["outputs"] = freshness.outputs(_results(old["result"]))
            before[job.key] = old
            _write(memory, before)
        done.append({**old["result"], "why": why})
    return done


def _why(old, inputs):
    if not old:
        return "not done here before"
    changed = freshness.difference(old["inputs"], inputs)
    return changed or freshness.difference(old["outputs"], freshness.outputs(old["outputs"]))


def _results(result):
    return [*result["figures"], result["executed_notebook"], str(Path(result["run_folder"]) / "completed.json")]


def _run(job, source, figures, say):
    from repro.notebook.runner import run_notebook

    run = run_notebook(source, {**job.parameters, "figures": str(figures)}, progress=say)
    drawn = [Path(name).name for name in sorted(run.record["files"]) if Path(name).parts[0] == "figures"]
    return {
        "notebook": job.notebook,
        "parameters": job.parameters,
        "run_folder": str(run.folder),
        "executed_notebook": str(run.output),
        "figures": [str(figures / name) for name in drawn],
        "summary": _summary(run.folder),
        "seconds": run.seconds,
    }


def _read(memory):
    """What was done before; nothing where that cannot be read, which only costs time."""
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))
        complete = isinstance(found, dict) and all(
            {"inputs", "outputs", "result"} <= job.keys() for job in found.values()
        )
    except (OSError, ValueError, AttributeError):
        return {}
    return found if complete else {}


def _write(memory, state):
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(memory, json.dumps(state, indent=1))


def _summary(folder):
    """Of a training run its own; of a notebook that trains nothing, how many numbers of each provenance it left."""
    from collections import Counter

    from repro.records.run_folder import RunFolder
    from repro.records.table import read

    if (folder / "table.csv").is_file():
        rows = read(folder / "table.csv").rows
        found = {"numbers": dict(Counter(row.provenance for row in rows))}
        verdicts = Counter(r.series for r in rows if r.exhibit == "scorecard" and r.provenance != "published")
        return found | ({"verdicts": dict(verdicts)} if verdicts else {})
    return RunFolder.open(folder).status()["summary"]
