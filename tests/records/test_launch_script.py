"""The reader of scripts against bash itself: what it says is known is what bash sets, and it runs nothing."""

import json
import random
import shutil
import subprocess

import pytest

from repro.errors import InputError
from repro.records import deepspeed_json, launch_script

SNIPPETS = {
    "plain": "A=1; B=two\nC='three $A'\nD=\"four $A\"\nE=$A$B",
    "export": "export A=1 B='x y' C=\"$A-2\"\nexport -n Z\ndeclare -x D=4",
    "defaults": "A=${NONE_SET:-7}\nB=${A:-8}\nC=${D:=9}\nE=$D\nF=${A:+yes}\nG=${NONE_SET:+no}\nH=${NONE_SET-${A}x}",
    "sums": "N=16\nA=$((N*8))\nB=$(( $N * 8 + 1 ))\nC=$((-7/2))\nD=$((-7%3))\nE=$(( (N+1) * 2 ))\nF=${X:-$((N+N))}",
    "append": "A=a\nA+=b\nB=(1 2)\nB+=(3 '4 5')\nC=\"${B[@]}\"\nD=${B[1]}",
    "continued": 'A=1\\\n2\nOPTS=" --one 1 \\\n  --two 2"\nB="x\ny"',
    "branches": "A=1\nif true; then B=2; A=1; else B=2; fi\nwhile false; do C=1; done\n( A=5 )\n{ D=6; }",
    "case": "A=x\ncase $A in\n x|y) B=1 ;;\n *) B=1 ;;\nesac\nC=$B",
    "quotes": "A='it''s'\nB=\"a\\\"b\\$c\"\nC=a\\ b\nD=$'tab'\nE=\"\"\nF=''",
    "comments": "A=1 # one\n# B=2\nC='#3'\nD=a#4",
    "unset": "A=1\nB=2\nunset A\nC=${A:-gone}",
    "functions": "f() { X=1; }\nf\nfunction g { Y=2; }\ng\nA=$X$Y",
    "here": "cat > /dev/null <<EOF\nA=9\nEOF\nA=1\ncat > /dev/null <<-'END'\n\tB=2\n\tEND\nB=3",
    "eval": 'C=5\neval "A=1; B=$C"',
    "and": "true && A=1\nB=2 && C=3",
    "loop": "for i in 1 2 3; do A=5; done",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to compare with")
@pytest.mark.parametrize("name", SNIPPETS)
def test_what_is_known_is_what_bash_sets(name, tmp_path):
    text = SNIPPETS[name]
    variables = "ABCDEFGH"
    show = "".join(f'\nprintf "%s\\0" "${{{v}[*]-}}"' for v in variables)
    done = subprocess.run(["bash", "-c", text + show], capture_output=True, text=True, timeout=20, env={}, check=True)
    bash = dict(zip(variables, done.stdout.split("\0"), strict=False))
    seen = {v: last(text, f"{v}[*]", quoted=True) for v in variables}
    known = {v: value.text for v, value in seen.items() if value.known}
    assert known
    assert known == {v: bash[v] for v in known}


def last(text, name, quoted=False):
    """What the variable holds at the end, as another command would see it."""
    mark = '"' if quoted else ""
    *_, command = launch_script.parse(f"{text}\necho {mark}${{{name}}}{mark}", "x").commands
    return command.words[1]


@pytest.mark.parametrize(
    "text",
    [
        "A=$(hostname)",
        "A=$1",
        "A=$OTHER",
        "A=${SLURM_NNODES:-1}",
        "A=1\nif [ -e x ]; then A=2; fi",
        "A=1\n[ -e x ] && A=2",
        "grep -q x y || A=2",
        "read A",
        "A=$((OTHER*8))",
        "A=${B%.*}",
        "A=$((1<<40))",
        "while read x; do A=3; done",
        "A=1\nA+=$OTHER",
    ],
)
def test_what_only_a_run_tells_stays_unknown(text):
    assert not last(text, "A").known


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "mark"
    launch_script.parse(
        f"touch {mark}\nA=$(touch {mark})\nB=`touch {mark}`\neval 'touch {mark}'\ncat <<E\n$(touch {mark})\nE", "x"
    )
    assert not mark.exists()


def test_steps_and_their_inner_commands():
    script = launch_script.parse(
        "N=4\nfor i in {1..3}; do srun -N $N hostname & done\nfor i in $(seq 2 5); do srun x; done\n"
        'srun bash -c "export LOCAL_RANK=\\$SLURM_LOCALID; python a.py --b $N"\nsbcast a b || exit 1\n',
        "job.sh",
    )
    by_name = {command.name: command for command in script.commands}
    assert [c.times for c in script.commands if c.name == "srun"] == [3, 4, 1]
    assert [w.text for w in by_name["python"].words] == ["python", "a.py", "--b", "4"]
    assert by_name["python"].task and not by_name["srun"].task
    assert by_name["python"].where == "job.sh:4"
    assert script.settings["LOCAL_RANK"][0].task
    assert by_name["sbcast"].after == "||"


def test_a_file_beside_the_script_is_read_where_it_is_sourced(tmp_path):
    (tmp_path / "env.sh").write_text("export FROM_FILE=1\n")
    (tmp_path / "job.sh").write_text(
        "source env.sh\nsource missing.sh\nsource /x/bin/activate\necho $FROM_FILE\nsource job.sh\n"
    )
    script = launch_script.read(tmp_path / "job.sh")
    assert script.settings["FROM_FILE"][0].where == "env.sh:1"
    assert "missing.sh" in script.sourced
    assert not any("activate" in name for name in script.sourced)


ALPHABET = [*"\"'`$(){}[]\\\n;&|<>#= aA1-@*!:", "$((", "${", "<<EOF\n", "[[ ", "if ", "fi\n", "case x in", "esac",
            "for i in", "do\n", "done\n", "bash -c '", "eval ", "source x\n", "A+=(", "${A[@]}", "{1..9}", "\r\n",
            "\x1c", "\u00a0"]  # fmt: skip


def test_mutated_scripts_are_read_or_refused():
    base = "\n".join(SNIPPETS.values())
    for seed in range(400):
        dice = random.Random(seed)
        text = list(base)
        for _ in range(dice.randint(1, 40)):
            place = dice.randrange(len(text) + 1)
            if dice.random() < 0.6:
                text[place:place] = [dice.choice(ALPHABET)]
            else:
                del text[place : place + dice.randint(1, 20)]
        try:
            launch_script.parse("".join(text), "x")
        except InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "text", ["$(" * 9000, '"${X:-' * 9000, "if \n" * 9000, "X=(a a)\n" + 'X=("${X[@]}" "${X[@]}")\n' * 900]
)
def test_hostile_scripts_end(text):
    try:
        launch_script.parse(text, "x")
    except InputError as error:
        assert len(str(error)) < 200


def test_no_script(tmp_path):
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "large").write_bytes(b"a\n" * 2**18)
    for wrong, told in (
        ("binary", "is a binary file"),
        ("large", "MiB; the most is"),
        ("none", "no such file"),
        (".", "a folder"),
    ):
        with pytest.raises(InputError, match=told):
            launch_script.read(tmp_path / wrong)


def test_settings_of_a_deepspeed_json():
    found = deepspeed_json.settings(json.loads('{"train_batch_size": "auto", "fp16": {"enabled": true}}'))
    assert found == {"micro": None, "batch": None, "accumulation": None, "clip": 0.0, "zero": 0, "precision": "fp16"}
    assert deepspeed_json.settings({"gradient_clipping": "auto"})["clip"] is None
