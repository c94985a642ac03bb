"""Which transport NCCL or RCCL really uses, read from its log. Pure functions on text; no torch.

The lines looked for are those of NCCL 2.10 to 2.28, RCCL, aws-ofi-rccl and aws-ofi-nccl at NCCL_DEBUG=INFO with
NCCL_DEBUG_SUBSYS=INIT,NET. A log from which nothing can be told is a failure: RCCL falls back to TCP sockets in
silence when it finds no plugin, and trains, many times slower (ROCm/aws-ofi-rccl 16, ROCm/rccl 1026).
"""

import re
from collections import Counter
from dataclasses import asdict, dataclass, field

from repro.cluster.preflight import FAILED, NOT_CHECKED, OK, Check

VARIABLES = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
MOST_WARNINGS = 5
ANY_NET = re.compile(r"\bNET/|Using network ")
# what it is: the first group is the value
PATTERNS = {
    "library": re.compile(r"\b((?:NCCL|RCCL) version ?:? ?[\w.+-]+)"),
    "plugin": re.compile(r"(?:Loaded net|Initialized NET) plugin ([\w .-]+?)(?: \(v\d+\))?\s*$"),
    "plugin_version": re.compile(r"NET/OFI (?:Using|Initializing) (aws-ofi-[rn]ccl [\w.+-]+)"),
    "libfabric": re.compile(r"NET/OFI Using Libfabric version ([\w.]+)"),
    "provider": re.compile(r"NET/OFI Selected provider is ([\w;.-]+)", re.IGNORECASE),
    "network": re.compile(r"Using network (?!plugin\b)([\w .-]+?)\s*$"),
    "bootstrap": re.compile(r"Bootstrap ?: Using (?:\[\d+\])?([\w.-]+):"),
}
CHANNEL = re.compile(r"(?:Channel|Ring) \d+(?:/\d+)? ?: .*?\bvia ([A-Za-z0-9]+)(?:/([\w .]+))?(?:/(\d+))?(\S*)")
WARNING = re.compile(r"(?:NCCL|RCCL) WARN (.+)")


@dataclass(frozen=True)
class Transport:
    """What a log says.

    Attributes:
        library, plugin, plugin_version, libfabric, provider, network, bootstrap: as printed, each once, in order.
        channels: how many channels go over ``P2P/IPC``, ``SHM``, ``NET/Socket``, ``NET/AWS Libfabric/GDRDMA`` ...
        any_net: whether any line at all is about the network.
        warnings: the first few lines of level WARN.
    """

    library: tuple = ()
    plugin: tuple = ()
    plugin_version: tuple = ()
    libfabric: tuple = ()
    provider: tuple = ()
    network: tuple = ()
    bootstrap: tuple = ()
    channels: dict = field(default_factory=dict)
    any_net: bool = False
    warnings: tuple = ()

    def to_dict(self):
        return asdict(self)

    @property
    def sockets(self):
        """Channels between devices that go over TCP."""
        return sum(count for name, count in self.channels.items() if name.startswith("NET/Socket"))

    @property
    def through_host(self):
        """Channels inside a node that go through host memory instead of from device to device."""
        return sum(count for name, count in self.channels.items() if name.split("/")[0] in ("SHM", "direct"))

    @property
    def over_network(self):
        """Channels that leave through a network, but for sockets."""
        return sum(n for name, n in self.channels.items() if name.startswith("NET/")) - self.sockets


def read(text):
    """The :class:`Transport` in the text of a log, of one rank or of many."""
    found, channels, warnings = {name: {} for name in PATTERNS}, Counter(), {}
    for line in text.splitlines():
        line = line.rstrip()
        if match := CHANNEL.search(line):
            channels[_channel(match)] += 1
            continue
        if match := WARNING.search(line):
            warnings[match[1].strip()] = None
        for name, pattern in PATTERNS.items():
            if match := pattern.search(line):
                found[name][match[1].strip()] = None
    return Transport(
        **{name: tuple(values) for name, values in found.items()},
        channels=dict(channels),
        any_net=bool(ANY_NET.search(text)),
        warnings=tuple(warnings)[:MOST_WARNINGS],
    )


