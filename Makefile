# Thin on purpose: each target is one command. `sluice --help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo serve test lint bench clean

demo: $(STAMP)
	@$(BIN)/sluice demo

serve: $(STAMP)
	@$(BIN)/sluice serve --config sluice.toml

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m engine.bench
	$(BIN)/sluice bench

clean:
	rm -rf $(VENV) .sluice

# Installed again whenever pyproject.toml changes.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --progress-bar on --editable '.[dev]'
	@touch $@
