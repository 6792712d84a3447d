# make             environment, then every figure of the run that config.yaml selects
# make check       environment, then figures and verdicts of the demo from its released tables, compared with docs/results.md
# make report      that run as one web page, report.html; of a run with options: make report OPTIONS='--config preset=tiny'
# make plan        the cost of a run: make plan, make plan PRESET=paper TFLOPS=100, make plan CONFIG=my.yaml
# make check-demo  compares the demo in results/ with the released one: docs/release.md
# make docs        the documentation as a site in site/; with a search at http://localhost:8001: make docs PORT=8001
# make gpu-check   checks and measurements on a machine with a GPU, at most 8 minutes: docs/gpu.md
#                  tried on a CPU: make gpu-check DEVICE=cpu MODEL=tiny
# make bench       the benchmarks, at most 25 minutes, into docs/benchmarks.md; NANOGPT=PATH/model.py: also against nanoGPT
# make test        the tests; those that changes since a revision can touch: make test SINCE=main
# make test-runs   tests of whole runs: copies and reruns, kills, published models, recipes of docs/extending.md
# make test-slurm  the workflow on a SLURM of two nodes, which is installed if it is missing
# make test-tools  tests with further packages, which it installs: make test-tools, or one: make test-tools SUITE=recorder
#                  suites: slurm pythons release recorder packaging site newest
# make lint        ruff, snakefmt, mypy over src, codespell, snakemake --lint; make format formats
# make generated   the files that are made of the config classes, tables and results: paper.yaml, pages in docs/
#
# Each makes the environment .venv first. For maintainers: make lock, make test-long (CONTRIBUTING.md).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# the targets for a GPU also run where no environment can be installed: with the packages of $(PYTHON)
GPU_PYTHON = PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

# runs on any Python
NEW_ENOUGH = import sys; sys.version_info >= (3, 11) or \
	sys.exit("$(PYTHON): found Python %d.%d, expected 3.11 or newer: make PYTHON=python3.12" % tuple(sys.version_info[:2]))

# the backend of a notebook, whose commands inherit it, without which matplotlib cannot be imported here
unexport MPLBACKEND

.DEFAULT_GOAL := all
.PHONY: all check help env tools test test-runs test-long test-slurm test-tools docs bench lock gpu-check check-demo plan generated lint format report

all: env
	$(BIN)/snakemake --cores all

# without training; results/fig1.pdf … fig5.pdf and claims.md are those of the release
check: env
	$(BIN)/snakemake --quiet all --cores all --config release=docs/demo-release
	$(BIN)/python -m docs.results results

help:
	@sed -n '/^[^#]/q;s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

env: $(VENV)/.installed

# Installed again when the pins change; the library itself is installed in place. Where uv is installed, it is tried first.
# The modules that most jobs import are compiled here and not in the jobs, because a shell that sets
# PYTHONDONTWRITEBYTECODE would compile them in every job.
USED = snakemake.cli, torch._dynamo, safetensors.torch, tokenizers, pyarrow.parquet, pandas, seaborn, matplotlib.backends.backend_pdf
$(VENV)/.installed: requirements.txt pyproject.toml
	@$(PYTHON) -c '$(NEW_ENOUGH)'
	$(PYTHON) -m venv $(VENV)
	{ command -v uv && uv pip install --quiet --python $(BIN)/python -r requirements.txt -e '.[workflow]'; } > /dev/null 2>&1 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.txt -e '.[workflow]'
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c "import $(USED)"
	touch $@

# without the variables of the shell that Python reads at its start; tests/conftest.py removes all others
PYTEST = env $(addprefix -u ,$(filter-out PYTHON,$(filter PYTHON%,$(.VARIABLES)))) $(BIN)/python -m pytest

test: env
	$(PYTEST) -n 2 --dist worksteal $(addprefix --since=,$(SINCE))

test-runs: env
	$(PYTEST) -n 2 --dist worksteal -m 'runs and not long' $(addprefix --since=,$(SINCE))

test-long: env
	$(PYTEST) -m long

# Suites with further packages, two at a time, because most of them use one core; where packages or tools cannot be
# installed, the tests are skipped and say so.
SUITES = pythons slurm release recorder packaging site newest
TOOLS  = $(addprefix $(VENV)/tools/,tests/recorder tests/release tests/packaging docs)

test-tools: env $(if $(SUITE),$(filter %/$(SUITE:site=docs),$(TOOLS)),$(TOOLS))
	$(MAKE) --jobs 2 --output-sync=target $(addprefix suite-,$(or $(SUITE),$(SUITES)))

$(TOOLS): $(VENV)/tools/%: %/requirements.txt $(VENV)/.installed
	-@mkdir -p $(@D) && $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -r $< && touch $@

suite-%: env
	$(BIN)/python -m pytest tests/$*

# What needs no torch, and model, training and exits with the oldest torch, in an environment per version that is kept
# between calls.
suite-pythons: env
	BIN=$(BIN) tests/pythons.sh

# with the version of requirements.txt, the oldest and the newest
suite-release: env
	$(BIN)/python -m pytest tests/release
	$(BIN)/python -m tests.release.versions $(VENV)/transformers

# unit tests with the newest packages
suite-newest: env
	$(BIN)/python -m tests.newest $(VENV)/newest

test-slurm: suite-slurm

docs: env $(VENV)/tools/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(if $(PORT),$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory site)

# every script in seconds: python tests/benchmarks/run.py --smoke
bench: env
	$(BIN)/python tests/benchmarks/run.py

gpu-check:
	$(GPU_PYTHON) -m pytest -q -m gpu -p no:cacheprovider tests/gpu $(addprefix --device=,$(DEVICE)) $(addprefix --model=,$(MODEL))

check-demo: env
	$(BIN)/python scripts/check_release.py $(or $(RELEASE),docs/demo-release)

plan: env
	$(BIN)/python scripts/plan.py $(addprefix --preset ,$(PRESET)) $(addprefix --configfile ,$(CONFIG)) \
		$(addprefix --tflops ,$(TFLOPS))

# every package that requirements.txt leads to, with hashes, for Python 3.11 on Linux; without the address of an index
LOCK = $(BIN)/uv pip compile requirements.txt --quiet --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28 --generate-hashes --custom-compile-command "make lock"

lock: env
	test -n "$(CPU_WHEELS)"  # where PyTorch's CPU wheels are: a folder, or a page with links to them
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(LOCK) --find-links $(CPU_WHEELS) --output-file envs/cpu.lock.txt
	$(LOCK) --output-file envs/cuda.lock.txt

generated: env
	$(BIN)/python -m docs.reference
	$(BIN)/python -m docs.results
	$(BIN)/python -m docs.trend
	$(BIN)/python -m docs.which_exit
	$(BIN)/python -m docs.rules

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow src
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/snakemake --lint

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow src

report: env
	$(BIN)/snakemake --cores all report_pages $(OPTIONS)
	$(BIN)/snakemake report_pages --report report.html --report-stylesheet workflow/report/report.css $(OPTIONS)
