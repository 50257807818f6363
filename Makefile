# Everything from a fresh clone with Python >= 3.11, pip and make: `make demo` renders a clip, `make test` passes the tests.
# Installs go into .venv; the stamp files in it make a second call fast.

PYTHON ?= python3
DIR ?= tests/goldens
BIN := .venv/bin
# The calling Python's pip serves .venv, so that a Python without ensurepip is enough.
PIP := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check
PROMPT := a red circle moves right, low tone
POCKET_SECONDS ?= 550
TESTS := $(BIN)/pytest -n logical --maxprocesses 8 --dist worksteal

.PHONY: demo pocket test coverage lint goldens
.DELETE_ON_ERROR:

demo: .venv/installed  ## render a clip with the built-in model and say where it is
	rm -rf demo
	$(BIN)/shotclock render "$(PROMPT)" --run demo
	@echo "look at $(CURDIR)/demo/clip.mp4: a red circle that moves right over a low tone; demo/sheet.png: its frames, sound and verdict at a glance; demo/verdict.json: the numbers"

pocket: .venv/installed  ## train the pocket model end to end, on a GPU: three stages of POCKET_SECONDS, files in build/pocket
	sh pocket/train_all.sh all build/pocket $(POCKET_SECONDS) $(BIN)/python

test: lint  ## lint, types, import contracts, then the tests
	$(TESTS)

coverage: .venv/installed-dev  ## the tests, and the lines that none of them reaches: half as long again
	$(TESTS) --cov --cov-report term-missing:skip-covered

lint: .venv/installed-dev
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

goldens: .venv/installed-dev  ## run every golden case of a folder: make goldens DIR=tests/goldens
	PYTHONPATH=tests $(BIN)/python tests/parity/goldens.py $(DIR)

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shotclock needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv || $(PYTHON) -m venv --without-pip .venv
	@touch $@

# torch first and alone: by far the largest download, not repeated when pyproject.toml changes.
.venv/installed-torch: constraints.txt | .venv/created
	$(PIP) install -c constraints.txt torch==2.13.0
	@touch $@

.venv/installed: pyproject.toml constraints.txt .venv/installed-torch
	$(PIP) install -c constraints.txt -e .
	@touch $@

.venv/installed-dev: .venv/installed
	$(PIP) install -c constraints.txt -e '.[dev,report,slurm]'
	@touch $@
