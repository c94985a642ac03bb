"""Imported once by the fork server, so that a rank starts in a blink. Must start no thread."""

from repro.engine.worker import quietly

with quietly():
    from repro.engine.build import quiet_deepspeed

    quiet_deepspeed()
