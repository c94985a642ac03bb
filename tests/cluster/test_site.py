"""Sites as data: what is shipped says what its sources say, what a user adds is checked."""

import re
from pathlib import Path

import pytest

from repro.cluster.site import load_site, names
from repro.errors import InputError

# As printed: Frontier user guide (NUMA note and example), LUMI-AI-Guide ch. 5 and rocm-smi on LUMI-G.
FRONTIER = ["4 1-7 0", "5 9-15 0", "2 17-23 1", "3 25-31 1", "6 33-39 2", "7 41-47 2", "0 49-55 3", "1 57-63 3"]
LUMI_MASKS = (
    "0x00fe000000000000,0xfe00000000000000,0x0000000000fe0000,0x00000000fe000000,"
    "0x00000000000000fe,0x000000000000fe00,0x000000fe00000000,0x0000fe0000000000"
)
LUMI_NUMA = {0: 3, 1: 3, 2: 1, 3: 1, 4: 0, 5: 0, 6: 2, 7: 2}
SMALL = """\
name = "mine"
title = "My cluster"
date = "2026-01-01"
{more}
[node]
tasks = 4
cores_per_task = 2
usable_cores = 8
visible_gpus = 4
source = "its guide"
binding = {binding}
[[partitions]]
name = "batch"
max_nodes = 4
hours = 1
source = "its guide"
{parts}
"""
BINDING = [f'{{ local_rank = {r}, gpu = {r}, cores = "{2 * r}-{2 * r + 1}", numa = 0 }}' for r in range(4)]
VARIABLE = '[[variables]]\nname = "{}"\nvalue = "1"\nmeaning = "m"\nsource = "s"\ndate = "2026-01-01"\n'
RUNG = '[[ladder]]\nnumber = 1\ntitle = "t"\nwhy = "w"\nsource = "s"\n'
PAIR = '[[pairs]]\nname = "p"\nsbatch_option = "--network=x"\nwhy = "w"\nsource = "s"\n'
BIN = '[[partitions]]\nhours = 1\nsource = "s"\n'
UNSET = '[[unset]]\nname = "A"\nwhy = "w"\nsource = "s"\n'


def mine(folder, more="", parts="", binding=BINDING):
    path = folder / "mine.toml"
    path.write_text(SMALL.format(more=more, parts=parts, binding=f"[{', '.join(binding)}]"))
    return path


def test_the_shipped_sites():
    assert names() == ["frontier", "frontier-paper-2023", "generic-slurm", "lumi"]
    assert [name for name in names() if not load_site(name).runnable] == ["frontier-paper-2023"]


def test_frontier_binds_as_its_guide_prints():
    rows = load_site("frontier").node.binding
    assert [f"{row.gpu} {row.cores} {row.numa}" for row in rows] == FRONTIER
    assert {row.nic: row.numa for row in rows} == {"hsn2": 0, "hsn1": 1, "hsn3": 2, "hsn0": 3}


def test_lumi_binds_by_the_masks_of_its_guide():
    rows = load_site("lumi").node.binding
    assert [int(row.mask, 16) for row in rows] == [int(mask, 16) for mask in LUMI_MASKS.split(",")]
    assert {row.gpu: row.numa for row in rows} == LUMI_NUMA and [row.gpu for row in rows] == list(range(8))


@pytest.mark.parametrize(
    "nodes, hours", [(1, 2), (91, 2), (92, 6), (183, 6), (184, 12), (1881, 12), (1882, 12), (5645, 12), (9472, 12)]
)
def test_frontiers_bins(nodes, hours):
    assert [p.hours for p in load_site("frontier").bins(nodes, "batch")] == [hours]


def test_frontier_has_no_bin_for_more_than_its_largest():
    assert load_site("frontier").bins(9473, "batch") == []


