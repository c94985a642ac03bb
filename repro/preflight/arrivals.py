"""Who has come to a group and who has not: told within a deadline, although a hung collective cannot be interrupted.

A rank writes into a store before it enters a collective and after it has left it. A thread of its own watches the
time. When the deadline has passed, the first rank of the group that waits calls the roll: every process that lives
answers with what it is doing. So a group that stalls is named with those who arrived, those who did not and what they
do instead, or that their process is gone.
"""

import contextlib
import threading
import time
from dataclasses import asdict, dataclass, replace

ROLL_SECONDS = 1.5  # a living process answers in less, and other stalled groups have their say
FALLBACK_SECONDS = 30.0  # a rank that leaves the word to another one takes it after so long
MOST_NAMED = 8
ROLL, END = "roll", "end"


@dataclass(frozen=True)
class Phase:
    """Something that several ranks do together.

    Attributes:
        waiting: whether the rank only waits for all others there, so that another group is to blame if it does so long.
    """

    order: int
    title: str
    members: tuple
    seconds: float
    since: float
    waiting: bool = False


@dataclass(frozen=True)
class Stall:
    """A group that did not come through, in words.

    Attributes:
        title: of what it was doing; ``group`` its members.
        arrived, missing: ranks; ``gone``: those of whose process there is no sign.
        all_arrived: then it is not a rank that is missing.
    """

    title: str
    group: tuple
    arrived: tuple
    missing: tuple
    gone: tuple
    all_arrived: bool
    text: str

    def to_dict(self):
        return asdict(self)


