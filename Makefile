# `make run` and `make test` do all the set-up themselves; nothing needs to be installed first but Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Two at once: many tests wait, for a timeout or for a process to start. Neighbours stay together, since they share
# what was prepared for them.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# Every test that starts an interpreter would compile the packages anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run quick test lint format bench clean

run: $(INSTALLED)
	$(BIN)/python run_cluster.py

# For the edit loop: the linters, and all tests that start no process. tests/process_guard.py knows which those are.
quick: $(INSTALLED) lint
	$(PYTEST) -m "not process" --hypothesis-profile quick

test: $(INSTALLED) lint
	$(PYTEST)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.messaging
	$(BIN)/python -m benchmarks.round
	$(BIN)/python -m benchmarks.clients
	$(BIN)/python -m benchmarks.loading
	$(BIN)/python -m benchmarks.prototypes
	$(BIN)/python -m benchmarks.server_optimizers
	$(BIN)/python -m benchmarks.server_model
	$(BIN)/python -m benchmarks.feature_transformer
	$(BIN)/python -m benchmarks.generators

$(INSTALLED): setup.cfg constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
