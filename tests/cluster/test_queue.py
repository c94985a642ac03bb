"""What Slurm prints, release by release and with what sites add to it, and what is read from it."""

import pytest

from repro.cluster.queue import parse_sacct, parse_sbatch, parse_scontrol, parse_squeue, refusal

# As printed by 22.05.8 here; the later releases' lines differ in what their release notes and users' posts show.
ROWS = {
    "22.05": "9089|RUNNING|0:00|5:00|2|2026-12-01T03:35:21|batch|frontier[00001-00002]|tiny-1a2b3c4d|None",
    "23.11": "123|PENDING|0:00|2:00:00|16|N/A|batch||175b-00ff00ff|(null)",
    "24.11": "124|PENDING|0:00|2:00:00|16|2026-12-02T00:00:00|batch|(null)|175b-00ff00ff|QOSMaxJobsPerUserLimit",
    "25.11": "125|NODE_FAIL|1-02:03:04|INVALID|384|2026-12-02T00:00:00|batch|frontier[00863,00971-00973]|1t|NodeDown",
}


def test_a_row_of_each_release():
    jobs = {release: parse_squeue(row)[0] for release, row in ROWS.items()}
    assert [job.id for job in jobs.values()] == [9089, 123, 124, 125]
    assert [job.phase for job in jobs.values()] == ["running", "waiting", "waiting", "ended"]
    assert [job.reason for job in jobs.values()] == ["", "", "QOSMaxJobsPerUserLimit", "NodeDown"]
    assert jobs["23.11"].start == ""
    assert jobs["24.11"].nodelist == ""
    assert jobs["25.11"].left == ""
    assert jobs["25.11"].elapsed == "1-02:03:04"
    assert jobs["25.11"].run_state == "interrupted"


@pytest.mark.parametrize(
    "noise",
    [
        "",
        "\n\n",
        "CLUSTER: frontier\n",
        "slurm_load_jobs error: Invalid job id specified\n",
        "JOBID|STATE|TIME|TIME_LEFT|NODES|START_TIME|PARTITION|NODELIST|NAME|REASON\n",
        "|||||||||\n",
        "12|RUNN",
        "12|running|0:00|5:00|2|N/A|batch|x|y|None\n",
        "*** maintenance on Tuesday | see the wiki ***\n",
        "\x00\xff||\r\n",
        "①|PENDING|||||||\n",
    ],
)
def test_other_lines_are_left_out(noise):
    row = ROWS["22.05"]
    assert [job.id for job in parse_squeue(f"{noise.rstrip()}\n{row}  \r\n{noise}")] == [9089]
    assert parse_squeue(noise) == []
    assert parse_sacct(noise) == []


def test_a_separator_in_a_name_does_no_harm():
    job = parse_squeue("7|PENDING|0:00|5:00|2|N/A|batch||a|b c|Priority")[0]
    assert (job.name, job.reason) == ("a|b c", "Priority")


def test_reasons_may_hold_blanks():
    job = parse_squeue("7|PENDING|0:00|5:00|2|N/A|batch||x|Nodes required for job are DOWN, DRAINED or reserved")[0]
    assert job.words == "pending (Nodes required for job are DOWN, DRAINED or reserved)"


def test_accounting_gives_the_last_of_a_requeued_jobs_rows():
    text = (
        "7|NODE_FAIL|0:0|00:00:10|2|2026-12-01T00:00:00|batch|n[1-2]|x\n"
        "7|CANCELLED by 1000|0:15|00:00:05|2|2026-12-01T00:01:00|batch|n[1,3]|x\n"
        "7.batch|CANCELLED|0:15|00:00:05|1|2026-12-01T00:01:00||n1|batch\n"
        "8|PENDING|0:0|00:00:00|2|Unknown|batch|None assigned|y\n"
    )
    jobs = {job.id: job for job in parse_sacct(text)}
    assert (jobs[7].state, jobs[7].nodelist, jobs[7].run_state) == ("CANCELLED", "n[1,3]", "interrupted")
    assert (jobs[8].phase, jobs[8].nodelist, jobs[8].start) == ("waiting", "", "")
    assert set(jobs) == {7, 8}


def test_a_state_of_the_future_is_neither_ended_nor_running():
    job = parse_squeue(ROWS["22.05"].replace("RUNNING", "TELEPORTING"))[0]
    assert (job.phase, job.active, job.run_state) == ("unknown", True, None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9092\n", (9092, None)),
        ("9092;frontier\n", (9092, "frontier")),
        ("Submitted batch job 9092\n", (9092, None)),
        ("Submitted batch job 9092 on cluster frontier\n", (9092, "frontier")),
        ("Welcome to Frontier\n9092\n\n", (9092, None)),
        ("9092\nYour project has used 80 % of its hours\n", (9092, None)),
        ("", None),
        ("job 12 of 13 is fine\n", None),
    ],
)
def test_the_number_of_a_submitted_job(text, found):
    assert parse_sbatch(text) == found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "sbatch: error: account wrong is not one of yours: abc123\n"
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n",
            "account wrong is not one of yours: abc123; Invalid account or account/partition combination specified",
        ),
        ("allocation failure: Invalid partition name specified\n", "Invalid partition name specified"),
        (
            "sbatch: unrecognized option '--x'\nTry \"sbatch --help\" for more information\n",
            "unrecognized option '--x'",
        ),
        ("sbatch: fatal: Unable to read ./job.sh\n", "Unable to read ./job.sh"),
        ("Greetings\n\nsbatch: error: no\nsbatch: error: no\n", "no"),
        ("just words\nof a site\n", "just words; of a site"),
        ("  \n", ""),
    ],
)
def test_a_refusal_is_one_line_in_the_sites_words(text, line):
    assert refusal(text) == line


def test_details_of_scontrol_may_hold_blanks():
    text = "JobId=7 JobName=a b UserId=root(0) Reason=None ExitCode=1:0 Restarts=2 Command=/x/job.sh TRES=cpu=4,node=2"
    found = parse_scontrol(text)
    assert (found["JobName"], found["Restarts"], found["ExitCode"], found["TRES"]) == (
        "a b",
        "2",
        "1:0",
        "cpu=4,node=2",
    )
    assert parse_scontrol("") == {}
