"""The scorecard: rules of verdicts, one published value changes one verdict, and a worse verdict fails."""

import csv
import json
import subprocess
import sys
from dataclasses import astuple, replace

import pytest

from repro.errors import InputError, RunFailed
from repro.exhibits import scorecard as cards
from repro.exhibits import scorecard_command
from repro.exhibits.scorecard import CONSISTENT, NOT, REPRODUCED, UNCHECKED, Change, judge
from repro.exhibits.scorecard_sources import Ours, Sources, banded, exact
from repro.records import claims as published
from repro.records import published_runs
from repro.records.metrics import step_row
from repro.report import scorecard_figure, scorecard_table

CLAIM = published.Claim("a", "A", "a is so", 100.0, "%", "equal", "none", 0.05, "no way", "somebody", "confirmed")


@pytest.fixture(scope="module")
def sources():
    return Sources(trace=False)


@pytest.fixture(scope="module")
def card(sources):
    return cards.scorecard(sources=sources)


@pytest.fixture(scope="module")
def picture(card, tmp_path_factory):
    return scorecard_figure.scorecard(card, tmp_path_factory.mktemp("picture"))


@pytest.mark.parametrize(
    ("relation", "ours", "verdict"),
    [
        ("equal", exact(104, "counted"), REPRODUCED),
        ("equal", exact(106, "counted"), NOT),
        ("equal", banded(80, 80, 96, "counted", exact=True), REPRODUCED),  # the nearer end of what is open
        ("equal", banded(104, 90, 120, "projected"), CONSISTENT),  # near, yet no model of time reproduces
        ("equal", banded(90, 80, 99.9, "projected"), NOT),
        ("above", banded(110, 101, 120, "projected"), CONSISTENT),
        ("above", banded(110, 99, 120, "projected"), UNCHECKED),
        ("above", banded(90, 80, 100, "projected"), NOT),
        ("below", exact(90, "counted"), REPRODUCED),
        ("below", banded(90, 80, 101, "projected"), UNCHECKED),
        ("equal", None, UNCHECKED),
    ],
)
def test_rules(relation, ours, verdict):
    found, reason = judge(replace(CLAIM, relation=relation), ours)
    assert found == verdict
    assert reason


def test_measured_is_exact():
    ours = Ours(99.0, 98.0, 99.5, "measured", True, "a run")
    assert judge(CLAIM, ours)[0] == REPRODUCED


def test_a_wide_band_is_called_weak():
    assert "says little" in judge(CLAIM, banded(100, 50, 150, "projected"))[1]


def test_every_claim_has_a_line_with_a_reason(card):
    assert [line.id for line in card.lines] == [claim.id for claim in published.read()]
    for line in card.lines:
        assert line.reason
        assert line.verdict == UNCHECKED or line.how
    assert sum(card.counts().values()) == len(card.lines)
    assert card.counts()[REPRODUCED] >= 9


def test_what_is_known_of_the_paper(card):
    found = {line.id: line for line in card.lines}
    assert found["175b-unique"].ours == 174_706_360_320
    assert found["175b-total"].ours == 175_429_877_760
    assert found["log-149"].ours == pytest.approx(37.36, abs=0.01)
    assert found["machine-share"].ours == pytest.approx(4.05, abs=0.01)
    for name in ("175b-percent", "1t-percent", "175b-strong", "1t-strong", "175b-weak", "1t-weak"):
        assert found[name].verdict == CONSISTENT
    # the profile learned the paper's 22B: here another site's run has to stand in
    assert "LUMI" in found["22b-percent"].how
    assert found["22b-tflops"].verdict == CONSISTENT


def test_the_accepted_verdicts_are_todays(card):
    assert [str(change) for change in cards.changes(card)] == []


def test_published_values_stand_in_one_place():
    values = {run.id: run.value for run in published_runs.runs()}
    with published.CLAIMS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["ours"].startswith("run:"):
                assert row["published"] == row["ours"].replace("run:", "runs:")
                assert row["published"].removeprefix("runs:") in values


