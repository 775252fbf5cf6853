# Everything from Python 3.11 and make alone. `make help` lists the targets.
# Another Python, in an environment of its own beside the first one:
#   make test-quick PYTHON=/usr/bin/python3.11 VENV=.venv-system
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

# A strict editable install links file by file, so a file that was added or removed needs a new one:
# the stamp carries a checksum of the names, and of what is to be installed.
NAMES := $(shell find commitlog consumequeue indexfile flush broker -name '*.py*' -not -path '*/__pycache__/*' | LC_ALL=C sort | cat - pyproject.toml .ci/constraints.txt | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.installed-$(NAMES)

# Much of the tests is waiting, for clients and for time to pass: one process on each core.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
# A half-made environment must not look like one.
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null || sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1  \2/p' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(STAMP) ## A broker, real messages through the official client, the same log through Spark
	$(BIN)/commitbus demo

.PHONY: test
test: $(STAMP) lint types contracts ## Everything: style, types, layers, and all tests
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) $(ARGS)

.PHONY: test-quick
test-quick: $(STAMP) ## The tests that take under two minutes together
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not slow" $(ARGS)

.PHONY: lint
lint: $(STAMP) ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(STAMP) ## mypy --strict over the packages, the tests and the benchmarks
	$(BIN)/mypy -p commitbus.commitlog -p commitbus.consumequeue -p commitbus.indexfile -p commitbus.flush -p commitbus.broker
	$(BIN)/mypy tests bench

.PHONY: contracts
contracts: $(STAMP) ## import-linter: the layers of docs/architecture.md
	$(BIN)/lint-imports

.PHONY: bench
bench: $(STAMP) ## What this machine does: append, flush, recover, send; the store beside RocketMQ's
	$(BIN)/python -m bench $(ARGS)

.PHONY: bench-compare
bench-compare: $(STAMP) ## This broker beside RocketMQ 5.4.0, and from Python beside Kafka and Redis
	$(BIN)/python -m pip install --quiet --disable-pip-version-check confluent-kafka==2.16.1 'redis[hiredis]==8.1.0'
	$(BIN)/python -m bench.compare $(ARGS)

.PHONY: proto
proto: $(STAMP) ## Generate the protobuf modules anew after a change to a .proto
	$(BIN)/python -m commitbus.broker.rpc.proto.generate

.PHONY: format
format: $(STAMP) ## Let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: clean
clean: ## Remove the environments and everything built
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "commitbus needs Python 3.11 or newer; name one with make PYTHON=...")'
	@$(PYTHON) -c 'import sys; from importlib.util import find_spec; sys.exit(0 if find_spec("ensurepip") else "This Python cannot make environments, it lacks ensurepip. On Debian and Ubuntu: apt install python%d.%d-venv. Or name another one with make PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(STAMP): | $(VENV)/bin/python
	rm -rf build $(VENV)/.installed-*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]' --config-settings editable_mode=strict
	@touch $@