def _channel(match):
    """``via NET/AWS Libfabric/2/GDRDMA`` as ``NET/AWS Libfabric/GDRDMA``; of other ways the first two words."""
    kind, name, _, rest = match.groups()
    if kind == "NET":
        return f"NET/{(name or '').strip()}" + ("/GDRDMA" if "GDRDMA" in rest else "")
    return f"{kind}/{name.split()[0]}" if name else kind


def merge(transports):
    """One :class:`Transport` of many ranks."""
    transports = list(transports)
    channels = Counter()
    for one in transports:
        channels.update(one.channels)
    values = {
        name: tuple(dict.fromkeys(value for one in transports for value in getattr(one, name)))
        for name in (*PATTERNS, "warnings")
    }
    values["warnings"] = values["warnings"][:MOST_WARNINGS]
    return Transport(**values, channels=dict(channels), any_net=any(one.any_net for one in transports))


def from_dict(data):
    """A :class:`Transport` back from :meth:`Transport.to_dict`."""
    return Transport(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


def judge(transport, nodes, site=None):
    """The :class:`repro.cluster.preflight.Check` of a transport.

    Args:
        nodes: that the ranks ran on; on one node a socket network is loaded and not used, which is right.
        site: whose table has NICs: its network is Slingshot, so that the provider has to be cxi.
    """
    slingshot = any(row.nic.startswith("hsn") for row in site.node.binding) if site else False
    if transport.sockets:
        return _failed(f"{transport.sockets} channels go via NET/Socket: devices talk over TCP")
    if nodes > 1 and not transport.any_net and not transport.over_network:
        return _failed("transport unknown; sockets may be in use: the log has no line about NET")
    if nodes > 1 and any(name.lower() == "socket" for name in transport.network):
        return _failed("the log says 'Using network Socket': TCP between nodes")
    others = [p for p in transport.provider if not p.startswith("cxi")]
    if nodes > 1 and slingshot and others:
        return _failed(f"libfabric's provider is {others[0]}, not cxi")
    others = [name for name in transport.network if "libfabric" not in name.lower() and name.lower() != "ofi"]
    if nodes > 1 and slingshot and others:
        return _failed(f"the log says 'Using network {others[0]}', not libfabric")
    if nodes > 1 and not (transport.network or transport.provider or transport.over_network):
        return _failed("transport unknown; sockets may be in use: the log names no network that was chosen")
    if transport.through_host and slingshot:
        return Check(
            "transport", FAILED, f"{transport.through_host} channels inside a node go through host memory (SHM), "
            "not from device to device (P2P/IPC)",
            "bind as the site's table says, set HSA_FORCE_FINE_GRAIN_PCIE=1, and do not set NCCL_P2P_DISABLE",
        )  # fmt: skip
    if nodes == 1 and not transport.channels:
        return Check("transport", NOT_CHECKED, "one node, and the log names no channel between its devices")
    return Check("transport", OK, describe(transport, nodes))


def _failed(reason):
    fix = (
        "load the RCCL net plugin after rocm (NCCL_NET_PLUGIN with its full path), set NCCL_NET=OFI with more than "
        "one node so that RCCL refuses to start instead of falling back"
    )
    return Check("transport", FAILED, reason, fix)


def describe(transport, nodes):
    """A transport in one line."""
    parts = [*transport.library, *(f"plugin {name}" for name in transport.plugin), *transport.plugin_version]
    parts += [f"libfabric {version}" for version in transport.libfabric]
    parts += [f"provider {name}" for name in transport.provider]
    parts += [f"network {name}" for name in transport.network if nodes > 1]
    parts += [f"{count} channels via {name}" for name, count in sorted(transport.channels.items())]
    if transport.over_network and not any("GDRDMA" in name for name in transport.channels):
        parts.append("no channel with GPU-direct RDMA")
    return ", ".join(parts) or "nothing known"


def gloo(interfaces):
    """The :class:`repro.cluster.preflight.Check` of ranks without devices: TCP is what gloo is for."""
    return Check("transport", OK, f"gloo over {', '.join(interfaces)}; this says nothing about RCCL")
