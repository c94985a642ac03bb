"""When each instruction of the pipeline ran on a rank: off by default, a file per rank in the run folder.

Times are of the host's clock, so that ranks of one host compare at once; between hosts as well as their clocks
agree. On a GPU every instruction is waited for, which makes the step slower: such a run is no measure of speed.
"""

import contextlib
import json
import time
from unittest.mock import patch

FOLDER = "timeline"
KINDS = {
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "SendActivation": "send activation",
    "RecvActivation": "receive activation",
    "SendGrad": "send gradient",
    "RecvGrad": "receive gradient",
    "ReduceGrads": "reduce gradients",
    "ReduceTiedGrads": "reduce tied gradients",
    "OptimizerStep": "optimizer",
}


class Clock:
    """Records the instructions of one rank's steps."""

    def __init__(self, device):
        self.device = device
        self.rows = []

    @contextlib.contextmanager
    def following(self, engine):
        """Record what the engine runs inside the block."""
        kind = type(engine)
        watched = {one: self._watched(one.__name__, run) for one, run in kind._INSTRUCTION_MAP.items()}
        with patch.object(kind, "_INSTRUCTION_MAP", watched):
            yield

    def _watched(self, name, run):
        if name not in KINDS:
            return run

        def timed(engine, *args, **kwargs):
            step, start = engine.global_steps, self._now()
            result = run(engine, *args, **kwargs)
            self.rows.append((step, KINDS[name], start, self._now()))
            return result

        return timed

    def _now(self):
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)
        return time.time()

    def write(self, folder, rank, stage):
        """``timeline/rank-<rank>.jsonl``: a row an instruction, micro-batches numbered in the order they passed."""
        (folder / FOLDER).mkdir(exist_ok=True)
        seen, lines = {}, []
        for step, kind, start, end in self.rows:
            number = seen[step, kind] = seen.get((step, kind), -1) + 1
            lines.append(
                {"step": step, "stage": stage, "kind": kind, "micro_batch": number, "start": start, "end": end}
            )
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / FOLDER / f"rank-{rank}.jsonl").write_text(text, encoding="utf-8")
