# Two commands: `make run` starts a broker, `make test` checks and tests everything.
# Both work with nothing but a clone, Python 3.11+ and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Brokers and commands start twice as fast from bytecode; tests start hundreds of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test check format docs proto bench bench-quick faults faults-quick sim sim-long sim-week sim-mutants clean

help:            ## show this list
	@grep -E '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | \
		awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; set one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "error: cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	@command -v uv >/dev/null 2>&1 || $(PIP) install -c constraints.txt uv 2>/dev/null || true
	@touch $@

# What an install is made from: a part of it is compiled where there is a compiler.
BUILT_FROM := pyproject.toml constraints.txt hatch_build.py src/moldau/spark/source/compiled.pyx

# uv is many times faster than pip, which fetches it where there is none. pip does the work where uv cannot.
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
UV       = $(shell command -v uv 2>/dev/null || ls $(BIN)/uv 2>/dev/null)
INSTALL  = sh -c '[ -n "$(UV)" ] && $(UV) pip install --quiet --python $(BIN)/python "$$@" \
	|| $(PIP) install --no-compile "$$@"' install

# Development uses the versions of constraints.txt; with the newest ones: make test LOCK=
LOCK   ?= constraints.txt
LOCKED  = $(INSTALL) $(if $(LOCK),-c $(LOCK))

# The packages of extras, and not moldau again: checks may be at work in it at the same time.
PACKAGES = $(BIN)/python -c 'import sys, tomllib; \
	known = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*[one for name in sys.argv[1:] for one in known[name]], sep="\n")' > $@.txt

# Spark wants a Java. Where there is none its tests are skipped, and pytest says so.
JAVA  := $(shell command -v java 2>/dev/null || ls "$$JAVA_HOME/bin/java" 2>/dev/null)
comma := ,

$(VENV)/run: $(BUILT_FROM) | $(VENV)/python
	@echo "installing moldau into $(VENV) (about 80 MB) …"
	@$(INSTALL) -e .
	@touch $@

# What the checks need, and nothing of Spark.
$(VENV)/check: $(BUILT_FROM) | $(VENV)/python
	@echo "installing moldau with its checks and test tools into $(VENV) (about 300 MB) …"
	@$(LOCKED) -e '.[test,check]'
	@touch $@ $(VENV)/run

# Spark has no wheel. One is made here, and its 450 MB of archives are not compressed again. Bytecode is for
# the processes of tests, which start together: each would compile the same.
ifdef JAVA
$(VENV)/test: export DIST_EXTRA_CONFIG = $(abspath $(VENV))/wheel.cfg
$(VENV)/test: $(BUILT_FROM) | $(VENV)/check
	@echo "installing Spark into $(VENV) (about 1 GB, a minute or two) …"
	@printf '[bdist_wheel]\ncompression = stored\n' > $(VENV)/wheel.cfg
	@$(PACKAGES) test check spark spark-test
	@$(LOCKED) -r $@.txt
	@$(BIN)/python -m compileall -qq -x '/(tests|moto|botocore|sqlalchemy|mypy|pip)/' $(VENV)/lib || true
	@touch $@
else
$(VENV)/test: $(VENV)/check
	@echo "skipped: there is no Java (17 or newer); the tests of Spark will be skipped"
	@touch $@
endif

# Where these cannot be had, the checks of tests/deploy that need them are skipped.
$(VENV)/deploy: $(BUILT_FROM) | $(VENV)/test
	@$(PACKAGES) test check deploy-test
	@$(LOCKED) -r $@.txt || echo "skipped: the schemas of Kubernetes and compose cannot be installed"
	@touch $@

# For the chart of Kubernetes: `make test` uses a helm that is there, and renders nothing without one.
.PHONY: helm
helm: | $(VENV)/python ## install helm into .venv by Go, for the tests of the chart (two minutes)
	@if command -v go >/dev/null 2>&1; then GOBIN=$(abspath $(BIN)) go install helm.sh/helm/v3/cmd/helm@v3.16.4; \
	else echo "skipped: there is no Go to build helm"; fi

$(VENV)/compile: $(BUILT_FROM) | $(VENV)/run
	@$(LOCKED) 'mypy>=1.14' 'setuptools>=70' || { echo "error: mypy cannot be installed"; exit 1; }
	@touch $@

$(VENV)/bench: $(BUILT_FROM) | $(VENV)/check
	@$(LOCKED) -e '.[test,bench]'
	@touch $@

