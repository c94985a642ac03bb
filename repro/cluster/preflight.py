"""What a preflight concludes: checks with a state and a reason, and the verdict over all of them. No torch."""

from dataclasses import dataclass

OK, FAILED, NOT_CHECKED = "ok", "failed", "not checked"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        state: ``ok``, ``failed`` or ``not checked``: what could not be known is never ok.
        reason: what was seen, or why nothing could be.
        fix: what to change where it failed.
    """

    name: str
    state: str
    reason: str
    fix: str = ""


def verdict(checks):
    """``(state, reason)`` of a run folder: ``failed`` with the first failure, else ``completed``."""
    failed = [check for check in checks if check.state == FAILED]
    if not failed:
        return "completed", None
    first = failed[0]
    others = f" ({len(failed) - 1} more failed: {', '.join(c.name for c in failed[1:])})" if len(failed) > 1 else ""
    return "failed", f"{first.name}: {first.reason}" + (f"; {first.fix}" if first.fix else "") + others


def of_groups(groups):
    """The :class:`Check` of first collectives.

    Args:
        groups: ``{title, groups, size, state, reason, seconds}`` of every kind, ``seconds`` of the slowest rank.
    """
    wrong = [g for g in groups if g["state"] == FAILED]
    if wrong:
        return Check("groups", FAILED, "; ".join(f"{g['title']}: {g['reason']}" for g in wrong),
                     "see the RCCL logs of the ranks named")  # fmt: skip
    ran = [g for g in groups if g["state"] == OK]
    if not ran:
        return Check("groups", NOT_CHECKED, "every group is one rank: there is nothing to connect")
    slowest = max(ran, key=lambda g: g["seconds"])
    text = f"{len(ran)} kinds of groups made their first transfer; the slowest, {slowest['title']}, "
    return Check("groups", OK, text + f"took {slowest['seconds']:.2g} s")


def stalled(stall, site=None, rung=0):
    """The :class:`Check` of a group that did not come through.

    Args:
        stall: ``text`` and whether ``all_arrived`` (:class:`repro.preflight.arrivals.Stall` as a dictionary).
        site: whose ladder of fallbacks has a next rung to try.
        rung: of that ladder, in use.
    """
    if not stall["all_arrived"]:
        return Check("groups", FAILED, stall["text"], "look at the log of the rank that is missing")
    fix = "all ranks are there, so what hangs is the network or the collective library"
    following = [r for r in getattr(site, "ladder", ()) if r.number > rung]
    if following:
        first = min(following, key=lambda r: r.number)
        fix += f"; try --rung {first.number} ({first.title})"
    return Check("groups", FAILED, stall["text"], fix)


def of_network(measured, slow, capped):
    """The :class:`Check` of the network's measurement.

    Args:
        measured: number of measured points.
        slow: one line for each group much slower than the others of its kind.
        capped: one line on sizes that were not measured whole; empty where all were.
    """
    if not measured:
        return Check("network", NOT_CHECKED, "every group is one rank: there is nothing to measure")
    text = f"{measured} points in network.csv" + (f"; {capped}" if capped else "")
    if slow:
        return Check("network", FAILED, "; ".join(slow), "leave the node out (sbatch --exclude), or ask the site")
    return Check("network", OK, text)
