"""Machine profiles: what the shipped ones hold, and what every broken one is told."""

import copy
import tomllib
from math import exp, inf, log

import numpy as np
import pytest
import tomli_w

from repro.errors import InputError
from repro.projection import step
from repro.projection.machine import CONSTANTS, FOLDER, KINDS, OPERATION, Constant, load, names

SHIPPED = names()
FRONTIER = tomllib.loads((FOLDER / "frontier.toml").read_text())
NOTHING = object()  # the field is taken away


@pytest.fixture
def profile(tmp_path):
    """Writes Frontier's profile with changed fields, named by dotted paths, and returns its path."""

    def write(changes):
        data = copy.deepcopy(FRONTIER)
        for path, value in changes.items():
            *tables, leaf = path.split(".")
            place = data
            for table in tables:
                place = place[table]
            if value is NOTHING:
                del place[leaf]
            else:
                place[leaf] = value
        file = tmp_path / "mine.toml"
        file.write_text(tomli_w.dumps(data), "utf-8")
        return file

    return write


def refusal(name):
    with pytest.raises(InputError) as refused:
        load(name)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_the_papers_machine_and_those_of_the_validation_are_shipped():
    assert {"frontier", "lumi", "a100-selene", "a100-jeanzay", "h200"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_of_a_shipped_machine_has_a_source(name):
    found = load(name)
    assert set(found.constants) == set(CONSTANTS)
    assert set(found.operation) == set(OPERATION)
    for constant in (*found.constants.values(), *found.operation.values()):
        assert constant.low <= constant.value <= constant.high
        assert constant.kind in KINDS
        assert len(constant.source.split()) >= 2
    links = {"links_source"} if found.links else {"switch_source"}
    assert set(found.sources) == {"order_source", "nic_source"} | links
    assert all(found.sources.values())
    assert found.device.peak("bf16") > 0 and found.device.memory_bandwidth_gbytes > 0
    assert found.device.source


@pytest.mark.parametrize("name", SHIPPED)
def test_a_calibration_names_constants_that_have_a_range(name):
    found = load(name)
    for constant in found.calibration.get("constants", ()):
        assert found.constants[constant].low < found.constants[constant].high


def test_frontier_is_what_the_user_guide_says():
    found = load("frontier")
    assert found.devices_per_node == 8
    assert found.node_gbytes == 100
    assert found.order == (4, 5, 2, 3, 6, 7, 0, 1)
    assert found.links[0, 1] == found.links[1, 0] == 200
    assert found.device.memory_gib == 64
    # no direct links but these: GCDs of a module 4, two pairs 2, six pairs 1 of 50 GB/s
    assert sorted(found.links.values()) == [50] * 12 + [100] * 4 + [200] * 8


def test_lumi_differs_from_frontier_in_the_order_and_in_what_its_site_pays():
    one, other = load("frontier"), load("lumi")
    assert one.links == other.links and one.order != other.order
    assert (one.nics, one.nic_gbytes, one.device) == (other.nics, other.nic_gbytes, other.device)


def test_there_is_no_default():
    with pytest.raises(TypeError):
        load()
    assert "known: a100-jeanzay, " in refusal("")
    assert refusal(None).startswith("unknown machine 'None'; ")


@pytest.mark.parametrize(
    ("name", "told"),
    [("frontiers", "did you mean 'frontier'?"), ("Lumi", "did you mean 'lumi'?"), ("devices", "known: a100-jeanzay, ")],
)
def test_an_unknown_name_is_told_the_known_ones(name, told):
    assert told in refusal(name)


def test_a_file_of_ones_own_is_a_machine(profile):
    found = load(profile({"title": "my cluster"}))
    assert (found.name, found.title) == ("mine", "my cluster")
    assert found.constants == load("frontier").constants
    assert load(found) is found


CONSTANT = "constants.gemm_ceiling"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        # a constant
        ({CONSTANT: NOTHING}, "constants.gemm_ceiling is missing"),
        ({f"{CONSTANT}.value": NOTHING}, "constants.gemm_ceiling: value is missing"),
        ({CONSTANT: 0.69}, "constants.gemm_ceiling must be a table"),
        ({f"{CONSTANT}.value": -0.5}, "constants.gemm_ceiling: value = -0.5 must be above 0"),
        ({f"{CONSTANT}.value": 0}, "constants.gemm_ceiling: value = 0 must be above 0"),
        ({f"{CONSTANT}.high": 1.5}, "constants.gemm_ceiling: high = 1.5 must be above 0 and at most 1"),
        ({f"{CONSTANT}.value": float("nan")}, "constants.gemm_ceiling: value = nan: input should be a number"),
        ({f"{CONSTANT}.value": inf}, "constants.gemm_ceiling: value = inf: input should be a number"),
        ({f"{CONSTANT}.value": 10**400}, "constants.gemm_ceiling: value = 1000"),
        ({f"{CONSTANT}.value": "0.69"}, "constants.gemm_ceiling: value = '0.69': input should be a number"),
        ({f"{CONSTANT}.value": True}, "constants.gemm_ceiling: value = True: input should be a number"),
        ({f"{CONSTANT}.value": [0.69]}, "constants.gemm_ceiling: value = [0.69]: input should be a number"),
        ({f"{CONSTANT}.low": 0.7}, "constants.gemm_ceiling: value 0.69 is not between low 0.7 and high 0.77"),
        ({f"{CONSTANT}.high": 0.6}, "constants.gemm_ceiling: value 0.69 is not between low 0.6 and high 0.6"),
        ({f"{CONSTANT}.source": NOTHING}, "constants.gemm_ceiling names no source"),
        ({f"{CONSTANT}.source": " "}, "constants.gemm_ceiling names no source"),
        ({f"{CONSTANT}.source": []}, "constants.gemm_ceiling names no source"),
        ({f"{CONSTANT}.kind": "guessed"}, "unknown kind of constants.gemm_ceiling 'guessed'; did you mean "),
        ({f"{CONSTANT}.kind": NOTHING}, "unknown kind of constants.gemm_ceiling"),
        ({f"{CONSTANT}.hihg": 0.8}, "unknown field of constants.gemm_ceiling 'hihg'; did you mean 'high'?"),
        ({"constants.gemm_celing": 1}, "unknown field of constants 'gemm_celing'; did you mean 'gemm_ceiling'?"),
        ({"constants.hop_seconds.low": 0}, "constants.hop_seconds: low 0 of a range up to 8e-06"),
        ({"constants": NOTHING}, "table constants is missing"),
        ({"constants": 3}, "table constants is missing"),
        # operation
        ({"operation.pue.value": 0.9}, "operation.pue: value = 0.9 must be at least 1 and at most 10"),
        ({"operation.node_mtbf_hours.value": 0}, "operation.node_mtbf_hours: value = 0 must be above 0"),
        ({"operation.pue": NOTHING}, "operation.pue is missing"),
        ({"operation": NOTHING}, "table operation is missing"),
        # node
        ({"node": NOTHING}, "table node is missing"),
        ({"node.order": NOTHING}, "node.order None must name each device of a node once"),
        ({"node.order": [0, 1, 2, 3, 4, 5, 6, 6]}, "must name each device of a node once, from 0"),
        ({"node.order": [1, 2, 3, 4, 5, 6, 7, 8]}, "must name each device of a node once, from 0"),
        ({"node.order": ["0", "1"]}, "node.order ['0', '1'] must name each device"),
        ({"node.order": [False, True]}, "node.order [False, True] must name each device"),
        ({"node.order": []}, "node.order [] must name each device"),
        ({"node.order_source": NOTHING}, "node.order_source = None"),
        ({"node.links_source": ""}, "node.links_source = ''"),
        ({"node.nic_source": NOTHING}, "node.nic_source = None"),
        ({"node.nics": 0}, "node.nics = 0: input should be a whole number from 1"),
        ({"node.nics": 2.5}, "node.nics = 2.5: input should be a whole number"),
        ({"node.nics": True}, "node.nics = True: input should be a whole number"),
        ({"node.nics": 10**400}, "input should be a whole number"),
        ({"node.nics": NOTHING}, "node.nics = None: input should be a whole number"),
        ({"node.nic_gbytes": NOTHING}, "node: nic_gbytes is missing"),
        ({"node.nic_gbytes": 0}, "node: nic_gbytes = 0 must be above 0"),
        ({"node.nic_gbyte": 25}, "unknown field of node 'nic_gbyte'; did you mean 'nic_gbytes'?"),
        ({"node.links": [[0, 8, 50]]}, "node.links [0, 8, 50] must be [device, device, GB/s], devices 0 to 7"),
        ({"node.links": [[3, 3, 50]]}, "node.links [3, 3, 50] must be"),
        ({"node.links": [[0, 1]]}, "node.links [0, 1] must be"),
        ({"node.links": [[False, True, 50]]}, "node.links [False, True, 50] must be"),
        ({"node.links": [[0, 1, -50]]}, "node: links = -50 must be above 0"),
        ({"node.links": [[0, 1, "fast"]]}, "node: links = 'fast': input should be a number"),
        ({"node.links": [[0, 1, 50], [1, 0, 100]]}, "node.links [1, 0, 100] stands there twice"),
        ({"node.links": 50}, "node.links 50 must be"),
        ({"node.links": NOTHING}, "node has neither links nor switch_gbytes"),
        ({"node.switch_gbytes": 300, "node.switch_source": "a sheet"}, "node has both links and switch_gbytes"),
        ({"node.links": NOTHING, "node.switch_gbytes": -0.5}, "node: switch_gbytes = -0.5 must be at least 0"),
        ({"node.order": list(range(12))}, "node.links of 12 devices"),
        # the rest
        ({"device": "mi250x"}, "unknown device 'mi250x'; did you mean 'mi250x-gcd'?"),
        ({"device": NOTHING}, "unknown device ''; known: "),
        ({"device": ["h200"]}, "unknown device"),
        ({"devise": "h200"}, "unknown field 'devise'; did you mean 'device'?"),
        ({"calibration": 5}, "calibration must be a table"),
        ({"calibration.constants": ["gemm_celing"]}, "did you mean 'gemm_ceiling'?"),
        ({"calibration.points": "FR-22B-tflops"}, "calibration.points 'FR-22B-tflops' must be a list of names"),
    ],
)
def test_a_broken_profile_is_refused_by_file_and_place(profile, changes, told):
    text = refusal(profile(changes))
    assert text.startswith("machine mine.toml: ")
    assert told in text


