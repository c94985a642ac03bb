"""What a run reads from others cannot execute code or reach beyond its folder, and no shell reads a parameter."""

import ast
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

import repro
from repro.engine.checkpoint_io import safe_classes, safe_load
from repro.engine.data import dataset
from repro.errors import InputError
from repro.recipe import load
from repro.records import checkpoints
from repro.records.run_folder import RunFolder

ROOT = Path(repro.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
STARTERS = {"run", "Popen", "call", "check_call", "check_output"}
RUNS_CODE = {"eval", "exec", "compile", "__import__"}
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "code", "pty", "commands"}


class Evil:
    def __reduce__(self):
        return (os.system, ("touch executed",))


@pytest.fixture(autouse=True)
def nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.rglob("executed"))


def test_the_trap_of_these_tests_works():
    pickle.loads(pickle.dumps(Evil()))
    assert Path("executed").exists()
    Path("executed").unlink()


@pytest.mark.parametrize("text", [
    'steps = "__import__(\'os\').system(\'touch executed\')"',
    "steps = !!python/object/apply:os.system ['touch executed']",
    'extends = "$(touch executed)"',
    'extends = "tiny; touch executed"',
    'extends = "tiny"\nname = "`touch executed`"',
    'extends = "tiny"\n[data]\nkind = "megatron"\nprefix = "x\\u0000; touch executed"',
    "a = " + "[" * 100_000,
])  # fmt: skip
def test_a_recipe_is_data(text, tmp_path):
    (tmp_path / "evil.toml").write_text(text)
    try:
        recipe = load(str(tmp_path / "evil.toml"))
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert recipe.data.prefix.endswith("touch executed"), "a string, and nothing more"
        with pytest.raises(InputError):
            dataset(recipe)


def indices():
    import numpy as np

    array = np.array([Evil()], dtype=object)
    return {
        "pickle": lambda path: path.write_bytes(pickle.dumps(Evil())),
        "pickle behind the magic": lambda path: path.write_bytes(b"MMIDIDX\0\0" + pickle.dumps(Evil())),
        "npy": lambda path: np.save(path.open("wb"), array, allow_pickle=True),
        "torch": lambda path: __import__("torch").save(Evil(), path),
    }


@pytest.mark.parametrize("kind", ["pickle", "pickle behind the magic", "npy", "torch"])
@pytest.mark.parametrize("ending", [".idx", ".bin"])
def test_a_dataset_is_data(kind, ending, tmp_path):
    pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="the extra 'megatron'")
    for one in (".idx", ".bin"):
        (tmp_path / f"x{one}").write_bytes(bytes(1000))
    indices()[kind](tmp_path / f"x{ending}")
    with pytest.raises(InputError, match=r"\.idx file"):
        dataset(load("tiny", {"data.kind": "megatron", "data.prefix": str(tmp_path / "x")}))


@pytest.mark.parametrize("where", ["tensor", "optimizer", "deep"])
def test_a_checkpoint_file_is_data(where, tmp_path):
    import torch

    held = {"tensor": Evil(), "optimizer": {"state": {0: Evil()}}, "deep": [{"a": (1, [Evil()])}]}[where]
    torch.save({"weight": torch.ones(2), "more": held}, tmp_path / "x.pt")
    for options in ({}, {"mmap": True}):
        with pytest.raises(pickle.UnpicklingError):
            safe_load(tmp_path / "x.pt", **options)