class Arrivals:
    """A rank's side of it; one for each process.

    Args:
        store: see :func:`repro.preflight.meeting.stores`.
        host: name of this rank's node.
        deadline_seconds: the longest that a group may take, from when this rank has come.
        stalled: called with a :class:`Stall` in the watching thread; has to end the process.
        ended: called when another rank has told its end; has to end the process, too.
    """

    def __init__(self, store, rank, world_size, host, deadline_seconds, stalled, ended):
        self.store, self.rank, self.world = store, rank, tuple(range(world_size))
        self.deadline, self.stalled, self.ended = deadline_seconds, stalled, ended
        self.now, self.last = None, "starting"
        self._answered, self._stop = False, threading.Event()
        self._every = 0.1 if world_size <= 64 else 1.0  # thousands of ranks ask one server
        store.set(f"host/{rank}", host)
        threading.Thread(target=self._watch, daemon=True, name="arrivals").start()

    @contextlib.contextmanager
    def phase(self, order, title, members, seconds=None):
        """Record that this rank enters what ``members`` do together, and that it is through.

        Args:
            order: the same number on all of them; of several stalled groups the lowest is the cause.
        """
        self.enter(order, title, members, seconds)
        yield
        self.leave(order)

    def enter(self, order, title, members, seconds=None):
        self.store.set(f"in/{order}/{self.rank}", "1")
        self.now = Phase(order, title, tuple(members), seconds or self.deadline, time.monotonic())

    def leave(self, order):
        self.store.set(f"out/{order}/{self.rank}", "1")
        self.last, self.now = f"past {self.now.title}", None

    def beat(self, waiting):
        """Begin the deadline of the present phase again: it has several parts, of which this is the next."""
        self.now = replace(self.now, since=time.monotonic(), waiting=waiting)

    def put(self, name, text):
        """Leave a text for the others."""
        self.store.set(f"{name}/{self.rank}", text)

    def take(self, name, rank):
        """The text that a rank has left, or ``None``."""
        key = f"{name}/{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else None

    def await_text(self, name, rank):
        """The same, waited for inside of a phase, whose deadline holds."""
        pause = 0.01
        while (text := self.take(name, rank)) is None:
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        return text

    def collect(self, order, name, title):
        """On one rank: the texts of all ranks, waited for; a rank that brings none is named by the deadline."""
        with self.phase(order, title, self.world):
            texts = {}
            while len(texts) < len(self.world):
                for rank in self.world:
                    if rank not in texts and (text := self.take(name, rank)) is not None:
                        texts[rank] = text
                time.sleep(0.02)
        return [texts[rank] for rank in self.world]

    def stop(self):
        """Watch no more: this rank is done and the store may go."""
        self._stop.set()

    def end_all(self):
        """Tell every rank to end."""
        with contextlib.suppress(RuntimeError):
            self.store.set(END, "1")
            self.store.set(ROLL, "1")

    def roll_call(self, members):
        """``{member: what it does, or None}``: those of whose process there is no sign within some seconds."""
        self.store.set(ROLL, "1")
        until = time.monotonic() + max(ROLL_SECONDS, 3 * self._every)
        while time.monotonic() < until:
            self._answer()
            time.sleep(0.05)
        return {rank: self.take("here", rank) for rank in members}

    def name(self, rank):
        """``rank 3 on node-7``."""
        host = self.take("host", rank)
        return f"rank {rank}" + (f" on {host}" if host else "")

    def _watch(self):
        failures = 0
        while not self._stop.wait(self._every):
            try:
                if self.store.check([ROLL]):
                    self._answer()
                    if self.store.check([END]):
                        self.ended()
                phase = self.now
                if phase and time.monotonic() - phase.since > phase.seconds:
                    self._judge(phase)
                failures = 0
            except RuntimeError:  # the store's server has gone, with rank 0, which serves it
                failures += 1
                if failures == 3 and not self._stop.is_set():
                    self.stalled(_lost(self.rank, self.now))

    def _answer(self):
        if not self._answered:
            self._answered = True
            phase = self.now
            self.put("here", f"waits in {phase.title}" if phase else f"is {self.last}")

    def _judge(self, phase):
        """Past the deadline: tell it, unless another rank or another group has the better right to."""
        late = time.monotonic() - phase.since > phase.seconds + FALLBACK_SECONDS
        if not late and phase.waiting:
            return
        if not late and any(self._waits(phase, rank) for rank in phase.members if rank < self.rank):
            return
        self.store.set(f"stalled/{phase.order}", "1")
        answers = self.roll_call(phase.members)
        if self.now is not phase:
            return  # it came through after all
        if not late and any(self.store.check([f"stalled/{order}"]) for order in range(phase.order)):
            return  # this group only waits for that one
        self.stalled(self._describe(phase, answers))

    def _waits(self, phase, rank):
        inside, outside = (self.store.check([f"{way}/{phase.order}/{rank}"]) for way in ("in", "out"))
        return inside and not outside

    def _describe(self, phase, answers):
        arrived = tuple(r for r in phase.members if self.store.check([f"in/{phase.order}/{r}"]))
        missing = tuple(r for r in phase.members if r not in arrived)
        gone = tuple(r for r in phase.members if answers[r] is None and r != self.rank)
        parts = [f"{phase.title} of ranks {numbers(phase.members)} stalled for {phase.seconds:g} s"]
        if missing:
            parts.append(_list("not arrived", missing, lambda r: self._absent(r, answers[r])))
            parts.append(_list("arrived", arrived, self.name))
        else:
            through = sum(self.store.check([f"out/{phase.order}/{r}"]) for r in arrived)
            parts.append(f"all {len(arrived)} arrived, {through} came through")
            if dead := [r for r in gone if r in arrived]:
                parts.append(_list("without a sign of life", dead, self.name))
            else:
                parts.append(_list("members", arrived, self.name))
        return Stall(phase.title, phase.members, arrived, missing, gone, not missing and not gone, ": ".join(
            [parts[0], "; ".join(parts[1:])]))  # fmt: skip

    def _absent(self, rank, answer):
        return f"{self.name(rank)}, which {answer or 'gives no sign of life: it has ended, or stands still'}"


def _lost(rank, phase):
    doing = f" in {phase.title}" if phase else ""
    text = f"rank {rank} lost the meeting place{doing}: the process that serves it, rank 0 or its launcher, has ended"
    return Stall("meeting place", (), (), (), (0,), False, text)


def _list(label, ranks, name):
    shown = "; ".join(name(rank) for rank in ranks[:MOST_NAMED])
    return f"{label}: {shown}" + (f"; and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else "")


def numbers(ranks):
    """Ranks as text: ``0, 1, 2`` or, of many, ``0, 16, 32 ... 112 (8 ranks)``."""
    ranks = list(ranks)
    if len(ranks) <= MOST_NAMED:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:3]))} ... {ranks[-1]} ({len(ranks)} ranks)"
