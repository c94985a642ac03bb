"""Any rank of any recipe, run by the engine's own code on fake tensors: counts, not estimates."""
