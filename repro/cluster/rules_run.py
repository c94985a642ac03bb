"""Rules about the world outside the compute nodes: proxies, downloads, trackers."""

import re

from repro.cluster.rule import ERROR, PYTORCH, rule
from repro.cluster.slurm_options import parsed

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
FETCHES = re.compile(
    r"(wget|curl)$|git (clone|pull|fetch|submodule)|(python[\d.]* -m )?pip[\d.]* install|uv (pip install|sync|add)|"
    r"(conda|mamba) (install|create|env create)|(huggingface-cli|hf) download|wandb (login|sync)"
)
OFFLINE = {"HF": ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "WANDB": ("WANDB_MODE",)}


@rule(
    "proxy-scheme",
    38,
    ERROR,
    PYTORCH,
    "the proxy speaks http also for https addresses; with https:// every connection fails",
)
def proxy_scheme(facts):
    right = facts.site.proxies.get("https_proxy", "")
    if not right.startswith("http://"):
        return
    for name, told in facts.ever("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"):
        if told.value.starts("https://"):
            yield f"{name}={told.value.text}", f"{name}={right}", told.where


def _proxy(facts, index):
    """Whether a proxy is set before a command."""
    return any(s.value is not None and s.index <= index for name in PROXIES for s in facts.file.settings(name))


@rule(
    "network-fetch",
    39,
    ERROR,
    PYTORCH,
    "compute nodes have no way to the internet but the proxy: the call hangs or fails",
)
def network_fetch(facts):
    if facts.file is None or not facts.site.proxies or facts.file.sourced:
        return
    fix = "before the job, on a login node; else export " + " ".join(
        f"{name}={facts.site.proxies[name]}" for name in ("http_proxy", "https_proxy") if name in facts.site.proxies
    )
    for command in facts.file.commands:
        words = parsed(command.program[1:])[1] if command.called == "srun" else command.program
        texts = [w.text for w in words]
        text = " ".join([texts[0].rpartition("/")[2], *texts[1:]]) if texts else ""
        name = next((m for one in (text, text.partition(" ")[0]) if (m := FETCHES.match(one))), None)
        quiet = any(t in ("--no-index", "--no-deps", "--offline", ".") or t.startswith("file:") for t in texts)
        local = (
            name is not None
            and name[0] in ("wget", "curl")
            and any("localhost" in t or "127.0.0.1" in t for t in texts)
        )
        if name is not None and not quiet and not local and not _proxy(facts, command.index):
            yield f"{name[0]} on a compute node without a proxy", fix, command.where
    yield from _online(facts, fix)


def _online(facts, fix):
    """Libraries that look for something on the network as they start."""
    if facts.main is None or _proxy(facts, facts.main.index):
        return
    mode = facts.variable("WANDB_MODE")
    if mode and mode.value.text in ("online", "run"):
        yield f"WANDB_MODE={mode.value.text} without a proxy", "WANDB_MODE=offline", mode.where
    tokenizer = facts.argument("tokenizer-name-or-path") or facts.argument("tokenizer-model")
    kind = facts.argument("tokenizer-type")
    hub = kind and kind.value is not True and re.search(r"HF|HuggingFace|Pretrained", kind.value.text)
    name = tokenizer.value if tokenizer and tokenizer.value is not True else None
    if hub and name is not None and name.known and not name.text.startswith(("/", ".", "~")):
        switches = [facts.variable(one) for one in OFFLINE["HF"]]
        if not any(s and s.value.text.lower() in ("1", "true", "yes", "on") for s in switches):
            yield (
                f"tokenizer {name.text} is looked up on its hub",
                "HF_HUB_OFFLINE=1 and a cache filled before",
                tokenizer.where,
            )


RULES = (proxy_scheme, network_fetch)
