# Paddock. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Compiled modules are kept: a second start of any program takes half the time.
unexport PYTHONDONTWRITEBYTECODE
export PADDOCK_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/paddock

.PHONY: help setup lock demo test test-pure test-e2e test-long test-gpu bench errors check generate build cluster clean-cluster
help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(VENV)/.ready: requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo 'installing python3-venv'; apt-get update -q && apt-get install -yq python3-venv; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --require-hashes -r requirements/dev.lock
	$(BIN)/pip install -q --no-build-isolation --no-deps -e .
	touch $@

setup: $(VENV)/.ready ## Python environment in .venv, from hashed lock files

LOCK := uv pip compile -q --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --python-version 3.11
lock: ## Renew the lock files (needs uv)
	@$(LOCK) pyproject.toml --extra operator -o requirements/operator.lock
	$(LOCK) pyproject.toml --extra agent -o requirements/agent.lock
	$(LOCK) requirements/agent-lean.in -o requirements/agent-lean.lock
	$(LOCK) pyproject.toml --extra operator --extra cli --extra picture --group dev -o requirements/dev.lock
	$(LOCK) --group bench -o requirements/bench.lock

build: setup ## Build what the local cluster needs: control plane, containerd, helm, llama.cpp (cached outside the work tree)
	@tests/cluster/prerequisites.sh
	PYTHON=$(BIN)/python tests/cluster/build.sh

cluster: build ## Start the local cluster: two real nodes with pretend GPUs
	@$(BIN)/python tests/cluster/cluster.py up

clean-cluster: setup ## Remove the local cluster without a trace
	@$(BIN)/python tests/cluster/cluster.py down

# Only the local cluster has to be built.
demo: $(if $(filter kind current,$(CLUSTER)),setup,build) ## From a bare machine to an answered chat on the chosen GPU (CLUSTER=local|current|kind)
	@tests/demo/demo.sh

check: setup ## Linters, types, import walls, generated files
	@$(BIN)/ruff format --check -q operator tests docs || { echo 'run: ruff format operator tests docs'; exit 1; }
	$(BIN)/ruff check -q operator tests docs
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/generate.py --check
	$(BIN)/python docs/generate_cli.py --check

generate: setup ## Renew crds/ and docs/reference from the code
	@$(BIN)/python docs/generate.py
	$(BIN)/python docs/generate_cli.py

PYTEST := $(BIN)/python -m pytest -q

test-pure: setup ## Tests of the pure core (seconds)
	@$(PYTEST) tests/core

# Three parts beside each other: on the real cluster, and of the operator at a real API server, tests mostly wait.
VERBOSE := $(BIN)/python -u -m pytest -v --durations=10
test: build check ## Everything that CI runs
	@$(BIN)/python tests/cluster/cluster.py up
	PYTHON=$(BIN)/python tests/cluster/build.sh registry s3
	echo 'three parts beside each other: on the real cluster (about 18 minutes), of the operator (about 10), and all else (about 15)'
	exec $(BIN)/python tests/parts.py build \
	  "cluster: $(VERBOSE) -m 'e2e and not long' tests" \
	  "operator: $(VERBOSE) -m 'not e2e and not long and not gpu' tests/controller" \
	  "rest: env PADDOCK_EXAMPLES=60 $(VERBOSE) -m 'not e2e and not long and not gpu' tests --ignore=tests/controller"

test-e2e: cluster ## Tests on the real cluster
	@$(PYTEST) -m 'e2e and not long' tests

test-long: cluster ## Soaks, long fuzzing, kills
	@PADDOCK_EXAMPLES=2000 $(PYTEST) tests/core tests/fuzz tests/estimate/test_laws_of_division.py
	$(PYTEST) -m long tests

# Of a real card and without Kubernetes: PADDOCK_LLAMA_CPP names the folder of a CUDA build's llama-server and libraries,
# PADDOCK_GPU_MODEL a GGUF file. Where one of them or the card lacks, it says so and skips.
test-gpu: setup ## Tests on a real NVIDIA GPU, without Kubernetes (at most 5 minutes)
	@timeout 300 $(PYTEST) -s -rs -m gpu tests/gpu

errors: setup ## Renew the table of measured errors in docs/estimate.md
	@cd tests && ../$(BIN)/python -m estimate.errors

bench: build ## Tables, and build/bench.json
	@$(BIN)/pip install -q --require-hashes -r requirements/bench.lock
	@cd tests && ../$(BIN)/python -m bench
