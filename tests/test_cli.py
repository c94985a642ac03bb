"""The command line as a user meets it: exit codes, one line for a fault, JSON and nothing else, quick help."""

import json
import subprocess
import sys
import time

import pytest

from repro import cli


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return done.value.code, out, err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check", "174b"], "did you mean '175b'"),
        (["train", "tiny", "--set", "batch.gobal=8"], "did you mean 'batch.global'"),
        (["train", "tiny", "--set", "batch.global=7"], "nearest valid: batch.global 4 or 8"),
        (["train", "tiny", "--set", "parallel.tp=3"], "nearest valid: parallel.tp 2"),
        (["train", "tiny", "--set", "parallel.pp=5", "--set", "parallel.dp=1"], "the most is pp = 4"),
        (["train", "tiny", "--set", "zero.stage=2"], "nearest valid: zero.stage 1"),
        (["train", "tiny", "--set", "data.kind=wikipedia"], "unknown dataset"),
        (["train", "tiny", "--set", "nonsense"], "FIELD=VALUE"),
        (["train", "tiny", "--steps", "0"], "steps"),
        (["train", "1t"], "3072 ranks"),
        (["train", "tiny", "--bogus"], "--bogus"),
        (["trainn"], "train"),
        (["check", "a\nb\x1b[31m.toml"], r"a\nb\x1b[31m.toml"),
        (["train", "tiny", "--run-folder", "a\0b"], "null byte"),
        (["train"], "RECIPE"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("warning:")]
    assert len(lines) == 1
    assert text in lines[0]
    assert not list(tmp_path.iterdir()), "nothing may be written"


def test_help_is_quick_and_needs_no_torch():
    code = (
        "import sys, repro.cli\n"
        "try: repro.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'deepspeed', 'pandas', 'papermill', 'wandb')))"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "train" in done.stdout
    assert time.monotonic() - started < 3, "about 0.3 s on an idle machine"


def test_recipes_as_json_and_as_a_table(capsys):
    code, out, err = call(capsys, "recipes", "--json")
    rows = {row["name"]: row for row in json.loads(out)["recipes"]}
    assert (code, err) == (0, "")
    assert rows["175b"]["true_parameters"] == 174609555456
    code, out, _ = call(capsys, "recipes")
    assert code == 0
    assert "174.61 B" in out


def test_check_as_json(capsys):
    code, out, _ = call(capsys, "check", "175b", "--set", "parallel.dp=4", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["world_size"] == 256
    assert found["parameters_per_rank_by_stage"][0] == 2899359744
    assert found["recipe"]["batch"]["global"] == 640


def test_train_as_json_is_one_object_and_silent(tmp_path):
    command = [sys.executable, "-m", "repro", "train", "tiny", "--steps", "3", "--wandb", "off", "--json"]
    done = subprocess.run(
        [*command, "--run-folder", str(tmp_path / "r")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert found["steps"] == 3
    assert found["run_folder"] == str(tmp_path / "r")


def test_progress_off_a_terminal_has_no_control_characters(tmp_path):
    command = [sys.executable, "-m", "repro", "train", "tiny", "--steps", "3", "--wandb", "off"]
    done = subprocess.run(
        [*command, "--run-folder", str(tmp_path / "r")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    assert "step 3/3" in done.stderr
    assert "run folder" in done.stdout


def shell(command, folder):
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; repro() {{ {sys.executable} -m repro "$@"; }}; {command}'],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code", "line"),
    [
        ("repro recipes | head -1", 0, ""),
        ("repro check 175b --json | head -c 1", 0, ""),
        ("repro check tiny --json >&-", 0, ""),
        ("repro check tiny <&- >&- 2>&-", 0, ""),
        ("repro check tiny --json > /dev/full", 3, "repro: No space left on device\n"),
        ("mkdir gone; cd gone; rmdir ../gone; repro check tiny", 2, "repro: the current folder has been removed"),
    ],
)
def test_an_output_or_a_folder_that_is_gone_is_no_traceback(command, code, line, tmp_path):
    done = shell(command, tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == bool(line)


def test_a_run_outlives_the_reader_of_its_progress(tmp_path):
    done = shell("repro train tiny --steps 2 --wandb off --run-folder r 2>&1 | head -1", tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "r" / "status.json").read_text())["state"] == "completed"
    done = shell("repro train tiny --steps 2 --wandb off --run-folder s 2>&-", tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "s" / "status.json").read_text())["state"] == "completed"


@pytest.mark.parametrize("module", ["typer", "repro.commands.running", "repro.engine.launch"])
def test_ctrl_c_during_the_imports_is_one_line(module, tmp_path):
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from repro.cli import main\n"
        "main(['train', 'tiny', '--run-folder', 'run'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130
    assert len(done.stderr.splitlines()) <= 1 and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
