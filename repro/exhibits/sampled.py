"""A machine in its likely middle and in every sample that explains its calibration: what exhibits take ratios over."""

from dataclasses import dataclass
from functools import cached_property

from repro.exhibits.points import rounded, source_of
from repro.records.table import Row


@dataclass(frozen=True)
class Sampled:
    """A loaded machine, shipped or local, and the belief about it."""

    machine: object
    belief: object
    local: bool

    @property
    def source(self):
        return source_of(self.machine, self.belief.points)

    @cached_property
    def central(self):
        return self.machine if self.local else self.belief.central(self.machine)

    @cached_property
    def constants(self):
        """Of every sample, as :func:`repro.projection.step.constants`."""
        return self.belief.constants(self.machine)

    def steps(self, recipes, without=(), cold_share=0.0):
        """``(point, samples)`` of the recipes' steps, each a :class:`repro.projection.step.Step`."""
        from repro.projection import step
        from repro.projection import work as works

        work = works.of_recipes(recipes)
        return (
            step.step(work, self.central, None, without, _scalar(cold_share)),
            step.step(work, self.machine, self.constants, without, cold_share),
        )

    def seconds(self, recipes, cold_share=0.0):
        """``(point [n], samples [samples, n])`` of the recipes' steps; on a local machine ranks share its cores."""
        if not self.local:
            point, samples = self.steps(recipes, cold_share=cold_share)
            return point.seconds.reshape(-1), samples.seconds
        import numpy as np

        from repro.projection import local
        from repro.projection import work as works

        samples = local.seconds(works.of_recipes(recipes), self.machine, self.constants)
        return np.median(samples, axis=0), samples

    def row(self, exhibit, series, x, metric, point, samples, unit, source=None):
        """A projected row: the central value, and a band that holds nine in ten samples and the value."""
        from repro.projection.cost import estimate

        found = estimate(point, samples, unit)
        low, value, high = (rounded(v) for v in (found.low, found.value, found.high))
        return Row(exhibit, series, x, metric, value, unit, low, high, "projected", source or self.source)

    def noisy(self, samples, error):
        """Samples with the model's own error on top, ``error`` of their logarithm."""
        import numpy as np

        return samples * np.exp(error * self.belief.noise)


def sampled(machine):
    """The :class:`Sampled` of a machine: a name, a path, or a :class:`repro.projection.local.LocalMachine`.

    Raises:
        InputError: an unknown machine.
    """
    from repro.projection import belief as beliefs
    from repro.projection import local

    if isinstance(machine, local.LocalMachine):
        return Sampled(machine, local.believed(machine), True)
    return Sampled(*beliefs.calibrated(machine), False)


def _scalar(cold_share):
    import numpy as np

    return float(np.median(cold_share))
