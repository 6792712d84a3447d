# make          environment, then every figure of the run chosen in config.yaml
# make report   that run as one web page, report.html
# make test     environment, then the tests (not the demo)
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := all
.PHONY: all env test bench lint format report clean-env

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

bench: env
	for script in tests/benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

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
