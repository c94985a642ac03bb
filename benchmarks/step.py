"""Ratios of training steps, all measured in this one run.

1. Tokens/s of our single-process step (plain torch, no DeepSpeed) against Hugging Face's GPT-2 of the
   same shape, the same optimizer, clipping and threads, the two taking turns.
2. Seconds per step of (tp, pp, dp) = (1,1,1), (1,2,1), (2,1,1), (1,1,2) through DeepSpeed on real local
   ranks, each rank with the same number of threads, over the single-process step.

Absolute times belong to this machine and this moment; the ratios are what is reported.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

from repro.recipe import build

SHAPE = {"layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "seq": 256, "vocab": 8192, "dropout": 0.0}
LAYOUTS = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2))


def recipe(layout=(1, 1, 1), steps=10):
    tp, pp, dp = layout
    return build(
        {
            "name": "benchmark",
            "shape": SHAPE,
            "parallel": {"tp": tp, "pp": pp, "dp": dp},
            "batch": {"micro": 2, "global": 8},
            "precision": {"dtype": "fp32", "grad_accum": "fp32"},
            "zero": {"reduce_bucket": 10_000_000, "allgather_bucket": 10_000_000},
            "compute": {"recompute": "none"},
            "optimizer": {"name": "adamw", "lr": 1e-4, "min_lr": 1e-5},
            "steps": steps,
            "timing_warmup": 3,
        }
    )


def against_hugging_face(rounds):
    """Median over rounds of (their seconds / our seconds), and our median seconds."""
    import torch
    import torch.nn.functional as F
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    from repro.layout import Coordinate
    from repro.model.gpt import GPT, mean_loss
    from repro.model.streams import Streams
    from repro.model.tensor_parallel import TensorParallel

    logging.set_verbosity_error()
    torch.set_num_threads(1)
    one = recipe()
    s, o = one.shape, one.optimizer
    tp = TensorParallel(None, 0, 1, False, Streams(0, Coordinate(0, 0, 0), torch.device("cpu"), False))
    ours, loss_of = GPT(one, tp), mean_loss(one, tp)
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=one.padded_vocab,
            n_positions=s.seq,
            n_embd=s.hidden,
            n_layer=s.layers,
            n_head=s.heads,
            n_inner=s.ffn,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    batches = torch.randint(0, s.vocab, (one.accumulation, one.batch.micro, s.seq + 1))

    def our_loss(tokens):
        return loss_of(ours(tokens[:, :-1]), tokens[:, 1:])

    def their_loss(tokens):
        logits = theirs(tokens[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def stepper(model, loss):
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=o.lr, betas=(o.beta1, o.beta2), weight_decay=o.weight_decay
        )

        def step():
            started = time.perf_counter()
            optimizer.zero_grad()
            for tokens in batches:
                (loss(tokens) / len(batches)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            return time.perf_counter() - started

        return step

    mine, other = stepper(ours, our_loss), stepper(theirs, their_loss)
    for _ in range(3):
        mine(), other()
    pairs = [(mine(), other()) for _ in range(rounds)]
    return statistics.median(b / a for a, b in pairs), statistics.median(a for a, _ in pairs)


def layout_seconds(layout, steps):
    """Median seconds of a step after the warm-up, with one thread on each rank."""
    from repro.engine import launch
    from repro.progress import Silent

    launch.cores = lambda: 1  # one thread a rank, in every layout
    with tempfile.TemporaryDirectory() as root:
        done = launch.train_local(recipe(layout, steps), Path(root) / "run", wandb="off", progress=Silent())
        return statistics.median(row["seconds"] for row in done.rows if not row["warmup"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="paired steps against Hugging Face")
    parser.add_argument("--steps", type=int, default=13, help="steps of each layout, of which 3 are warm-up")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    ratio, single = against_hugging_face(arguments.rounds)
    seconds = {layout: layout_seconds(layout, arguments.steps) for layout in LAYOUTS}
    tokens = recipe().batch.global_ * SHAPE["seq"]
    found = {
        "tokens_per_second_ratio_to_hugging_face": ratio,
        "single_process_tokens_per_second": tokens / single,
        "seconds_over_single_process": {str(layout): s / single for layout, s in seconds.items()},
    }
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"single process against Hugging Face GPT-2: {ratio:.2f} x tokens/s (median of {arguments.rounds} pairs)")
        print(f"single process: {tokens / single:,.0f} tokens/s here and now, 1 thread")
        print("step time over the single process, one thread a rank, on this machine's cores:")
        for layout, s in seconds.items():
            print(f"  (tp, pp, dp) = {layout}: {s / single:5.2f} x")
    return 0 if ratio >= 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
