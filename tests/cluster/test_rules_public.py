"""Scripts in the shape of public ones, each with the faults that were found in those; written for these tests."""

import json
import random
import subprocess
import sys
import time

import pytest
from rule_cases import FRONTIER, LUMI

from repro import cli
from repro.cluster.rules import examine
from repro.cluster.site import load_site
from repro.errors import InputError

OLD_MODULES = """
module load PrgEnv-gnu gcc/11.2.0
module load rocm/5.4.0
export LD_LIBRARY_PATH=/opt/cray/libfabric/1.15.2.0/lib64:/lustre/aws-ofi-rccl/lib:$LD_LIBRARY_PATH
"""
OLD_STEP = "srun -n $((NNODES*8)) -c2 --ntasks-per-node=8 --gpus-per-node=8 --gpu-bind=closest"
HEADER = "#!/bin/bash\n#SBATCH -A stf218\n#SBATCH -t 01:00:00\n#SBATCH -p batch\n#SBATCH -N {nodes}\nNNODES={nodes}\n"
SHAPES = {
    "22b": "--num-layers 48 --hidden-size 6144 --num-attention-heads {heads} --seq-length 2048",
    "175b": "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048",
    "1t": "--num-layers 128 --hidden-size 25600 --num-attention-heads 128 --seq-length 2048",
}
ENGINE = {"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": True}, "zero_optimization": {"stage": 1},
          "optimizer": {"type": "Adam", "params": {"lr": "auto", "torch_adam": False}}}  # fmt: skip


def demo_22b():
    """Micro-batch 2 in the script and 4 in the JSON, no gradient clipping there, software of 2023."""
    return (
        HEADER.format(nodes=4) + OLD_MODULES + "source export_DDP_vars.sh\n"
        "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\nexport OMP_NUM_THREADS=2\nexport FI_CXI_ATS=0\n"
        "export https_proxy=https://proxy.ccs.ornl.gov:3128\n"
        f'gpt="{SHAPES["22b"].format(heads=96)} --micro-batch-size 2 --global-batch-size 20 --clip-grad 1.0 --fp16"\n'
        f"{OLD_STEP} python pretrain_gpt_deepspeed.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 "
        "$gpt --checkpoint-activations --deepspeed --deepspeed_config ds.json --use-flash-attn\n"
    )


def tflops_149():
    """128 GCDs, TP 4 x PP 16 x DP 2, micro-batch 1 in the script and 4 in the JSON: rates four times the real ones."""
    return (
        HEADER.format(nodes=16) + OLD_MODULES + "export FI_MR_CACHE_MONITOR=userfaultfd\nexport NCCL_NET_GDR_LEVEL=3\n"
        'options=" \\\n --tensor-model-parallel-size 4 \\\n --pipeline-model-parallel-size 16 \\\n'
        f" {SHAPES['175b']} \\\n --micro-batch-size 1 --global-batch-size 1280 --clip-grad 1.0 --fp16 \\\n"
        ' --checkpoint-activations --use-flash-attn-v2"\n'
        f"export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
        f"{OLD_STEP} python pretrain_gpt.py ${{options}} --deepspeed --deepspeed_config=ds.json\n"
    )


def one_trillion_bf16():
    """bf16 asked for, fp16 in the JSON; one batch of eight samples over 64 stages."""
    return (
        HEADER.format(nodes=64)
        + OLD_MODULES
        + "ARGS=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 64)\n"
        f"ARGS+=({SHAPES['1t']} --micro-batch-size 1 --bf16)\nARGS+=(--deepspeed --deepspeed_config ds.json)\n"
        f'{OLD_STEP} python pretrain_gpt.py "${{ARGS[@]}}"\n'
    )


DDP_VARIABLES = """
export MASTER_ADDR=$SLURM_SUBMIT_HOST
export MASTER_PORT=29500
export RANK=$SLURM_PROCID
export LOCAL_RANK=$SLURM_LOCALID
"""


