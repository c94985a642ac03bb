"""What this process sees of its node: devices, cores, NUMA domains, NICs. Read from the system, nothing is set."""

import os
import re
import socket
from pathlib import Path

from repro.cluster.preflight_binding import Seen, parse_cores

VARIABLES = (
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_ON_NODE",
    "SLURM_CPU_BIND",
)
NIC = re.compile(r"hsn\d+|ib\d+|ens\w+np\d+")


def seen(place, device):
    """The :class:`repro.cluster.preflight_binding.Seen` of this process.

    Args:
        device: :class:`torch.device` that the rank takes.
    """
    cores = _cores()
    numa = _numa(cores)
    devices = bus = None
    if device.type == "cuda":
        import torch

        devices = torch.cuda.device_count()
        bus = _bus(torch.cuda.get_device_properties(device))
    return Seen(
        rank=place.rank,
        host=socket.gethostname(),
        local_rank=_number_in_node(place),
        visible={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
        devices=devices or 0,
        device=device.index if device.type == "cuda" else None,
        bus=bus,
        cores=cores,
        numa=numa,
        nics=_nics(numa),
        interface=interface(),
    )


def _number_in_node(place):
    """Slurm's own where it started the ranks: scripts that show each task one device set LOCAL_RANK to 0 for all."""
    given = os.environ.get("SLURM_LOCALID", "")
    return int(given) if given.isdecimal() and not place.init_method.startswith("file://") else place.local_rank


def _bus(properties):
    """``0000:d1:00``; ``None`` where this torch does not tell."""
    parts = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    return None if None in parts else "{:04x}:{:02x}:{:02x}".format(*parts)


def _cores():
    """Cores this process may run on, each by its first hardware thread."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    found = set()
    for number in os.sched_getaffinity(0):
        siblings = _read(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        found.add(min(parse_cores(siblings), default=number) if siblings else number)
    return tuple(sorted(found))


def _numa(cores):
    found = []
    for path in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        if parse_cores(_read(path / "cpulist")) & set(cores):
            found.append(int(path.name.removeprefix("node")))
    return tuple(sorted(found))


def _nics(numa):
    """High-speed interfaces whose card hangs on one of the NUMA domains; none where the system does not tell."""
    found = []
    for path in sorted(Path("/sys/class/net").glob("*")):
        if NIC.fullmatch(path.name) and (domain := _read(path / "device" / "numa_node")).lstrip("-").isdecimal():
            found.append((path.name, int(domain)))
    return tuple(name for name, domain in found if domain in numa)


def interface():
    """The interface that gloo takes: the given one, else that of this host's name."""
    if given := os.environ.get("GLOO_SOCKET_IFNAME"):
        return given
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return f"whatever {socket.gethostname()} resolves to, which is nothing here"
    return next((name for name, own in _addresses() if own == address), address)


def _addresses():
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                get_address = 0x8915  # SIOCGIFADDR
                answer = fcntl.ioctl(any_socket.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            yield name, socket.inet_ntoa(answer[20:24])


def _read(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
