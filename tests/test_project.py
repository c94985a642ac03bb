"""The files around the package: dependencies are written in three places and must not drift apart."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS["tune"]]


def by_name(lines):
    found = [Requirement(line) for line in lines]
    names = [canonicalize_name(r.name) for r in found]
    assert len(names) == len(set(names)), "a name stands twice"
    return dict(zip(names, found, strict=True))


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return by_name(line for line in lines if line and not line.startswith("#"))


def conda():
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def conda_pip():
    (section,) = [entry["pip"] for entry in conda()["dependencies"] if isinstance(entry, dict)]
    return [line for line in section if not line.startswith("--")]


def version_of(pin):
    (specifier,) = pin.specifier
    assert specifier.operator == "==", f"{pin} is no exact pin"
    assert "*" not in specifier.version, f"{pin} is no exact pin"
    return Version(specifier.version)


def test_every_constraint_is_an_exact_pin():
    for pin in pins().values():
        version_of(pin)
        assert not pin.url


@pytest.mark.parametrize("wanted", WANTED)
def test_constraints_satisfy_pyproject(wanted):
    requirement = Requirement(wanted)
    pin = pins().get(canonicalize_name(requirement.name))
    assert pin, f"{requirement.name} is not pinned"
    assert requirement.specifier.contains(version_of(pin))


def test_constraints_hold_no_path_and_not_the_project():
    text = (ROOT / "constraints.txt").read_text()
    assert canonicalize_name(PROJECT["name"]) not in pins()
    assert not re.search(r"file:|https?:|^-e|^-r", text, re.MULTILINE)


def test_torch_is_pinned_without_a_build_label():
    assert str(pins()["torch"].specifier) == "==2.13.0"


@pytest.mark.parametrize("wanted", WANTED)
def test_installed_versions_satisfy_pyproject(wanted):
    requirement = Requirement(wanted)
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        assert wanted not in PROJECT["dependencies"], f"{wanted} is not installed"
        pytest.skip(f"{requirement.name} is not installed")
    assert requirement.specifier.contains(installed)


def test_conda_environment_names_what_pyproject_names():
    assert set(by_name(conda_pip())) == set(by_name(WANTED))


@pytest.mark.parametrize("wanted", WANTED)
def test_conda_environment_has_the_bounds_of_pyproject(wanted):
    requirement = Requirement(wanted)
    here = by_name(conda_pip())[canonicalize_name(requirement.name)]
    if requirement.name == "torch":
        assert requirement.specifier.contains(version_of(here))
    else:
        assert here.specifier == requirement.specifier


def test_conda_torch_can_only_be_the_rocm_build():
    torch = by_name(conda_pip())["torch"]
    assert version_of(torch).local.startswith("rocm")


def test_conda_python_is_allowed():
    (python,) = [d for d in conda()["dependencies"] if isinstance(d, str) and d.startswith("python=")]
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python.partition("=")[2] + ".0")


def test_recipes_and_machines_are_shipped_in_the_wheel():
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["repro"]
    package = ROOT / "repro"
    kept = {path for pattern in shipped for path in package.glob(pattern)}
    data = {p for p in package.rglob("*") if p.suffix in {".toml", ".csv"}}
    assert data <= kept


def test_every_folder_of_code_is_a_package():
    for path in (ROOT / "repro").rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), path


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert paper["doi"].endswith("2312.12705")
    assert paper["title"] in PROJECT["description"]
    assert len(paper["authors"]) == 8
    assert paper["authors"][0] == {"given-names": "Sajal", "family-names": "Dash"}
