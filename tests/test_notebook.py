"""begin() refuses, under plain papermill and in JupyterLab, what papermill would let pass."""

import json
from pathlib import Path

import papermill
import pytest
from IPython.core.interactiveshell import InteractiveShell
from notebook_files import BEGIN, DEFAULTS, END, write

from repro.errors import InputError
from repro.notebook.begin import begin, read_history

PARAMETERS = "tp = 1\nname = 'a'"
CALL = "run = begin(globals(), 'x')"


def history(*cells):
    return ["", *cells]


def test_defaults_and_injected_values_are_told_apart():
    assert read_history(history(PARAMETERS, CALL)) == ({"tp": 1, "name": "a"}, {})
    assert read_history(history("# a comment", "import os", PARAMETERS, "# Parameters\ntp = 4\n", CALL)) == (
        {"tp": 1, "name": "a"},
        {"tp": 4},
    )


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        (["# Parameters\ntp = 4", PARAMETERS, CALL], "no cell is tagged 'parameters'"),
        (["", "# Parameters\ntp = 4", "import os", PARAMETERS, CALL], "no cell is tagged 'parameters'"),
        (["tp = 2\npp = 2\nworld = tp * pp", CALL], r"parameters cell In\[1\].*line 3: world = tp \* pp"),
        (["x = 3", "tp = 2\nworld = tp * 2", CALL], r"parameters cell In\[2\].*world"),
        ([PARAMETERS, "# Parameters\ntp = float('nan')", CALL], "injected cell.*not a literal"),
        ([PARAMETERS, "# Parameters\ntp = 'four'", CALL], "tp = 'four' is a str"),
        ([PARAMETERS, CALL, "tp = 2 * 2", CALL], r"In\[3\] assigns the parameter tp after its cell"),
        ([PARAMETERS, CALL, "for tp in range(3): pass", CALL], r"In\[3\] assigns the parameter tp"),
        ([CALL], "no parameters cell ran"),
        ([], "no parameters cell ran"),
    ],
)
def test_wrong_history_is_refused(cells, match):
    with pytest.raises(InputError, match=match):
        read_history(history(*cells))


def test_jupyterlab_reruns_use_the_latest_parameters_cell():
    injected, edited = "# Parameters\ntp = 4", "tp = 2\nname = 'b'"
    assert read_history(history(PARAMETERS, CALL, "y = f()", CALL))[0]["tp"] == 1
    assert read_history(history(PARAMETERS, CALL, edited, CALL)) == ({"tp": 2, "name": "b"}, {})
    assert read_history(history(PARAMETERS, injected, CALL, edited, CALL))[1] == {}
    assert read_history(history(PARAMETERS, injected, CALL, PARAMETERS, injected, CALL))[1] == {"tp": 4}


def test_needs_a_notebook():
    with pytest.raises(InputError, match="inside a notebook only"):
        begin({}, "x")


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """An IPython shell in this process: what a kernel does with a cell, without the kernel."""
    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    yield shell
    shell.set_custom_exc((), None)
    InteractiveShell.clear_instance()


def execute(shell, source):
    result = shell.run_cell(source, store_history=True)
    return result.error_before_exec or result.error_in_exec


def test_run_all_twice_in_one_kernel(shell, capsys):
    for count in (4, 5):
        assert execute(shell, DEFAULTS.replace("4", str(count))) is None
        assert execute(shell, BEGIN) is None
        assert execute(shell, END) is None
        run = shell.user_ns["run"]
        record = json.loads((run.folder / "completed.json").read_text())
        assert record["parameters"]["count"] == count
        assert record["notebook"] == "small"
    assert len(list(Path("runs").iterdir())) == 2
    assert "small completed: runs/tiny-" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "call", "match"),
    [
        ("count += 1", BEGIN, "count"),
        ("globals()['count'] = 5", BEGIN, "parameter count is 5 but its cell says 4"),
        ("globals()['flag'] = 0", BEGIN, "parameter flag is 0 but its cell says False"),
        ("", BEGIN.replace('"small"', '"small", choices={"recipe": ["tinier"]}'), "unknown recipe 'tiny'; did you"),
        ("", BEGIN.replace('"small"', '"small", choices={"mode": ["a"]}'), "unknown parameter 'mode'"),
    ],
)
def test_begin_refuses(shell, capsys, before, call, match):
    execute(shell, DEFAULTS)
    execute(shell, before)
    error = execute(shell, call)
    assert isinstance(error, InputError)
    with pytest.raises(InputError, match=match):
        raise error
    assert "Traceback" not in capsys.readouterr().out


def test_parameters_of_the_record_are_those_at_the_start(shell):
    for source in (DEFAULTS, BEGIN, "extra['late'] = 1", END):
        assert execute(shell, source) is None
    assert json.loads((shell.user_ns["run"].folder / "completed.json").read_text())["parameters"]["extra"] == {}


def test_run_folder_and_recipe_follow_from_the_parameters(shell):
    defaults = DEFAULTS.replace('run_folder = ""', 'run_folder = "mine"\nsteps = 3\noverrides = {"batch.global": 32}')
    for source in (defaults, BEGIN):
        assert execute(shell, source) is None
    run = shell.user_ns["run"]
    assert run.folder == Path("mine").absolute()
    assert not run.folder.exists(), "the engine makes it"
    assert (run.recipe().steps, run.recipe().batch.global_) == (3, 32)


@pytest.mark.parametrize(
    ("tagged", "parameters", "match"),
    [
        (False, {"count": 5}, "no cell is tagged 'parameters'"),
        (True, {"cuont": 5}, "unknown parameter 'cuont'; did you mean 'count'"),
        (True, {"flag": "true"}, "write true or false to repro run, True or False to papermill"),
    ],
)
def test_plain_papermill_fails(tmp_path, monkeypatch, tagged, parameters, match):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, BEGIN, END, tagged=tagged)
    with pytest.raises(papermill.PapermillExecutionError, match=match) as caught:
        papermill.execute_notebook(path, "out.ipynb", parameters=parameters, progress_bar=False)
    assert caught.value.ename == "InputError"
    assert len(caught.value.traceback) == 1, "one line, no traceback"


def test_plain_papermill_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    papermill.execute_notebook(write(tmp_path, BEGIN, END), "out.ipynb", {"count": 5}, progress_bar=False)
    [record] = tmp_path.glob("runs/tiny-*/completed.json")
    assert json.loads(record.read_text())["parameters"]["count"] == 5
