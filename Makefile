# Every target works from a clean clone: the first one run sets up .venv.

PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed
TYPES := build/mypy/saddleforge
OLDEST_SYMPY := 1.13.0

.PHONY: reproduce test test-all test-oldest-sympy bench generate values docs check release version clean
.DELETE_ON_ERROR:

reproduce: $(STAMP)          ## the main job: every table and figure, into results/
	$(BIN)/saddleforge reproduce --out results/

test: $(STAMP)               ## the default suite
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --benchmark-disable

test-all: $(STAMP)           ## the default suite and the slow tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --benchmark-disable -m "" --hypothesis-profile=default

# An overlay in front of .venv: nothing else is installed twice.
test-oldest-sympy: $(STAMP)  ## derivation and values on the oldest SymPy that pyproject.toml allows
	rm -rf build/oldest-sympy
	$(BIN)/python -m pip install --quiet --no-deps --target build/oldest-sympy "sympy==$(OLDEST_SYMPY)"
	PYTHONPATH=build/oldest-sympy $(BIN)/python -c 'import sympy, sys; sys.exit(sympy.__version__ != "$(OLDEST_SYMPY)")'
	PYTHONPATH=build/oldest-sympy $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --benchmark-disable \
	  tests/derive tests/generated/test_fresh_values.py

bench: $(STAMP)              ## timings, one process so that they mean something
	$(BIN)/python -m pytest tests/benchmarks -m "" -p no:xdist --benchmark-enable

generate: $(STAMP)           ## rewrite generated/ from the catalogue
	$(BIN)/saddleforge generate

values: $(STAMP)             ## rewrite the committed values of every generated expression
	$(BIN)/python tests/generated/write_values.py

docs: $(STAMP)               ## the pages, examples executed, warnings are errors; begin at build/docs/html/index.html
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	$(BIN)/python -m sphinx -b html -E -W --keep-going -q -d build/docs/doctrees docs build/docs/html

# mypy and import-linter cannot see through the editable install: they read the packages through links named after them.
check: $(STAMP)              ## ruff, mypy, and the rooms that imports may go to
	$(BIN)/ruff check .
	rm -rf $(TYPES)
	mkdir -p $(TYPES)
	cd $(TYPES) && ln -s ../../../runtime/* ../../../derive ../../../generated .
	$(BIN)/mypy
	cd build/mypy && ../../$(BIN)/lint-imports --config ../../pyproject.toml --no-cache

release: $(STAMP)            ## sdist and wheel, their metadata, and both in fresh environments of every Python here
	$(BIN)/python .ci/release.py try

version: $(STAMP)            ## VERSION=X.Y.Z: the number, and what is unreleased in the changelog under it
	$(BIN)/python .ci/release.py version $(VERSION)

clean:                       ## remove .venv, caches, build leftovers and results/
	rm -rf .venv build dist results docs/gallery docs/tutorials *.egg-info .pytest_cache .hypothesis .benchmarks .ruff_cache .mypy_cache .coverage
	find derive runtime generated tests -type d -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml runtime/_version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "saddleforge needs Python 3.11 or newer, and '$(PYTHON)' is not: run 'make PYTHON=/path/to/a/newer/python3 ...'." >&2; \
	  exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@
