"""The main job does nothing twice for nothing, says why it does something again, and never passes a broken notebook."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest

from repro import freshness, reproduce
from repro.errors import InputError, RunFailed

SHIPPED = reproduce.NOTEBOOKS


def test_a_notebook_depends_on_what_it_imports_and_calls_and_on_nothing_else():
    models = freshness.inputs(SHIPPED / "01_models_and_memory.ipynb", {})
    train = freshness.inputs(SHIPPED / "02_train.ipynb", {})
    assert {"repro/tracing/survey.py", "repro/report/memory_figures.py"} <= models.keys()
    assert "repro/report/memory_figures.py" not in train
    # reached through the package's own call, then through the ranks that it starts
    assert {"repro/engine/launch.py", "repro/engine/worker.py", "repro/model/gpt.py"} <= train.keys()
    assert "repro/projection/project.py" not in train
    assert {"repro/recipes/22b.toml", "repro/records/published/models.csv"} <= models.keys()


def test_outputs_in_a_notebook_do_not_count_but_its_text_does(tmp_path):
    copy = Path(shutil.copy(SHIPPED / "02_train.ipynb", tmp_path))
    before = freshness.inputs(copy, {})
    notebook = nbformat.read(copy, as_version=4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="hello")]
    nbformat.write(notebook, copy)
    assert freshness.inputs(copy, {}) == before
    notebook.cells[0].source += " more"
    nbformat.write(notebook, copy)
    assert freshness.difference(before, freshness.inputs(copy, {})) == "changed: notebook 02_train.ipynb"
    assert freshness.difference(before, freshness.inputs(copy, {"steps": 3})).endswith("parameters")


@pytest.fixture
def job(tmp_path, monkeypatch):
    """One job whose notebook is replaced by a count of its runs."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(SHIPPED / "02_train.ipynb", folder)
    runs = []

    def run(job, source, figures, say):
        runs.append(source)
        record = tmp_path / "runs" / str(len(runs))
        for path in (figures / "a.png", record / "completed.json", record / "notebook.ipynb"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{len(runs)}")
        return {"notebook": job.notebook, "parameters": {}, "run_folder": str(record), "summary": {}, "seconds": 0.0,
                "executed_notebook": str(record / "notebook.ipynb"), "figures": [str(figures / "a.png")]}  # fmt: skip

    monkeypatch.setattr(reproduce, "NOTEBOOKS", folder)
    monkeypatch.setattr(reproduce, "JOBS", (reproduce.Job("02_train", {}),))
    monkeypatch.setattr(reproduce, "_run", run)
    return lambda again=False: reproduce.reproduce(tmp_path, lambda line: None, again)[0]["why"]


def test_a_second_run_does_nothing_and_a_change_is_named(job, tmp_path):
    assert job() == "not done here before"
    assert job() == ""
    (tmp_path / "figures" / "a.png").unlink()
    assert job().startswith("changed: ") and job() == ""
    (tmp_path / "figures" / "a.png").write_text("drawn by hand")
    assert "figures/a.png" in job() and job() == ""
    notebook = tmp_path / "notebooks" / "02_train.ipynb"
    notebook.write_text(notebook.read_text().replace("# The run itself", "# The very run"))
    assert job() == "changed: notebook 02_train.ipynb"
    assert job(again=True) == "asked for again"
    (tmp_path / "runs" / reproduce.STATE).write_text("{broken")
    assert job() == "not done here before"


def test_a_notebook_that_is_gone_fails_although_its_figure_lies_there(job, tmp_path):
    job()
    (tmp_path / "notebooks" / "02_train.ipynb").unlink()
    with pytest.raises(InputError, match="missing"):
        job()
    assert (tmp_path / "figures" / "a.png").exists()


def test_a_broken_last_cell_fails_although_the_old_figure_lies_there_and_again_the_next_time(tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    source = folder / "02_train.ipynb"
    notebook = nbformat.read(SHIPPED / "02_train.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [*code[:2], nbformat.v4.new_code_cell("raise SystemExit(0)")]
    nbformat.write(notebook, source)
    monkeypatch.setattr(reproduce, "NOTEBOOKS", folder)
    monkeypatch.setattr(reproduce, "JOBS", (reproduce.Job("02_train", {}),))
    monkeypatch.chdir(tmp_path)
    figure = tmp_path / "figures" / "02_train.png"
    figure.parent.mkdir()
    figure.write_text("old")
    for _ in range(2):
        with pytest.raises(RunFailed):
            reproduce.reproduce(tmp_path, lambda line: None)
    assert json.loads((tmp_path / "runs" / reproduce.STATE).read_text()) == {}
