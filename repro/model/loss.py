"""Cross entropy over a vocabulary that is sharded and padded, in fp32."""

import torch
import torch.distributed as dist


class _VocabParallelCrossEntropy(torch.autograd.Function):
    """Loss of every token; the padding gets probability zero, hence no loss and no gradient."""

    @staticmethod
    def forward(ctx, logits, labels, vocab, tp):
        first = logits.shape[-1] * tp.rank
        p = logits.to(torch.float32, copy=True)  # [s, b, V/t], turned into probabilities in place
        if first + p.shape[-1] > vocab:
            p[..., max(vocab - first, 0) :] = float("-inf")
        largest = p.amax(-1, keepdim=True)
        if tp.size > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=tp.group)
        p.sub_(largest)
        local = labels - first
        elsewhere = (local < 0) | (local >= p.shape[-1])
        local = local.masked_fill(elsewhere, 0).unsqueeze(-1)
        target = p.gather(-1, local).squeeze(-1).masked_fill(elsewhere, 0)
        total = p.exp_().sum(-1)
        if tp.size > 1:
            both = torch.stack((target, total))
            dist.all_reduce(both, group=tp.group)
            target, total = both[0], both[1]
        p.div_(total.unsqueeze(-1))
        ctx.save_for_backward(p, local, elsewhere)
        ctx.dtype = logits.dtype
        return total.log() - target  # [s, b]

    @staticmethod
    def backward(ctx, grad):
        p, local, elsewhere = ctx.saved_tensors
        scaled = p.mul_(grad.unsqueeze(-1))  # in place: the saved probabilities are used once
        scaled.scatter_add_(-1, local, -grad.masked_fill(elsewhere, 0).unsqueeze(-1))
        return scaled.to(ctx.dtype), None, None, None


def token_losses(logits, labels, vocab, tp):
    """Negative log-likelihood of every token.

    Args:
        logits: [s, b, V/t], any float dtype.
        labels: [b, s], each below ``vocab``.
        vocab: unpadded size.

    Returns:
        [s, b] in fp32.
    """
    return _VocabParallelCrossEntropy.apply(logits, labels.t(), vocab, tp)
