# One command per chore. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Python 3.11 or newer; name another with PYTHON=.
PYTHON := $(or $(PYTHON),$(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done))
# The newest Python beside it, for the part of the suite that needs no database.
NEWEST := $(if $(filter test%,$(MAKECMDGOALS)),$(shell for p in {,$(HOME)/.pyenv/versions/3.14*/bin/}python3.14 \
	{,$(HOME)/.pyenv/versions/3.13*/bin/}python3.13 {,$(HOME)/.pyenv/versions/3.12*/bin/}python3.12; do \
	"$$p" -c '' 2>/dev/null && echo "$$p" && break; done))

RUN := .venv-run
DEV := .venv
NEW := .venv-newest
PYTEST := -n 2 --dist worksteal
# What depends on the Postgres that is there, and on what lies before it.
ON_EACH_POSTGRES := tests/store tests/races

APT_GET := DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0
PIP := pip --disable-pip-version-check install --progress-bar off
DEBIAN_PACKAGES := postgresql pgbouncer curl prometheus faketime

# $(call environment,folder,requirements,python): the pinned packages and this project.
define environment
	@$(3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Noonday needs Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(3) -c 'import ensurepip' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Debian's python3-venv"; \
	    $(APT_GET) update && $(APT_GET) install --no-install-recommends python3-venv >/dev/null; \
	  else \
	    echo "$(3) cannot make environments. On Debian: sudo apt-get install python3-venv" >&2; exit 1; \
	  fi; }
	@echo "setting up $(1) (once)"
	@$(3) -m venv $(1)
	@$(1)/bin/python -m $(PIP) --require-hashes --no-deps -r $(2) 2>&1 | tee $(1)/install.log | { n=0; \
	  while read -r word name _; do case "$$word" in \
	    Collecting|Processing) n=$$((n + 1)); [ ! -t 1 ] || printf '\r\033[K  %d %s' "$$n" "$${name##*/}";; \
	    Installing) [ ! -t 1 ] || printf '\r\033[K'; echo "  installing $$n packages";; \
	  esac; done; } || { tail -n 20 $(1)/install.log >&2; exit 1; }
	@$(1)/bin/python -m $(PIP) -q --no-deps --no-build-isolation -e .
	@touch $@
endef

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	  while IFS=$$'\t' read -r name what; do printf '  make %-14s %s\n' "$$name" "$$what"; done

.PHONY: run
run: $(RUN)/.ready ## Start everything, with example jobs; ONCE=1 ends when they are done
	@NOONDAY_HOME="$${NOONDAY_HOME:-.noonday}" NOONDAY_LOG_LEVEL="$${NOONDAY_LOG_LEVEL:-warning}" \
	  exec $(DIE_WITH_MAKE) $(RUN)/bin/noonday up --demo $(if $(filter-out 0,$(ONCE)),--once)

# A killed make takes what it runs along, where the kernel can be asked for that.
DIE_WITH_MAKE = $(shell command -v setpriv >/dev/null && setpriv --help | grep -q pdeathsig && echo setpriv --pdeathsig TERM)

.PHONY: test
test: $(if $(filter true,$(CI)),test-all,lint test-once) ## Check style and types, then run all tests; with CI=true as test-all

.PHONY: test-all
test-all: lint test-newest test-oldest test-pgbouncer test-once ## The tests on each Python and Postgres

.PHONY: test-once
test-once: $(DEV)/.ready debian
	$(DEV)/bin/python -m pytest $(PYTEST)

.PHONY: test-oldest
test-oldest: $(DEV)/.ready debian
	NOONDAY_TEST_POSTGRES=15 $(DEV)/bin/python -m pytest $(PYTEST) $(ON_EACH_POSTGRES)

.PHONY: test-pgbouncer
test-pgbouncer: $(DEV)/.ready debian
	NOONDAY_TEST_PGBOUNCER=1 $(DEV)/bin/python -m pytest $(PYTEST) $(ON_EACH_POSTGRES)

