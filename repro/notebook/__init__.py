"""Notebooks that cannot pass by accident: ``begin`` and ``Run.complete`` inside, the runner outside."""

from repro.notebook.begin import Run, begin

__all__ = ["Run", "begin"]
