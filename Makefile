# Paddock. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export PADDOCK_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/paddock

.PHONY: help setup lock
help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(VENV)/.ready: requirements/dev.lock pyproject.toml
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --require-hashes -r requirements/dev.lock
	$(BIN)/pip install -q --no-build-isolation --no-deps -e .
	touch $@

setup: $(VENV)/.ready ## Python environment in .venv, from hashed lock files

LOCK := uv pip compile -q --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --python-version 3.11
lock: ## Renew the lock files (needs uv)
	@$(LOCK) pyproject.toml --extra operator -o requirements/operator.lock
	$(LOCK) pyproject.toml --extra agent -o requirements/agent.lock
	$(LOCK) requirements/agent-lean.in -o requirements/agent-lean.lock
	$(LOCK) pyproject.toml --extra operator --extra cli --group dev -o requirements/dev.lock
