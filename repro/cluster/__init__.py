"""A run as a job on a site: its script and environment, the rules it must pass, the scheduler. No torch."""
