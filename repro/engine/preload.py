"""Imported once by the fork server, so that a rank starts in a blink. Must start no thread."""

from importlib import import_module

from repro.engine.worker import quietly

# What a rank would else import by itself.
MODULES = (
    "deepspeed.runtime.pipe.topology",
    "torch._dynamo",
    "torch.distributed",
    "torch.utils.checkpoint",
    "repro.engine.data",
    "repro.engine.loop",
    "repro.engine.pipeline",
)

with quietly():
    from repro.engine.build import quiet_deepspeed

    quiet_deepspeed()
    for module in MODULES:
        import_module(module)
