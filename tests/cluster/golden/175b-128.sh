#!/bin/bash
# train 175b: 1024 ranks on 128 nodes of Frontier (OLCF), facts of 2026-07-07.
# Written by repro 0.1.0 from a recipe and a site; change those, not this file.
#SBATCH --account=abc123
#SBATCH --job-name=repro-175b
#SBATCH --partition=batch
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=8
#SBATCH --time=06:00:00
#SBATCH --output=/lustre/orion/abc123/scratch/user/runs/175b-128/job-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --constraint=nvme
#SBATCH --network=disable_rdzv_get
#SBATCH --signal=B:USR1@600
#SBATCH --requeue

set -o pipefail
die() { echo "job: error: $*" >&2; exit 1; }
run_folder=/lustre/orion/abc123/scratch/user/runs/175b-128
state() { sed -n 's/^  "state": "\([a-z]*\)",$/\1/p' "$run_folder/status.json" 2> /dev/null; }
latest() { cat "$run_folder/checkpoints/latest" 2> /dev/null; }
began_from=$(latest)
again() {
    [ "$(latest)" != "$began_from" ] || die "no checkpoint since this start, so the next one would come no further; ask for more hours"
    [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ] || die "requeued 20 times already; submit again to go on"
    # The last act: Slurm ends this shell as it puts the job back.
    exec scontrol requeue "$SLURM_JOB_ID"
}

# The warning before the time limit comes to this shell alone; it may come at any moment from here on.
warned=0
step=""
stopper=""
started=$(date +%s)
on_warning() {
    warned=1
    if [ -n "$step" ] && [ -z "$stopper" ]; then
        stop_ranks &
        stopper=$!
    fi
}
at_work() { [ "$(state)" = running ] && [ "$(stat -c %Y "$run_folder/status.json")" -ge "$started" ]; }
# Asks the ranks once, since a second signal would end them at once; and not before they are at work, since they would
# not hear it: at the latest when half of the time is up. Those that have not come to an end by its end are ended.
stop_ranks() {
    trap "" USR1
    local left=540 asked=0
    while [ "$left" -gt 0 ]; do
        if [ "$asked" -eq 0 ] && { at_work || [ "$left" -le 270 ]; }; then
            echo "job: warned of the time limit, the ranks finish their step and write a checkpoint"
            scancel --signal=USR1 "$SLURM_JOB_ID"
            asked=1
        fi
        sleep 1
        left=$((left - 1))
    done
    echo "job: the ranks have not stopped within 540 s of the warning, and are ended"
    kill -TERM "$step"
}
trap on_warning USR1

cd "$run_folder" || die "the run folder is gone: $run_folder"
: "${USER:=$(id -un)}"

# Software of the site, in this order.
if ! type module > /dev/null 2>&1; then
    # shellcheck disable=SC1091  # of the site
    . /etc/profile
fi
module unload darshan-runtime 2> /dev/null || true
module load PrgEnv-gnu/8.7.0 || die 'no module PrgEnv-gnu/8.7.0: compilers and Cray wrappers'
module load cpe/26.03 || die 'no module cpe/26.03: cray-mpich 9.1.0, the one that goes with ROCm 7'
module load miniforge3/23.11.0-0 || die 'no module miniforge3/23.11.0-0: conda, which activates the packed environment'"'"'s Python'
module load rocm/7.1.1 || die 'no module rocm/7.1.1: the ROCm that the torch wheels were built for'
module load rccl-net-plugin/1.0 || die 'no module rccl-net-plugin/1.0: aws-ofi-nccl 1.19.2 and RCCL settings of the site, alt_read among them; after rocm'
module load craype-accel-amd-gfx90a || die 'no module craype-accel-amd-gfx90a: the GPU target'
# This programming environment is not the default one, so its libraries must come first.
export LD_LIBRARY_PATH="${CRAY_LD_LIBRARY_PATH:+$CRAY_LD_LIBRARY_PATH:}${LD_LIBRARY_PATH:-}"
set -u

# Python from node-local storage: thousands of ranks importing from a shared file system take minutes.
archive=/lustre/orion/abc123/proj-shared/repro-env.tar.gz
local_env="/mnt/bb/$USER/repro-env"
timeout 20m sbcast --preserve --force "$archive" "/mnt/bb/$USER/repro-env.tar.gz"
copied=$?
# A broadcast that failed leaves part of a file behind.
[ "$copied" -eq 0 ] || die "sbcast of $archive ended with $copied"
# shellcheck disable=SC2016  # expanded on each node
srun --time=20 --nodes=128 --ntasks=128 --ntasks-per-node=1 --cpus-per-task=56 bash -c '
    set -e
    rm -rf "$1"; mkdir -p "$1"
    if command -v pigz > /dev/null; then pigz -dc "$2" | tar -xf - -C "$1"; else tar -xzf "$2" -C "$1"; fi
    "$1/bin/python" "$1/bin/conda-unpack"
