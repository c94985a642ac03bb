"""The folder of a preflight: ``preflight.json``, ``network.csv`` and the status, written by one rank."""

import contextlib
import json
import os
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime

from repro.cluster import preflight as checks
from repro.cluster import preflight_binding as binding
from repro.cluster import preflight_transport as transports
from repro.cluster.preflight import FAILED, NOT_CHECKED, Check
from repro.errors import InputError
from repro.records import network
from repro.records.environment import describe
from repro.records.run_folder import RunFolder, write_json

NAME = "preflight.json"
TABLE = "network.csv"
LAST_WORD = ".last-word"  # made by the rank that may tell a failure: the first


class Results:
    """Writes what a preflight found.

    Args:
        folder: path of it.
        site: :class:`repro.cluster.site.Site`, or ``None``.
    """

    def __init__(self, folder, recipe, site, rung, backend):
        self.folder, self.recipe, self.site, self.rung, self.backend = folder, recipe, site, rung, backend
        self.started = datetime.now(UTC)

    def begin(self):
        """On rank 0, when it has started."""
        folder = RunFolder.adopt(self.folder, self.recipe)
        (self.folder / LAST_WORD).unlink(missing_ok=True)
        folder.write_environment(describe())
        folder.set_status("running", ranks=self.recipe.world_size)

    def complete(self, kinds, items, gathered, element_bytes):
        """On rank 0, when every rank has brought what it found."""
        from repro.preflight import collectives, measure

        found, rows = self._known(gathered)
        groups = collectives.summary(kinds, gathered["tried"])
        found.append(checks.of_groups(groups))
        points, slow = measure.combine(items, kinds, gathered["times"], element_bytes)
        found.append(checks.of_network(len(points), [self._slow(one, rows) for one in slow], capped(items)))
        table = network.rows(self._setup(rows), points)
        table.write(self.folder / TABLE)
        self._write(found, rows, groups, {"points": len(points), "file": TABLE})

    def stall(self, stall, known):
        """Tell a stalled group; ``False`` where another rank has told one before."""
        if not self._first():
            return False
        found, rows = self._known(known)
        found.append(checks.stalled(stall.to_dict(), self.site, self.rung))
        self._write([*found, self._unmeasured()], rows, [], {"stalled": stall.to_dict()})
        return True

    def fail(self, text, known):
        """Tell another failure, unless one has been told."""
        if self._first():
            found, rows = self._known(known)
            self._write([*found, Check("ranks", FAILED, text), self._unmeasured()], rows, [], {})

    def ended(self, text):
        """In the launcher: a rank ended, in the launcher's words, which are better than its peers'."""
        with contextlib.suppress(OSError, ValueError):
            data = json.loads((self.folder / NAME).read_text(encoding="utf-8"))
            if "stalled" in data["network"]:
                return
            kept = [Check(**one) for one in data["checks"] if one["name"] not in ("ranks", "network")]
            self._write([*kept, Check("ranks", FAILED, text), self._unmeasured()], (), [], {}, data["binding"])
            return
        self._write([*self._known({})[0], Check("ranks", FAILED, text), self._unmeasured()], (), [], {})

    def _first(self):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.folder / LAST_WORD, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except OSError:
            pass  # rather twice than not at all
        return True

    @staticmethod
    def _unmeasured():
        return Check("network", NOT_CHECKED, "the ranks did not come that far")

    def _known(self, gathered):
        """``(checks, rows of the binding)`` of what can be judged already."""
        if "seen" not in gathered:
            return [Check("binding", NOT_CHECKED, "not every rank has told where it sits")], ()
        seen = [binding.Seen.from_dict(one) for one in gathered["seen"]]
        rows = binding.judge(seen, self.site)
        found = [binding.placement(seen), binding.check(rows)]
        found.append(self._transport(gathered, seen))
        return found, rows

    def _transport(self, gathered, seen):
        if self.backend == "gloo":
            return transports.gloo(sorted({one.interface for one in seen}))
        if "log" not in gathered:
            # a rank that hangs has not read its log; whoever tells of the stall reads all that there are
            texts = [transports.read(_text(path)) for path in sorted((self.folder / "logs").glob("nccl-rank-*.log"))]
        else:
            texts = [transports.from_dict(one) for one in gathered["log"]]
        return transports.judge(transports.merge(texts), len({one.host for one in seen}), self.site)

    def _slow(self, one, rows):
        what, members, times = one
        hosts = sorted({row.host for row in rows if row.rank in members})
        from repro.preflight.arrivals import numbers

        return f"{what}: ranks {numbers(members)} on {', '.join(hosts)} take {times:.1f} times the median of their kind"

    def _setup(self, rows):
        p, each = self.recipe.parallel, Counter(row.host for row in rows)
        return network.Setup(
            recipe=self.recipe.name,
            tp=p.tp,
            pp=p.pp,
            dp=p.dp,
            sequence_parallel=p.sequence_parallel,
            site=self.site.name if self.site else "this machine",
            nodes=len(each),
            ranks_per_node=max(each.values()),
            backend=self.backend,
            date=f"{self.started:%Y-%m-%d}",
            folder=self.folder.name,
        )

    def _write(self, found, rows, groups, more, bound=None):
        state, reason = checks.verdict(found)
        p = self.recipe.parallel
        write_json(self.folder / NAME, {
            "state": state,
            "reason": reason,
            "checks": [asdict(one) for one in found],
            "recipe": self.recipe.name,
            "layout": {"tp": p.tp, "pp": p.pp, "dp": p.dp, "ranks": self.recipe.world_size},
            "site": self.site.name if self.site else None,
            "rung": self.rung,
            "backend": self.backend,
            "hosts": list(dict.fromkeys(row.host for row in rows) or (row["host"] for row in bound or ())),
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": (datetime.now(UTC) - self.started).total_seconds(),
            "binding": bound or [row.to_dict() for row in rows],
            "groups": groups,
            "network": more,
        })  # fmt: skip
        with contextlib.suppress(InputError):
            RunFolder.adopt(self.folder, self.recipe).set_status(state, reason, ranks=self.recipe.world_size)


def capped(items):
    """One line on the sizes that were not measured whole."""
    cut = {item.group: item for item in items if item.capped_bytes}
    if not cut:
        return ""
    texts = [f"{name} {item.capped_bytes / 2**20:,.0f} MiB" for name, item in cut.items()]
    return f"kept short: the recipe's own sizes are {', '.join(texts)}"


def _text(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