@pytest.mark.parametrize(
    "module, gone",
    [
        ("rocm/5.4.0", True),
        ("rocm/6.2.4", False),
        ("rocm/7.1.1", False),
        ("cpe/23.12", True),
        ("cpe/24.11", False),
        ("gcc/11.2.0", True),
        ("gcc/13.3.0", False),
        ("gcc-native/14.2", False),
        ("cray-mpich/8.1.28", True),
        ("cray-mpich/8.1.31", False),
        ("cray-mpich/9.1.0", False),
        ("libfabric/1.15.2.0", True),
        ("/opt/cray/libfabric/1.22.0/lib64", True),
        ("libfabric/2.3.1", False),
    ],
)
def test_what_frontier_removed(module, gone):
    assert any(re.search(one.pattern, module) for one in load_site("frontier").removed) == gone


def test_no_shipped_site_loads_what_it_removed():
    for site in map(load_site, names()):
        for module in site.modules:
            found = [one.why for one in site.removed if re.search(one.pattern, module.name)]
            assert not found, module.name
    removed = load_site("frontier").removed
    old = [m.name for m in load_site("frontier-paper-2023").modules]
    assert all(any(re.search(one.pattern, name) for one in removed) for name in old), "why it cannot run"


def test_frontiers_toolchain_is_a_pair_that_the_site_supports():
    chain = load_site("frontier").toolchain
    rocm = chain.rocm.rpartition(".")[0]
    assert (chain.cpe, rocm) in chain.pairs and chain.wheel == f"rocm{rocm}"
    assert f"rocm/{chain.rocm}" in [m.name for m in load_site("frontier").modules]


def test_a_user_adds_a_site_with_one_file(tmp_path):
    site = load_site(mine(tmp_path))
    assert site.name == "mine" and site.node.binding[3].mask == "0xc0"


def test_a_site_varies_another(tmp_path):
    path = tmp_path / "near.toml"
    path.write_text('extends = "frontier"\nname = "near"\nport = "job"\n[local_storage]\nunpack_cores = 8\n')
    site, frontier = load_site(path), load_site("frontier")
    assert (site.name, site.port, site.local_storage.unpack_cores) == ("near", "job", 8)
    assert site.local_storage.path == frontier.local_storage.path and site.variables == frontier.variables


def test_a_site_varies_one_beside_it(tmp_path, monkeypatch):
    mine(tmp_path)
    (tmp_path / "other.toml").write_text('extends = "mine.toml"\nname = "other"\n')
    monkeypatch.chdir("/")
    assert load_site(tmp_path / "other.toml").title == "My cluster"


@pytest.mark.parametrize("text", ['extends = "a.toml"', 'extends = "../{}/a.toml"', 'extends = "b.toml"'])
def test_a_site_that_extends_itself(tmp_path, text):
    (tmp_path / "a.toml").write_text(text.format(tmp_path.name))
    (tmp_path / "b.toml").write_text('extends = "a.toml"')
    with pytest.raises(InputError, match="extends itself"):
        load_site(tmp_path / "a.toml")


@pytest.mark.parametrize(
    "name, words",
    [
        ("fronteir", "did you mean 'frontier'"),
        ("LUMI", "did you mean 'lumi'"),
        ("none/of.toml", "does not exist; known sites: frontier"),
        ("", "unknown site ''"),
    ],
)
def test_unknown_sites(name, words):
    with pytest.raises(InputError, match=words):
        load_site(name)


