"""Scripts for the tests of rules: one without fault for each site, and for each rule a change that breaks it alone."""

from dataclasses import dataclass

FRONTIER = r"""#!/bin/bash
#SBATCH -A stf218
#SBATCH -J gpt
#SBATCH -o %x-%j.out
#SBATCH -t 02:00:00
#SBATCH -p batch
#SBATCH -N 16
#SBATCH -C nvme
#SBATCH --network=disable_rdzv_get
#SBATCH --signal=B:USR1@600

NODES=16
TASKS=$((NODES * 8))
trap 'echo warned' USR1

module load PrgEnv-gnu/8.7.0 cpe/26.03
module load rocm/7.1.1 craype-accel-amd-gfx90a
export LD_LIBRARY_PATH=$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH

sbcast -pf /lustre/orion/stf218/proj-shared/env.tar.gz /mnt/bb/$USER/env.tar.gz || exit 1
srun -N $NODES --ntasks-per-node=1 -c 56 tar -xzf /mnt/bb/$USER/env.tar.gz -C /mnt/bb/$USER

export NCCL_NET_PLUGIN=/sw/frontier/rccl-plugins/aws-ofi-nccl/1.19.2/lib/librccl-net.so
export NCCL_NET=OFI
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=PHB
export FI_MR_CACHE_MONITOR=kdreg2
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_DEFAULT_TX_SIZE=2048
export FI_CXI_RDZV_PROTO=alt_read
export FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_EAGER_SIZE=0
export OMP_NUM_THREADS=7
export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800
export HF_HUB_OFFLINE=1
export MIOPEN_USER_DB_PATH=/tmp/$USER/miopen-$SLURM_JOB_ID
export MIOPEN_CUSTOM_CACHE_DIR=$MIOPEN_USER_DB_PATH
srun -N $NODES --ntasks-per-node=1 mkdir -p $MIOPEN_USER_DB_PATH

export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=3442

cat <<EOF > ds.json
{
  "train_batch_size": 640,
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 1},
  "fp16": {"enabled": true}
}
EOF

options=" --tensor-model-parallel-size 4 \
  --pipeline-model-parallel-size 16 \
  --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 \
  --micro-batch-size 1 --global-batch-size 640 \
  --fp16 --clip-grad 1.0 --use-flash-attn-v2"

srun -N $NODES -n $TASKS --ntasks-per-node=8 -c 7 --gpus-per-node=8 --gpus-per-task=1 --gpu-bind=closest \
  bash -c "export LOCAL_RANK=0; exec /mnt/bb/$USER/env/bin/python -u pretrain_gpt.py $options \
  --deepspeed --deepspeed_config ds.json --zero-stage 1"
"""

LUMI = r"""#!/bin/bash
#SBATCH --account=project_465000001
#SBATCH --partition=standard-g
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=0-10:00:00
#SBATCH --signal=USR1@600

export FI_MR_CACHE_MONITOR=userfaultfd
export OMP_NUM_THREADS=7
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=1${SLURM_JOB_ID:0-4}
MASKS=0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000
srun -c 7 --cpu-bind=mask_cpu:$MASKS singularity run image.sif python train.py --num-layers 32 --micro-batch-size 1
"""


