# Every target makes .venv itself when it is missing or older than its pins.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help reproduce test lint lab clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' Makefile | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Python 3.11 or newer is needed, $(PYTHON) is {v[0]}.{v[1]}; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS) --editable '.[dev]'
	touch $(READY)

reproduce: $(READY)  ## run the paper's notebooks at local scale; figures and a list of what lies where
	$(BIN)/repro reproduce

test: $(READY)  ## all tests
	$(BIN)/python -m pytest

lint: $(READY)  ## ruff, notebooks included
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lab: $(READY)  ## open the notebooks
	$(BIN)/jupyter lab notebooks

clean:  ## the virtual environment and caches; runs and figures stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis *.egg-info
