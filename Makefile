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

.PHONY: test-gpu test-clusters run quick test docs tutorial lint format bench clean

run: $(INSTALLED)
	$(BIN)/python run_cluster.py

# For the edit loop: the linters, and all tests that start no process. tests/process_guard.py knows which those are.
quick: $(INSTALLED) lint
	$(PYTEST) -m "not process" --hypothesis-profile quick

test: $(INSTALLED) lint
	$(PYTEST)

# The site, in docs/_build/index.html. A warning, and so a broken link, is an error.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build

# Runs the notebooks of the tutorial, in a folder of their own, and keeps what they print.
tutorial: $(INSTALLED)
	rm -rf build/tutorial && mkdir -p build && cp -r docs/tutorial build/tutorial
	cd build/tutorial && PATH="$(abspath $(BIN)):$$PATH" jupyter execute --inplace *.ipynb
	sed -i 's#$(abspath .)/##g' build/tutorial/*.ipynb # where it was run is nobody's matter
	cp build/tutorial/*.ipynb docs/tutorial/

# On a machine with a GPU; elsewhere it says that it did not run.
test-gpu: $(INSTALLED)
	$(BIN)/python -m benchmarks.gpu_checks

# Runs over ssh, Slurm and Ray, on clusters that the tests make on this machine for themselves. Installs nothing: what is
# not there is listed at the end, with what it needs.
test-clusters: $(INSTALLED)
	$(BIN)/python -m pytest tests/clusters -rs

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
	$(BIN)/python -m benchmarks.compute
	$(BIN)/python -m benchmarks.gpu_double
	$(BIN)/python -m benchmarks.loading
	$(BIN)/python -m benchmarks.prototypes
	$(BIN)/python -m benchmarks.server_optimizers
	$(BIN)/python -m benchmarks.server_model
	$(BIN)/python -m benchmarks.feature_transformer
	$(BIN)/python -m benchmarks.generators

$(INSTALLED): setup.cfg constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing: torch and the rest take a minute or two."
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
