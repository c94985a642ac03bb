"""Initial weights that do not depend on the layout.

A weight is drawn block by block, each from a generator seeded by (seed, name, block number), so a
shard holds exactly the blocks that one process would hold in its place.
"""

import torch

from repro.model.streams import seed_of


def normal_blocks_(weight, std, seed, name, dim=0, blocks=1, rank=0, size=1):
    """Fill a shard of a weight with normal numbers of deviation ``std``.

    Args:
        weight: this rank's shard, split along ``dim``.
        blocks: blocks of the whole weight along ``dim``, a multiple of ``size``.
    """
    if blocks % size:
        raise ValueError(f"{name}: {blocks} blocks cannot be split over {size} ranks")
    own = blocks // size
    with torch.no_grad():
        for number, part in enumerate(weight.chunk(own, dim)):
            generator = torch.Generator(device=part.device).manual_seed(seed_of(seed, name, rank * own + number))
            # Drawn in fp32 whatever the dtype, so that a half-precision run starts from the rounded fp32 weights.
            drawn = torch.empty(part.shape, dtype=torch.float32, device=part.device)
            part.copy_(drawn.normal_(0, std, generator=generator))
