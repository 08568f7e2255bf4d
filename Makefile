# Two targets do all the set-up on a fresh machine with Python 3.11+, gcc and make:
#
#   make demo       train a classifier inside a memory budget (.venv, then gpumem demo)
#   make test       the test suite
#
# and the others build on the same .venv:
#
#   make test-all   with the real PyTorch (CPU build) and the slow tests
#   make sanitize   C units under ASan, UBSan, TSan; the Python suite under ASan and on a
#                   debug build that checks every pool after every test
#   make scenarios  what people reported, id by id
#   make lint layout bench coverage pythons clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := build/stamps
SOURCES := $(shell find csrc gpumem -name '*.[ch]' -o -name '*.py' -o -name '*.pyi') \
	setup.py pyproject.toml

# Tests run against the installed package: from the folder of the tests, so that the
# source tree's gpumem/ is not on sys.path.
PYTEST := cd tests && ../$(BIN)/python -m pytest -c ../pyproject.toml --rootdir=..

.PHONY: demo test test-all sanitize scenarios lint layout bench coverage pythons c-test \
	clean install

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpumem needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/venv $(SOURCES)
	$(PIP) install -q '.[demo]'
	touch $@

$(STAMPS)/test: $(STAMPS)/venv $(SOURCES)
	$(PIP) install -q '.[demo,test]'
	touch $@ $(STAMPS)/demo

$(STAMPS)/dev: $(STAMPS)/venv pyproject.toml
	$(PIP) install -q $$($(BIN)/python -c 'import tomllib; print(*(r.replace(" ", "") for r in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"]))')
	touch $@

install: $(STAMPS)/test

demo: $(STAMPS)/demo
	cd build && ../$(BIN)/python -m gpumem demo

test: $(STAMPS)/test
	$(PYTEST) -q -m "not slow and not gpu" python layout

test-all: $(STAMPS)/test
	$(PIP) install -q 'torch==2.13.0'
	$(PYTEST) -q python layout

c-test:
	$(MAKE) -s -C tests/c check
	$(MAKE) -s -C tests/c check-debug

sanitize: $(STAMPS)/test
	$(MAKE) -s -C tests/c check-asan
	$(MAKE) -s -C tests/c check-tsan
	.ci/sanitize address
	.ci/sanitize debug

scenarios: $(STAMPS)/test
	cd tests && ../$(BIN)/python scenarios.py

lint: $(STAMPS)/test $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd tests && ../$(BIN)/python -m mypy.stubtest gpumem._core --ignore-unused-allowlist \
	    --allowlist stub_allowlist.txt
	find csrc tests/c -name '*.[ch]' | xargs $(BIN)/clang-format --dry-run -Werror

layout: $(STAMPS)/test
	$(PYTEST) -q layout

bench: $(STAMPS)/test
	$(BIN)/python benchmarks/run.py

coverage:
	$(MAKE) -s -C tests/c coverage

pythons:
	.ci/pythons

clean:
	rm -rf build $(VENV) *.egg-info
