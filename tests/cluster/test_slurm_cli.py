"""``repro job`` as a user meets it, on a real Slurm and the real template; only the ranks play training."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro import cli
from repro.records.run_folder import RunFolder

SITE = Path(__file__).parent / "site-here.toml"
# In the place of an environment's Python: rank 0 writes what a run would write, and all end as told.
PLAYER = """\
#!/bin/bash
[ "$SLURM_PROCID" = 0 ] || {{ {others}; }}
state() {{
    printf '{{\\n  "state": "%s",\\n  "reason": %s,\\n  "time": "%s"\\n}}\\n' \\
        "$1" "${{2:-null}}" "$(date -u +%FT%T.%3N+00:00)" > .new && mv .new status.json
}}
state running
{body}
"""


@pytest.fixture
def play(tmp_path, slurm, monkeypatch):
    """Sets what rank 0 and the others do; returns the words of a command that submits them."""
    monkeypatch.chdir(tmp_path)

    def play(body="state completed", others="exit 0"):
        python = tmp_path / "env" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(PLAYER.format(body=body, others=others))
        python.chmod(0o755)
        options = {"site": SITE, "account": "abc123", "env": tmp_path / "env", "run-folder": "run"}
        return ["job", "tiny-3d", *(str(word) for key, value in options.items() for word in (f"--{key}", value))]

    return play


@pytest.fixture
def call(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as done:
            cli.main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        return done.value.code, out, err

    return call


def test_submit_and_follow_to_completion(play, call, tmp_path):
    words = play("echo 'step 1/20'; state completed")
    code, out, err = call(*words, "--submit", "--follow")
    assert code == 0, err
    assert "completed: run" in out
    assert "  step 1/20" in err.splitlines()
    assert "\x1b" not in err + out
    code, out, err = call(*words, "--submit", "--follow")
    assert (code, out) == (0, "")
    assert ": completed, run folder run" in err


def test_json_is_one_object_and_nothing_else(play, call):
    code, out, err = call(*play(), "--submit", "--follow", "--json")
    assert (code, err, json.loads(out)["state"]) == (0, "", "completed")
    code, out, err = call("job", "status", "run", "--json")
    assert (code, err, json.loads(out)["state"]) == (0, "", "completed")
    code, out, err = call(*play(), "--dry-run", "--json")
    assert (code, err, json.loads(out)["accepted"]) == (0, "", True)


def test_a_failing_rank_is_exit_3_with_its_error_in_the_last_line(play, call):
    words = play("sleep 20", others='[ "$SLURM_PROCID" = 2 ] || exec sleep 20; echo "ValueError: seven" >&2; exit 9')
    code, _, err = call(*words, "--submit", "--follow")
    last = err.splitlines()[-1]
    assert code == 3, err
    assert last.startswith("repro: ")
    assert "ValueError: seven" in last
    status = RunFolder.open("run").status()
    assert status["state"] == "failed", "nobody else was left to say so"
    assert "ValueError: seven" in status["reason"]
    code, out, err = call(*words, "--submit")
    assert (code, out) == (2, "")
    assert "ValueError: seven" in err
    assert "--again" in err
    code, _, err = call(*play(), "--submit", "--follow", "--again")
    assert code == 0, err


def test_status_and_cancel(play, call):
    words = play("exec sleep 60")
    code, out, err = call(*words, "--submit")
    assert (code, out) == (0, ""), err
    assert ": submitted, run folder run" in err
    assert ": found, run folder run" in call(*words, "--submit")[2]
    code, out, _ = call("job", "status", "run")
    assert code == 0
    assert "pending" in out or "running" in out
    code, out, _ = call("job", "cancel", "run")
    assert code == 0
    assert "interrupted" in out
    assert "interrupted" in call("job", "status", "run")[1]
    assert RunFolder.open("run").status()["state"] == "interrupted"
    code, _, err = call("job", "follow", "run")
    assert code == 130
    assert "cancelled" in err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--account", "xyz999"], "account xyz999 is not one of yours"),
        (["--partition", "nowhere"], "invalid partition specified: nowhere"),
        (["--hours", "30"], "Requested time limit is invalid"),
        (["--account", "nobody's"], "account"),
        (["--partition", "bach"], "did you mean 'batch'"),
        (["--hours", "0"], "hours"),
        (["--nodes", "5"], "nodes"),
        (["--env", "absent"], "bin/python"),
        (["--steps", "0"], "steps"),
        (["--site", "frontir"], "did you mean 'frontier'"),
        (["--rung", "9"], "rung"),
    ],
)
@pytest.mark.parametrize("action", ["--submit", "--dry-run"])
def test_bad_input_is_one_line_and_leaves_nothing(play, call, tmp_path, slurm, action, more, words):
    code, out, err = call(*play(), *more, action)
    assert (code, out) == (2, ""), err
    assert words in err
    assert len([line for line in err.splitlines() if not line.startswith("warning:")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["env"]
    assert slurm.call("squeue", "-h") == ""


@pytest.mark.parametrize("word", ["status", "follow", "cancel"])
def test_a_folder_without_a_job_is_one_line(call, small, tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    code, _, err = call("job", word, "nothing")
    assert (code, err.count("\n")) == (2, 1)
    RunFolder.create(tmp_path / "local", small())
    code, _, err = call("job", word, "local")
    assert (code, err.count("\n")) == (2, 1)
    assert "no job was submitted" in err


def test_ctrl_c_on_a_terminal_leaves_the_job(play, call, tmp_path, slurm):
    words = play("exec sleep 60")
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "repro", *words, "--submit", "--follow"],
        stdin=side, stdout=side, stderr=side, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(side)
    try:
        seen = read_until(main, b"running on frontier", 30)
        process.send_signal(signal.SIGINT)
        seen += read_until(main, b"repro job follow", 20)
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.wait(10)
        os.close(main)
    assert b"is left alone" in seen
    assert b"Traceback" not in seen
    assert slurm.call("squeue", "-h", "-t", "RUNNING", "-o", "%T") == "RUNNING"


def read_until(descriptor, words, seconds):
    seen, end = b"", time.monotonic() + seconds
    while words not in seen:
        assert time.monotonic() < end, seen
        if select.select([descriptor], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                seen += os.read(descriptor, 4096)
    return seen
