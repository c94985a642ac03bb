"""Training in one process with plain torch: no DeepSpeed, no pipeline, no groups, no accumulation.

Its model is the same list of layers, which ``test_gpt2.py`` compares with Hugging Face's GPT-2.
"""

import torch

from repro.engine.config import learning_rate
from repro.engine.data import dataset
from repro.layout import Coordinate
from repro.model.gpt import GPT, mean_loss
from repro.model.streams import Streams
from repro.model.tensor_parallel import TensorParallel


def single(recipe):
    """The model of a recipe and its loss function, in this process."""
    streams = Streams(recipe.seed, Coordinate(0, 0, 0), torch.device("cpu"), separate=False)
    tp = TensorParallel(None, 0, 1, False, streams)
    return GPT(recipe, tp), mean_loss(recipe, tp)


def train(recipe):
    """``(loss, gradient norm)`` of every step; the whole global batch at once."""
    model, loss_of = single(recipe)
    o, b = recipe.optimizer, recipe.batch.global_
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    build = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o.name]
    groups = [{"params": matrices, "weight_decay": o.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = build(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)
    data, found = dataset(recipe), []
    for step in range(recipe.steps):
        samples = torch.stack([data.sample(step * b + i) for i in range(b)])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        optimizer.zero_grad()
        loss = loss_of(model(samples[:, :-1]), samples[:, 1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip or float("inf"))
        optimizer.step()
        found.append((loss.item(), norm.item()))
    return found