def changed(text, *changes):
    """``text`` with each ``(old, new)`` replaced once; an ``old`` that is not there is a fault of the test."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in the script"
        text = text.replace(old, new, 1)
    return text


ONE_NODE = changed(
    FRONTIER,
    ("#SBATCH -N 16", "#SBATCH -N 1"),
    ("NODES=16", "NODES=1"),
    ("export NCCL_NET=OFI\n", ""),
    ("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 1"),
    ("--pipeline-model-parallel-size 16", "--pipeline-model-parallel-size 8"),
    ("#SBATCH --network=disable_rdzv_get\n", ""),
)


@dataclass(frozen=True)
class Case:
    """A script with a fault that ``rule`` finds and no other; ``told`` stands in what it says."""

    rule: str
    told: str
    changes: tuple
    script: str = FRONTIER
    site: str = "frontier"

    @property
    def text(self):
        return changed(self.script, *self.changes)


def case(rule, told, *changes, **other):
    return Case(rule, told, changes, **other)


def lumi(rule, told, *changes):
    return Case(rule, told, changes, LUMI, "lumi")


def add(line):
    """A line before the rendezvous."""
    return ("export MASTER_PORT", f"{line}\nexport MASTER_PORT")


def nodes(count):
    return (("#SBATCH -N 16", f"#SBATCH -N {count}"), ("NODES=16", f"NODES={count}"))


def layout(tp=4, pp=16):
    return (
        ("--tensor-model-parallel-size 4", f"--tensor-model-parallel-size {tp}"),
        ("--pipeline-model-parallel-size 16", f"--pipeline-model-parallel-size {pp}"),
    )


def batch(count):
    return (
        ("--global-batch-size 640", f"--global-batch-size {count}"),
        ('"train_batch_size": 640', f'"train_batch_size": {count}'),
    )


FIRST_NODE = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
ALT_READ = "export FI_CXI_RDZV_PROTO=alt_read\n"
ZEROS = "export FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_EAGER_SIZE=0\n"
NO_NETWORK = ("#SBATCH --network=disable_rdzv_get\n", "")
NO_SIGNAL = ("#SBATCH --signal=B:USR1@600\n", "")
TASKS = "-n $TASKS --ntasks-per-node=8 -c 7"
PYTHON = "exec /mnt/bb/$USER/env/bin/python"
PROXY = "export https_proxy=http://proxy.ccs.ornl.gov:3128\n"
LAST = "--zero-stage 1"
HEADS = "--num-attention-heads 96"

SCRIPT = (
    case("no-interpreter", "#!/bin/bash", ("#!/bin/bash\n", "# a job\n")),
    case("dos-lines", "dos2unix", ("trap 'echo warned' USR1\n", "trap 'echo warned' USR1\r\n")),
    case("late-directive", "is ignored", ("NODES=16\n", "NODES=16\n#SBATCH --mem=0\n")),
    case("directive-variable", "--job-name=$NAME", ("#SBATCH -J gpt", "#SBATCH -J $NAME")),
    case("broken-line", "white space", add("echo \\ \n  --one")),
    case("broken-line", "a comment", add("echo --zero \\\n# --one \\\n  --two")),
)
ALLOCATION = (
    case("unknown-partition", "did you mean 'batch'", ("-p batch", "-p bach")),
    case("bin-limit", "--time=02:00:00, or 92 nodes at least, or partition extended", ("-t 02:00", "-t 6:00")),
    case("bin-limit", "--nodes=64", ("-p batch", "-p extended"), ("#SBATCH -N 16", "#SBATCH -N 80")),
    case("bin-limit", "3 hours on 16 nodes; batch (qos debug) gives 2", ("-p batch", "-q debug"), ("02:00:00", "0-3")),
    case("debug-chain", "--dependency in qos debug", ("-p batch", "-q debug -d afterany:17")),
    case("debug-chain", "sbatch", ("-p batch", "--qos=debug"), add("sbatch next.sh")),
    case("tasks-per-node", "-n 128", (TASKS, "-n 64 --ntasks-per-node=4 -c 7")),
    case("tasks-per-node", "starts one on each node", (TASKS, "-c 7")),
    case("cores-per-task", "-c 7", (TASKS, TASKS.replace("-c 7", "-c 8"))),
    case("few-cores", "2 of 7 cores", (TASKS, TASKS.replace("-c 7", "-c2")), ("THREADS=7", "THREADS=2")),
    case("few-cores", "gives each task one", (TASKS, TASKS.replace("-c 7", ""))),
    case("time-limit-plan", "neither", NO_SIGNAL),
    case("time-limit-plan", "no trap", ("trap 'echo warned' USR1\n", "")),
    case("time-limit-plan", "mins 105", NO_SIGNAL, (LAST, f"{LAST} --exit-duration-in-mins 120")),
    case("many-steps", "203 calls", add("for i in {1..200}; do srun -n1 -N1 hostname & done")),
    case("account", "stf218-x", ("-A stf218", "-A stf218-x")),
)
LAUNCH = (
    case("local-rank", "LOCAL_RANK=0", ("LOCAL_RANK=0;", "LOCAL_RANK=\\$SLURM_LOCALID;")),
    case("local-rank", "LOCAL_RANK=0", (LAST, f"{LAST} --local_rank 3")),
    case("visible-devices", "unset CUDA_VISIBLE_DEVICES", add("export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7")),
    case("visible-devices", "unset HIP_VISIBLE_DEVICES", ("LOCAL_RANK=0;", "LOCAL_RANK=0 HIP_VISIBLE_DEVICES=0,1;")),
    lumi("mask-length", "7 entries of mask_cpu for 8 tasks", (",0xfe0000000000\n", "\n")),
    case("submit-host", "scontrol show hostnames", (FIRST_NODE, "$SLURM_SUBMIT_HOST")),
    case("submit-host", "--master-addr", add("HOST=${SLURM_SUBMIT_HOST}"), (LAST, f"{LAST} --master-addr=$HOST")),
    case("local-rendezvous", "on 16 nodes", (FIRST_NODE, "localhost")),
    case("node-list-by-position", "scontrol", (FIRST_NODE, "${SLURM_NODELIST:0:8}${SLURM_NODELIST:9:5}")),
    case("node-list-by-position", "scontrol", add("first=$(echo $SLURM_JOB_NODELIST | cut -c1-13)")),
    case("master-port", "reserved", ("MASTER_PORT=3442", "MASTER_PORT=442")),
    lumi("master-port", "shares nodes", ("=standard-g", "=small-g"), ("=8", "=4"), ("1${SLURM_JOB_ID:0-4}", "29500")),
    case("omp-threads", "OMP_NUM_THREADS=7", ("OMP_NUM_THREADS=7", "OMP_NUM_THREADS=14")),
    case(
        "torchrun",
        "8 tasks a node",
        (TASKS, "--ntasks-per-node=1 -c 56"),
        ("--gpus-per-task=1 --gpu-bind=closest", ""),
        (f"{PYTHON} -u", f"{PYTHON.replace('python', 'torchrun')} --nnodes=16 --nproc_per_node=8"),
    ),
    case("ssh-launcher", "ssh inside a job", add("ssh $MASTER_ADDR hostname -I")),
)
LAYOUT = (
    case("world-size", "64 or 128 ranks", *nodes(15)),
    case("tensor-parallel-size", "tp 8", *layout(tp=16, pp=4)),
    case("layers-over-stages", "pp 20", ("--num-layers 96", "--num-layers 100")),
    case("tensor-parallel-divides", "tp 2", (HEADS, "--num-attention-heads 6"), ("--use-flash-attn-v2", "")),
    case("heads-divide", "heads 96", (HEADS, "--num-attention-heads 100")),
    case("head-dim-flash", "48 heads at least", (HEADS, "--num-attention-heads 32")),
    case(
        "head-dim-multiple",
        "head dimension 86",
        ("--hidden-size 12288 --num-attention-heads 96", "--hidden-size 2064 --num-attention-heads 24"),
    ),
    case("micro-batches-over-stages", "global batch 32", *batch(8)),
    case("bubble", "global batch 128", *batch(64)),
)
ENGINE = (
    case("micro-batch", "4 times the real ones", ('per_gpu": 1', 'per_gpu": 4')),
    case("train-batch-size", '"train_batch_size": 640', ('"train_batch_size": 640', '"train_batch_size": 320')),
    case(
        "batch-divides",
        "252 or 266",
        *nodes(7),
        *layout(tp=8, pp=1),
        *batch(256),
        ("--micro-batch-size 1", "--micro-batch-size 2"),
        ('per_gpu": 1', 'per_gpu": 2'),
    ),
    case("accumulation", 'steps": 320', ('"gradient_clip', '"gradient_accumulation_steps": 4, "gradient_clip')),
    case("zero-stage", '"stage": 1', ('"stage": 1', '"stage": 0')),
    case("zero-pipeline", "ZeRO stage 1", ('"stage": 1', '"stage": 2'), (LAST, "--zero-stage 2")),
    case("precision", '"bf16": {"enabled": true}', ("--fp16", "--bf16")),
    case("two-precisions", "--fp16 and --bf16", ("--fp16", "--fp16 --bf16")),
    case("clipping", '"gradient_clipping": 1', ('  "gradient_clipping": 1.0,\n', "")),
    case("deepspeed-flag", "--deepspeed", ("--deepspeed --deepspeed_config", "--deepspeed_config")),
)
NETWORK = (
    case("alt-read-pair", "without --network", NO_NETWORK),
    case("alt-read-pair", "rccl-net-plugin/1.0", NO_NETWORK, (ALT_READ + ZEROS, "module load rccl-net-plugin/1.0\n")),
    case("alt-read-pair", "without alt_read", (ALT_READ + ZEROS, "")),
    case("rendezvous-zeros", "FI_CXI_RDZV_THRESHOLD=0", NO_NETWORK, (ALT_READ, "")),
    case("cache-monitor", "FI_MR_CACHE_MONITOR=kdreg2", ("=kdreg2", "=memhooks")),
    case("cache-monitor-disabled", "FI_MR_CACHE_MONITOR=kdreg2", ("=kdreg2", "=disabled")),
    case("transmit-queue", "FI_CXI_DEFAULT_TX_SIZE=16384", ("TX_SIZE=2048", "TX_SIZE=131072")),
    case("completion-queue", "131072", ("CQ_SIZE=131072", "CQ_SIZE=65536")),
    case("completion-queue-unset", "131072", ("export FI_CXI_DEFAULT_CQ_SIZE=131072\n", "")),
    case("plugin-on-one-node", "unset NCCL_NET", add("export NCCL_NET=OFI"), script=ONE_NODE),
    case("plugin-name", "AWS Libfabric", ("/sw/frontier/rccl-plugins/aws-ofi-nccl/1.19.2", "/lustre/aws-ofi-rccl")),
    case("plugin-not-forced", "NCCL_NET=OFI", ("export NCCL_NET=OFI\n", "")),
    case("sockets", "NCCL_NET=OFI", ("NCCL_NET=OFI", "NCCL_NET=Socket")),
    lumi("gdr-level", "unset NCCL_NET_GDR_LEVEL", ("export OMP", "export NCCL_NET_GDR_LEVEL=PHB\nexport OMP")),
    lumi("missing-monitor", "userfaultfd", ("export FI_MR_CACHE_MONITOR=userfaultfd\n", "")),
)
VARIABLES = (
    case("unknown-variable", "FI_CXI_RDZV_PROTO", add("export FI_CXI_RDV_PROTO=alt_read")),
    case("unknown-variable", "FI_CXI_OFLOW_BUF_SIZE", add("export FI_CXI_OVFLOW_BUF_SIZE=8388608")),
    case("unknown-variable", "MIOPEN_USER_DB_PATH", add("export MIOPEN_USER_DB=/tmp/x")),
    case("unknown-variable", "NCCL_NET_GDR_LEVEL", add("export NCLL_NET_GDR_LEVEL=3")),
    case("unknown-variable", "NCCL_DEBUG", ("-n $TASKS", "-n $TASKS --export=ALL,NCCL_DEBUGG=INFO")),
    case("unlisted-variable", "known names", add("export HSA_QQQ=1")),
    case("not-exported", "export NCCL_CROSS_NIC", add("NCCL_CROSS_NIC=1")),
    case("obsolete-variable", "no FI_CXI_ATS", add("export FI_CXI_ATS=0")),
    case("obsolete-variable", "no CXI_FORK_SAFE", add("export CXI_FORK_SAFE=1")),
    case("obsolete-variable", "TORCH_NCCL_ASYNC_ERROR_HANDLING", add("export NCCL_ASYNC_ERROR_HANDLING=1")),
    case("forced-algorithm", "NCCL_ALGO=Ring", add("export NCCL_ALGO=Ring")),
    case("heartbeat", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=3600", add("export DEEPSPEED_TIMEOUT=60")),
    case("heartbeat", "DeepSpeed's default", ("TIMEOUT_SEC=1800", "TIMEOUT_SEC=600")),
    case("leave-unset", "MPICH_GPU_SUPPORT_ENABLED=1", add("export MPICH_GPU_SUPPORT_ENABLED=1")),
)
SOFTWARE = (
    case("removed-software", "rocm/7.1.1", ("trap", "module load rocm/5.4.0\ntrap")),
    case("removed-software", "gcc 10 to 12", ("trap", "module load gcc/11.2.0\ntrap")),
    case(
        "removed-software", "libfabric/1.15", ("=$CRAY_LD_LIBRARY_PATH:", "=$CRAY_LD_LIBRARY_PATH:/x/libfabric/1.15.2:")
    ),
    case("cpe-rocm-pair", "cpe/25.09", ("rocm/7.1.1", "rocm/6.4.1")),
    case("cpe-library-path", "CRAY_LD_LIBRARY_PATH", ("export LD_LIBRARY_PATH=$CRAY_LD", "export X=$CRAY_LD")),
    case("torch-rocm", "the index rocm7.1", add(f"{PROXY}pip install torch==2.10.0+rocm6.4")),
    case("torch-rocm", "the index rocm7.1", add(f"{PROXY}pip install torch --index-url https://x/whl/rocm6.4")),
    case("jit-at-scale", "compiled as they are needed", add("export TORCH_EXTENSIONS_DIR=/lustre/ext")),
    case("jit-at-scale", "is emptied", add("rm -rf ~/.cache/torch_extensions")),
    case(
        "prebuilt-operators",
        "built with ROCm 6.4, run with ROCm 7.1",
        ("trap", f"module load rocm/6.4.0\n{PROXY}DS_BUILD_FUSED_ADAM=1 pip install deepspeed\ntrap"),
    ),
    case(
        "prebuilt-operators",
        "torch 2.9 is installed after",
        add(f"{PROXY}export DS_BUILD_OPS=1\npip install deepspeed\npip install torch==2.9.0"),
    ),
    case("mpi4py-order", "MPI first", add("srun -N 16 python -c 'import torch; from mpi4py import MPI'")),
    case("mpi4py-order", "MPI first", add("python <<END\nimport torch\nfrom mpi4py import MPI\nEND")),
)
STORAGE = (
    case("miopen-shared", "/tmp/$USER", ("_CACHE_DIR=$MIOPEN_USER_DB_PATH", "_CACHE_DIR=$HOME/.cache")),
    case("miopen-mkdir", "not made on every node", ("srun -N $NODES --ntasks-per-node=1 mkdir", "mkdir")),
    case("environment-on-home", "/ccs/proj", (PYTHON, "exec /ccs/proj/stf218/env/bin/python")),
    case("environment-not-staged", "conda-pack", *nodes(80), *layout(pp=8), (PYTHON, "exec /lustre/env/bin/python")),
    case("local-storage-constraint", "-C nvme", ("#SBATCH -C nvme\n", "")),
    case("sbcast-unchecked", "|| exit 1", (" || exit 1\n", "\n")),
    case("sbcast-unchecked", "|| exit 1", (" || exit 1\n", "\n"), ("sbcast -pf", "timeout 600 sbcast -pf")),
)
RUN = (
    case("proxy-scheme", "http://proxy", add("export https_proxy=https://proxy.ccs.ornl.gov:3128")),
    case("network-fetch", "git clone", add("git clone https://example.org/x.git")),
    case("network-fetch", "pip install", add("srun -n 1 python -m pip install numpy")),
    case("network-fetch", "WANDB_MODE=offline", add("export WANDB_MODE=online")),
    case(
        "network-fetch",
        "HF_HUB_OFFLINE=1",
        ("export HF_HUB_OFFLINE=1\n", ""),
        (LAST, f"{LAST} --tokenizer-type HFTokenizer --tokenizer-model gpt2"),
    ),
)
CASES = (
    *SCRIPT, *ALLOCATION, *LAUNCH, *LAYOUT, *ENGINE, *NETWORK, *VARIABLES, *SOFTWARE, *STORAGE, *RUN,
)  # fmt: skip
# found in a recipe or a log: test_rules.py
ELSEWHERE = {"unequal-stages", "recipe-differs", "logged-rate", "logged-above-peak"}
