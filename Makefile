# Two targets do all the set-up on a fresh machine with Python 3.11+, gcc and make:
#
#   make demo        train a classifier inside a memory budget (.venv, then gpumem demo)
#   make test        the test suite
#
# and the others build on the same .venv:
#
#   make test-all    with the real PyTorch (CPU build) and the slow tests
#   make sanitize    C units under ASan, UBSan and TSan, and their coverage; the Python
#                    suite under ASan, and on a debug build that checks every pool; the
#                    long random runs
#   make scenarios   what people reported, id by id, and what became of it
#   make lint        ruff, mypy, the stubs, clang-format
#   make layout      layers, file sizes, documents
#   make bench       benchmarks; TRACES="a.txt b.csv" replays those, too
#   make coverage    line coverage of csrc/heap and csrc/pool by the C units: at least
#                    95 %, or it fails
#   make c-test      the C units, plain and with assertions
#   make fakecuda    the stand-in for CUDA, and its tests; needs headers of CUDA 13
#   make pythons     build and test on every CPython from 3.11 that is at hand
#   make clean       away with .venv and build
#
# PYTHON=python3.12 picks the interpreter of a new .venv.

PYTHON ?= python3
TRACES ?=
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
JOBS := $(shell nproc 2>/dev/null || echo 2)
C_TESTS := $(MAKE) -s -j$(JOBS) -C tests/c
SOURCES := $(shell find csrc gpumem -name '*.[ch]' -o -name '*.py' -o -name '*.pyi') \
	setup.py pyproject.toml README.md

# Tests run against the installed package: from the folder of the tests, so that the
# gpumem/ of the source tree is not on sys.path.
PYTEST := cd tests && ../$(BIN)/python -m pytest -c ../pyproject.toml --rootdir=..
QUICK := -m "not slow and not gpu"

.PHONY: demo test test-all sanitize sanitize-c sanitize-address sanitize-debug \
	sanitize-long scenarios lint layout bench coverage c-test fakecuda pythons install torch clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

# ---- set-up --------------------------------------------------------------------------
# What comes from the network is asked for only when pyproject.toml has changed; the
# package itself is built against what is in .venv already.

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit("gpumem needs Python 3.11 or newer, this is " \
	    + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo-needs: $(STAMPS)/venv pyproject.toml
	.ci/venv-install $(BIN)/python demo
	@touch $@

$(STAMPS)/test-needs: $(STAMPS)/venv pyproject.toml
	.ci/venv-install $(BIN)/python demo test
	@touch $@ $(STAMPS)/demo-needs

$(STAMPS)/lint-needs: $(STAMPS)/venv pyproject.toml
	.ci/venv-install $(BIN)/python test dev
	@touch $@

$(STAMPS)/torch: $(STAMPS)/test-needs
	$(PIP) install '$(TORCH)'
	@touch $@

$(STAMPS)/package: $(STAMPS)/venv $(SOURCES)
	rm -rf build/lib* build/bdist*
	$(PIP) install --no-build-isolation --no-deps .
	@touch $@

# ---- using it ------------------------------------------------------------------------

install: $(STAMPS)/test-needs $(STAMPS)/package

torch: $(STAMPS)/torch

demo: $(STAMPS)/demo-needs $(STAMPS)/package
	@mkdir -p build/demo
	cd build/demo && ../../$(BIN)/python -m gpumem demo

test: install
	$(PYTEST) -q $(QUICK) python layout

test-all: install $(STAMPS)/torch
	$(PYTEST) -q -m "not gpu" python layout

scenarios: install
	cd tests && ../$(BIN)/python scenarios.py

bench: install
	$(BIN)/python benchmarks/run.py $(TRACES)

# ---- checking it -----------------------------------------------------------------------

c-test:
	$(C_TESTS) check
	$(C_TESTS) check-debug

fakecuda:
	$(MAKE) -s -j$(JOBS) -C tests/fakecuda all
	$(MAKE) -s -C tests/fakecuda check

sanitize: sanitize-c sanitize-address sanitize-debug sanitize-long

sanitize-c: coverage
	$(C_TESTS) check-asan
	$(C_TESTS) check-tsan
	GM_TEST_MOVES=1000000 $(C_TESTS) MODE=plain TESTS=test_moves run

sanitize-address sanitize-debug sanitize-long: sanitize-%:
	PYTHON=$(PYTHON) .ci/sanitize $*

lint: install $(STAMPS)/lint-needs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/*.py
	cd tests && ../$(BIN)/python -m mypy.stubtest gpumem._core \
	    --ignore-unused-allowlist --allowlist stub_allowlist.txt
	find csrc tests/c tests/fakecuda benchmarks -name '*.[ch]' | xargs $(BIN)/clang-format --dry-run -Werror

layout: install
	$(PYTEST) -q layout

coverage:
	$(C_TESTS) coverage

pythons:
	.ci/pythons

clean:
	rm -rf build $(VENV) *.egg-info
