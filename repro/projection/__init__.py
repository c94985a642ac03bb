"""What a run costs, from the recipe alone: FLOPs, transfers and memory of every stage. No torch."""