# The demo needs a Java, too: by pip where the machine has none.
$(VENV)/demo: $(BUILT_FROM) | $(VENV)/python
	@echo "installing Spark and what the demo draws with into $(VENV) (about 1.2 GB) …"
	@$(LOCKED) -e '.[test,spark,demo$(if $(JAVA),,$(comma)java)]'
	@touch $@

# Made by `make compile`. Python prefers its libraries to the source, so it must not be older.
COMPILED := build/compiled
NEWER     = $(shell find src -type f -not -path '*/__pycache__/*' -not -name '*.so' -newer $(COMPILED) -print -quit)
# What was deleted or renamed leaves no newer file, but still lies there.
GONE      = $(shell cd $(COMPILED) && find . -name '*.py' -exec sh -c \
	'for path; do [ -e "$(abspath src)/$$path" ] || echo "$$path"; done' _ {} + | head -n 1)
TREE      = $(if $(wildcard $(COMPILED)),$(if $(NEWER)$(GONE),,$(abspath $(COMPILED))))

run: $(VENV)/run ## start a broker on 127.0.0.1:9092, data in ./.moldau
	@$(if $(wildcard $(COMPILED)),$(if $(TREE),,echo "interpreted: the source is not what was compiled; make compile";),:;) \
	PYTHONPATH="$(TREE)" exec $(BIN)/moldau dev

.PHONY: compile test-compiled
compile: $(VENV)/compile ## compile the hot path for `make run`: less than half the CPU per small request (two minutes)
	@$(BIN)/python -m release.hot_path --to $(COMPILED)

# Pure tests replace parts of what they test, which compiled classes refuse: they run interpreted.
test-compiled: ready compile ## the tests that start brokers, with a compiled hot path (about 15 minutes)
	@PYTHONPATH="$(abspath $(COMPILED))" $(BIN)/python tests/run.py --kind system -- $(PYTEST_ARGS)

# Worlds do the same interpreted and compiled, and then others are played compiled.
.PHONY: sim-compiled faults-compiled
sim-compiled: $(VENV)/check compile ## simulate with a compiled hot path: worlds that must be the same interpreted, then MINUTES=30 of others
	@$(BIN)/python -m sim --seed $(SEED) --same-as $(COMPILED)
	@PYTHONPATH="$(abspath $(COMPILED))" $(BIN)/python -m sim --seed $(SEED) --minutes $(MINUTES) --jobs 2

faults-compiled: $(VENV)/check compile ## faults-quick with a compiled hot path, without a secured cluster (about 25 minutes)
	@PYTHONPATH="$(abspath $(COMPILED))" $(BIN)/python -m faults --quick

# Three programs of the tests are no Python packages: the client kcat, a browser, whose pages attack a
# broker, and Prometheus, which watches brokers. Where they cannot be installed their tests are skipped, and
# the end of the run says so.
.PHONY: kcat chromium prometheus
# One after the other: only one apt-get can be at work.
chromium: | kcat
prometheus: | chromium
kcat:
	@command -v kcat >/dev/null 2>&1 || { $(call installed,kcat); }
chromium:
	@[ -n "$(MOLDAU_TEST_BROWSER)" ] || command -v chromium >/dev/null 2>&1 \
		|| command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 \
		|| { $(call installed,chromium); }
prometheus:
	@command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 \
		|| { $(call installed,prometheus); }

define installed
if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	echo "installing $(1) …"; get="apt-get install -y -qq --no-install-recommends $(1)"; \
	($$get || { apt-get update -qq && $$get; }) >/dev/null 2>&1 \
		|| echo "skipped: $(1) could not be installed; its tests will be skipped"; \
else echo "skipped: $(1) is not installed (apt-get install $(1)); its tests will be skipped"; fi
endef

check: $(VENV)/check ## lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@MYPY_NUM_WORKERS=auto $(BIN)/mypy
	@$(BIN)/lint-imports

# What the console is built with. Its bundle is committed: only who changes it needs Node.
CONSOLE_FROM := console/package.json console/package-lock.json
$(VENV)/console: $(CONSOLE_FROM) | $(VENV)/python
	@if command -v npm >/dev/null 2>&1; then cd console && { npm ci --silent --no-progress \
		|| echo "skipped: the packages of the console cannot be installed; its bundle is not built again"; }; \
	else echo "skipped: there is no Node; the bundle of the console is not built again"; fi
	@touch $@

.PHONY: console
console: $(VENV)/console $(VENV)/run ## check, test and build the web console again into the package (needs Node 20 or newer)
	@mkdir -p build && $(BIN)/python -m moldau.edge.http.openapi > build/schemas.json
	@cd console && npm run --silent types >/dev/null && npm run --silent check && npm test --silent && npm run --silent build