def test_an_unknown_base(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('extends = "fronteir"')
    with pytest.raises(InputError, match="did you mean 'frontier'"):
        load_site(path)


@pytest.mark.parametrize(
    "more, parts, words",
    [
        ('acount_required = true', "", "unknown key 'acount_required'; did you mean 'account_required'"),
        ("", "min_node = 1", "unknown key 'min_node'; did you mean 'min_nodes'"),
        ('machine = "forntier"', "", "unknown machine 'forntier'; did you mean 'frontier'"),
        ("port = 80", "", "1024 to 65535"),
        ("runnable = false", "", "why_not"),
        ('environment = "packed"', "", "needs local_storage"),
        ('environment = "container"', "", "needs container"),
        ('account_pattern = "["', "", "account_pattern is no regular expression"),
        ('srun = ["-c", "{core}"]', "", "unknown place 'core'; did you mean 'cores'"),
        ('srun = ["-c; reboot"]', "", "srun.0"),
        ('why_not = "two\\nlines"', "", "why_not"),
        ("", "chain = 1", "partitions.0.chain"),
        ("", BIN + 'name = "batch"\nmin_nodes = 4\nmax_nodes = 9', "twice for 4 nodes"),
        ("", BIN + 'name = "x"\nmin_nodes = 4\nmax_nodes = 3', "takes 4 to 3 nodes"),
        ("", VARIABLE.format("A") + VARIABLE.format("A"), "set A twice"),
        ("", VARIABLE.format("A") + UNSET, "A is set and in unset"),
        ("", VARIABLE.format("MASTER_ADDR"), "MASTER_ADDR follows from the job"),
        ("", VARIABLE.format("A") + 'pair = "q"\n' + PAIR, "unknown pair 'q'"),
        ("", PAIR, "pair p has no variable"),
        ('sbatch = ["--network=x"]', VARIABLE.format("A") + 'pair = "p"\n' + PAIR, "only come with the pair"),
        ("", VARIABLE.format("NCCL_NET") + RUNG + 'drop = ["NCCL_NTE"]', "'NCCL_NTE'; did you mean 'NCCL_NET'"),
        ("", VARIABLE.format("A") + 'pair = "p"\n' + PAIR + RUNG + 'drop = ["A"]', "goes with its pair"),
        ("", VARIABLE.format("A") + 'pair = "p"\n' + PAIR + RUNG + 'drop_pairs = ["p"]\nset = { A = "2" }', "dropped"),
        ("", UNSET + RUNG + 'set = { A = "1" }', "must stay unset"),
        ("", RUNG.replace("1", "2", 1), "count its rungs from 1"),
        ("", '[[removed]]\npattern = "("\nwhy = "w"\nsource = "s"', "no regular expression"),
        ("", VARIABLE.format("A").replace('"s"', '""'), "source"),
        ("", VARIABLE.format("A").replace("2026-01-01", "soon"), "date"),
        ("", VARIABLE.format("A B"), "variables.0.name"),
    ],
)  # fmt: skip
def test_a_site_that_contradicts_itself_is_refused_in_one_line(tmp_path, more, parts, words):
    with pytest.raises(InputError, match=words) as refused:
        load_site(mine(tmp_path, more, parts))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "row, text, words",
    [
        (3, '{ local_rank = 3, gpu = 3, cores = "0-1", numa = 0 }', "a core to two ranks"),
        (3, '{ local_rank = 3, gpu = 2, cores = "6-7", numa = 0 }', "a GPU to two ranks"),
        (3, '{ local_rank = 3, gpu = 3, cores = "6-8", numa = 0 }', "cores_per_task = 2"),
        (3, '{ local_rank = 3, gpu = 3, cores = "7-6", numa = 0 }', "cores 7-6"),
        (3, '{ local_rank = 4, gpu = 3, cores = "6-7", numa = 0 }', "local ranks 0 to 3"),
    ],
)
def test_a_binding_gives_each_rank_its_own(tmp_path, row, text, words):
    rows = [*BINDING[:row], text]
    with pytest.raises(InputError, match=words):
        load_site(mine(tmp_path, binding=rows))
    with pytest.raises(InputError, match="local ranks 0 to 3"):
        load_site(mine(tmp_path, binding=BINDING[:3]))


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"x" * 300_000])
def test_broken_files(tmp_path, content):
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read|larger than"):
        load_site(path)


def test_the_example_for_users_is_whole():
    text = (Path(__file__).parents[2] / "repro" / "cluster" / "sites" / "generic-slurm.toml").read_text()
    assert "extends" in text.splitlines()[0]
