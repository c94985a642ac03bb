"""One rank of a preflight as srun would start it: python as_rank_main.py RECIPE FOLDER SECONDS [FAULT RANK]."""

import os
import signal
import sys
import time

from repro.engine.place import from_environment
from repro.errors import RunFailed
from repro.preflight import collectives
from repro.preflight.launch import as_rank
from repro.recipe import load


def main(recipe, folder, start_seconds, fault="", rank="-1"):
    place = from_environment()
    if place.rank == int(rank):
        original = collectives.first

        def first(kind, *arguments):
            if kind.name == "data":
                os.kill(os.getpid(), signal.SIGKILL) if fault == "die" else time.sleep(3600)
            return original(kind, *arguments)

        collectives.first = first
    try:
        found = as_rank(load(recipe), place, folder, deadline_seconds=3.0, start_seconds=float(start_seconds))
    except RunFailed as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(3)
    sys.stdout.flush()
    os._exit(0 if found is None or found.passed else 3)


if __name__ == "__main__":
    main(*sys.argv[1:])