def test_a_file_that_cannot_be_read(tmp_path):
    assert refusal(tmp_path / "none.toml") == "cannot read machine none.toml: No such file or directory"
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    assert refusal(folder).startswith("cannot read machine folder.toml: ")
    broken = tmp_path / "broken.toml"
    broken.write_text("[node\norder = 3\n")
    assert "line 1" in refusal(broken)
    broken.write_bytes(b"title = '\xff\xfe'\n")
    assert refusal(broken).startswith("cannot read machine broken.toml: ")
    broken.write_text("")
    assert refusal(broken) == "machine broken.toml: table node is missing"
    broken.write_text("a = " + "[" * 5000)
    assert refusal(broken).startswith("cannot read machine broken.toml: ")


def test_a_range_holds_nine_in_ten_and_bounds_hold_always():
    constant = Constant(0.6, 0.4, 1.0, "judged", "test")
    draws = np.random.default_rng(1).standard_normal(40_000)
    values = np.array([constant.at(z) for z in draws])
    assert constant.at(0) == 0.6
    assert np.mean(values < 0.4) == pytest.approx(0.05, abs=0.004)
    assert np.mean(values > 1.0) == pytest.approx(0.05, abs=0.004)
    # between low and value, half a side's width is the geometric mean
    assert constant.at(-1.6449 / 2) == pytest.approx(exp((log(0.6) + log(0.4)) / 2))
    given = step.constants(load("h200"), {"flash_forward": draws})
    assert given.flash_forward.max() == 1  # no share of the peak is more than all of it
    inside = given.flash_forward.ravel() < 1
    assert given.flash_forward.ravel()[inside] == pytest.approx(values[inside])  # the same constant for arrays


def test_a_constant_of_zero_stays_zero(profile):
    none = {f"constants.hop_seconds.{key}": 0.0 for key in ("value", "low", "high")}
    found = load(profile(none))
    assert found.constants["hop_seconds"].at(2.0) == 0


def test_with_constants_sets_and_checks():
    found = load("frontier").with_constants(gemm_ceiling=0.5)
    changed = found.constants["gemm_ceiling"]
    assert (changed.value, changed.low, changed.high, changed.kind) == (0.5, 0.5, 0.5, "fitted")
    assert load("frontier").constants["gemm_ceiling"].value == FRONTIER["constants"]["gemm_ceiling"]["value"]
    for name, value, told in (("gemm_celing", 0.5, "did you mean"), ("gemm_ceiling", 1.2, "at most 1")):
        with pytest.raises(InputError, match=told):
            load("frontier").with_constants(**{name: value})
