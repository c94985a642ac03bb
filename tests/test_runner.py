"""`repro run` fails wherever papermill would let a broken run pass, and leaves no process behind."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path

import nbformat
import numpy as np
import pytest
from notebook_files import BEGIN, DEFAULTS, END, write

from repro.errors import InputError, RunFailed, RunInterrupted
from repro.notebook.runner import run_notebook

# Holds the interpreter's lock, so that no thread of the kernel can notice a dead parent.
BLOCKED = "import ctypes, os, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\nctypes.PyDLL(None).sleep(60)"
RUN = (
    "import sys\nfrom repro.notebook.runner import run_notebook\nrun_notebook(sys.argv[1], {'count': '5'}, 'out.ipynb')"
)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nothing_runs(monkeypatch):
    import papermill

    monkeypatch.setattr(papermill, "execute_notebook", lambda *a, **k: pytest.fail("the notebook was executed"))


def fails(path, match, error=RunFailed, parameters=None, **options):
    with pytest.raises(error, match=match) as caught:
        run_notebook(path, parameters, "out.ipynb", **options)
    assert "\n" not in str(caught.value)
    assert not Path("out.ipynb").exists(), "a failed run must not look finished"
    return json.loads(Path("out.failure.json").read_text()) if Path("out.failure.json").exists() else None


def test_completed_run_leaves_the_record_and_both_copies(tmp_path, monkeypatch):
    # Everything that is known to send a notebook astray at once: a kernel baked in by somebody else, a foreign
    # python3 that HOME registers, an error stored in the source, braces in the path.
    kernels = tmp_path / "home" / ".local" / "share" / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "language": "python", "display_name": ""}))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JUPYTER_DATA_DIR", raising=False)
    metadata = {"kernelspec": {"name": "env_rocm57", "display_name": "", "language": "python"}}
    path = write(tmp_path, BEGIN, "import sys\nprint(sys.executable)", END, metadata=metadata)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[2].outputs = [nbformat.v4.new_output("error", ename="OldError", evalue="old", traceback=["old"])]
    nbformat.write(notebook, path)
    lines = []
    given = {"count": "1_000", "rate": "3e-4", "flag": "true", "extra": '{"batch.global" = 16}', "note": "text"}
    done = run_notebook(path, given, "runs/{x}/out.ipynb", progress=lines.append)

    assert done.record["parameters"] == {
        "recipe": "tiny",
        "count": 1000,
        "rate": 0.0003,
        "flag": True,
        "extra": {"batch.global": 16},
        "note": "text",
        "run_folder": "",
    }
    assert done.output == tmp_path / "runs" / "{x}" / "out.ipynb"
    assert done.folder.parent == tmp_path / "runs"
    assert done.folder.name.startswith("tiny-")
    assert (done.folder / "notebook.ipynb").read_text() == done.output.read_text()
    assert sys.executable in done.output.read_text()
    assert "OldError" not in done.output.read_text()
    assert sorted(p.name for p in done.output.parent.iterdir()) == ["out.ipynb"], "no partial, no failure"
    assert len(lines) == 5
    assert lines[-1] == "[5/5] run.complete()"
    with pytest.raises(InputError, match=r"exists; nothing is overwritten.*out-2\.ipynb"):
        run_notebook(path, given, done.output)


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"recip": "tiny"}, "unknown parameter 'recip'; did you mean 'recipe'"),
        ({"count": "four"}, "count = 'four' is a str, its default 4 is an int; write a whole number"),
        ({"count": "1e3"}, "write 1000"),
        ({"count": 4.0}, "write 4"),
        ({"count": True}, "is a bool"),
        ({"flag": "yes"}, "flag = 'yes' is a str.*write true or false"),
        ({"flag": 1}, "is an int, its default False is a bool"),
        ({"rate": "fast"}, "rate = 'fast'"),
        ({"rate": float("nan")}, "not a finite number"),
        ({"rate": "inf"}, "not a finite number"),
        ({"rate": np.float64(0.1)}, r"numpy\.float64.*\.item\(\)"),
        ({"count": np.int64(3)}, r"numpy\.int64"),
        ({"recipe": 22}, "recipe = 22 is an int"),
        ({"recipe": Colour.RED}, "Colour"),
        ({"extra": (1, 2)}, "is a tuple.*use a list"),
        ({"extra": {"a": {1, 2}}}, "is a set"),
        ({"extra": {1: "a"}}, "keys must be strings"),
        ({"extra": "[1, 2]"}, "is a list, its default {} is a dict"),
        ({"extra": "a=1"}, "write a table"),
        ({"note": object()}, "object"),
    ],
)
def test_wrong_parameter_is_refused_before_anything_runs(tmp_path, nothing_runs, parameters, match):
    assert fails(write(tmp_path, BEGIN, END), match, InputError, parameters) is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tagged": False}, "no cell is tagged 'parameters'"),
        ({"defaults": "tp = 2\npp = 2\nworld = tp * pp"}, "line 3: world = tp \\* pp; an injected parameter would"),
        ({"defaults": "import os\nx = 1"}, "line 1 does not: import os"),
        ({"defaults": "x = 1\nx = 2"}, "assigns x twice"),
        ({"defaults": "a = b = 1"}, "may only assign literals"),
        ({"defaults": "x = (1, 2)"}, "is a tuple"),
        ({"defaults": "x = 1 +"}, "is not plain Python, line 1"),
        ({"defaults": "# Parameters\nx = 1"}, "do not begin it with '# Parameters'"),
    ],
)
def test_wrong_parameters_cell_is_refused_before_anything_runs(tmp_path, nothing_runs, options, match):
    fails(write(tmp_path, BEGIN, END, **options), match, InputError)


def test_wrong_files_are_refused(tmp_path, nothing_runs):
    fails(tmp_path / "no.ipynb", "cannot read notebook", InputError)
    for text in ("no json", "[]", "{}"):
        (tmp_path / "odd.ipynb").write_text(text)
        fails(tmp_path / "odd.ipynb", "is not a notebook|no cell is tagged", InputError)
    path = write(tmp_path, BEGIN, END)
    with pytest.raises(InputError, match=r"must end in \.ipynb, e\.g\. out\.ipynb"):
        run_notebook(path, None, "out.html")
    with pytest.raises(InputError, match="cannot write to"):
        run_notebook(path, None, "/proc/none/out.ipynb")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[2].metadata["tags"] = ["injected-parameters"]
    nbformat.write(notebook, path)
    fails(path, "executed copy", InputError)


@pytest.mark.parametrize(
    ("output", "match"),
    [
        ("x.txt", "must end in .ipynb"),
        ("", "must end in"),
        ("nul\0byte.ipynb", "null byte"),
        (f"{'x' * 300}.ipynb", "File name too long"),
        (f"{'x' * 245}.ipynb", "File name too long"),  # fits itself, its partial copy does not
        ("/proc/none/x.ipynb", "cannot write"),
    ],
)
def test_an_output_that_cannot_be_is_refused(tmp_path, nothing_runs, output, match):
    path = write(tmp_path, BEGIN, END)
    if not output:
        output = "."
    with pytest.raises(InputError, match=match) as caught:
        run_notebook(path, None, output)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_timeout_that_no_clock_takes_is_refused(tmp_path, nothing_runs, seconds):
    with pytest.raises(InputError, match="must be above 0"):
        run_notebook(write(tmp_path, BEGIN, END), timeout_seconds=seconds)


def test_a_full_disk_is_a_failed_run_in_one_line(tmp_path, monkeypatch):
    from repro.notebook import runner

    def full_disk(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runner, "write_json", full_disk)
    fails(write(tmp_path, BEGIN, "1 / 0", END), r"ZeroDivisionError")  # not: no space for the report of it
    monkeypatch.setattr(runner, "write_atomic", full_disk)
    fails(write(tmp_path, BEGIN, END), "its executed copy cannot be kept: No space left on device")


def test_failing_cell_is_named_for_people_and_machines(tmp_path):
    path = write(tmp_path, BEGIN, "print('so far')\n1/0", END)
    failure = fails(
        path, r"small\.ipynb failed in In\[4\] \(print.*ZeroDivisionError: division by zero", parameters={"count": 5}
    )
    assert {k: failure[k] for k in ("cell", "error", "message", "partial")} == {
        "cell": 3,
        "error": "ZeroDivisionError",
        "message": "division by zero",
        "partial": "out.partial.ipynb",
    }
    assert failure["parameters"]["count"] == 5
    partial = nbformat.read("out.partial.ipynb", as_version=4)
    assert "so far" in str(partial)
    assert [c.metadata.papermill["status"] for c in partial.cells if c.cell_type == "code"][-2:] == [
        "failed",
        "pending",
    ]


def test_input_refused_by_a_cell_is_an_input_error_in_one_line(tmp_path):
    Path("used").mkdir()
    Path("used/x").touch()
    path = write(tmp_path, BEGIN, END)
    fails(path, r"In\[3\].*run folder .*used exists", InputError, {"run_folder": "used"})
    partial = nbformat.read("out.partial.ipynb", as_version=4)
    [error] = [out for cell in partial.cells for out in cell.get("outputs", []) if out.output_type == "error"]
    assert len(error.traceback) == 1


def test_dead_kernel_fails_though_papermill_calls_its_cells_completed(tmp_path):
    path = write(tmp_path, BEGIN, "import os\nos.kill(os.getpid(), 9)", "print(1)", END)
    failure = fails(path, r"In\[3\] \(import os\): the kernel died")
    assert failure["error"] == "DeadKernelError"
    assert failure["cell"] == 3
    partial = nbformat.read("out.partial.ipynb", as_version=4)
    statuses = [c.metadata.papermill["status"] for c in partial.cells if c.cell_type == "code"]
    assert statuses == ["completed", "completed", "failed", "pending", "pending"]


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        ((BEGIN, "import sys\nsys.exit(0)", END), r"stopped early: sys.exit in In\[3\]"),
        ((BEGIN, END, "import sys\nsys.exit()"), "stopped early"),
        ((BEGIN, "print('done')"), "left no completion record"),
        ((BEGIN, "run.complete()\nimport time; time.sleep(0.1)\n(run.folder / 'completed.json').write_text('{}')"),
         "cannot be read|hash does not match"),
        ((BEGIN, "run.folder.mkdir(parents=True)\nmetrics = run.folder / 'metrics.jsonl'\nmetrics.write_text('1')\n"
          "run.complete()\nmetrics.write_text('2')"), "metrics.jsonl of .* changed or vanished"),
        ((BEGIN, "run.folder.mkdir(parents=True)\n"
          "(run.folder / 'status.json').write_text('{\"state\": \"failed\", \"reason\": \"overflow\"}')\n"
          "run.complete()"), "is failed, not completed: overflow"),
        ((BEGIN, "run.complete('figure.svg')"), "figure.svg does not exist"),
    ],
)  # fmt: skip
def test_quiet_end_without_a_true_completion_record_fails(tmp_path, cells, match):
    fails(write(tmp_path, *cells), match)


def test_completion_record_of_another_run_is_stale(tmp_path):
    old = run_notebook(write(tmp_path, BEGIN, END), None, "old.ipynb")
    cells = nbformat.read(old.output, as_version=4).cells
    [bundle] = [o.data for c in cells for o in c.get("outputs", []) if "completion" in str(o.get("data"))]
    replay = f"from IPython.display import display\ndisplay({dict(bundle)!r}, raw=True)"
    fails(write(tmp_path, BEGIN, replay), "is stale: another run wrote it")


def test_deadline_kills_a_kernel_deaf_to_interrupts_and_names_the_cell(tmp_path, monkeypatch):
    monkeypatch.setattr("repro.notebook.kernel.GRACE_SECONDS", 1)
    path = write(tmp_path, BEGIN, f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{BLOCKED}", END)
    failure = fails(path, r"deadline of 6 s passed in In\[3\] \(import signal", timeout_seconds=6)
    assert failure["cell"] == 3
    assert gone(int(Path("pid").read_text()))


def test_deadline_lets_a_cell_record_its_end_but_not_go_on(tmp_path):
    polite = "import pathlib, time\ntry:\n    time.sleep(60)\nfinally:\n    pathlib.Path('ended').write_text('yes')"
    fails(write(tmp_path, BEGIN, polite, END), "deadline of 6 s passed in", timeout_seconds=6)
    assert Path("ended").read_text() == "yes"


def test_start_of_the_kernel_is_retried_and_bounded(tmp_path, monkeypatch):
    # A sitecustomize that lets the first kernels die before they answer.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, pathlib, sys\n"
        "left = pathlib.Path(os.environ['STARTS_TO_FAIL'])\n"
        "if 'ipykernel_launcher' in ' '.join(sys.orig_argv) and (n := int(left.read_text())):\n"
        "    left.write_text(str(n - 1)); os._exit(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("STARTS_TO_FAIL", str(tmp_path / "left"))
    path = write(tmp_path, BEGIN, END)
    (tmp_path / "left").write_text("1")
    run_notebook(path, None, "good.ipynb")
    (tmp_path / "left").write_text("9")
    failure = fails(path, "no kernel started in 3 attempts")
    assert failure["cell"] is None
    assert (tmp_path / "left").read_text() == "6"


def test_runs_with_a_home_that_cannot_be_written_and_a_log_without_carriage_returns(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.access(home, os.W_OK):  # root writes anywhere but where there is no file system to write to
        home = Path("/proc/sys")
    write(tmp_path, BEGIN, "import IPython\nprint('history on:', IPython.get_ipython().history_manager.enabled)", END)
    code = RUN.replace("'out.ipynb')", "'out.ipynb', progress=print)")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "JUPYTER", "IPYTHON"))}
    with Path("log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-c", code, "small.ipynb"],
            env={**environment, "HOME": str(home)}, stdout=log, stderr=subprocess.STDOUT, timeout=60, check=False,
        )  # fmt: skip
    text = Path("log").read_bytes()
    assert done.returncode == 0, text.decode()
    assert b"\r" not in text
    assert text.decode().splitlines()[0] == '[1/5] recipe = "tiny"'
    assert len(text.splitlines()) == 5, "one line per cell and nothing else"
    assert "history on: False" in Path("out.ipynb").read_text()


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param([sys.executable, "-c", RUN, "small.ipynb"], signal.SIGKILL, id="runner-SIGKILL"),
        pytest.param([sys.executable, "-c", RUN, "small.ipynb"], signal.SIGTERM, id="runner-SIGTERM"),
        pytest.param([sys.executable, "-m", "papermill", "small.ipynb", "out.ipynb"], signal.SIGKILL, id="papermill"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
def test_killed_runner_leaves_no_kernel(tmp_path, command, number):
    write(tmp_path, BEGIN, BLOCKED, END)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        kernel = int(wait_for(Path("pid")))
        process.send_signal(number)
        _, errors = process.communicate(timeout=15)
    finally:
        process.kill()
    assert gone(kernel, 2)
    if number == signal.SIGTERM:
        assert RunInterrupted.__name__ in errors
        assert "SIGTERM in In[4]" in json.loads(Path("out.failure.json").read_text())["summary"]


def wait_for(path, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} was never written")


def gone(pid, seconds=2.0):
    """Whether the process ends within the time; one that waits to be reaped has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_defaults_alone_run_too(tmp_path):
    done = run_notebook(write(tmp_path, BEGIN, END, defaults=DEFAULTS), None, "out.ipynb")
    assert done.record["parameters"]["count"] == 4
