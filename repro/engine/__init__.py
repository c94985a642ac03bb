"""From a recipe to a running DeepSpeed engine on real ranks."""
