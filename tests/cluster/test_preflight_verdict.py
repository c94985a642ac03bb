"""The verdict over all checks of a preflight, and the next step after a stall."""

from types import SimpleNamespace

from repro.cluster import preflight
from repro.cluster.preflight import Check

LADDER = tuple(SimpleNamespace(number=n, title=t) for n, t in ((1, "hsn0 alone"), (2, "userfaultfd")))
STALL = {"text": "first all-reduce of the data-parallel group of ranks 0, 8 stalled", "all_arrived": True}


def test_nothing_failed_is_completed_though_something_was_not_checked():
    assert preflight.verdict([Check("a", "ok", "fine"), Check("b", "not checked", "no GPU")]) == ("completed", None)


def test_the_first_failure_is_the_reason_and_the_others_are_counted():
    state, reason = preflight.verdict(
        [Check("a", "ok", ""), Check("b", "failed", "bad", "do this"), Check("c", "failed", "worse")]
    )
    assert (state, reason) == ("failed", "b: bad; do this (1 more failed: c)")


def test_a_stall_of_all_points_to_the_next_rung():
    assert "--rung 1 (hsn0 alone)" in preflight.stalled(STALL, SimpleNamespace(ladder=LADDER)).fix
    assert "--rung 2 (userfaultfd)" in preflight.stalled(STALL, SimpleNamespace(ladder=LADDER), 1).fix
    assert "--rung" not in preflight.stalled(STALL, SimpleNamespace(ladder=LADDER), 2).fix
    assert "--rung" not in preflight.stalled(STALL).fix
    assert "log of the rank" in preflight.stalled({**STALL, "all_arrived": False}, SimpleNamespace(ladder=LADDER)).fix


def test_a_slow_group_fails_and_no_group_is_not_checked():
    assert (
        preflight.of_network(3, ["all-reduce, data: ranks 0, 8 on n1 take 3.0 times the median"], "").state == "failed"
    )
    assert preflight.of_network(0, [], "").state == "not checked"
    assert preflight.of_network(3, [], "kept short: ...").reason.endswith("kept short: ...")
