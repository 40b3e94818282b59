# Every target sets itself up; it needs Python 3.11 or newer, make and a package index.
PYTHON ?= python3
BIN := .venv/bin
# For two cores: federations of real processes mostly wait.
WORKERS ?= 3
PYTHONS ?= $(PYTHON)
# One group of tests stays in one process: they share a whole run, or a Ray cluster.
# Compiled modules are kept, whatever the environment says: hundreds of processes of the suite import them.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadgroup
QUICK := tests/core tests/maths tests/data tests/experiment/test_config.py tests/test_layers.py tests/models/test_optimiser.py
QUICK_RUN := tests/cli/test_cli.py::test_a_run_writes_its_files_and_show_repeats_its_figures

.PHONY: help demo quick lint types test soak portable check mutants fuzz bench bench-poison docs picture dist format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.ready ## GLFC, plain federated averaging and our Mosaic on the ten digits
	OMP_NUM_THREADS=1 $(BIN)/fcil demo

quick: lint ## lint, the tests of messages, formulas, data and settings, and one tiny run
	$(PYTEST) $(QUICK) $(QUICK_RUN)

lint: .venv/.ready ## lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready ## mypy --strict
	$(BIN)/mypy

test: .venv/.ready ## the whole test suite
	$(PYTEST)

soak: .venv/.ready ## the long tests, and every property on many more examples, drawn anew each time
	$(PYTEST) --soak -m 'soak or hypothesis' tests

portable: .venv/.ready ## the numeric tests under each instruction set that this processor has
	.ci/portable $(PYTEST)

check: ## lint, format check, types, then the whole test suite
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory types
	$(MAKE) --no-print-directory test

mutants: .venv/.ready ## put named mistakes into a copy of the code, one at a time; the tests must catch each
	PYTHONPATH=tests $(BIN)/python -m mutants.run --workers $(WORKERS)

fuzz: .venv/.ready ## read 10,000 damaged configurations, messages, directories, models, pictures and data sets
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.run

bench: .venv/.ready ## speed against a reference, one line of JSON per figure; NAME=... for one of them
	$(BIN)/python -m benchmarks $(NAME)

bench-poison: .venv/.ready ## hostile clients against every aggregator; hours, goes on where it was; ARGS="--table" prints what is there
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.poison $(ARGS)

docs: .venv/.ready ## the documentation as a site in site/, without a network; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

picture: .venv/.ready ## the picture in README.md made anew, from a demo; needs Chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.picture $(DEMO)

dist: .venv/.ready ## sdist, wheel and SBOM in dist/, checked in fresh environments; PYTHONS="python3.11 python3.12" for several
	.ci/dist $(PYTHONS)

format: .venv/.ready ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and all caches
	rm -rf .venv build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
