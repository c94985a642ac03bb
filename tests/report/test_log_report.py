"""The reader of other people's logs: it finds each planted fault and no other, and survives what is no log."""

import json

import pytest

from repro.errors import InputError
from repro.records import launch_script
from repro.records import megatron_log as log_read
from repro.report.log_report import examine

ASKED = {
    "bf16": False, "checkpoint_activations": True, "clip_grad": 1.0, "data_parallel_size": 2, "ffn_hidden_size": 49152,
    "fp16": True, "global_batch_size": 1280, "hidden_size": 12288, "micro_batch_size": 1, "num_attention_heads": 96,
    "num_layers": 96, "pipeline_model_parallel_size": 16, "recompute_granularity": None, "seq_length": 2048,
    "tensor_model_parallel_size": 4, "world_size": 128, "zero_stage": 1.0,
}  # fmt: skip
JSON = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 1},
    "fp16": {"enabled": True},
    "bf16": {"enabled": False},
}
PEAK = 191.5


def rate(seconds, samples=1280, passes=4):
    """TFLOP/s that Megatron prints: the formula written out here once more."""
    b, s, layers, h, v = samples, 2048, 96, 12288, 50688
    return 24 * passes * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)) / seconds / 128 / 1e12


def line(number, seconds, skipped=0, printed=None, samples=1280, loss="1.110E+01", consumed=None):
    cells = (
        f" iteration {number:8d}/      10",
        f" consumed samples: {consumed or number * samples:12d}",
        f" elapsed time per iteration (ms): {1e3 * seconds:.1f}",
        " learning rate: 6.000E-05",
        f" global batch size: {samples:5d}",
        f" lm loss: {loss}",
        " loss scale: 65536.0",
        " grad norm: 1.234",
        f" number of skipped iterations: {skipped:3d}",
        " number of nan iterations:   0",
        f" samples per second: {samples / seconds:.3f}",
        f" TFLOPs: {rate(seconds, samples) if printed is None else printed:.2f}",
    )
    return " |".join(cells) + " |\n"


def log(folder, lines=None, asked=None, micro=1, name="train.log"):
    dump = "".join(f"  {name} {'.' * (44 - len(name))} {value}\n" for name, value in {**ASKED, **(asked or {})}.items())
    lines = [line(n, 400.0) for n in range(1, 6)] if lines is None else lines
    text = (
        "using world size: 128, data-parallel-size: 2, tensor-model-parallel size: 4, "
        "pipeline-model-parallel size: 16 \n"
        f"------------------------ arguments ------------------------\n{dump}"
        "-------------------- end of arguments ---------------------\n"
        " > padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)\n"
        "[2023-11-10 10:00:00,000] [INFO] [engine.py:83:__init__] CONFIG: micro_batches=1 micro_batch_size="
        f"{micro}\n{''.join(lines)}"
    )
    path = folder / name
    path.write_text(text)
    return path


def config(folder, **changes):
    path = folder / "ds.json"
    path.write_text(json.dumps({**JSON, **changes}))
    return path


def kinds(found):
    return [finding.kind for finding in found.findings]


def test_clean(tmp_path):
    found = examine(log(tmp_path), config(tmp_path))
    assert kinds(found) == []
    assert found.printed_tflops == pytest.approx(rate(400), abs=0.01)
    assert found.corrected_tflops == pytest.approx(rate(400))
    assert found.processed_samples == found.counted_samples == 1280
    assert found.notes == ()


