"""Known devices and their peaks, one entry per device as a rank sees it. No torch."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from repro.errors import unknown

TABLE = Path(__file__).parent / "machines" / "devices.toml"


@dataclass(frozen=True)
class Device:
    """One accelerator: a GCD, not a card, on MI250X."""

    name: str
    title: str
    match: tuple[str, ...]
    memory_gib: float
    memory_bandwidth_gbytes: float
    peak_tflops: dict
    source: str

    def peak(self, dtype):
        """Peak in TFLOP/s for ``fp16``, ``bf16`` or ``fp32``; ``None`` where the table has none."""
        return self.peak_tflops.get(dtype)


@cache
def known():
    """Every device of the table by name."""
    import tomllib

    entries = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Device(name=name, **{**entry, "match": tuple(entry["match"])}) for name, entry in entries.items()}


def get(name):
    """The device of that name.

    Raises:
        InputError: no such device; there is no default.
    """
    if name not in known():
        raise unknown("device", name, known())
    return known()[name]


def recognise(reported):
    """The device whose ``match`` stands in the name that torch reports, or ``None``."""
    for device in known().values():
        if any(pattern.lower() in reported.lower() for pattern in device.match):
            return device
    return None
