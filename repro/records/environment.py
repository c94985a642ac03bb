"""What a number depends on besides the recipe: commit, versions, host, variables. No torch."""

import os
import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "deepspeed", "numpy", "papermill", "wandb", "megatron-core")
# Prefixes of variables that change how ranks compute or communicate. Never keys or tokens.
PREFIXES = ("NCCL_", "RCCL_", "FI_", "MIOPEN_", "HSA_", "ROCR_", "HIP_", "CUDA_", "OMP_", "GLOO_", "MASTER_", "TORCH_")
SLURM = ("SLURM_JOB_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_RESTART_COUNT")


def describe(variables=None):
    """Commit and whether the tree was dirty, versions, host, and the variables that matter."""
    variables = os.environ if variables is None else variables
    kept = {k: v for k, v in sorted(variables.items()) if k.startswith(PREFIXES) or k in SLURM}
    return {
        "git": git_state(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "variables": kept,
        "command": sys.argv,
    }


def git_state():
    """Commit and dirtiness of the checkout that holds this package; ``None`` where it is not one."""
    root = Path(__file__).resolve().parents[2]
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit.strip(), "dirty": bool((_git(root, "status", "--porcelain") or "").strip())}


def _git(root, *arguments):
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
