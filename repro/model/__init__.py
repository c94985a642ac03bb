"""The GPT of Megatron as a list of pipeline layers, with tensor and sequence parallelism."""
