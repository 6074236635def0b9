# `make demo` and `make test` need Python 3.10 or later with venv, pip and make; the rest they set up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.peers
RUN := OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help venv demo test check bench bench-train accuracy peers mutants acceptance properties clean

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(STAMP) ## Set up .venv with everything needed for development.

# tf-keras asks for `tensorflow`, which tensorflow-cpu is under another name: hence --no-deps.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch tensorflow-cpu
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps tf-keras
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[peers]'
	touch $@

demo: $(STAMP) ## Train PPO masked, naive and unmasked; print a table, write demo.png.
	$(RUN) -m rllib_integration.demo

test: $(STAMP) ## All tests, at least 500 Hypothesis examples a property.
	MASKCORE_PROFILE=$${MASKCORE_PROFILE:-ci} MASKCORE_REQUIRE_ALL=1 $(RUN) -m pytest -n 2 --dist loadgroup

check: $(STAMP) ## Lint, formatting, types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(PEERS) ## Ratios against every peer; writes docs/benchmarks.md.
	$(RUN) -m benchmarks.run

bench-train: $(STAMP) ## RLlib training against RLlib's own masked model, paired.
	$(RUN) -m benchmarks.train

accuracy: $(PEERS) ## Errors against 60-digit arithmetic; writes docs/accuracy.md.
	$(RUN) -m benchmarks.accuracy

peers: $(PEERS) ## The conformance kit on other libraries; writes docs/peers.md.
	$(RUN) -m benchmarks.peers

mutants: $(STAMP) ## Break the backends one line at a time and see which test notices.
	$(RUN) -m benchmarks.mutants

acceptance: $(STAMP) ## Train every network on every framework and draw 10^8 actions; writes docs/support.md.
	$(RUN) -m benchmarks.acceptance

properties: $(STAMP) ## The contract with 20,000 Hypothesis examples a property: hours.
	MASKCORE_PROFILE=acceptance $(RUN) -m pytest -n 2 tests/test_contract.py

clean: ## Remove .venv and everything generated.
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
