"""Following and submitting where Slurm is slow, silent, forgetful or of another release: on made-up commands."""

import json
import subprocess
import sys
import time

import pytest

from repro.cluster import slurm, submit
from repro.cluster.follow import Patience, follow, last_row, look
from repro.cluster.queue import Job
from repro.cluster.submit import log_path
from repro.errors import InputError, RunInterrupted
from repro.records.run_folder import RunFolder

SCRIPT = "#!/bin/bash\n#SBATCH --output=job-%j.log\nexit 0\n"


@pytest.fixture
def folder(small, tmp_path):
    return RunFolder.create(tmp_path / "run", small())


class Time:
    """A clock that only waiting moves, and what happens at its times."""

    def __init__(self, monkeypatch, answers, events=None):
        self.now, self.asked, self.answers, self.events = 0.0, [], answers, events or {}
        monkeypatch.setattr(slurm, "find", self.find)

    def find(self, number):
        self.asked.append(self.now)
        answer = [a for since, a in self.answers if since <= self.now][-1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds):
        self.now += seconds
        for when in [when for when in self.events if when <= self.now]:
            self.events.pop(when)()

    def follow(self, folder, show=None, **patience):
        return follow(folder, {"job": 7}, show, Patience(**patience), self.sleep, lambda: self.now)


def test_a_long_job_is_asked_about_seldom_and_its_end_is_seen_at_once(folder, monkeypatch):
    end = 3600.0
    flow = Time(
        monkeypatch,
        [(0, Job(7, "PENDING", "Priority")), (600, Job(7, "RUNNING")), (end + 1, Job(7, "COMPLETED"))],
        {601: lambda: folder.set_status("running"), end: lambda: folder.set_status("completed")},
    )
    assert flow.follow(folder).state == "completed"
    assert flow.now <= end + 4, "the run folder tells of the end, not the next question to Slurm"
    assert len(flow.asked) <= 160
    assert flow.asked[1] <= 2, "the first minute is watched closely"
    assert max(b - a for a, b in zip(flow.asked, flow.asked[1:], strict=False)) <= 31


def test_a_silent_slurm_is_waited_for_and_then_given_up_on(folder, monkeypatch):
    down, seen = slurm.NoAnswer("squeue gave no answer within 30 s"), []
    flow = Time(monkeypatch, [(0, Job(7, "RUNNING")), (10, down), (500, Job(7, "RUNNING")), (900, Job(7, "CANCELLED"))])
    assert flow.follow(folder, seen.append, outage=600).state == "interrupted"
    assert any("no answer within 30 s; still following" in view.text for view in seen)
    flow = Time(monkeypatch, [(0, down)])
    with pytest.raises(slurm.NoAnswer, match=r"for 600 s: .*no answer.*repro job follow"):
        flow.follow(folder, outage=600)
    assert folder.status()["state"] == "interrupted", "a silent Slurm is no news about the run"


def test_a_job_that_slurm_forgot_is_closed_after_a_second_look(folder, monkeypatch):
    folder.set_status("running")
    flow = Time(monkeypatch, [(0, Job(7, "RUNNING")), (5, None), (8, Job(7, "RUNNING")), (60, None)])
    verdict = flow.follow(folder, gone=15)
    assert flow.now >= 75
    assert verdict.state == folder.status()["state"] == "interrupted"
    assert "no longer knows" in folder.status()["reason"]


def test_the_last_word_of_a_run_may_arrive_after_its_job_has_ended(folder, monkeypatch):
    folder.set_status("running")
    flow = Time(monkeypatch, [(0, Job(7, "COMPLETED"))], {2: lambda: folder.set_status("completed", summary={})})
    assert flow.follow(folder, settle=3).state == "completed"
    folder.set_status("running", ranks=4)
    monkeypatch.setattr(slurm, "find", lambda number: Job(7, "NODE_FAIL"))
    assert look(folder, {"job": 7}, sleep=lambda _: folder.set_status("completed")).state == "completed"
    folder.set_status("running", ranks=4)
    assert look(folder, {"job": 7}, sleep=lambda _: None).state == "interrupted"
    status = folder.status()
    assert (status["state"], status["ranks"]) == ("interrupted", 4)
    assert "a node failed" in status["reason"]


def test_a_held_job_and_an_unknown_state_are_followed_on(folder, monkeypatch):
    seen = []
    flow = Time(monkeypatch, [(0, Job(7, "REQUEUE_HOLD")), (60, Job(7, "TELEPORTING")), (120, Job(7, "TIMEOUT"))])
    assert flow.follow(folder, seen.append).state == "interrupted"
    assert any("scontrol release 7" in view.text for view in seen)
    flow = Time(monkeypatch, [(0, Job(7, "TELEPORTING"))])
    with pytest.raises(RunInterrupted, match=r"stopped following after 1 h; job 7 is left alone"):
        flow.follow(folder, deadline=3600)


