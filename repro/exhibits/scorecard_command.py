"""What ``repro scorecard`` does: the card with its figure, judged against what was accepted; or a log's faults."""

from dataclasses import asdict

from repro import progress
from repro.errors import InputError, RunFailed


def run(output, accept, log, deepspeed, script, device, as_json):
    """The command's two halves; ``as_json`` prints one object, or is None for people.

    Raises:
        InputError: options that do not go together.
        RunFailed: a verdict is worse than the accepted one.
    """
    if log is None:
        given = [name for name, value in (("--deepspeed", deepspeed), ("--script", script)) if value is not None]
        if given:
            raise InputError(f"{given[0]} goes with --log: it says what the log's run was configured as")
        return claims(output, accept, as_json)
    if accept:
        raise InputError("--accept takes the scorecard's verdicts; it does not go with --log")
    from repro.report import log_report

    found = log_report.examine(log, deepspeed, script, device)
    as_json(found.to_dict()) if as_json else log_report.show(found)


def claims(output, accept, as_json):
    """Every claim beside ours; the card is shown and drawn before a worse verdict fails."""
    from repro.exhibits import scorecard as cards
    from repro.report import scorecard_figure, scorecard_table

    accepted = {} if accept else cards.accepted()  # a broken file is told at once, not after all the work
    card = cards.scorecard()
    drawn = scorecard_figure.scorecard(card, output)
    changed = [] if accept else cards.changes(card)
    worse = [change for change in changed if change.worse]
    if accept:
        cards.accept(card)
    if as_json:
        as_json(
            {
                "claims": [asdict(line) for line in card.lines],
                "verdicts": card.counts(),
                "changes": [{**asdict(change), "worse": change.worse} for change in changed],
                "accepted": len(card.lines) if accept else len(accepted),
                "files": [str(path) for path in drawn.files],
            }
        )
    else:
        scorecard_table.show(card, changed, drawn, accept)
    for change in worse:
        progress.say(f"worse: {change}")
    if worse:
        raise RunFailed(f"verdicts worse than accepted: {len(worse)} of {len(card.lines)}; --accept takes them")
