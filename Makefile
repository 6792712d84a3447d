# make          environment, then every figure of the run chosen in config.yaml
# make report   that run as one web page, report.html
# make test     environment, then the tests (not the demo)
# make plan     what a run will take: make plan PRESET=paper TFLOPS=100
# make test-slurm   environment, then the tests on a SLURM of one node, which is installed where it is missing
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PRESET ?= paper
TFLOPS ?= 100

.DEFAULT_GOAL := all
.PHONY: all env test test-slurm bench plan lint format report clean-env

all: env
	$(BIN)/snakemake --cores all

env: $(VENV)/.installed

# made anew when the pins change
$(VENV)/.installed: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

test: env
	$(BIN)/python -m pytest -n 2

test-slurm: env
	$(BIN)/python -m pytest tests/slurm

bench: env
	for script in tests/benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

plan: env
	$(BIN)/python scripts/plan.py --preset $(PRESET) --tflops $(TFLOPS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

report: env
	$(BIN)/snakemake --cores all report_pages
	$(BIN)/snakemake report_pages --report report.html

clean-env:
	rm -rf $(VENV)
