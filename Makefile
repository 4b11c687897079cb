# A machine without make begins with tools/setup.sh, which installs it.

PYTHON := .venv/bin/python

.PHONY: setup demo test lint bench docs clean

setup:
	@sh tools/setup.sh

demo: setup  ## the whole story on a machine without a GPU; KEEP=1 leaves the machine up
	@$(PYTHON) -m tests.demo $(if $(KEEP),--keep) $(DEMO_ARGS)

test: setup  ## everything, linters too; TEST_ARGS='tests/rules -x' for a part
	@$(PYTHON) -m pytest $(TEST_ARGS)

lint: setup
	@$(PYTHON) -m pytest -q tests/test_house.py

bench: setup
	@$(PYTHON) -m benchmarks $(BENCH_ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find gpu_lifecycle tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

docs: setup  ## write the pages that are made from code
	@$(PYTHON) -m tests.test_docs
