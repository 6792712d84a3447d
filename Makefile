# make             environment, then every figure of the run that config.yaml selects
# make report      that run as one web page, report.html
# make test        environment, then the tests (not the demo)
# make test-runs   environment, then tests of whole runs: copies and reruns, published models, supplement, recipes,
#                  and what is slow and seldom changes: exported models
# make test-long   environment, then the long versions of tests: fuzzing, kills, simulated claims at every size
# make test-slurm  environment, then the tests on a SLURM of two nodes, which is installed if it is missing
# make tools       environment and all packages that the next tests and the site need
# make test-recorder  environment and transformers, then the recorder on a model of that package
# make test-release   environment, transformers and lm-eval, then released models in both
# make test-browser   environment and Playwright, then the pages in a headless browser
# make test-packaging  environment and tools for crates, deployment, storage and recipes, then tests with these
# make test-pack   environment, then a pack for a GPU machine, rehearsed on the CPU: docs/gpu.md
# make docs        environment and MkDocs, then the documentation as a site in site/; a broken link is an error
# make docs-serve  the same at http://localhost:8000, where its search works: make docs-serve PORT=8001
# make test-docs   environment and MkDocs, then tests of the site
# make bench       environment, then the benchmarks, at most 25 minutes, into docs/benchmarks.md: with NANOGPT=PATH/model.py
#                  also against nanoGPT; make bench-smoke tries every script in seconds
# make gpu-check   checks and measurements on a machine with a GPU, at most 8 minutes: docs/gpu.md
#                  tried on a CPU: make gpu-check DEVICE=cpu MODEL=tiny
# make gpu-pack    a folder for a GPU machine without a network: make gpu-pack PRESET=half-hour
# make plan        the cost of a run: make plan, make plan PRESET=paper TFLOPS=100, make plan CONFIG=my.yaml
# make check-demo  compares the demo in results/ with the released one: docs/release.md
# make demo-release  runs the demo and keeps its tables, figures and verdicts in docs/demo-release
# make docs-figures  draws the figures in docs/ again from the tables of results/demo, where it has them
# make test-pythons  other versions of Python that are installed: tests without torch, and tests with the oldest torch
# make mutants     plants faults in the lines of a module that changed since SINCE (main), and shows those that TESTS pass
#                  with: make mutants MODULE=src/twoscale/exits/decoder.py TESTS=tests/unit/test_engine.py
# make lock        locks envs/*.lock.txt again after a change of requirements.txt: make lock CPU_WHEELS=FOLDER-OR-PAGE
# make generated   paper.yaml, docs/config.md and a JSON schema for editors from the config classes; docs/tables.md from the
#                  columns of tables; docs/results.md
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
MINUTES ?= 20
# the targets for a GPU also run where no environment can be installed: with the packages of $(PYTHON)
GPU_PYTHON = PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

# runs on any Python
NEW_ENOUGH = import sys; sys.version_info >= (3, 11) or \
	sys.exit("$(PYTHON): found Python %d.%d, expected 3.11 or newer: make PYTHON=python3.12" % tuple(sys.version_info[:2]))

.DEFAULT_GOAL := all
.PHONY: all help env tools test test-runs test-long test-pythons test-slurm test-recorder test-release test-browser test-packaging test-pack docs docs-serve test-docs bench bench-smoke mutants lock gpu-check gpu-pack check-demo demo-release docs-figures plan generated lint format report clean-env

all: env
	$(BIN)/snakemake --cores all

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
	{ command -v uv && uv pip install --quiet --python $(BIN)/python -r requirements.txt -e .; } > /dev/null 2>&1 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.txt -e .
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c "import $(USED)"
	touch $@

# The packages of some tests and of the site, each list once. Where one cannot be installed, its tests say so.
TOOLS = $(addprefix $(VENV)/tools/,tests/recorder tests/release tests/browser tests/packaging docs)
tools: env $(TOOLS)

$(TOOLS): $(VENV)/tools/%: %/requirements.txt $(VENV)/.installed
	-@mkdir -p $(@D) && $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -r $< && touch $@

# without the variables of the shell that Python reads at its start; tests/conftest.py removes all others
PYTEST = env $(addprefix -u ,$(filter-out PYTHON,$(filter PYTHON%,$(.VARIABLES)))) $(BIN)/python -m pytest

test: env
	$(PYTEST) -n 2 --dist worksteal

test-runs: env
	$(PYTEST) -n 2 --dist worksteal -m 'runs and not long'

test-long: env
	$(BIN)/python -m pytest -m long

# What needs no torch, and model, training and exits with the oldest torch, in an environment per version that is kept
# between calls.
test-pythons: env
	BIN=$(BIN) tests/pythons.sh

test-slurm: env
	$(BIN)/python -m pytest tests/slurm

