"""What a run leaves behind: the run folder, the tidy table, tracking."""
