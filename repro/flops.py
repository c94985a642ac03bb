"""FLOPs of a training step: the one place of the formulas. No torch.

Narayanan et al. 2021 (arXiv 2104.04473, eq. 3), which Megatron-DeepSpeed's ``throughput_calculator``
prints: 96 B s l h^2 (1 + s/(6h) + V/(16 l h)) with full recompute, V the padded vocabulary. Causal
attention is counted in full, as there. Written out per matrix so that ffn need not be 4 h.
"""

HARDWARE_FORMULA = "narayanan-2021-eq3: 4 passes with full recompute (3 without), padded vocabulary, full attention"
MODEL_FORMULA = "3 passes (forward, backward twice), padded vocabulary, full attention"


def forward_layers(shape, samples):
    """FLOPs of one forward pass through all blocks: 24 s l h^2 (1 + s/(6h)) per sample when ffn = 4 h."""
    h, s = shape.hidden, shape.seq
    matrices = 2 * s * (4 * h * h + 2 * h * shape.ffn)
    attention = 4 * s * s * h
    return samples * shape.layers * (matrices + attention)


def forward_head(shape, padded_vocab, samples):
    """FLOPs of one forward pass through the output projection: 2 s h V per sample."""
    return samples * 2 * shape.seq * shape.hidden * padded_vocab


def model_flops(recipe, samples=None):
    """FLOPs that a step needs: forward once, backward twice. ``samples`` defaults to the global batch."""
    samples = recipe.batch.global_ if samples is None else samples
    return 3 * (forward_layers(recipe.shape, samples) + forward_head(recipe.shape, recipe.padded_vocab, samples))


def hardware_flops(recipe, samples=None):
    """FLOPs that a step executes: with full recompute the blocks run forward once more, the head does not."""
    samples = recipe.batch.global_ if samples is None else samples
    again = forward_layers(recipe.shape, samples) if recipe.compute.recompute == "full" else 0
    return model_flops(recipe, samples) + again
