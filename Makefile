# The words of the project. Each does everything it needs on a machine with only python3, pip and make.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup etcd peers run test mutants mutate failover interop examples check docs fix bench chaos golden lock clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@echo "installing into .venv, once …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9,<1"
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --compile-bytecode --require-hashes -r requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps -e .
	@$(BIN)/python -m compileall -q src
	@touch $@

etcd: $(STAMP)        ## an etcd server for tests and local clusters, where one can be had
	@tools/install_etcd.sh .venv

peers: $(STAMP)       ## the servers that benchmarks compare with, where they can be had
	@tools/install_peers.sh .venv

run: setup            ## a node at work, live
	@$(BIN)/sulina demo

test: setup etcd      ## every test, the long ones in a short form; SLOW=1 shows the slowest twenty
	@$(BIN)/python -m tests.support.needs
	@$(BIN)/python -m tests.support.spark_home
	@$(BIN)/pytest -n 4 --dist loadfile $(if $(SLOW),--durations=20)

mutants: setup etcd   ## plants every defect of tests/mutants, one at a time, and sees a test fail
	@$(BIN)/python -m tests.support.needs
	@$(BIN)/python tools/mutants.py

mutate: setup         ## changes core in one small place at a time (mutmut) and lists what no test sees; MODULES="cursor plan" for some
	@tools/mutate_core.sh .venv $(MODULES)

failover: setup etcd  ## a broker dies, another takes its topics; SULINA_KEEP=folder keeps logs and etcd's keys of a failure
	@$(BIN)/pytest -n 0 tests/cluster/test_seed_004.py

examples: setup etcd  ## the examples and benchmarks that take long, and each page of the guides alone
	@SULINA_SLOW=1 $(BIN)/pytest tests/docs tests/examples tests/benchmarks tests/cli/test_demo.py

interop: setup        ## tables that Spark with Delta Lake's own jar shares with us, where the jar can be had
	@tools/install_delta.sh .venv .venv-interop
	@test ! -d .venv-interop/ivy/jars || .venv-interop/bin/python -m pytest -s -n0 --timeout 600 \
	  tests/interop/test_delta_jar.py

check: setup docs     ## format, lint, types, layers, tidiness, promises, the site of the documentation
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n 0 tests/test_layers.py tests/test_tidy.py tests/test_promises.py

docs: setup           ## the documentation as a searchable site in ./site; fails on a link that leads nowhere
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file tools/docs_site/mkdocs.yml

fix: setup            ## format, fix what can be fixed, and make docs/promises.md and the tables of settings
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/python -m tools.promises
	@$(BIN)/python -m tools.settings_page

bench: setup etcd peers  ## every benchmark, and docs/benchmarks.md
	@$(BIN)/python benchmarks/run.py $(if $(QUICK),--quick)

chaos: setup etcd     ## the long form of the crash tests
	@SULINA_CRASH_IMAGES=100000 SULINA_KILLS=200 SULINA_NODE_KILLS=100 $(BIN)/pytest -n 2 --timeout 3600 \
	  tests/crash tests/blackbox/test_kills.py
	@SULINA_TEST_OBJECTS=s3 SULINA_MOVES=50 SULINA_FAILOVERS=20 SULINA_RACES=20 SULINA_FAULTS=200 SULINA_RATE=300 \
	  $(BIN)/pytest -n 2 --timeout 3600 -s tests/cluster
	@for seed in 1 2 3 4 5 6; do SULINA_TRUST_FAULTS=50 SULINA_SEED=$$seed \
	  $(BIN)/pytest -n 0 --timeout 3600 -s tests/cluster/test_trust.py || exit 1; done
	@SULINA_PUBSUB_SECONDS=120 $(BIN)/pytest -n 0 -s --timeout 3600 tests/pubsub/test_partitions.py
	@SULINA_SPARK_KILLS=20 $(BIN)/pytest -n 0 -s tests/spark/test_exactly_once.py

golden: setup etcd    ## the files of this release that later ones must open, once for each release
	@$(BIN)/python -m tools.golden

lock:                 ## resolve the dependencies again
	@$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-annotate --no-emit-index-url --no-header --quiet -o requirements.lock

clean:
	@rm -rf .venv .venv-interop
