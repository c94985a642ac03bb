"""Event simulation of pipeline schedules: every forward, backward and transfer of every stage with its times. No torch.

The oracle of the closed forms in :mod:`repro.projection.pipeline`, and the source of timelines. A stage is a
program, played in order. The model's parts are numbered along the pipeline: part ``chunk * stages + stage``.
A step of a program is one of two:

* ``(kind, micro_batch, part)``, ``kind`` being ``forward`` or ``backward``: compute;
* a tuple of transfers ``(kind, micro_batch, part)``, ``kind`` being ``activation`` or ``gradient`` and ``part`` the
  one that made it: sender and receiver each name it in a step of theirs. Transfers of one step run together.

``blocking`` transfers begin when both sides have come to them and occupy both: so DeepSpeed's PipelineEngine, whose
sends and receives are synchronous on the compute stream (``deepspeed/runtime/pipe/p2p.py``), for messages too
large for NCCL to buffer. Otherwise a transfer is pure latency: nobody is occupied, the data come ``p2p`` later.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter

from repro.errors import InputError, RunFailed, unknown

FORWARD, BACKWARD = "forward", "backward"
TRANSFER = {FORWARD: "activation", BACKWARD: "gradient"}
SOURCE = {FORWARD: -1, BACKWARD: 1}  # from which neighbouring part the input comes


@dataclass(frozen=True)
class Timeline:
    """What happened in a step.

    Attributes:
        stages: per stage its events ``(kind, micro_batch, chunk, start, end)`` by start, in seconds; ``kind`` is
            ``forward``, ``backward``, or of blocking transfers, on both sides, ``activation`` or ``gradient``
            with the chunk that made it.
        total: seconds from the first start to the last end.
    """

    stages: tuple
    total: float

    @cached_property
    def compute(self):
        """Share of ``total`` in which each stage computes."""
        return tuple(self._share(events, TRANSFER) for events in self.stages)

    @cached_property
    def idle(self):
        """Share of ``total`` in which each stage neither computes nor transfers."""
        return tuple(1 - self._share(events, (*TRANSFER, *TRANSFER.values())) for events in self.stages)

    def _share(self, events, kinds):
        covered = until = 0.0
        for kind, _, _, start, end in events:
            if kind in kinds and end > until:  # transfers of one exchange overlap
                covered += end - max(start, until)
                until = end
        return covered / self.total if self.total else 0.0


def simulate(forward, backward, micro_batches, p2p=0.0, order="1f1b", blocking=True):
    """Play a step of a pipeline.

    Args:
        forward: seconds of one micro-batch on each stage; of each chunk of each stage where ``interleaved``.
        backward: likewise, recomputation included.
        p2p: seconds of one transfer.
        order: ``1f1b`` as DeepSpeed's, ``1f1b-megatron`` where neighbours exchange both ways at once,
            ``interleaved`` as Megatron's, ``gpipe``.
        blocking: whether transfers occupy both sides; see above.

    Returns:
        :class:`Timeline`.
    """
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    forward, backward = ([tuple(x) if hasattr(x, "__len__") else (x,) for x in side] for side in (forward, backward))
    stages, chunks = len(forward), len(forward[0]) if forward else 0
    if {len(x) for x in (*forward, *backward)} != {chunks} or not chunks or len(backward) != stages:
        raise InputError("forward and backward must be given for the same stages, each with the same number of chunks")
    if min(p2p, *(min(x) for x in (*forward, *backward))) < 0:
        raise InputError("a time is negative; seconds of a pass or a transfer are at least 0")
    if micro_batches < 1:
        raise InputError(f"micro_batches is {micro_batches}; a step has at least 1")
    if (order == "interleaved") != (chunks > 1):
        raise InputError(f"{chunks} chunks on a stage do not go with order {order!r}; only interleaved has several")
    programs = [ORDERS[order](stages, stage, micro_batches, chunks) for stage in range(stages)]
    parts = [(stage, chunk) for chunk in range(chunks) for stage in range(stages)]
    return play(programs, *([side[s][c] for s, c in parts] for side in (forward, backward)), p2p, blocking)


def one_f_one_b(stages, stage, micro_batches, chunks=1, together=False):
    """Program of a stage in the order of DeepSpeed's ``TrainSchedule``: forwards lead by the stages that follow.

    Each pass is preceded by the transfers with one neighbour, the gradient first, as there; in this order
    sends and receives of neighbours meet without deadlock.

    Args:
        together: gradient and activation go in one exchange, as in Megatron's ``send_forward_recv_backward``.
    """
    lead, steps = stages - 1 - stage, []

    def meet(gradient, activation, gradient_of, activation_of):
        transfers = [("gradient", gradient, gradient_of)] if 0 <= gradient < micro_batches else []
        transfers += [("activation", activation, activation_of)] if activation < micro_batches else []
        return [tuple(transfers)] if together and transfers else [(transfer,) for transfer in transfers]

    for number in range(micro_batches + lead + 1):
        back = number - lead
        steps += meet(back - 1, number, stage, stage - 1) if stage > 0 else []
        steps += [(FORWARD, number, stage)] if number < micro_batches else []
        steps += meet(back, number, stage + 1, stage) if stage < stages - 1 else []
        steps += [(BACKWARD, back, stage)] if 0 <= back < micro_batches else []
    return steps


def gpipe(stages, stage, micro_batches, chunks=1):
    """Program of a stage that does all forwards, then all backwards, last micro-batch first (arXiv 1811.06965)."""
    first, last, steps = stage == 0, stage == stages - 1, []
    for number in range(micro_batches):
        steps += [] if first else [(("activation", number, stage - 1),)]
        steps += [(FORWARD, number, stage)]
        steps += [] if last else [(("activation", number, stage),)]
    for number in reversed(range(micro_batches)):
        steps += [] if last else [(("gradient", number, stage + 1),)]
        steps += [(BACKWARD, number, stage)]
        steps += [] if first else [(("gradient", number, stage),)]
    return steps


def interleaved(stages, stage, micro_batches, chunks):
    """Program of a stage in Megatron's interleaved order (arXiv 2104.04473 sec. 2.2), transfers not overlapped.

    From ``forward_backward_pipelining_with_interleaving`` of ``megatron/core/pipeline_parallel/schedules.py``:
    after a forward, or a forward and a backward, all that is to be sent or received goes in one exchange.
    """
    if stages < 2 or micro_batches % stages:
        raise InputError(
            f"interleaved needs micro-batches in a multiple of at least 2 stages, not {micro_batches} on {stages}"
        )
    groups = range(0, micro_batches, stages)
    table = [(first + n, chunk) for first in groups for chunk in range(chunks) for n in range(stages)]
    total = len(table)
    lead = min(2 * (stages - 1 - stage) + (chunks - 1) * stages, total)

    def pass_(kind, k, by=stage):
        micro_batch, chunk = table[k]
        return kind, micro_batch, (chunk if kind == FORWARD else chunks - 1 - chunk) * stages + by

    def sent(kind, k, by=stage):
        if not 0 <= k < total:
            return ()
        _, micro_batch, part = pass_(kind, k, by)
        return ((TRANSFER[kind], micro_batch, part),) if 0 <= part - SOURCE[kind] < stages * chunks else ()

    def received(kind, k):
        """Beside the k-th pass: for the next one; where the ring closes, from a sender ``stages - 1`` passes behind."""
        sender = stage + SOURCE[kind]
        inside = 0 <= sender < stages
        return sent(kind, k + 1 if inside else k + 1 - stages, sender % stages)

    steps = [received(FORWARD, -1)]
    for k in range(lead):
        steps += [pass_(FORWARD, k), sent(FORWARD, k) + received(FORWARD, k)]
        if k == lead - 1 < total - 1:  # the first gradient comes along
            steps[-1] += received(BACKWARD, -1)
    for k in range(total - lead):
        steps += [pass_(FORWARD, k + lead), pass_(BACKWARD, k)]
        steps += [sent(FORWARD, k + lead) + sent(BACKWARD, k) + received(FORWARD, k + lead) + received(BACKWARD, k)]
    if lead == total:
        steps += [received(BACKWARD, -1)]
    for k in range(total - lead, total):
        steps += [pass_(BACKWARD, k), sent(BACKWARD, k) + received(BACKWARD, k)]
    return [step for step in steps if step]


ORDERS = {
    "1f1b": one_f_one_b,
    "1f1b-megatron": partial(one_f_one_b, together=True),
    "interleaved": interleaved,
    "gpipe": gpipe,
}


def play(programs, forward, backward, p2p=0.0, blocking=True):
    """Play programs against each other.

    Args:
        programs: per stage its steps, as :func:`one_f_one_b` gives them.
        forward: seconds of each part.

    Raises:
        RunFailed: stages wait for each other for ever.
    """
    stages, parts, seconds = len(programs), len(forward), {FORWARD: forward, BACKWARD: backward}
    if not blocking:  # what was made is there p2p later, whatever the stage does meanwhile
        programs = [[step for step in program if step[0] in seconds] for program in programs]
    position, clock, events = [0] * stages, [0.0] * stages, [[] for _ in programs]
    made, wanted = {}, {}  # pass -> its end; pass -> the stage that waits for it
    posted, exchange = {}, {}  # transfer -> stage and time of the side that came first; stage -> [open ones, end]
    runnable = list(range(stages))
    while runnable:
        stage = runnable.pop()
        program, mine, now, at = programs[stage], events[stage], clock[stage], position[stage]
        while at < len(program):
            step = program[at]
            kind = step[0]
            if kind in seconds:
                _, micro_batch, part = step
                source = part + SOURCE[kind]
                if not blocking and 0 <= source < parts:
                    need = (kind, micro_batch, source)
                    if need not in made:
                        wanted[need] = stage
                        break
                    if made[need] + p2p > now:
                        now = made[need] + p2p
                start, now = now, now + seconds[kind][part]
                mine.append((kind, micro_batch, part // stages, start, now))
                if not blocking:
                    made[step] = now
                    if step in wanted:
                        runnable.append(wanted.pop(step))
            else:
                if stage not in exchange:
                    exchange[stage] = [len(step), now]
                    for transfer in step:
                        if transfer not in posted:
                            posted[transfer] = stage, now
                            continue
                        other, since = posted.pop(transfer)
                        start = now if now > since else since
                        kind, micro_batch, part = transfer
                        event = (kind, micro_batch, part // stages, start, start + p2p)
                        for side in (stage, other):
                            events[side].append(event)
                            state = exchange[side]
                            state[0] -= 1
                            if event[4] > state[1]:
                                state[1] = event[4]
                        if not exchange[other][0]:
                            runnable.append(other)
                if exchange[stage][0]:
                    break
                now = exchange.pop(stage)[1]
            at += 1
        clock[stage], position[stage] = now, at
    stuck = [(stage, programs[stage][at]) for stage, at in enumerate(position) if at < len(programs[stage])]
    if stuck:
        heads = "; ".join(f"stage {stage} at {step}" for stage, step in stuck[:4])
        raise RunFailed(f"deadlock of {len(stuck)} stages, which wait for each other: {heads}")
    for mine in events:  # the transfers of one exchange were noted as their partners came
        mine.sort(key=itemgetter(3))
    return Timeline(tuple(events), max(clock))
