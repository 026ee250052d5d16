# The door for people; CMake does the work. `make help` lists what there is.
BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
# Further settings for CMake, for example CMAKE_FLAGS=-DCMAKE_BUILD_TYPE=Debug
CMAKE_FLAGS ?=
# How long each fuzz target runs.
SECONDS ?= 60
# How long the soak runs.
MINUTES ?= 10

GENERATOR := $(shell command -v ninja >/dev/null 2>&1 && echo -G Ninja)
CONFIGURE  = cmake -S . -B $(BUILD) $(if $(wildcard $(BUILD)/CMakeCache.txt),,$(GENERATOR)) $(CMAKE_FLAGS)
BUILD_IT   = cmake --build $(BUILD) --parallel $(JOBS)

.DEFAULT_GOAL := all
.PHONY: all demo test check bench bench-peers fault fuzz soak install uninstall clean help deps

all: ## build everything into build/
	@scripts/install-deps.sh --check build
	@$(CONFIGURE) -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@$(BUILD_IT)

demo: ## build, then let several processes fight over one key
	@scripts/install-deps.sh build
	@$(CONFIGURE) -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@$(BUILD_IT) --target product
	@scripts/demo.sh $(BUILD)

test: ## build and run all tests (starts and stops its own servers)
	@scripts/install-deps.sh build test
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON -DSYNCGUARD_TESTS=ON $(CMAKE_FLAGS)"
	@scripts/run-tests.sh $(BUILD)

check: ## format, lint, banned calls, documents, sanitizers, valgrind
	@scripts/install-deps.sh build test check
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON -DSYNCGUARD_TESTS=ON $(CMAKE_FLAGS)"
	@scripts/check.sh --build $(BUILD)

bench: ## measure against raw use of the same stores
	@scripts/install-deps.sh build test
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON $(CMAKE_FLAGS)"
	@bench/run.py $(BUILD)

bench-peers: ## measure other lock libraries on the same Redis
	@scripts/install-deps.sh build test peers
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON $(CMAKE_FLAGS)"
	@bench/peers.py $(BUILD)

fault: ## break every store on purpose and judge what the clients saw (under 20 minutes)
	@scripts/install-deps.sh build test
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON $(CMAKE_FLAGS)"
	@scripts/fault.sh $(BUILD)

fuzz: ## fuzz every parser (SECONDS=60 each)
	@scripts/install-deps.sh build test check
	@scripts/fuzz.sh --seconds $(SECONDS)

soak: ## mixed load and random faults on all stores (MINUTES=10)
	@scripts/install-deps.sh build test
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON $(CMAKE_FLAGS)"
	@python3 tests/fault/run.py --build $(BUILD) --soak $$(($(MINUTES) * 60))

install: all ## install under PREFIX (/usr/local), below DESTDIR if that is set
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD)
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

uninstall: ## remove what the last install put in place; locks and counters stay
	@scripts/uninstall.sh $(BUILD)

deps: ## install what building, testing and checking need
	@scripts/install-deps.sh build test check

clean: ## remove everything that was built
	@rm -rf $(BUILD) build-asan build-tsan build-fuzz

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
