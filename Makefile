# make demo | study | test | check | bench. Everything is installed into .venv/ and stored below .rloop/, both inside the clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PREFECT_HOME ?= $(CURDIR)/.rloop/prefect

.DEFAULT_GOAL := help
.PHONY: help install demo study test check bench graders format clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml infra/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint infra/constraints.txt --editable .
	@touch $(STAMP)

$(VENV)/.dev: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint infra/constraints.txt --editable '.[dev]'
	@touch $(VENV)/.dev

install: $(VENV)/.dev ## Install rloop and its development tools into .venv

demo: $(STAMP) ## Three RLoop iterations of the bundled policy on this machine, in minutes
	$(BIN)/rloop run --config deployments/configs/demo.yaml

study: $(STAMP) ## RLoop, vanilla RL and four ablations over five seeds: an hour or two on two cores; can be interrupted
	$(BIN)/rloop study --config deployments/studies/sums.yaml

test: $(VENV)/.dev ## Unit, property and fault tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(VENV)/.dev ## Lint, format, types and import arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev ## Speed and memory, as ratios against a reference in the same run
	$(BIN)/python -m benchmarks

graders: $(VENV)/.dev ## The verifier beside other graders, on the same completions
	$(BIN)/python -m benchmarks.graders

format: $(VENV)/.dev ## Rewrite files in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the demo's store and caches, keep the virtual environment
	rm -rf .rloop .pytest_cache .mypy_cache .ruff_cache