def edited(folder, claim, column, value):
    with published.CLAIMS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    [row] = [row for row in rows if row[0] == claim]
    row[rows[0].index(column)] = value
    path = folder / "claims.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


@pytest.mark.parametrize(("claim", "value"), [("175b-percent", "12"), ("22b-tflops", "30"), ("175b-total", "5")])
def test_one_published_value_changes_its_verdict_and_nothing_else(claim, value, card, picture, sources, tmp_path):
    changed = cards.scorecard(claims=edited(tmp_path, claim, "published", value), sources=sources)
    differs = [a.id for a, b in zip(card.lines, changed.lines, strict=True) if astuple(a) != astuple(b)]
    assert differs == [claim]
    [change] = cards.changes(changed)
    assert (change.id, change.now) == (claim, NOT)
    assert change.worse
    pictures = [picture, scorecard_figure.scorecard(changed, tmp_path)]
    assert pictures[0].svg.read_bytes() != pictures[1].svg.read_bytes()
    lines = [picture.csv.read_text().splitlines() for picture in pictures]
    assert sum(a != b for a, b in zip(*lines, strict=True)) == 1


@pytest.mark.parametrize(
    ("was", "now", "worse"),
    [
        (REPRODUCED, CONSISTENT, True),
        (CONSISTENT, NOT, True),
        (NOT, UNCHECKED, True),
        (UNCHECKED, NOT, True),
        (UNCHECKED, CONSISTENT, False),
        (NOT, REPRODUCED, False),
        (None, NOT, False),
        (REPRODUCED, None, True),
    ],
)
def test_what_is_worse(was, now, worse):
    assert Change("a", was, now, "so").worse is worse


def test_a_worse_verdict_fails_until_accepted(card, picture, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scorecard_figure, "scorecard", lambda card, into: picture)
    path = tmp_path / "accepted.csv"
    monkeypatch.setattr(cards, "scorecard", lambda: card)
    monkeypatch.setattr(cards, "ACCEPTED", path)
    with pytest.raises(InputError, match="--accept writes them"):
        scorecard_command.claims(tmp_path, False, None)
    scorecard_command.claims(tmp_path, True, None)
    scorecard_command.claims(tmp_path, False, None)
    text = path.read_text()
    assert "flash,not reproduced" in text
    path.write_text(text.replace("flash,not reproduced", "flash,consistent") + "gone,reproduced\n")
    capsys.readouterr()
    shown = []
    with pytest.raises(RunFailed, match="worse than accepted: 2 of"):
        scorecard_command.claims(tmp_path, False, shown.append)
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" (")[0] for line in told] == [
        "worse: flash: consistent -> not reproduced",
        "worse: gone: reproduced -> no such claim",
    ]
    assert [change["worse"] for change in shown[0]["changes"]] == [True, True]
    json.dumps(shown[0], allow_nan=False)
    scorecard_command.claims(tmp_path, True, None)
    scorecard_command.claims(tmp_path, False, None)
    path.write_text("id,verdict\nflash,good\n")
    with pytest.raises(InputError, match="line 2"):
        cards.accepted()


def test_figure_is_the_same_byte_for_byte(card, picture, tmp_path):
    one, two = picture, scorecard_figure.scorecard(card, tmp_path)
    for a, b in zip(one.files, two.files, strict=True):
        assert a.read_bytes() == b.read_bytes()
    assert one.csv.read_text() == card.to_csv()
    assert one.csv.name == "scorecard.csv"


def test_every_verdict_and_title_is_in_the_picture(card, picture):
    text = picture.svg.read_text()
    for line in card.lines:
        assert f">{line.title}" in text
        assert line.verdict in text