.PHONY: console-pictures
console-pictures: $(VENV)/check chromium ## take the pictures of the console in docs/ again, of a cluster at work (2 minutes)
	@MOLDAU_WRITE_PICTURES=1 $(BIN)/python -m pytest -q tests/console/test_pictures.py

.PHONY: lighthouse
lighthouse: $(VENV)/check chromium ## speed and accessibility of pages of the console, by Lighthouse (needs Node; 3 minutes)
	@$(BIN)/python -m benchmarks.lighthouse

.PHONY: ready
ready: $(VENV)/test $(VENV)/deploy $(VENV)/console kcat chromium prometheus

# Spark is installed beside the checks, which need nothing of it. Then each kind of test in processes of its
# own: see tests/run.py. A part of them, or options of pytest: make test PYTEST_ARGS="tests/log -x"
test: $(VENV)/check ## everything that must hold before a change lands (about 10 minutes)
	@$(MAKE) --no-print-directory -j3 check ready
	@$(BIN)/python tests/run.py -- $(PYTEST_ARGS)

.PHONY: test-quick test-order
test-quick: $(VENV)/check ## the pure tests alone: no process, no socket, no clock (less than a minute)
	@$(BIN)/python tests/run.py --kind pure -- $(PYTEST_ARGS)

test-order: ready ## all tests in a random order, and property tests with other examples: SEED=…
	@$(BIN)/python tests/run.py --order-seed $(SEED) -- $(PYTEST_ARGS)

# Docker's plugin for compose is no package of Debian 12.
COMPOSE := github.com/docker/compose/v2@v2.40.3
.PHONY: compose
compose: $(BIN)/docker-compose ## install the plugin for compose into .venv by Go, for the tests of containers (five minutes)
$(BIN)/docker-compose: | $(VENV)/python
	@if docker compose version >/dev/null 2>&1; then :; elif command -v go >/dev/null 2>&1; then \
		echo "building docker compose …"; \
		go mod download $(COMPOSE) && cd "$$(go env GOMODCACHE)/$(COMPOSE)" && go build -o $(abspath $@) ./cmd; \
	else echo "skipped: there is no Go to build docker compose; the tests of containers will be skipped"; fi

.PHONY: machines
machines: ready compose helm ## run the pages about systemd, containers and Kubernetes on real ones (as root on Debian)
	@$(BIN)/python tests/run.py --kind machine -- $(PYTEST_ARGS)

.PHONY: test-long
test-long: $(VENV)/check ## the pure tests with ten times the seeds and examples (about 10 minutes)
	@MOLDAU_TEST_EFFORT=10 $(BIN)/python tests/run.py --kind pure -- $(PYTEST_ARGS)

.PHONY: coverage lock
coverage: $(VENV)/check ## statements and branches that the pure tests execute, by file, the least covered first
	@$(BIN)/python -m coverage run --branch --source=src/moldau --data-file=.test-results/coverage \
		-m pytest -q --kind pure $(PYTEST_ARGS)
	@$(BIN)/python -m coverage report --data-file=.test-results/coverage --sort=cover --skip-covered

lock: ## write constraints.txt again, with the newest versions that pyproject.toml allows
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip --disable-pip-version-check --quiet install uv -e '.[test,check,deploy-test,spark,spark-test,docs,release]'
	@(sed -n '/^#/p' constraints.txt; build/lock/bin/python -m pip freeze --exclude-editable) > build/constraints.txt
	@mv build/constraints.txt constraints.txt

format: $(VENV)/check ## let ruff put the code in shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/check ## write the generated reference pages again
	@$(BIN)/python -m moldau.edge.kafka.compatibility
	@$(BIN)/python -m moldau.edge.http.reference
	@$(BIN)/python -m moldau.edge.http.metrics.reference
	@$(BIN)/python -m moldau.server.config.render > docs/reference/configuration.md
	@$(BIN)/python -m moldau.server.events_page
	@$(BIN)/python proto/reference.py
	@$(BIN)/python -m moldau.spark.option_table > docs/reference/spark-options.md

.PHONY: deploy-files
deploy-files: $(VENV)/check ## write version and alerts into the files of deploy/, and render the manifests again by helm
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m release.deploy_files

# The stubs have tools of their own, old ones on purpose; see proto/generate.py.
build/stubs/tools: proto/generate.py
	@$(PYTHON) -m venv build/stubs
	@build/stubs/bin/python -m pip --disable-pip-version-check --quiet install \
		$$(sed -n 's/.*pip install //p' proto/generate.py)
	@touch $@

