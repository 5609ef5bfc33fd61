# Thin on purpose: each target is one command. `sluice --help` lists the rest.
# Options go through ARGS: make demo ARGS="--port 8001".
PYTHON ?= python3
VENV ?= .venv
ARGS =
BIN := $(VENV)/bin
PARALLEL = $(BIN)/python -m pytest -n auto --durations 10
# The tests start hundreds of processes: each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
STAMP := $(VENV)/.installed
OLD_PYTHON = Sluice needs Python 3.11 or newer, and "$(PYTHON)" is not; name one that is: make PYTHON=python3.12

# An index that is slow or away for a moment is asked again; large wheels go on where they broke off.
export PIP_RETRIES ?= 10
export PIP_TIMEOUT ?= 60
export PIP_RESUME_RETRIES ?= 10
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.PHONY: install demo serve test test-all test-gpu lint bench sanitize screenshot clean

install: $(STAMP)

demo: $(STAMP)
	@$(BIN)/sluice demo $(ARGS)

serve: $(STAMP)
	@$(BIN)/sluice serve $(ARGS)

# The fast tier, which leaves out the tests marked "nightly".
test: $(STAMP)
	$(PARALLEL) $(ARGS)

test-all: $(STAMP)
	$(PARALLEL) -m "" $(ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m engine.bench
	$(BIN)/sluice bench
	$(BIN)/python -m tenants.bench

# On a machine with a GPU. Without torch's caching every tensor is an allocation of its own, whose
# ends the checker knows.
sanitize: $(STAMP)
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \
		$(BIN)/python -m pytest -m gpu -k "not random_batches and not many_sequences" tests/kernels
	compute-sanitizer --tool racecheck --error-exitcode 1 \
		$(BIN)/python -m pytest -m gpu -k "ragged or skinny or rms_norm" tests/kernels

# The README's picture of the chat page, from a real demo in a real browser.
screenshot: $(STAMP)
	$(BIN)/python -m tests.e2e.screenshot

clean:
	rm -rf $(VENV) .sluice

# Installed again whenever pyproject.toml changes.
$(STAMP): pyproject.toml
	$(if $(shell $(PYTHON) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),,$(error $(OLD_PYTHON)))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --progress-bar on --editable '.[dev]'
	@touch $@
