"""The run folder survives what happens to it; throughput is computed from work and time, or withheld."""

import errno
import json

import pytest

from repro import devices, flops
from repro.errors import InputError
from repro.records.environment import describe
from repro.records.metrics import checked, step_row, summarize
from repro.records.run_folder import RunFolder, default_path, free_name, write_atomic


def row(recipe, device=None, **changes):
    values = {
        "step": 5,
        "loss": 2.0,
        "grad_norm": 1.0,
        "lr": 1e-4,
        "loss_scale": None,
        "skipped": False,
        "seconds": 2.0,
        "peak_memory_bytes": 1,
        "time": "t",
    }
    return step_row(recipe, device, **{**values, **changes})


def test_folder_round_trip_and_no_overwriting(small, tmp_path):
    recipe = small()
    folder = RunFolder.create(tmp_path / "a" / "run", recipe)
    assert folder.status()["state"] == "pending"
    assert RunFolder.open(folder.path).recipe() == recipe
    with pytest.raises(InputError, match="run-2"):
        RunFolder.create(folder.path, recipe)
    assert free_name(folder.path).name == "run-2"
    with pytest.raises(InputError, match="not a run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(ValueError, match="done"):
        folder.set_status("done")


@pytest.mark.parametrize("name", ["file/run", "nul\0byte", "long" * 100, "a/" * 3000, "/proc/run", "loop", "/"])
def test_a_folder_that_cannot_be_made_is_one_line(name, small, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=r"^(cannot write )?run folder"):
        RunFolder.create(tmp_path / name, small())


def test_a_folder_goes_to_one_of_two_runs_that_found_it_empty(small, tmp_path, monkeypatch):
    from repro.records import run_folder

    monkeypatch.setattr(run_folder, "unused", lambda path: path)  # both looked before either wrote
    RunFolder.create(tmp_path / "run", small(name="first"))
    with pytest.raises(InputError, match="exists; nothing is overwritten"):
        RunFolder.create(tmp_path / "run", small(name="second"))
    assert RunFolder.open(tmp_path / "run").recipe().name == "first"


def test_a_folder_on_a_full_disk_leaves_nothing(small, tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "set_status", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        RunFolder.create(tmp_path / "run", small())
    assert not list(tmp_path.iterdir())


def test_a_full_disk_still_learns_how_the_run_ended(small, tmp_path, monkeypatch):
    from repro.records import run_folder

    folder = RunFolder.create(tmp_path / "run", small())
    folder.set_status("running", ranks=4, note="x" * 500)
    monkeypatch.setattr(run_folder, "write_json", full_disk)
    folder.set_status("failed", "rank 3 failed")
    assert folder.status()["reason"] == "rank 3 failed"


def full_disk(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_two_runs_in_one_second_get_two_folders(small, tmp_path):
    first = default_path("tiny", tmp_path)
    first.mkdir(parents=True)
    assert default_path("tiny", tmp_path) != first


def test_a_torn_row_costs_itself_only(small, tmp_path):
    folder = RunFolder.create(tmp_path / "run", small())
    folder.append_metrics({"step": 0, "loss": 1.0})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "lo')
    assert [r["step"] for r in folder.metrics()] == [0]
    folder.append_metrics({"step": 1, "loss": float("nan")})
    assert folder.metrics() == [{"step": 0, "loss": 1.0}, {"step": 1, "loss": None}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("status.json", b""),
        ("status.json", b'{"state": "comp'),
        ("status.json", b"[]"),
        ("status.json", b'{"state": "done"}'),
        ("status.json", b"\xff\xfe"),
        ("recipe.toml", b""),
        ("recipe.toml", b"\xff"),
        ("environment.json", b"[1]"),
        ("environment.json", b"[" * 100_000),
        ("metrics.jsonl", b"5\n"),
        ("metrics.jsonl", b'{"loss": 1.0}\n'),
        ("metrics.jsonl", b'{"step": "0"}\n'),
    ],
)
def test_a_broken_record_is_one_line_that_names_the_file(name, content, small, tmp_path):
    folder = RunFolder.create(tmp_path / "run", small())
    (folder.path / name).write_bytes(content)
    read = {
        "status.json": folder.status,
        "recipe.toml": folder.recipe,
        "environment.json": folder.environment,
        "metrics.jsonl": folder.metrics,
    }
    with pytest.raises(InputError) as error:
        read[name]()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("column", "value"),
    [("seconds", 0), ("seconds", -1), ("seconds", "x"), ("loss", float("nan")), ("loss", True), ("warmup", "no")],
)
def test_no_number_is_shown_of_a_row_that_cannot_be(column, value, small):
    good = row(small())
    assert checked([good, {**good, "loss": None}])
    with pytest.raises(InputError, match=f"step 5 are broken: {column}"):
        checked([{**good, column: value}])
    with pytest.raises(InputError, match=f"{column} is None"):
        checked([{k: v for k, v in good.items() if k != column}])


def test_the_record_is_json_whatever_the_numbers(small, tmp_path):
    folder = RunFolder.create(tmp_path / "run", small())
    folder.set_status("completed", summary={"last_loss": float("nan")}, peaks=[float("inf"), 1])
    assert "NaN" not in (folder.path / "status.json").read_text()
    assert (folder.status()["summary"], folder.status()["peaks"]) == ({"last_loss": None}, [None, 1])


def test_means_are_withheld_where_the_record_has_gaps(small):
    rows = [row(small(), step=n) for n in range(2, 8)]
    assert summarize(rows)["throughput_invalid"] is None
    assert summarize(rows[:2] + rows[3:])["throughput_invalid"] == "1 steps are missing from the record"
    assert summarize(rows + rows)["throughput_invalid"] == "6 steps stand twice in the record"
    assert summarize(rows + rows)["seconds"] is None


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "status.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new \udcff")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_throughput_of_the_papers_headline(small):
    """175B on 128 GCDs: the seconds that 69.2 TFLOP/s take give 36.1 % of one GCD's peak."""
    from repro.recipe import load

    recipe, gcd = load("175b"), devices.get("mi250x-gcd")
    seconds = flops.hardware_flops(recipe) / (69.2e12 * recipe.world_size)
    found = row(recipe, gcd, seconds=seconds)
    assert found["hardware_tflops"] == pytest.approx(69.2)
    assert found["hfu"] == pytest.approx(0.3614, abs=5e-5)
    assert found["model_tflops"] / found["hardware_tflops"] == pytest.approx(0.752, abs=2e-3)
    assert found["tokens_per_second"] == pytest.approx(640 * 2048 / seconds)