proto: build/stubs/tools ## generate the stubs of the gRPC API from proto/
	@build/stubs/bin/python proto/generate.py

bench: $(VENV)/bench ## measure one and three brokers against the targets, Apache Kafka and other peers (about an hour)
	@$(BIN)/python -m benchmarks

bench-quick: $(VENV)/bench ## the same with small counts (about 12 minutes)
	@$(BIN)/python -m benchmarks --quick

.PHONY: bench-spark
bench-spark: $(VENV)/test ## measure reading topics with Spark, small batches and the archive, as ratios (about 10 minutes)
	@$(BIN)/python -m benchmarks.spark

faults: $(VENV)/check ## kill, cut, fill and damage one and three brokers, and check what clients saw (about an hour)
	@$(BIN)/python -m faults --write-docs

faults-quick: $(VENV)/check ## the same with few repetitions, some of it on a secured cluster, and without the page (about 25 minutes)
	@$(BIN)/python -m faults --quick
	@$(BIN)/python -m faults --quick --secured

# Fuzzing wants an extra that has no wheel for every Python; without it the targets are skipped.
$(VENV)/fuzz: $(BUILT_FROM) | $(VENV)/check
	@$(LOCKED) -e '.[test,fuzz]' || echo "skipped: atheris cannot be installed for this Python"
	@touch $@

$(VENV)/audit: $(BUILT_FROM) | $(VENV)/check
	@$(LOCKED) -e '.[audit]' || echo "skipped: pip-audit and cyclonedx-bom cannot be installed"
	@touch $@

$(VENV)/site: $(BUILT_FROM) | $(VENV)/python
	@echo "installing what builds the documentation into $(VENV) …"
	@$(LOCKED) -e '.[docs]'
	@touch $@

$(VENV)/release: $(BUILT_FROM) | $(VENV)/python
	@$(LOCKED) -e '.[release]'
	@touch $@

.PHONY: site dist changelog release-check
site: $(VENV)/site ## build the documentation into build/site, to be read without a network
	@$(BIN)/python -m docsite

dist: $(VENV)/release ## build wheels and source distribution of the last commit into dist/, and check them
	@$(BIN)/python -m release.dist $(if $(shell command -v $(or $(CC),cc)),--compiled)

changelog: $(VENV)/release ## move the fragments of changelog.d to CHANGELOG.md, for the version in src/moldau/version.py
	@$(BIN)/towncrier build --yes --version "$$($(BIN)/moldau --version | cut -d' ' -f2)"

release-check: $(VENV)/release ## what still keeps the version in src/moldau/version.py from being released
	@$(BIN)/python -m release.check $(TAG)

SECONDS_MAX ?= 1800
.PHONY: fuzz audit
fuzz: $(VENV)/fuzz ## feed everything that reads bytes of others with hostile ones, for SECONDS_MAX=1800; TARGET=… for one
	@$(BIN)/python -m fuzz --seconds-max $(SECONDS_MAX) $(TARGET)

audit: $(VENV)/audit ## known vulnerabilities, a list of all parts (CycloneDX), and licences
	@$(BIN)/python -m supply_chain

ROUNDS ?= 10
.PHONY: spark-faults
spark-faults: $(VENV)/test ## kill drivers, tasks and brokers under a Spark query, ROUNDS=10 times (about 20 minutes)
	@$(BIN)/python -m faults.spark --rounds $(ROUNDS)

.PHONY: demo
demo: $(VENV)/demo ## three brokers, clicks, two pipelines on Spark, a leader killed; the audit says if all is there (about 4 minutes)
	@$(BIN)/python -m demo $(DEMO_ARGS)

SEED    ?= 1
MINUTES ?= 30
sim: $(VENV)/check ## simulate one cluster with clients and faults: SEED=…, TRACE=1 to see it
	@$(BIN)/python -m sim --seed $(SEED) $(if $(TRACE),--trace)

sim-long: $(VENV)/check ## simulate world after world on two cores for MINUTES=30, from SEED on
	@$(BIN)/python -m sim --seed $(SEED) --minutes $(MINUTES) --jobs 2

sim-week: $(VENV)/check ## simulate a week without faults, with a rolling restart each hour (an hour)
	@$(BIN)/python -m sim --healthy-hours 168

sim-mutants: $(VENV)/check ## find all bugs that are planted in the product (a quarter of an hour)
	@$(BIN)/python -m sim --mutants --jobs 2

clean:           ## remove the virtual environment and caches; data in .moldau stays
	rm -rf src/moldau/spark/source/*.so $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