STEADY = [line(n, 400.0) for n in range(1, 6)]
EVALUATION = " validation loss at iteration 3 | lm loss value: 1.1E+01 | lm loss PPL: 6.6E+04 |\n"
PLANTED = {
    "micro-batch": ({"micro": 2}, {"train_micro_batch_size_per_gpu": 2}),
    "above peak": ({"lines": [line(n, 140.0) for n in range(1, 6)]}, {}),
    "implausible": ({"lines": [line(n, 200.0) for n in range(1, 6)]}, {}),
    "formula": ({"lines": [*STEADY[:4], line(5, 400.0, printed=93.0)]}, {}),
    "skipped": ({"lines": [line(n, 400.0, skipped=1) for n in range(1, 6)]}, {}),
    "evaluation": ({"lines": [*STEADY[:3], EVALUATION, line(4, 560.0), STEADY[4]]}, {}),
    "cold": ({"lines": [line(1, 470.0), *STEADY[1:]]}, {}),
    "precision": ({"asked": {"bf16": True, "fp16": False}}, {}),
    "clipping": ({}, {"gradient_clipping": 0.0}),
    "zero": ({}, {"zero_optimization": {"stage": 0}}),
    "batch": ({}, {"train_batch_size": 640}),
    "loss": ({"lines": [*STEADY[:4], line(5, 400.0, loss="nan")]}, {}),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_finds_the_planted_fault_and_no_other(kind, tmp_path):
    written, changed = PLANTED[kind]
    assert kinds(examine(log(tmp_path, **written), config(tmp_path, **changed))) == [kind]


@pytest.mark.parametrize(
    ("asked", "lines", "told"),
    [
        ({"data_parallel_size": 4}, None, "not the world of 128"),
        ({"global_batch_size": 1281}, None, "no multiple of micro-batch 1 x dp 2"),
        ({}, [line(1, 400.0), line(2, 400.0, consumed=5000)], "3720 samples more than iteration 1"),
    ],
)
def test_batch_identity(asked, lines, told, tmp_path):
    [finding] = examine(log(tmp_path, lines, asked), config(tmp_path)).findings
    assert finding.kind == "batch"
    assert told in finding.text


def published(folder):
    """The shape and the numbers of the authors' 175B log."""
    times = {1: (224.6266, 130.74), 2: (196.4964, 149.46), 3: (196.6811, 149.32), 4: (280.2356, 104.80),
             5: (195.0818, 150.54)}  # fmt: skip
    lines = [line(n, seconds, skipped=1, printed=printed) for n, (seconds, printed) in times.items()]
    lines.insert(3, EVALUATION)
    json_file = folder / "ds.json"
    json_file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
                                     "fp16": {"enabled": True}}))  # fmt: skip
    return log(folder, lines, micro=4), json_file


def test_published_case(tmp_path):
    found = examine(*published(tmp_path))
    second = found.iterations[1]
    assert (second["printed"], round(second["corrected"], 2)) == (149.46, 37.36)
    assert (found.counted_samples, found.processed_samples) == (1280, 320)
    assert [row["in_mean"] for row in found.iterations] == [False, True, True, False, True]
    assert found.corrected_tflops == pytest.approx(37.44, abs=0.01)
    assert found.corrected_share_of_peak == pytest.approx(0.1955, abs=1e-4)
    assert kinds(found) == ["micro-batch", "skipped", "clipping", "implausible", "evaluation", "cold"]
    assert "no weight was changed" in found.findings[1].text


def test_script_fills_what_the_log_does_not_tell(tmp_path):
    script = tmp_path / "launch.slurm"
    script.write_text(
        "#!/bin/bash\nHIDDEN=12288\n# --micro-batch-size 7\nexport MBS=2\nOPTIONS=\"--num-layers 96 --fp16\"\n"
        "srun python pretrain_gpt.py \\\n  --hidden-size $HIDDEN --micro-batch-size ${MBS} --checkpoint-activations "
        "--clip-grad=1.0 \\\n --tensor-model-parallel-size 4\n"
    )  # fmt: skip
    options = launch_script.read_script(script)
    assert options["hidden-size"] == "12288"
    assert options["micro-batch-size"] == "2"
    assert options["clip-grad"] == "1.0"
    assert options["checkpoint-activations"] is options["fp16"] is True
    path = tmp_path / "short.log"
    path.write_text(line(2, 400.0))
    assert kinds(examine(path, config(tmp_path), script)) == ["micro-batch"]
    path.write_text("x" + line(2, 400.0))
    assert kinds(examine(path, config(tmp_path, bf16={"enabled": True}, fp16={"enabled": False}), script)) == [
        "micro-batch",
        "precision",
    ]


