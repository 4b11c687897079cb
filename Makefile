# A machine without make begins with tools/setup.sh, which installs it.

PYTHON := .venv/bin/python

.PHONY: setup demo test test-engines lint bench bench-engines docs clean

setup:
	@sh tools/setup.sh

demo: setup  ## the whole story on a machine without a GPU; KEEP=1 leaves the machine up
	@$(PYTHON) -m tests.demo $(if $(KEEP),--keep) $(DEMO_ARGS)

# Tests on a machine of their own mostly wait, so two workers share them, each with its machine. The others look at this very
# process: its children, descriptors and threads.
test: setup  ## everything, linters too; TEST_ARGS='tests/rules -x' for a part
ifdef TEST_ARGS
	@$(PYTHON) -m pytest $(TEST_ARGS)
else
	@$(PYTHON) -m pytest --ignore=tests/systemd --ignore=tests/engines; first=$$?; \
	$(PYTHON) -m pytest --numprocesses=2 --dist=loadfile tests/systemd && exit $$first
endif

# Under SGLang and vLLM themselves, on a CPU: makes their environment first, outside the tree (tools/engines.sh). What cannot be
# made is a failure, never a test passed over.
test-engines: setup
	@engines=$$(sh tools/engines.sh) && echo "engines: testing under those in $$engines" && \
	GPU_LIFECYCLE_ENGINES=$$engines $(PYTHON) -m pytest --durations=0 $(if $(TEST_ARGS),$(TEST_ARGS),tests/engines)

lint: setup
	@$(PYTHON) -m pytest -q tests/test_house.py

bench: setup
	@$(PYTHON) -m benchmarks $(BENCH_ARGS)

bench-engines: setup  ## what real engines lose to us, as test-engines has them; about 10 min
	@engines=$$(sh tools/engines.sh) && GPU_LIFECYCLE_ENGINES=$$engines $(PYTHON) -m benchmarks --engines $(BENCH_ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find gpu_lifecycle tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

docs: setup  ## write the pages that are made from code
	@$(PYTHON) -m tests.test_docs
