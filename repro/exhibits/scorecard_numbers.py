"""Our number for a claim: the word in its column ``ours`` names one of :data:`NUMBERS`."""

from repro.errors import unknown
from repro.exhibits import scorecard_counts as counts
from repro.exhibits import scorecard_projected as projected

NUMBERS = {
    "run": projected.run,
    "tp_node": projected.tp_node,
    "ring_two": projected.ring_two,
    "ring_node": projected.ring_node,
    "flash": projected.flash,
    "intensity": projected.intensity,
    "stages_scaled": projected.stages_scaled,
    "stages_fixed": projected.stages_fixed,
    "peak": counts.peak,
    "training_flops": counts.training_flops,
    "size": counts.size,
    "total_parameters": counts.total_parameters,
    "unique_parameters": counts.unique_parameters,
    "states_tb": counts.states_tb,
    "states_gb": counts.states_gb,
    "zero_fits": counts.zero_fits,
    "bubble": counts.bubble,
    "machine_share": counts.machine_share,
    "hidden": counts.hidden,
    "log_rate": counts.log_rate,
}


def ours(claim, sources):
    """The :class:`repro.exhibits.scorecard_sources.Ours` of a claim; None where there is no way to one.

    Args:
        claim: a :class:`repro.records.claims.Claim`.

    Raises:
        InputError: the claim names no known way.
    """
    word, _, rest = claim.ours.partition(":")
    if word == "none":
        return None
    if word not in NUMBERS:
        raise unknown("way to our number", word, ("none", *NUMBERS))
    return NUMBERS[word](sources, rest)