def test_a_json_that_is_not_what_ran_is_told(tmp_path):
    found = examine(log(tmp_path, micro=1), config(tmp_path, train_micro_batch_size_per_gpu=8))
    assert kinds(found) == ["configuration"]


def test_junk_between_lines_changes_nothing(tmp_path):
    clean = examine(log(tmp_path), config(tmp_path))
    path = log(tmp_path, name="junk.log")
    junk = (
        bytes(range(256)) * 4 + b"\n" + b"iteration | | | :\n" + b" iteration 7/ 10 | consumed samples: 5 | ela\n"
        b" iteration 99999999999999999999/ 1 | elapsed time per iteration (ms): 1\n" + b"a" * 300_000 + b"\n"
        b" iteration |" + b"|:" * 5000 + b"\n .... \n" + b" ." * 20_000 + b"\nusing world size: , data-parallel-size:\n"
    )
    path.write_bytes(path.read_bytes() + junk + line(6, 400.0)[:70].encode())
    found = examine(path, config(tmp_path))
    assert found.findings == ()
    assert found.corrected_tflops == clean.corrected_tflops
    assert any("cut short" in note for note in found.notes)
    assert any("longer than" in note for note in found.notes)


@pytest.mark.parametrize("time", ["nan", "inf", "0.0", "-5.0", "1e999", "zero"])
def test_times_that_are_none(time, tmp_path):
    broken = line(5, 400.0).replace("400000.0", time)
    found = examine(log(tmp_path, [*STEADY[:4], broken]), config(tmp_path))
    assert kinds(found) == ["time"]
    assert found.corrected_tflops == pytest.approx(rate(400))


BAD_JSON = {
    "[1, 2]": "holds a list",
    "{": "is no JSON",
    "[" * 100_000: "is no JSON",
    '{"fp16": 3}': "fp16 is 3, not an object",
    '{"fp16": {"enabled": "yes"}}': "fp16.enabled is 'yes'",
    '{"train_micro_batch_size_per_gpu": "4"}': "train_micro_batch_size_per_gpu is '4', not a whole number",
    '{"gradient_clipping": [1]}': "gradient_clipping is [1]",
    '{"zero_optimization": {"stage": NaN}}': "stage is nan",
    '{"train_batch_size": true}': "train_batch_size is True",
}


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
def test_json_of_wrong_types(text, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        examine(log(tmp_path), path)
    assert BAD_JSON[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_auto_is_left_to_megatron(tmp_path):
    auto = {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", "fp16": {"enabled": "auto"}}
    assert kinds(examine(log(tmp_path), config(tmp_path, **auto))) == []


def test_what_is_no_log(tmp_path, monkeypatch):
    path = tmp_path / "noise"
    path.write_bytes(bytes(range(256)) * 1000)
    for wrong, told in (
        (path, "is no Megatron-DeepSpeed log"),
        (tmp_path, "a folder"),
        ("/dev/zero", "no regular file"),
        (tmp_path / "missing", "no such file"),
        ("a\0b", "cannot read log"),
        ("x" * 5000, "cannot read log"),
    ):
        with pytest.raises(InputError, match=told):
            examine(wrong)
    monkeypatch.setattr(log_read, "LOG_BYTES", 1000)
    with pytest.raises(InputError, match="MiB; the most is"):
        examine(log(tmp_path))
    monkeypatch.undo()
    monkeypatch.setattr(log_read, "MOST_ITERATIONS", 3)
    with pytest.raises(InputError, match="more than 3 iterations"):
        examine(log(tmp_path))


def test_engine_dump_in_the_log_is_what_ran(tmp_path):
    path = log(tmp_path)
    dumped = "[2023-11-10 10:00:00,000] [INFO] [config.py:964:print]   gradient_clipping ............ 0.0\n"
    path.write_text(dumped + path.read_text())
    assert kinds(examine(path)) == ["clipping"]
