# make setup       a virtual environment in .venv with everything below in it
# make hooks       runs ruff before each commit in this clone
# make lint        ruff, on what users call its rules for docstrings too, mypy, and a search for names that nothing uses
# make test        the tests, about 25 minutes on 2 cores; a part: make test TESTS=tests/ir
# make test-again  the tests that failed last, alone: one that passes now depends on what runs beside it
# make test-gpu    what needs an NVIDIA GPU, and every lowering compiled and compared with eager there
# make sanitize    the runtime's C, programs in C and generated C++ under AddressSanitizer and ThreadSanitizer; needs g++
# make sanitize-gpu  GPU tests under compute-sanitizer, half an hour; minutes: make sanitize-gpu SANITIZE="--brief --jobs 8"
# make conformance every operator of torch's test database against eager, half an hour on 2 cores; resumable
# make models      whole models and many random expressions against eager, half an hour on 2 cores
# make demo        one compile, many shapes: an encoder, a product, softmax and RMSNorm against eager, 4 minutes on 2 cores
# make bench       every benchmark; results go to benchmarks/results/
# make bench-gpu   loops on an NVIDIA GPU against eager and the peer: make bench-gpu GPU="--parts grid --dtypes bf16"
# make programs    335 small programs against eager and the peer, hours on 2 cores; resumable: make programs PROGRAMS="--levels chain"
# make clean       removes what the above made in this directory

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
TESTS ?= tests
WORKERS ?= 2
PUBLIC := $(addprefix src/polytile/,__init__.py counters.py options.py compiler/plans.py packages/load.py)

.PHONY: help hooks setup demo test test-again test-gpu sanitize sanitize-gpu conformance models bench bench-gpu programs lint clean

help:
	@sed -n 's/^# make/make/p' Makefile

setup: $(STAMP)

hooks: $(STAMP)
	git config core.hooksPath .githooks

$(STAMP): pyproject.toml constraints.txt scripts/setup_env.py
	$(PYTHON) scripts/setup_env.py $(VENV)
	@touch $@

demo: $(STAMP)
	$(RUN) -m benchmarks.demo $(DEMO)

# Waiting OpenMP threads give up their core: test processes share the cores among them.
test: $(STAMP)
	OMP_WAIT_POLICY=passive $(RUN) -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

test-again: $(STAMP)
	$(RUN) -m pytest --last-failed --last-failed-no-failures none --maxfail 1

test-gpu: $(STAMP)
	$(RUN) -m pytest -n $(WORKERS) tests/gpu
	POLYTILE_TEST_DEVICE=cuda $(RUN) -m pytest -n $(WORKERS) tests/frontend

sanitize: $(STAMP)
	$(RUN) -m scripts.sanitize_host $(SANITIZE)

sanitize-gpu: $(STAMP)
	$(RUN) -m scripts.sanitize $(SANITIZE)

conformance: $(STAMP)
	$(RUN) -m tests.conformance.run --jobs $(WORKERS) $(CONFORMANCE)
	$(RUN) scripts/conformance_page.py

models: $(STAMP)
	OMP_WAIT_POLICY=passive $(RUN) -m pytest -n $(WORKERS) --dist worksteal -m slow tests/models tests/behaviour

bench: $(STAMP)
	$(RUN) -m benchmarks.overhead --json
	$(RUN) -m benchmarks.compile_time --json
	$(RUN) -m benchmarks.first_calls --json
	$(RUN) -m benchmarks.demo --json
	$(RUN) -m benchmarks.loops --json
	$(RUN) -m benchmarks.operators --json
	$(RUN) -m benchmarks.matmul --json
	$(RUN) -m benchmarks.models --json
	$(RUN) -m benchmarks.stream --warm --json
	$(RUN) -m benchmarks.store_rate --json
	$(RUN) -m benchmarks.report_rate --json
	$(RUN) -m benchmarks.plots
	$(RUN) -m benchmarks.overview

bench-gpu: $(STAMP)
	$(RUN) -m benchmarks.gpu $(GPU)

programs: $(STAMP)
	$(RUN) -m benchmarks.programs --json $(PROGRAMS)

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff check --config scripts/docstrings.toml $(PUBLIC)
	$(RUN) -m mypy
	$(RUN) -m scripts.dead_code

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
