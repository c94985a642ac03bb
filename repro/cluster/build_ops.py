"""How DeepSpeed is built at a site. Training here needs none of its compiled operators; this is for who wants them.

The optimizer is torch's own fused Adam, so nothing is compiled at start and nothing has to be prebuilt. DeepSpeed's
operators, where wanted, are built once and packed with the environment: built at the first use by thousands of
ranks they dead-lock on one lock file. Facts: DeepSpeed's op_builder and advanced installation guide.
"""

from repro.errors import InputError

ARCHITECTURES = {"frontier": ("gfx90a", 64), "lumi": ("gfx90a", 64)}  # and lanes of a wavefront
# Built on demand; the rest of what DS_BUILD_OPS=1 would try does not compile for AMD.
WANTED = ("FUSED_ADAM", "UTILS")
UNFIT = ("CUTLASS_OPS", "EVOFORMER_ATTN", "FP_QUANTIZER", "GDS", "RAGGED_DEVICE_OPS", "SPARSE_ATTN", "DEEP_COMPILE")


def build_script(site):
    """Bash that builds DeepSpeed's operators for a site's GPUs into the active environment.

    Raises:
        InputError: the architecture of the site's GPUs is not known here, or the site no longer runs.
    """
    if site.machine not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise InputError(f"site {site.name} has no known GPU architecture to build for; known machines: {known}")
    if not site.runnable:
        raise InputError(f"site {site.name} cannot build: {site.why_not}")
    architecture, lanes = ARCHITECTURES[site.machine]
    modules = "\n".join(f"module load {m.name}" for m in site.modules if not m.run_time_only)
    switches = " ".join([*(f"DS_BUILD_{op}=1" for op in WANTED), *(f"DS_BUILD_{op}=0" for op in UNFIT)])
    return f"""#!/bin/bash
# DeepSpeed's operators for {architecture}, built in the active environment on a machine that has the GPU.
# torch {site.toolchain.torch} for ROCm {site.toolchain.rocm} must be installed already.
set -euo pipefail
{modules}
# DeepSpeed asks rocminfo, not PYTORCH_ROCM_ARCH; without it it builds for {lanes // 2} lanes and says nothing.
rocminfo | grep -q {architecture} || {{ echo "no {architecture} seen by rocminfo: build on a GPU node" >&2; exit 1; }}
rocminfo | grep -Eq 'Wavefront Size: *{lanes}' || {{ echo "wavefront is not {lanes}" >&2; exit 1; }}
export PYTORCH_ROCM_ARCH={architecture} HCC_AMDGPU_TARGET={architecture}
TORCH_EXTENSIONS_DIR="$(mktemp -d)"
export TORCH_EXTENSIONS_DIR
{switches} \\
    python -m pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps "deepspeed>=0.19.8"
python - <<'END'
import deepspeed, torch
assert deepspeed.git_version_info.installed_ops["fused_adam"], "fused_adam was not built"
print("built with torch", torch.__version__, "for", torch.version.hip)
END
# The node-local copy that jobs unpack: repro job --env repro-env.tar.gz
conda-pack --prefix "$CONDA_PREFIX" --output repro-env.tar.gz --ignore-missing-files
"""
