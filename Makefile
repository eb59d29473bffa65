# Each target makes .venv and installs what it needs; a second run installs nothing.
PYTHON ?= python3
BIN    := .venv/bin
# Tests run on several workers: one thread each is faster than threads that fight over the cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test cluster lint bench docs clean

demo: .venv/.core
	$(BIN)/lowcurve demo

test: .venv/.dev .venv/.browser
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist worksteal

# Against a real Slurm on this machine, started and stopped by the tests; as root, some minutes.
cluster: .venv/.dev
	command -v slurmd >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y slurm-wlm munge >/dev/null; }
	LOWCURVE_CLUSTER=1 $(ONE_THREAD) $(BIN)/python -m pytest tests/cluster

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.core
	$(BIN)/python -m benchmarks

docs: .venv/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site

.venv/.base: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	touch $@

.venv/.core: .venv/.base pyproject.toml $(wildcard lowcurve/kernels/cpu/*.[ch])
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/.dev: .venv/.core
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	# Without their dependencies, which do not install beside a CPU build of torch:
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps torchattacks pytorchcv
	touch $@

# The report page is tested in a real browser. Where it cannot be installed, those tests are skipped and say so.
.venv/.browser: .venv/.base
	command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium chromium-driver >/dev/null; } \
	  || echo "chromium is not installed: tests of the report page will be skipped"
	touch $@

.venv/.docs: .venv/.core
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@