def search():
    """A trial of the hyperparameter search: a node list cut by position, a head dimension of 86."""
    return (
        HEADER.format(nodes=4) + "NODE=${SLURM_NODELIST:0:8}${SLURM_NODELIST:9:5}\nexport MASTER_ADDR=$NODE\n"
        f"{OLD_STEP} python train.py --num-layers 24 --hidden-size 2064 --num-attention-heads 24 --fp16 "
        "--use-flash-attn --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --micro-batch-size 10 "
        "--global-batch-size 100\n"
    )


def network_of_others():
    """Three names that nothing reads, a queue size that is dropped, a dead-locking monitor, sockets."""
    return (
        HEADER.format(nodes=128) + "export FI_CXI_RDV_PROTO=alt_read\nexport FI_CXI_OVFLOW_BUF_SIZE=8388608\n"
        "export MIOPEN_USER_DB=/tmp/$USER\nexport FI_CXI_DEFAULT_TX_SIZE=131072\nexport FI_MR_CACHE_MONITOR=memhooks\n"
        "export NCCL_NET=Socket NCCL_ALGO=Ring\nexport TORCH_EXTENSIONS_DIR=$HOME/ext\n"
        "srun -n 1024 --ntasks-per-node=8 -c7 --gpus-per-task=1 --gpu-bind=closest /ccs/home/me/env/bin/python x.py "
        "--local_rank=$SLURM_LOCALID\n"
    )


EXPECTED = {
    demo_22b: {
        "micro-batch", "clipping", "removed-software", "submit-host", "visible-devices", "local-rank", "proxy-scheme",
        "obsolete-variable", "few-cores",
    },
    tflops_149: {"micro-batch", "clipping", "removed-software", "few-cores", "time-limit-plan"},
    one_trillion_bf16: {
        "precision", "micro-batch", "micro-batches-over-stages", "removed-software", "plugin-not-forced",
    },
    search: {"node-list-by-position", "head-dim-multiple", "bubble", "few-cores"},
    network_of_others: {
        "unknown-variable", "transmit-queue", "cache-monitor", "sockets", "forced-algorithm", "jit-at-scale",
        "local-rank", "environment-on-home", "environment-not-staged", "completion-queue-unset",
    },
}  # fmt: skip


@pytest.mark.parametrize("make", EXPECTED, ids=lambda make: make.__name__)
def test_faults_of_public_scripts(make, tmp_path):
    (tmp_path / "job.sh").write_text(make())
    (tmp_path / "ds.json").write_text(json.dumps(ENGINE))
    (tmp_path / "export_DDP_vars.sh").write_text(DDP_VARIABLES)
    found = examine(None, load_site("frontier"), tmp_path / "job.sh")
    rules = {finding.rule for finding in found.findings}
    assert rules >= EXPECTED[make], EXPECTED[make] - rules
    assert not rules & {
        "world-size",
        "tensor-parallel-size",
        "layers-over-stages",
        "tensor-parallel-divides",
        "bin-limit",
    }


def test_the_published_rate_is_explained(tmp_path):
    (tmp_path / "job.sh").write_text(tflops_149())
    (tmp_path / "ds.json").write_text(json.dumps(ENGINE))
    found = examine(None, load_site("frontier"), tmp_path / "job.sh").findings
    [finding] = [f for f in found if f.rule == "micro-batch"]
    assert "4 times the real ones" in finding.what
    assert finding.where == "job.sh:20, ds.json"


def test_a_sourced_file_is_named_where_it_is_at_fault(tmp_path):
    (tmp_path / "job.sh").write_text(demo_22b())
    (tmp_path / "export_DDP_vars.sh").write_text(DDP_VARIABLES)
    found = examine(None, load_site("frontier"), tmp_path / "job.sh").findings
    assert [f.where for f in found if f.rule == "submit-host"] == ["export_DDP_vars.sh:2"]