' unpack "$local_env" "/mnt/bb/$USER/repro-env.tar.gz" || die "the environment cannot be unpacked"
# Not by its activation, whose hooks may rewrite LD_LIBRARY_PATH, in which the network plugin stands.
export PATH="$local_env/bin:$PATH" PYTHONNOUSERSITE=1
python=("$local_env/bin/python")

# The network and the ranks' own settings.
# What may be set already and must not be.
unset RANK WORLD_SIZE LOCAL_RANK FI_CXI_ATS NCCL_ALGO NCCL_PROTO NCCL_MIN_NCHANNELS CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES MPICH_GPU_SUPPORT_ENABLED
export NCCL_NET=OFI
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_CROSS_NIC=1
export FI_MR_CACHE_MONITOR=kdreg2
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_DEFAULT_TX_SIZE=2048
export FI_CXI_RX_MATCH_MODE=hybrid
export FI_CXI_DISABLE_HOST_REGISTER=1
export FI_CXI_RDZV_PROTO=alt_read
export FI_CXI_RDZV_THRESHOLD=0
export FI_CXI_RDZV_EAGER_SIZE=0
export FI_CXI_RDZV_GET_MIN=0
export HSA_FORCE_FINE_GRAIN_PCIE=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=7
export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800
export TORCH_NCCL_DUMP_ON_TIMEOUT=1
export TORCH_FR_BUFFER_SIZE=2000
export NCCL_DEBUG=WARN
export GLOO_SOCKET_IFNAME=hsn0
export http_proxy=http://proxy.ccs.ornl.gov:3128/
export https_proxy=http://proxy.ccs.ornl.gov:3128/
export ftp_proxy=ftp://proxy.ccs.ornl.gov:3128/
export no_proxy='localhost,127.0.0.0/8,*.ccs.ornl.gov'
export HF_HUB_OFFLINE=1
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1
export WANDB_MODE=offline
# DeepSpeed compiles nothing here, as the optimizer is torch's own.
export DEEPSPEED_TIMEOUT=30

# Kernel caches of MIOpen on each node: on a shared file system its databases lock and break.
export MIOPEN_USER_DB_PATH="/tmp/$USER/miopen-$SLURM_JOB_ID"
export MIOPEN_CUSTOM_CACHE_DIR="$MIOPEN_USER_DB_PATH"
srun --time=20 --nodes=128 --ntasks=128 --ntasks-per-node=1 mkdir -p "$MIOPEN_USER_DB_PATH" || die "no folder $MIOPEN_USER_DB_PATH on some node"

# Ranks meet on the first node of the allocation.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || die "the nodes of the job cannot be listed"
MASTER_ADDR=${hosts%%$'\n'*}
MASTER_PORT=3442
export MASTER_ADDR MASTER_PORT
echo "job: $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), 1024 ranks on $SLURM_JOB_NODELIST, meeting at $MASTER_ADDR:$MASTER_PORT"

# A rank sees one GCD, so its device is number 0 whatever its local rank.
if [ "$warned" -eq 1 ]; then again; fi
# Until a rank's own handler stands, the warning must not end it: ignored signals stay ignored over exec.
srun --nodes=128 --ntasks=1024 --ntasks-per-node=8 -c 7 --gpus-per-node=8 --gpus-per-task=1 --gpu-bind=closest --cpu-bind=threads -m block:cyclic \
    --kill-on-bad-exit=1 --unbuffered \
    bash -c 'trap "" USR1; exec "$@"' rank \
    "${python[@]}" -m repro train /lustre/orion/abc123/scratch/user/runs/175b-128/recipe.toml --run-folder /lustre/orion/abc123/scratch/user/runs/175b-128 --checkpoint-every 100 --keep 2 --resume auto --wandb offline --deadline 1800 &
step=$!
if [ "$warned" -eq 1 ]; then on_warning; fi
while kill -0 "$step" 2> /dev/null; do wait "$step"; done
wait "$step"
code=$?
ended=0
if [ -n "$stopper" ] && ! kill "$stopper" 2> /dev/null; then ended=1; fi

# One status file tells how it ended.
found=$(state)
echo "job: the step ended with $code, the run is $found"
if [ "$found" = completed ]; then exit 0; fi
if [ "$found" = interrupted ] && [ "$warned" -eq 1 ]; then again; fi
if [ "$found" = running ] && [ "$ended" -eq 1 ]; then again; fi
exit $((code ? code : 1))
