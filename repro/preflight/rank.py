"""What one rank of a preflight does from its first line to its last, whoever started it."""

import json
import os
import signal
import socket
import sys
from datetime import timedelta
from pathlib import Path

from repro.cluster import preflight_transport as transports
from repro.errors import InputError, RunFailed

BEGUN, SEEN, LOG, TRIED, TIMES = "begun", "seen", "log", "tried", "times"
MEETING = 0


def run_rank(recipe, place, report, folder, site=None, rung=0, deadline_seconds=60.0, start_seconds=300.0,
             most_bytes=None):  # fmt: skip
    """Run the preflight as one of its ranks; rank 0 writes the result.

    Args:
        folder: path of the folder, the same on all ranks.
        site: :class:`repro.cluster.site.Site` to compare with.
        rung: of the site's ladder of fallbacks that is in use.
        deadline_seconds: the longest that a group may take for one thing.
        start_seconds: the longest that all ranks may take to start.
        most_bytes: of one measured tensor.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # the launcher's wish to stop; there is nothing to save
    report("phase", "importing torch")
    folder = Path(folder)
    import torch

    from repro.preflight import collectives, measure, meeting, sizes
    from repro.preflight.arrivals import Arrivals
    from repro.preflight.groups import kinds as kinds_of
    from repro.preflight.results import Results
    from repro.preflight.where import seen

    device = pick_device(place)
    backend = "nccl" if device.type == "cuda" else "gloo"
    report("phase", f"meeting the other {recipe.world_size - 1} ranks")
    for_torch, ours = meeting.stores(place, start_seconds)
    results = Results(folder, recipe, site, rung, backend)
    end = _End(place.rank, results, report)
    arrivals = Arrivals(ours, place.rank, place.world_size, socket.gethostname(), deadline_seconds, end.stalled,
                        end.with_others)  # fmt: skip
    end.arrivals = arrivals
    try:
        with arrivals.phase(MEETING, "meeting", arrivals.world, start_seconds):
            here = seen(place, device)
            arrivals.put(SEEN, json.dumps(here.to_dict()))
            if place.rank == 0:
                results.begin()
                arrivals.put(BEGUN, "1")
            arrivals.await_text(BEGUN, 0)  # the folder belongs to rank 0: nobody writes into it before
            log = _log_to(folder, place.rank)
            _initialize(backend, for_torch, place, start_seconds + deadline_seconds)
        report("phase", "making the groups")
        kinds = kinds_of(recipe)
        groups = collectives.make(kinds, arrivals, place.rank)
        tried = collectives.try_all(kinds, groups, arrivals, place.rank, device, report)
        arrivals.put(LOG, json.dumps(transports.read(_text(log)).to_dict()))
        arrivals.put(TRIED, json.dumps(tried))
        items = sizes.items(recipe, most_bytes or measure.MOST_BYTES[backend])
        dtype = getattr(torch, collectives.DTYPES[recipe.precision.dtype])
        first_order = collectives.FIRST + 2 * len(kinds)
        times = measure.measure(items, kinds, groups, arrivals, place.rank, device, dtype, report, first_order)
        report("phase", "bringing the results together")
        if place.rank != 0:
            arrivals.stop()  # rank 0 may be gone, and the store with it, as soon as it has the last text
        arrivals.put(TIMES, json.dumps(times))
        if place.rank == 0:
            last = first_order + sum(len(item.elements) for item in items) + 1
            texts = {n: arrivals.collect(last + i, n, "bringing the results together") for i, n in
                     enumerate((SEEN, LOG, TRIED, TIMES))}  # fmt: skip
            arrivals.stop()
            gathered = {name: [json.loads(text) for text in found] for name, found in texts.items()}
            results.complete(kinds, items, gathered, dtype.itemsize)
    except InputError:
        arrivals.stop()
        arrivals.end_all()
        raise
    except Exception as error:
        raise end.failed(error) from error


def pick_device(place):
    """The torch device of this rank: a GPU where there is one."""
    import torch

    from repro.engine.place import device_index

    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", device_index(place.local_rank, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def _initialize(backend, store, place, seconds):
    import torch.distributed as dist

    timeout = timedelta(seconds=seconds)  # later than any deadline here, which is the one that names somebody
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)


def _log_to(folder, rank):
    """Have NCCL or RCCL say in a file of this rank which network it takes; it reads that when it first starts."""
    path = folder / "logs" / f"nccl-rank-{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ.update(transports.VARIABLES, NCCL_DEBUG_FILE=str(path))
    return path


def _text(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class _End:
    """How a rank ends before its time, from the thread that watches or from an error of its own."""

    def __init__(self, rank, results, report):
        self.rank, self.results, self.report, self.arrivals = rank, results, report, None

    def stalled(self, stall):
        """Tell it, and end all ranks: whoever hangs in a collective cannot be brought back."""
        try:
            if self.results.stall(stall, self._known()):
                self.report("error", ("Stalled", stall.text, False))
                print(f"repro: {stall.text}", file=sys.stderr, flush=True)
            self.arrivals.end_all()
        finally:
            os._exit(3)

    def with_others(self):
        os._exit(3)

    def failed(self, error):
        """Tell an error of this rank, and end all; returns what to raise.

        One that only says that a peer has gone names the ranks that give no sign of life.
        """
        from repro.engine.local_rank import first_line, is_peer_loss

        self.arrivals.stop()
        text = f"rank {self.rank} failed in {self._phase()}: {type(error).__name__}: {first_line(error)}"
        try:
            if isinstance(error, RunFailed):
                text = str(error)
            elif is_peer_loss(error):
                answers = self.arrivals.roll_call(self.arrivals.world)
                gone = [rank for rank, answer in answers.items() if answer is None]
                if gone:
                    names = ", ".join(self.arrivals.name(rank) for rank in gone[:8])
                    text = f"{names}: the process has ended in {self._phase()}; its own log says why"
            self.results.fail(text, self._known())
            if not is_peer_loss(error):  # before the others end: of the first words the launcher takes this rank's
                self.report("error", (type(error).__name__, first_line(error), False))
            self.arrivals.end_all()
        except RuntimeError:  # the store went with the process that serves it
            text = f"the process of rank 0 has ended in {self._phase()}; its own log says why"
            self.results.fail(text, {})
        # with the sign by which the launcher of local ranks knows that another rank is the one to name
        return RunFailed(f"{text} (Connection closed by peer)" if is_peer_loss(error) else text)

    def _phase(self):
        return self.arrivals.now.title if self.arrivals.now else "no group"

    def _known(self):
        """What ranks have left so far."""
        found = {}
        for name in (SEEN, LOG, TRIED):
            try:
                texts = [self.arrivals.take(name, rank) for rank in self.arrivals.world]
            except RuntimeError:
                return found
            if all(text is not None for text in texts):
                found[name] = [json.loads(text) for text in texts]
        return found
