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
            part.copy_(
                torch.empty(part.shape, dtype=part.dtype, device=part.device).normal_(0, std, generator=generator)
            )
