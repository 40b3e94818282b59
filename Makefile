# Every target sets itself up; it needs Python 3.11 or newer, make and a package index.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: demo test check mutants format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.ready ## GLFC and plain federated averaging on the ten digits
	OMP_NUM_THREADS=1 $(BIN)/fcil demo

test: .venv/.ready ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)

check: .venv/.ready ## lint, format check, types, then the whole test suite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) --no-print-directory test

mutants: .venv/.ready ## put named mistakes into a copy of the code, one at a time; the tests must catch each
	PYTHONPATH=tests $(BIN)/python -m mutants.run --workers $(WORKERS)

format: .venv/.ready ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and all caches
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
