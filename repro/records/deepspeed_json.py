"""A DeepSpeed JSON file and what it asks the engine for. What the file holds is not trusted."""

import json

from repro.errors import InputError, shortened
from repro.records.small_file import contents

ENGINE_DEFAULTS = {"clip": 0.0, "zero": 0}  # DeepSpeed's, where its JSON has no key


def read(path):
    """The DeepSpeed JSON as a dictionary.

    Raises:
        InputError: no such file, too large, no JSON object.
    """
    return parse(contents(path, "DeepSpeed JSON"), path)


def parse(data, name):
    """The dictionary in bytes or text that came from ``name``.

    Raises:
        InputError: no JSON object.
    """
    try:
        found = json.loads(data if isinstance(data, str) else data.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is no JSON: {shortened(str(error), 120)[1:-1]}") from None
    if not isinstance(found, dict):
        raise InputError(f"{name} holds a {type(found).__name__}; a DeepSpeed configuration is a JSON object")
    return found


def settings(config):
    """What a DeepSpeed JSON asks for: micro, batch, accumulation, clip, zero, precision.

    None where it does not say, or says ``auto``: another program fills that in.

    Raises:
        InputError: a value has a wrong type.
    """
    zero = _part(config, "zero_optimization")
    half = {name: _part(config, name).get("enabled", False) for name in ("fp16", "bf16", "bfloat16")}
    for name, value in half.items():
        if not isinstance(value, bool) and value != "auto":
            raise InputError(f"DeepSpeed JSON: {name}.enabled is {shortened(value)}, not true or false")
    fp16, bf16 = half["fp16"], half["bf16"] or half["bfloat16"]
    return {
        "micro": _number(config, "train_micro_batch_size_per_gpu", int),
        "batch": _number(config, "train_batch_size", int),
        "accumulation": _number(config, "gradient_accumulation_steps", int),
        "clip": _number(config, "gradient_clipping", float, ENGINE_DEFAULTS["clip"]),
        "zero": _number(zero, "stage", int, ENGINE_DEFAULTS["zero"]),
        "precision": None if "auto" in (fp16, bf16) else "bf16" if bf16 else "fp16" if fp16 else "fp32",
    }


def _part(config, name):
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise InputError(f"DeepSpeed JSON: {name} is {shortened(found)}, not an object")
    return found


def _number(config, name, kind, default=None):
    value = config.get(name, default)
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15 or kind(value) != value:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"DeepSpeed JSON: {name} is {shortened(value)}, not {what} of at least 0")
    return kind(value) if value or name in ("stage", "gradient_clipping") else None
