"""How the environment of a site is built, DeepSpeed's compiled operators for its GPUs among it.

Training here needs none of them: its optimizer is torch's own, fused on GPUs, so nothing is compiled at start and
nothing has to be prebuilt. They are built all the same, as the paper's authors did, for who sets DeepSpeed's
optimizer: built at the first use by thousands of ranks, operators dead-lock on one lock file. Facts: DeepSpeed's
op_builder and its guide to advanced installation, issue 7843 for what does not compile.
"""

from repro.errors import InputError

ARCHITECTURES = {"frontier": ("gfx90a", 64), "lumi": ("gfx90a", 64)}  # by machine; with lanes of a wavefront
DEEPSPEED = "0.19.8"
WANTED = ("FUSED_ADAM", "UTILS")
UNFIT = ("CUTLASS_OPS", "EVOFORMER_ATTN", "FP_QUANTIZER", "GDS", "RAGGED_DEVICE_OPS", "SPARSE_ATTN", "DEEP_COMPILE")


def build_script(site):
    """Bash, as a job of one node, that makes the environment that jobs of a site take by ``--env``.

    Raises:
        InputError: the architecture of the site's GPUs is not known here, or the site no longer runs.
    """
    from repro.cluster.job import templates

    if not site.runnable:
        raise InputError(f"site {site.name} cannot build: {site.why_not}")
    if site.machine not in ARCHITECTURES or site.toolchain is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise InputError(f"site {site.name} has no known GPU architecture to build for; known machines: {known}")
    architecture, lanes = ARCHITECTURES[site.machine]
    return (
        templates()
        .get_template("build_ops.sh.j2")
        .render(
            site=site,
            chain=site.toolchain,
            hip=".".join(site.toolchain.rocm.split(".")[:2]),
            options=[option for option in site.sbatch if "{" not in option],
            architecture=architecture,
            lanes=lanes,
            wanted=WANTED,
            unfit=UNFIT,
            deepspeed=DEEPSPEED,
        )
    )
