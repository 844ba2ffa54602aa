# make demo    set up what is needed and decide 2.13 against 2.12 on this machine
# make test    set up what is needed and run the tests
# make lint    ruff, mypy and the import rules
# make bench   the project's own figures beside its peers'
# make bench-peers   live noise recorded, the method and its peers replayed on it (about 100 minutes)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench bench-peers

demo: $(VENV)/.ready
	$(BIN)/farm submit --candidate 2.13 --suite smoke \
		--workload transformer_block --workload flex_attention --workload linear_cross_entropy

test: lint
	$(BIN)/python -m pytest --cov --cov-report=term

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.ready
	@$(BIN)/python -m pip --quiet --quiet --disable-pip-version-check install --require-hashes -r requirements-bench.lock
	$(BIN)/python -m benchmarks record --plan -o recordings
	$(BIN)/python -m benchmarks replay recordings

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "farm needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "Setting up $(VENV) (about half a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --quiet --quiet --disable-pip-version-check install --require-hashes -r requirements.lock
	@$(BIN)/python -m pip --quiet --quiet --disable-pip-version-check install --no-deps --no-build-isolation --editable .
	@touch $@
