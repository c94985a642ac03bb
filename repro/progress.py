"""Progress of a run: a live line on a terminal, a plain line now and then elsewhere."""

import contextlib
import os
import sys
import time

EVERY_SECONDS = 5.0


def say(text):
    """A line on standard error, at once. That nobody reads it any more must not end a run."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def default():
    """The progress that suits standard error."""
    return Live() if can_redraw() else Plain()


def can_redraw():
    """Whether standard error is a terminal that can redraw a line."""
    return bool(sys.stderr and sys.stderr.isatty()) and os.environ.get("TERM", "") not in ("", "dumb")


def describe(row):
    """Loss and speed of a step in a few words."""
    loss = "nan" if row["loss"] is None else f"{row['loss']:.4f}"
    text = f"loss {loss}  {row['tokens_per_second']:,.0f} tokens/s  {row['hardware_tflops']:#.3g} TFLOP/s/device"
    if row["hfu"] is not None:
        text += f"  {row['hfu']:.1%} of peak"
    return text + ("  skipped" if row["skipped"] else "")


class Silent:
    """No output at all, for ``--json`` and tests."""

    def start(self, recipe):
        pass

    def row(self, row):
        pass

    def stop(self):
        pass


class Plain(Silent):
    """One line every few seconds, without control characters."""

    def start(self, recipe):
        self.steps, self.last = recipe.steps, 0.0
        say(f"{recipe.name}: starting {recipe.world_size} ranks, {recipe.steps} steps")

    def row(self, row):
        number, now = row["step"] + 1, time.monotonic()
        if now - self.last >= EVERY_SECONDS or number == self.steps:
            self.last = now
            say(f"step {number}/{self.steps}  {describe(row)}")


class Live(Silent):
    """A bar with loss, tokens/s, TFLOP/s per device and the time that is left."""

    def start(self, recipe):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        columns = (
            MofNCompleteColumn(),
            BarColumn(bar_width=12),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.bar.start()
        self.task = self.bar.add_task(f"starting {recipe.world_size} ranks", total=recipe.steps)

    def row(self, row):
        self.bar.update(self.task, completed=row["step"] + 1, description=describe(row))

    def stop(self):
        self.bar.stop()