def test_the_progress_of_a_long_run_is_read_from_its_end(folder, monkeypatch):
    folder.set_status("running")
    for step in range(300):
        folder.append_metrics({"step": step, "loss": 5.0 - step / 100, "padding": "x" * 100})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 300, "lo')
    assert last_row(folder.path / "metrics.jsonl")["step"] == 299
    assert last_row(folder.path / "absent") is None
    seen = []
    job = Job(7, "RUNNING", nodelist="frontier[00001-00002]", elapsed="1:00", left="59:00")
    Time(monkeypatch, [(0, job), (5, Job(7, "CANCELLED"))]).follow(folder, seen.append)
    assert seen[0].text == "job 7 running on frontier[00001-00002], step 300, loss 2.0100"
    assert seen[0].clock == "1:00, 59:00 left"


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Makes Slurm's commands say what a test wants: ``commands(sbatch="echo 12", squeue="exit 1")``."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")

    def make(**bodies):
        for name, body in {"squeue": "", "sacct": "exit 1", "scontrol": "exit 1", **bodies}.items():
            (place / name).write_text(f"#!/bin/bash\necho \"$@\" >> '{tmp_path}/{name}.calls'\n{body}\n")
            (place / name).chmod(0o755)

    return make


def send(small, tmp_path):
    return submit.submit(small(), tmp_path / "run", SCRIPT)


@pytest.mark.parametrize("out", ["12", "12;frontier", "Submitted batch job 12", "Good morning\n12\nBye"])
def test_every_way_of_saying_the_number(small, tmp_path, commands, out):
    commands(sbatch=f"echo '{out}'; echo 'sbatch: your project has used 80 %' >&2")
    assert send(small, tmp_path).job == 12


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("echo hello", slurm.RunFailed, "no job number: hello"),
        ("true", slurm.RunFailed, "it printed nothing"),
        ("exit 1", InputError, "exit code 1"),
        ("echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1", slurm.NoAnswer, "finds out"),
        ("sleep 60", slurm.NoAnswer, "no answer within 0.3 s"),
    ],
)
def test_an_sbatch_that_says_nothing_of_use(small, tmp_path, commands, monkeypatch, body, error, words):
    monkeypatch.setattr(slurm, "SUBMIT_SECONDS", 0.3 if "sleep" in body else 20)
    commands(sbatch=body)
    with pytest.raises(error, match=words):
        send(small, tmp_path)
    assert (tmp_path / "run").exists() == (error is not InputError), "kept where there may be a job"
    name = submit.job_name(small(), tmp_path / "run")
    commands(squeue=f"echo '12|PENDING|0:00|5:00|2|N/A|batch||{name}|Priority'", sbatch="echo 13")
    if error is not InputError:
        found = send(small, tmp_path)
        assert (found.how, found.job) == ("found", 12)


def test_an_sbatch_whose_answer_was_lost_has_its_job_found_by_name(small, tmp_path, commands):
    name = submit.job_name(small(), tmp_path / "run")
    row = f"12|PENDING|0:00|5:00|2|N/A|batch||{name}|Priority"
    lost = "touch sent; echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1"
    commands(squeue=f"[ -e '{tmp_path}/sent' ] && echo '{row}'; true", sbatch=f"cd '{tmp_path}'; {lost}")
    sent = send(small, tmp_path)
    assert (sent.how, sent.job) == ("submitted", 12)
    assert (tmp_path / "sbatch.calls").read_text().count("\n") == 1


def test_no_slurm_is_one_line_and_leaves_nothing(small, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="squeue is not here: this is no login node"):
        submit.submit(small(), tmp_path / "runs" / "run", SCRIPT)
    assert not list(tmp_path.iterdir())


def test_an_old_job_is_asked_of_accounting(commands):
    commands(
        squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sacct="echo '12|NODE_FAIL|0:0|00:10|2|2026-12-01T00:00:00|batch|n[1-2]|x'; "
        "echo '12|COMPLETED|0:0|00:10|2|2026-12-01T00:00:00|batch|n[1,3]|x'",
    )
    assert (slurm.find(12).state, slurm.find(12).nodelist) == ("COMPLETED", "n[1,3]")
    commands(squeue="exit 1", sacct="exit 1")
    with pytest.raises(slurm.NoAnswer, match="exit code 1"):
        slurm.find(12)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job": "12"}', "\x00", '{"job": true}'])
def test_a_broken_job_file_is_one_line(folder, content):
    (folder.path / "job.json").write_text(content)
    with pytest.raises(InputError, match=r"job\.json"):
        submit.read_record(folder)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("#SBATCH --output=/a/job-%j.log", "/a/job-12.log"),
        ("#SBATCH -o /a/%x-%j.out", "/a/name-12.out"),
        ('#SBATCH --output="/a b/job-%j.log"', "/a b/job-12.log"),
        ("#SBATCH --output /a/%A.log  ", "/a/12.log"),
    ],
)
def test_where_the_log_of_a_job_lies(line, path, tmp_path):
    assert log_path(f"#!/bin/bash\n{line}\n", 12, "name", tmp_path) == path


def test_the_way_to_a_job_needs_no_torch_and_little_time(tmp_path):
    code = (
        "import sys, repro.cli\n"
        "try: repro.cli.main(['job', '175b', '--site', 'frontier', '--account', 'abc123', '--show-script'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "import repro.cluster.follow, repro.cluster.submit\n"
        "sys.exit([m for m in ('torch', 'deepspeed', 'pandas', 'papermill', 'wandb') if m in sys.modules] or 0)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash")
    assert time.monotonic() - started < 3, "about 0.7 s on an idle machine"
    assert not list(tmp_path.iterdir())


def test_the_record_is_json_for_machines(small, tmp_path, commands):
    commands(sbatch="echo '12;frontier'")
    sent = send(small, tmp_path)
    record = json.loads((tmp_path / "run" / "job.json").read_text())
    assert record == sent.record
    assert (record["job"], record["cluster"], record["earlier"]) == (12, "frontier", [])
