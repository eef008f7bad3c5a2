# Two commands: `make run` starts a broker, `make test` checks and tests everything.
# Both work with nothing but a clone, Python 3.11+ and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Brokers and commands start twice as fast from bytecode; tests start hundreds of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test check format docs proto bench bench-quick faults faults-quick sim sim-long clean

help:            ## show this list
	@grep -E '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | \
		awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; set one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "error: cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	@touch $@

$(VENV)/run: pyproject.toml | $(VENV)/python
	@echo "installing moldau into $(VENV) …"
	@$(PIP) install -e .
	@touch $@

$(VENV)/test: pyproject.toml | $(VENV)/python
	@echo "installing moldau with its test tools into $(VENV) …"
	@$(PIP) install -e '.[test,check]'
	@touch $@ $(VENV)/run

$(VENV)/bench: pyproject.toml | $(VENV)/test
	@$(PIP) install -e '.[test,bench]'
	@touch $@

# Spark is large, so only what needs it installs it.
$(VENV)/spark: pyproject.toml | $(VENV)/test
	@echo "installing Spark into $(VENV), which takes a minute or two …"
	@$(PIP) install -e '.[test,spark,spark-test]'
	@touch $@

# Its tests want a Java. Where there is none they are skipped, and pytest says so.
JAVA := $(shell command -v java 2>/dev/null || ls "$$JAVA_HOME/bin/java" 2>/dev/null)
.PHONY: no-java
no-java:
	@echo "skipped: there is no Java (17 or newer); the tests of Spark will be skipped"

# The demo needs a Java, too: by pip where the machine has none.
comma := ,
$(VENV)/demo: pyproject.toml | $(VENV)/spark
	@echo "installing what the demo draws with into $(VENV) …"
	@$(PIP) install -e '.[spark,demo$(if $(JAVA),,$(comma)java)]'
	@touch $@

run: $(VENV)/run ## start a broker on 127.0.0.1:9092, data in ./.moldau
	@exec $(BIN)/moldau dev

# kcat is the one client that is no Python package. Where it cannot be installed its tests are
# skipped, and pytest says so.
.PHONY: kcat
kcat:
	@command -v kcat >/dev/null 2>&1 || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
			echo "installing kcat …"; \
			(apt-get install -y -qq kcat || { apt-get update -qq && apt-get install -y -qq kcat; }) >/dev/null 2>&1 \
				|| echo "skipped: kcat could not be installed; its tests will be skipped"; \
		else echo "skipped: kcat is not installed (apt-get install kcat); its tests will be skipped"; fi; }

check: $(VENV)/test ## lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Most of the time tests wait for elections, timeouts and disks: three files at a time keep two
# cores busy. Longest first, and all that needs Spark in one of them: see tests/conftest.py.
JOBS ?= 3

test: $(VENV)/test $(if $(JAVA),$(VENV)/spark,no-java) kcat check ## everything that must hold before a change lands
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

format: $(VENV)/test ## let ruff put the code in shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/test ## write the generated reference pages anew
	@$(BIN)/python -m moldau.edge.kafka.compatibility
	@$(BIN)/python -m moldau.edge.http.reference
	@$(BIN)/python -m moldau.server.config.render > docs/reference/configuration.md
	@$(BIN)/python proto/reference.py

# The stubs have tools of their own, old ones on purpose; see proto/generate.py.
build/stubs/tools: proto/generate.py
	@$(PYTHON) -m venv build/stubs
	@build/stubs/bin/python -m pip --disable-pip-version-check --quiet install \
		$$(sed -n 's/.*pip install //p' proto/generate.py)
	@touch $@

proto: build/stubs/tools ## make the stubs of the gRPC API anew from proto/
	@build/stubs/bin/python proto/generate.py

bench: $(VENV)/bench ## measure one and three brokers against the targets and the peers (about 20 minutes)
	@$(BIN)/python -m benchmarks

bench-quick: $(VENV)/bench ## the same with small counts (about 5 minutes)
	@$(BIN)/python -m benchmarks --quick

.PHONY: bench-spark
bench-spark: $(VENV)/spark ## measure reading topics with Spark, small batches and the archive, as ratios (about 10 minutes)
	@$(BIN)/python -m benchmarks.spark

faults: $(VENV)/test ## kill, cut, fill and damage one and three brokers, and check what clients saw (about 45 minutes)
	@$(BIN)/python -m faults --write-docs

faults-quick: $(VENV)/test ## the same with few repetitions, and without the page (about 12 minutes)
	@$(BIN)/python -m faults --quick

ROUNDS ?= 10
.PHONY: spark-faults
spark-faults: $(VENV)/spark ## kill drivers, tasks and brokers under a Spark query, ROUNDS=10 times (about 20 minutes)
	@$(BIN)/python -m faults.spark --rounds $(ROUNDS)

.PHONY: demo
demo: $(VENV)/demo ## three brokers, clicks, two pipelines on Spark, a leader killed; the audit says if all is there (about 4 minutes)
	@$(BIN)/python -m demo $(DEMO_ARGS)

SEED  ?= 1
STEPS ?= 3000
KIND  ?= memory
sim: $(VENV)/test ## simulate one seed of a Raft group: SEED=… STEPS=… KIND=memory|disk, TRACE=1 to see it
	@$(BIN)/python -m moldau.testing.simulation --seed $(SEED) --steps $(STEPS) --kind $(KIND) $(if $(TRACE),--trace)

SECONDS_MAX ?= 600
sim-long: $(VENV)/test ## simulate seed after seed for SECONDS_MAX=600, from SEED on, then hunt the planted mutants
	@mkdir -p .faults
	@bash -o pipefail -c '$(BIN)/python -m moldau.testing.simulation --seconds $(SECONDS_MAX) --seed $(SEED) --steps $(STEPS) | tee .faults/sim-long.txt'
	@bash -o pipefail -c '$(BIN)/python -m pytest -v --color=no tests/sim/test_mutants.py | tee .faults/mutants.txt'

clean:           ## remove the virtual environment and caches; data in .moldau stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