def test_no_peak_no_percentage(small):
    assert row(small())["hfu"] is None
    assert row(small(), devices.get("mi250x-gcd"))["mfu"] is None, "fp32 has no peak in the table"


def test_summary_leaves_warmup_out_and_weighs_by_time(small):
    recipe = small(timing_warmup=2)
    rows = [row(recipe, step=n, seconds=s) for n, s in enumerate([50.0, 40.0, 1.0, 3.0])]
    found = summarize(rows)
    assert found["timed_steps"] == 2
    assert found["seconds"] == 2.0
    assert found["hardware_tflops"] == pytest.approx(2 * flops.hardware_flops(recipe) / 4.0 / 1e12)


def test_skipped_timed_steps_invalidate_the_throughput(small):
    recipe = small(timing_warmup=1)
    rows = [row(recipe, step=n, skipped=n < 2) for n in range(4)]
    found = summarize(rows)
    assert found["seconds"] is None
    assert found["throughput_invalid"] == "1 of 3 timed steps were skipped for overflow (first: step 1)"
    assert summarize(rows[:1])["throughput_invalid"] == "no step beyond the warm-up"
    assert summarize([])["last_loss"] is None


def test_environment_keeps_what_matters_and_no_secret():
    found = describe({"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "secret", "FI_CXI_ATS": "0", "HOME": "/home/x"})
    assert found["variables"] == {"FI_CXI_ATS": "0", "NCCL_DEBUG": "INFO"}
    assert found["versions"]["torch"]
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H200", "h200"),
        ("cpu", None),
        ("MI999", None),
    ],
)
def test_devices_are_recognised_or_not_at_all(reported, name):
    found = devices.recognise(reported)
    assert (found.name if found else None) == name


def test_an_unknown_device_is_an_error_and_a_gcd_is_not_a_card():
    with pytest.raises(InputError, match="unknown device 'MI999'"):
        devices.get("MI999")
    assert devices.get("mi250x-gcd").peak("fp16") == 191.5
    assert all(device.source for device in devices.known().values())