.PHONY: soak-cases
soak-cases: $(DEV)/.ready debian ## The cases from the field, each as long and as big as it was reported
	NOONDAY_TEST_FULL=1 $(DEV)/bin/python -m pytest -rA -n 1 tests/field

COMPARISONS := 1000000
.PHONY: oracle
oracle: $(DEV)/.ready ## Fires around all clock changes, computed in three ways that share nothing; SEED=7 COMPARISONS=5000000
	$(DEV)/bin/python -m tests.oracle --comparisons $(COMPARISONS) $(if $(SEED),--seed $(SEED))

.PHONY: test-newest
test-newest: $(if $(NEWEST),$(NEW)/.ready) debian
ifeq ($(NEWEST),)
	@echo "no Python newer than 3.11 was found"$(if $(filter true,$(CI)),; exit 1)
else
	NOONDAY_TEST_NO_POSTGRES=1 $(NEW)/bin/python -m pytest $(PYTEST)
endif

SECONDS := 1800
.PHONY: soak
soak: $(DEV)/.ready debian ## Half an hour of faults against a cluster of its own; SECONDS=7200 SEED=7 OUT=folder
	$(DEV)/bin/noonday drill --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(OUT))

.PHONY: lint
lint: $(DEV)/.ready ## Check style, types and the direction of imports
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/mypy
	$(DEV)/bin/lint-imports

.PHONY: format
format: $(DEV)/.ready ## Put the code into its usual form
	$(DEV)/bin/ruff format .
	$(DEV)/bin/ruff check --fix .

.PHONY: bench
bench: $(DEV)/.ready ## Measure, and print a table; QUICK=1 ONLY=drain,post JSON=file PROFILE=py,sql,wal OUT=folder
	@$(DEV)/bin/python -m bench $(if $(filter-out 0,$(QUICK)),--quick) $(foreach \
	  option,only json seed minutes scale profile out,$(call bench_option,$(option))) $(ARGS)
# $(call bench_option,json): --json with what JSON says, if it says anything.
bench_option = $(if $($(call upper,$(1))),--$(1) '$($(call upper,$(1)))')
upper = $(shell tr a-z A-Z <<<'$(1)')

COMPILE = $(DEV)/bin/uv pip compile -q --generate-hashes --universal --python-version 3.11
.PHONY: lock
lock: $(DEV)/.ready ## Pin the newest allowed versions in requirements/; KEEP=1 changes no more than needed
	@$(DEV)/bin/python -m pip install -q --require-hashes -r requirements/lock.txt
	$(COMPILE) $(UPGRADE) --group lock -o requirements/lock.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra embedded --group build -o requirements/run.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra embedded --group dev -c requirements/run.txt -o requirements/dev.txt
	$(COMPILE) $(UPGRADE) --group peers -o requirements/peers.txt
UPGRADE = $(if $(filter-out 0,$(KEEP)),,--upgrade)

.PHONY: clean
clean: ## Remove environments and caches; the data in .noonday stays
	rm -rf .venv* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN)/.ready: requirements/run.txt pyproject.toml
	$(call environment,$(RUN),$<,$(PYTHON))

$(DEV)/.ready: requirements/dev.txt pyproject.toml
	$(call environment,$(DEV),$<,$(PYTHON))

$(NEW)/.ready: requirements/dev.txt pyproject.toml
	$(call environment,$(NEW),$<,$(NEWEST))

# Tests that need one of these skip by name where it is missing; in CI a skip is a failure.
.PHONY: debian
debian:
	@command -v apt-get >/dev/null || exit 0; \
	missing=$$(for p in $(DEBIAN_PACKAGES); do dpkg -s "$$p" >/dev/null 2>&1 || echo "$$p"; done | xargs); \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" = 0 ]; then \
	  echo "installing Debian's $$missing"; \
	  $(APT_GET) update && $(APT_GET) install --no-install-recommends $$missing >/dev/null || \
	    echo "that failed; the tests that need $$missing will be skipped" >&2; \
	else \
	  echo "some tests will be skipped; to run them, too: sudo apt-get install $$missing"; \
	fi
