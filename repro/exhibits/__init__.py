"""Exhibits of the paper: recipes are chosen, run or projected here; the numbers go to ``repro.report`` as tables."""