PIECES = [
    *"\"'`$(){}[]\\\n;&|<>#= -", "$((", "${", "<<EOF\n", "--", "-n", "-N 99999999999", "-N 0 ", "-n 0 ", "999999937",
    "=auto", "0", "-1", "nan", "1e999", "srun ", "module load ", "export ", "#SBATCH --", "\u00e9", "\x1c", "/dev/zero",
    "source /dev/zero\n",
]  # fmt: skip


def test_mutated_scripts_end_without_a_traceback(tmp_path):
    frontier, lumi = load_site("frontier"), load_site("lumi")
    bases = [FRONTIER, LUMI, *(make() for make in EXPECTED)]
    path = tmp_path / "job.sh"
    for seed in range(250):
        dice = random.Random(seed)
        text = dice.choice(bases)
        for _ in range(dice.randint(1, 30)):
            place = dice.randrange(len(text) + 1)
            if dice.random() < 0.5:
                text = text[:place] + dice.choice(PIECES) + text[place:]
            else:
                text = text[:place] + text[place + dice.randint(1, 30) :]
        path.write_text(text)
        try:
            found = examine(None, dice.choice((frontier, lumi)), path)
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert all(f.what and f.fix and f.where and "\n" not in f.what + f.fix + f.where for f in found.findings)


@pytest.mark.parametrize("value", [0, -1, 2.5, 10**30, "auto", "4", True, None, [], {}, float("inf")])
@pytest.mark.parametrize(
    "key", ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping", "zero_optimization", "fp16"]
)
def test_any_value_in_a_json_is_compared_or_refused(key, value, tmp_path):
    (tmp_path / "job.sh").write_text(FRONTIER)
    (tmp_path / "other.json").write_text(json.dumps({**ENGINE, key: value}))
    try:
        examine(None, load_site("frontier"), tmp_path / "job.sh", tmp_path / "other.json")
    except InputError as error:
        assert key in str(error) and "\n" not in str(error)


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return done.value.code, out, err


def test_command_line(capsys, tmp_path):
    path = tmp_path / "job.sh"
    path.write_text(tflops_149())
    (tmp_path / "ds.json").write_text(json.dumps(ENGINE))
    code, out, err = call(capsys, "check", "--site", "frontier", "--script", str(path))
    assert code == 2
    assert "micro-batch" in out and "4 times the real ones" in out
    assert len(err.splitlines()) == 1
    assert "errors" in err
    code, out, err = call(capsys, "check", "--site", "frontier", "--script", str(path), "--json")
    found = json.loads(out)
    assert code == 2
    assert found["errors"] == sum(f["severity"] == "error" for f in found["findings"])
    assert set(found["findings"][0]) == {"rule", "number", "severity", "what", "why", "fix", "source", "where"}
    path.write_text(FRONTIER)
    code, out, err = call(capsys, "check", "175b", "--site", "frontier", "--script", str(path))
    assert (code, err) == (0, "")
    assert "0 errors, 0 warnings" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["check"], "give a RECIPE"),
        (["check", "--set", "batch.global=8", "--site", "frontier"], "give a RECIPE"),
        (["check", "tiny", "--script", "x"], "add --site"),
        (["check", "tiny", "--site", "frontir"], "did you mean 'frontier'"),
        (["check", "--site", "frontier"], "nothing to check"),
        (["check", "--site", "frontier", "--script", "missing.sh"], "no such file"),
        (["check", "--site", "frontier", "--script", "/dev/zero"], "no regular file"),
        (["check", "tiny", "--site", "frontier", "--deepspeed", "."], "a folder"),
        (["check", "tiny", "--site", "frontier", "--log", "missing.log"], "no such file"),
        (["check", "tiny", "--site", "frontier-paper-2023"], "cannot run jobs"),
    ],
)
def test_bad_input_is_one_line(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert told in err


def test_it_is_quick_and_needs_no_torch(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text(FRONTIER)
    code = (
        "import sys, repro.cli\n"
        f"try: repro.cli.main(['check', '175b', '--site', 'frontier', '--script', {str(path)!r}])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'deepspeed', 'pandas')))"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 3