# without transformers, where it cannot be installed, the tests are skipped and say so
test-recorder: env $(VENV)/tools/tests/recorder
	$(BIN)/python -m pytest tests/recorder

# without transformers and lm-eval, where they cannot be installed, the tests are skipped and say so
test-release: env $(VENV)/tools/tests/release
	$(BIN)/python -m pytest tests/release

# without Playwright or a browser, where they cannot be installed, the tests are skipped and say so
test-browser: env $(VENV)/tools/tests/browser
	-tests/browser/install-browser.sh $(BIN)/python
	$(BIN)/python -m pytest tests/browser

# without the packages, where they cannot be installed, the tests are skipped and say so
test-packaging: env $(VENV)/tools/tests/packaging
	$(BIN)/python -m pytest tests/packaging

# without pip's registry, or the environment with torch of test-pythons, the test is skipped and says so; where both are
# made in one call, it waits for that environment
test-pack: env $(filter test-pythons,$(MAKECMDGOALS))
	$(BIN)/python -m pytest tests/pack

docs: env $(VENV)/tools/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

docs-serve: docs
	$(BIN)/python -m http.server $(or $(PORT),8000) --bind 127.0.0.1 --directory site

# without MkDocs, where it cannot be installed, the tests are skipped and say so
test-docs: env $(VENV)/tools/docs
	$(BIN)/python -m pytest tests/site

bench: env
	$(BIN)/python tests/benchmarks/run.py

bench-smoke: env
	$(BIN)/python tests/benchmarks/run.py --smoke

# Faults are planted in place: a run that is killed leaves one in the module. Each arithmetic operator is exchanged for
# its opposite only, and numbers are not compared by identity.
define MUTANTS
[cosmic-ray]
module-path = "$(MODULE)"
timeout = 120.0
excluded-modules = []
test-command = "$(BIN)/python -m pytest -x -q -n 0 $(TESTS)"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters]
git-filter.branch = "$(or $(SINCE),main)"
operators-filter.exclude-operators = [
  "core/ReplaceBinaryOperator_(?!(Add_Sub|Sub_Add|Mul_Div|Div_Mul)$$)",
  "core/ReplaceComparisonOperator_(Lt|Gt|Eq|NotEq|LtE|GtE)_Is",
]
endef
MUTANTS_IN = $(VENV)/mutants

mutants: env
	test -f "$(MODULE)" -a -n "$(TESTS)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
	$(file >$(MUTANTS_IN).toml,$(MUTANTS))
	$(BIN)/cosmic-ray init --force $(MUTANTS_IN).toml $(MUTANTS_IN).sqlite
	$(BIN)/cr-filter-git --config $(MUTANTS_IN).toml $(MUTANTS_IN).sqlite
	$(BIN)/cr-filter-operators $(MUTANTS_IN).sqlite $(MUTANTS_IN).toml
	$(BIN)/cosmic-ray baseline $(MUTANTS_IN).toml
	$(BIN)/cosmic-ray exec $(MUTANTS_IN).toml $(MUTANTS_IN).sqlite
	$(BIN)/cr-report --surviving-only --show-diff $(MUTANTS_IN).sqlite

gpu-check:
	$(GPU_PYTHON) -m pytest -q -m gpu -p no:cacheprovider tests/gpu $(addprefix --device=,$(DEVICE)) $(addprefix --model=,$(MODEL))

# CONFIG: further keys; PYTHON_THERE: version of Python on the other machine
gpu-pack: env
	$(BIN)/python scripts/gpu_pack.py make plan --preset $(or $(PRESET),half-hour) $(addprefix --configfile ,$(CONFIG)) \
		$(addprefix --python ,$(PYTHON_THERE))

check-demo: env
	$(BIN)/python scripts/check_release.py $(or $(RELEASE),docs/demo-release)

# the manifest names the commit, so it is written again even if no result changed
demo-release: env
	$(BIN)/snakemake --cores all snapshot --config preset=demo run=demo --forcerun take_snapshot
	$(BIN)/python scripts/keep_release.py results/snapshot docs/demo-release
	$(BIN)/python -m twoscale.report.docs

# tables of studies: snakemake supplementary seeds; a figure without tables is kept
docs-figures: env
	$(BIN)/python scripts/docs_figures.py $(or $(RUN),results/demo)

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
	$(BIN)/python -m twoscale.config.reference
	$(BIN)/python -m twoscale.report.docs

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/snakemake --lint

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

report: env
	$(BIN)/snakemake --cores all report_pages
	$(BIN)/snakemake report_pages --report report.html --report-stylesheet workflow/report/report.css
	$(BIN)/python scripts/finish_report.py report.html

clean-env:
	rm -rf $(VENV)
