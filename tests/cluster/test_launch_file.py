"""Directives, options, modules and steps of scripts, in every form in which people write them."""

import csv
import re

import pytest

from repro.cluster import launch_file, slurm_options, variables
from repro.records.shell_values import Text

BEGIN = "#!/bin/bash\n"


def file(text):
    return launch_file.from_text(BEGIN + text)


def plain(options):
    return {name: value if value is True else value.text for name, value in options.items()}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:15", 1815),
        ("2:00:00", 7200),
        ("1-0", 86400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("0-10:00:05", 36005),
        ("UNLIMITED", None),
        ("", None),
        ("1:2:3:4", None),
        ("-5", None),
    ],
)
def test_time_limits(text, seconds):
    assert slurm_options.seconds(text) == seconds


@pytest.mark.parametrize(
    "line",
    ["-N 16 -t 2:00:00", "-N16 -t2:00:00", "--nodes=16 --time=2:00:00", "--nodes 16 --time 2:00:00  # two hours",
     "--exclusive -N 16 -t 2:00:00", '--nodes="16" --time=2:00:00', "--requeue --nodes=16 -t=2:00:00"],
)  # fmt: skip
def test_directives_in_every_form(line):
    found = file(f"#SBATCH {line}\nsrun x.py\n").directives
    assert (found["nodes"].value, found["time"].value) == ("16", "2:00:00")
    assert found["nodes"].where == "job.sh:2"


def test_the_last_directive_counts_and_those_after_a_command_do_not():
    found = file("#SBATCH -N 1\n\n# text\n#SBATCH -N 2\n##SBATCH -N 3\ntrue\n#SBATCH -N 4\nsrun x.py\n")
    assert found.directives["nodes"].value == "2"
    assert [text for text, _ in found.late] == ["#SBATCH -N 4"]


@pytest.mark.parametrize(
    ("line", "options", "program"),
    [
        ("-N 2 -n16 -c7 python x.py -n 3", {"nodes": "2", "ntasks": "16", "cpus-per-task": "7"}, "python x.py -n 3"),
        ("--gpu-bind closest -ul --label prog", {"gpu-bind": "closest", "unbuffered": True, "label": True}, "prog"),
        ("--kill-on-bad-exit=1 --export=ALL,A=1 prog", {"kill-on-bad-exit": "1", "export": "ALL,A=1"}, "prog"),
        ("-K1 -- prog --nodes=4", {"kill-on-bad-exit": True}, "prog --nodes=4"),
        ("--exclusive prog", {"exclusive": True}, "prog"),
    ],
)
def test_options_of_srun_end_where_the_program_begins(line, options, program):
    found, rest = slurm_options.parsed([Text(word) for word in line.split()])
    assert plain(found) == options
    assert " ".join(word.text for word in rest) == program


@pytest.mark.parametrize(
    ("lines", "kind", "name"),
    [
        ("module load rocm/7.1.1", "rocm", "rocm/7.1.1"),
        ("ml cpe/26.03 rocm/7.1.1", "rocm", "rocm/7.1.1"),
        ("module load rocm/6.2.4\nmodule swap rocm rocm/7.1.1", "rocm", "rocm/7.1.1"),
        ("module load rocm/6.2.4\nmodule unload rocm", "rocm", None),
        ("module load rocm/6.2.4\nml -rocm", "rocm", None),
        ("module load rocm/6.2.4\nmodule purge", "rocm", None),
        ("V=7.1.1\nmodule load rocm/$V", "rocm", "rocm/7.1.1"),
        ("module load rocm/7.1.1\nmodule list", "rocm", "rocm/7.1.1"),
    ],
)
def test_modules(lines, kind, name):
    use = file(lines + "\n").loaded(kind)
    assert (use.name if use else None) == name


@pytest.mark.parametrize(
    "lines",
    [
        "srun -n 8 python pretrain_gpt.py --micro-batch-size 2 --fp16",
        "srun -n 8 \\\n  python pretrain_gpt.py \\\n  --micro-batch-size=2 \\\n  --fp16",
        'A=" --micro-batch-size 2 \\\n --fp16"\nsrun -n 8 python pretrain_gpt.py ${A}',
        'A=(--fp16)\nA+=(--micro-batch-size 2)\nsrun -n 8 python pretrain_gpt.py "${A[@]}"',
        'M=2\nA="--micro-batch-size $M"\nA="$A --fp16"\nC="srun -n 8 python pretrain_gpt.py $A"\necho $C\neval $C',
        "srun -n 8 bash -c 'exec python pretrain_gpt.py --micro-batch-size 2 --fp16'",
        'launch() { srun -n 8 python pretrain_gpt.py "$@" --micro-batch-size 2 --fp16; }\nlaunch',
        "N=8\ntime srun -n $N singularity run x.sif python3 pretrain_gpt.py --micro_batch_size 2 --fp16 | tee log",
        "cat > run.sh <<EOF\n#!/bin/bash\nexport X=1\nEOF\nsrun -n 8 ./run.sh python a.py --micro-batch-size 2 --fp16",
        "srun -n 1 python a.py --seq 3\nsrun -n 8 python pretrain_gpt.py --micro-batch-size 2 --fp16\nsrun -n 1 ls",
    ],
)
def test_the_step_that_trains_and_its_arguments(lines):
    main = file(lines + "\n").main
    assert main.flags["ntasks"].text == "8"
    assert main.arguments["micro-batch-size"].text == "2"
    assert main.arguments["fp16"] is True


@pytest.mark.parametrize(
    ("line", "spawner", "each"),
    [
        ("torchrun --nnodes 2 --nproc_per_node 8 train.py --num-layers 2", "torchrun", "8"),
        ("srun python -m torch.distributed.run --nproc-per-node=8 train.py --num-layers 2", "torchrun", "8"),
        ("deepspeed --num_gpus 8 train.py --num-layers 2", "deepspeed", None),
    ],
)
def test_launchers_inside_launchers(line, spawner, each):
    main = file(line + "\n").main
    assert main.spawner == spawner
    assert main.arguments["num-layers"].text == "2"
    assert (main.spawn["nproc-per-node"].text if "nproc-per-node" in main.spawn else None) == each


def test_what_tasks_find_in_a_variable():
    text = "export A=1 B=1 C=1\nA=2 srun --export=ALL,B=2 bash -c 'export C=2; python x.py'\nexport A=3\n"
    found = file(text)
    assert [found.variable(name).value.text for name in "ABC"] == ["2", "2", "2"]
    assert file("export A=1\nunset A\nsrun x.py\n").variable("A") is None


def test_table_of_variables():
    with variables.TABLE.open(newline="") as table:
        rows = list(csv.DictReader(table))
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names) > 400
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", name) for name in names)
    assert all(row["source"] for row in rows)
    assert {row["renamed_to"] for row in rows} - {""} <= set(names)


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "MIOPEN_DEBUG_CONV_GEMM", "PATH", "NCCL_HOME", "OFI_NCCL_DISABLE_GDR", "MY_NCCL"]
)
def test_names_that_are_fine(name):
    assert not variables.misspelt(name)


def test_every_variable_of_the_sites_is_known():
    from repro.cluster.site import load_site, names

    for site in map(load_site, names()):
        for one in (*site.variables, *site.unset):
            assert not variables.misspelt(one.name), one.name
