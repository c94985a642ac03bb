"""Exhibits of the paper: recipes are chosen, run or projected here, and the numbers go to ``repro.report`` as tables."""