def test_a_file_that_is_all_pickle_is_refused(tmp_path):
    (tmp_path / "x.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        safe_load(tmp_path / "x.pt")


def test_no_class_that_a_checkpoint_may_name_does_anything_when_it_is_made():
    for one in safe_classes():
        made = [name for name in ("__reduce__", "__reduce_ex__", "__setstate__", "__del__") if name in vars(one)]
        assert not set(made) - {"__reduce_ex__"}, f"{one} runs code when it is unpickled: {made}"


@pytest.mark.parametrize("text", [
    '{"state": "completed", "reason": {"__reduce__": ["os.system", "touch executed"]}}',
    '{"state": "$(touch executed)"}',
    '["completed"]',
    "[" * 100_000,
    "cos\nsystem\n(S'touch executed'\ntR.",
    "",
])  # fmt: skip
@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl", "environment.json", "starts.jsonl", "recipe.toml"])
def test_a_record_is_data(name, text, tmp_path):
    folder = RunFolder.create(tmp_path / "run", load("tiny"))
    (folder.path / name).write_text(text)
    for read in (folder.status, folder.metrics, folder.environment, folder.recipe):
        try:
            plain = json.loads(json.dumps(read(), default=str))
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert plain is not None


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "[]", '{"files": {"a": 1}}', '{"format": 1, "step": "4"}'])
def test_a_broken_manifest_is_one_line_and_no_checkpoint(text, tmp_path):
    folder = tmp_path / "checkpoints" / "step-000004"
    folder.mkdir(parents=True)
    (folder / checkpoints.MANIFEST).write_text(text)
    assert checkpoints.complete(tmp_path) == []
    [line] = checkpoints.broken(tmp_path)
    assert "step 4 passed over" in line and "\n" not in line and len(line) < 400


def test_pruning_does_not_follow_links_out_of_the_folder(tmp_path):
    archive = tmp_path / "archive"
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for step in (2, 4, 6):
        made = tmp_path / "run" / "checkpoints" / checkpoints.name_of(step)
        made.mkdir()
        (made / "weights.pt").write_bytes(b"weights")
        files = {"weights.pt": (7, checkpoints.checksum(made / "weights.pt"))}
        checkpoints.commit(tmp_path / "run", step, load("tiny"), files, {})
    shutil.move(tmp_path / "run" / "checkpoints" / "step-000002", archive)
    (tmp_path / "run" / "checkpoints" / "step-000002").symlink_to(archive)
    assert len(checkpoints.complete(tmp_path / "run")) == 3
    checkpoints.prune(tmp_path / "run", 1)
    assert [one.step for one in checkpoints.complete(tmp_path / "run")] == [6]
    assert checkpoints.open_checkpoint(archive).damaged() == [], "what was put away stays"


def calls():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(ROOT.parent)}:{node.lineno}", node, ast.unparse(node.func)


def test_the_sources_are_found():
    assert len(SOURCES) > 100
    assert sum(name == "subprocess.run" for _, _, name in calls()) >= 2


def test_no_shell_reads_a_string():
    for where, node, name in calls():
        options = {one.arg: one.value for one in node.keywords}
        assert name not in ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"), where
        assert "shell" not in options or ast.unparse(options["shell"]) == "False", f"{where}: a shell"
        if name.startswith("subprocess.") and name.split(".")[1] in STARTERS:
            first = node.args[0] if node.args else options["args"]
            assert is_list(first, where), f"{where}: {ast.unparse(first)} is no list of words"
            words = [ast.unparse(word) for word in getattr(first, "elts", ())]
            assert not {"'-c'", "'-lc'"} & set(words), f"{where}: words that a shell or Python would read as code"


def is_list(node, where):
    """Whether an expression is a list of words, or a name that is bound to one in the same file."""
    if isinstance(node, ast.List):
        return True
    if isinstance(node, ast.Name):
        tree = ast.parse((ROOT.parent / where.partition(":")[0]).read_text())
        bound = [one.value for one in ast.walk(tree) if isinstance(one, ast.Assign)
                 for target in one.targets if isinstance(target, ast.Name) and target.id == node.id]  # fmt: skip
        return bool(bound) and all(isinstance(value, ast.List) for value in bound)
    return False


def test_every_subprocess_has_a_deadline():
    for where, node, name in calls():
        if name.startswith("subprocess.") and name.split(".")[1] in STARTERS - {"Popen"}:
            assert any(one.arg == "timeout" for one in node.keywords), where


def test_nothing_that_is_read_is_executed():
    for where, node, name in calls():
        options = {one.arg: ast.unparse(one.value) for one in node.keywords}
        assert name not in RUNS_CODE, f"{where}: {name}"
        if name == "torch.load":
            assert options.get("weights_only") == "True", where
        assert options.get("allow_pickle", "False") == "False", where
        if name in ("np.load", "numpy.load", "np.fromfile"):
            assert "allow_pickle" in options or name == "np.fromfile", where
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & UNSAFE, f"{path}:{node.lineno}: {names}"