def test_table_has_both_sides(card):
    rows = card.table().rows
    assert {row.provenance for row in rows} == {"published", "projected"}
    assert len([row for row in rows if row.series == "flash"]) == 2
    assert not [row for row in rows if row.series == "rccl-plugin"]
    grids = (scorecard_table.grid(card), scorecard_table.ways(card), scorecard_table.changed([]))
    assert all(repr(grid) and grid._repr_html_() for grid in grids)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("published", "nan", "published 'nan' is not a number"),
        ("published", "runs:nope", "unknown published value in runs 'nope'"),
        ("published", "", "published is empty"),
        ("relation", "about", "unknown relation 'about'"),
        ("tolerance", "-1", "tolerance '-1'"),
        ("confidence", "sure", "unknown confidence 'sure'"),
        ("source", " ", "source is empty"),
        ("id", "1T", "must be small letters"),
        ("id", "175b-percent", "stands twice"),
    ],
)
def test_claims_that_are_refused(column, value, told, tmp_path):
    with pytest.raises(InputError, match=r"claims.csv line \d+: ") as error:
        published.read(edited(tmp_path, "1t-percent", column, value))
    assert told in str(error.value)


def test_unknown_way(sources, tmp_path):
    with pytest.raises(InputError, match="unknown way to our number 'flush'; did you mean 'flash'"):
        cards.scorecard(claims=edited(tmp_path, "flash", "ours", "flush"), sources=sources)


class Folder:
    """A run folder as a cluster would leave it."""

    def __init__(self, path, recipe, seconds, device="AMD Instinct MI250X", state="completed"):
        from repro import devices
        from repro.records.run_folder import RunFolder

        self.path = path
        folder = RunFolder.create(path, recipe)
        folder.write_environment({"device": device})
        known = devices.recognise(device)
        for step in range(4):
            folder.append_metrics(
                step_row(recipe, known, step=step, loss=5.0, grad_norm=1.0, lr=1e-4, loss_scale=1.0, skipped=False,
                         seconds=seconds, peak_memory_bytes=2**30, time=0.0)
            )  # fmt: skip
        folder.set_status(state, summary={})


def test_measured_runs_go_before_projections(card, tmp_path):
    from repro.recipe import load

    seconds = 198.0
    Folder(tmp_path / "a", load("22b"), seconds)
    found = {line.id: line for line in cards.scorecard(trace=False, runs=[str(tmp_path / "a")]).lines}
    assert found["22b-tflops"].provenance == "measured"
    assert found["22b-tflops"].verdict in (REPRODUCED, NOT)
    assert found["175b-tflops"] == {line.id: line for line in card.lines}["175b-tflops"]
    Folder(tmp_path / "b", load("22b"), seconds, device="cpu")
    with pytest.raises(InputError, match="did not run on mi250x-gcd"):
        cards.scorecard(trace=False, runs=[str(tmp_path / "b")])
    Folder(tmp_path / "c", load("22b"), seconds, state="failed")
    with pytest.raises(InputError, match="is failed, not completed"):
        cards.scorecard(trace=False, runs=[str(tmp_path / "c")])
    with pytest.raises(InputError, match="must be a list"):
        cards.scorecard(trace=False, runs="runs/x")


def test_traced_counts_are_those_of_the_closed_form():
    traced, closed = Sources(trace=True).counts, Sources(trace=False).counts
    assert (traced[1], traced[2], closed[2]) == (closed[1], "traced", "projected")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--deepspeed", "x.json"], "--deepspeed goes with --log"),
        (["--log", "x", "--accept"], "does not go with --log"),
        (["--log", "missing.log"], "cannot read log 'missing.log': no such file"),
        (["--log", "x", "--device", "MI999"], "unknown device 'MI999'"),
    ],
)
def test_command_line(arguments, told, tmp_path):
    done = subprocess.run([sys.executable, "-m", "repro", "scorecard", *arguments], capture_output=True, text=True,
                          cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert told in line
