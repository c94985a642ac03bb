"""A machine as the TOML file that :func:`repro.projection.machine.load` reads. No torch."""


def to_toml(machine):
    """The text of a machine's file; loading it gives the same machine under the file's name."""
    import tomli_w

    node = {"order": list(machine.order), "nics": machine.nics, "nic_gbytes": machine.nic_gbytes, **machine.sources}
    if machine.switch_gbytes:
        node["switch_gbytes"] = machine.switch_gbytes
    if machine.links:
        node["links"] = [[a, b, gbytes] for (a, b), gbytes in machine.links.items() if a < b]
    data = {
        "title": machine.title,
        "device": machine.device.name,
        "node": node,
        "calibration": machine.calibration,
        "constants": {name: _constant(c) for name, c in machine.constants.items()},
        "operation": {name: _constant(c) for name, c in machine.operation.items()},
    }
    return tomli_w.dumps(data)


def _constant(constant):
    return {key: getattr(constant, key) for key in ("value", "low", "high", "kind", "source")}
