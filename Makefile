# The door for people; CMake does the work. `make help` lists what there is.
BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
# Further settings for CMake, for example CMAKE_FLAGS=-DCMAKE_BUILD_TYPE=Debug
CMAKE_FLAGS ?=
# Which stores to build, for example BACKENDS="sqlite redis"; all unless an earlier choice is in the build folder.
# memory is always there.
STORES   := sqlite redis postgres firestore
LEFT_OUT := $(shell sed -n 's/^SYNCGUARD_\([A-Z]*\):STRING=OFF$$/\L\1/p' "$(BUILD)/CMakeCache.txt" 2>/dev/null)
BACKENDS ?= $(if $(LEFT_OUT),memory $(filter-out $(LEFT_OUT),$(STORES)))
# The store of the demo: sqlite or redis.
STORE ?= sqlite
# How long each fuzz target runs.
SECONDS ?= 60
# How long the soak runs.
MINUTES ?= 10

ifneq ($(filter-out memory $(STORES),$(BACKENDS)),)
$(error BACKENDS: unknown: $(filter-out memory $(STORES),$(BACKENDS)). Known: $(STORES) memory)
endif
switch     = $(if $(filter $(1),$(BACKENDS)),ON,OFF)
CHOSEN     = $(if $(strip $(BACKENDS)),-DSYNCGUARD_SQLITE=$(call switch,sqlite) -DSYNCGUARD_REDIS=$(call switch,redis) \
	-DSYNCGUARD_POSTGRES=$(call switch,postgres) -DSYNCGUARD_FIRESTORE=$(call switch,firestore))
# Groups of install-deps.sh.
NEEDED     = $(if $(strip $(BACKENDS)),core $(addprefix lib-,$(filter-out memory,$(BACKENDS))),build)
GENERATOR  = $(shell [ -e "$(BUILD)/CMakeCache.txt" ] || ! command -v ninja >/dev/null 2>&1 || echo -G Ninja)
CONFIGURE  = cmake -S . -B "$(BUILD)" $(GENERATOR) -DCMAKE_INSTALL_PREFIX="$(PREFIX)" $(CHOSEN) $(CMAKE_FLAGS) >/dev/null
BUILD_IT   = cmake --build "$(BUILD)" --parallel $(JOBS)

.DEFAULT_GOAL := all
.PHONY: all demo test check nightly bench bench-peers api-docs fault fuzz soak install deb wheel uninstall clean help deps

all: ## build everything into build/
	@scripts/install-deps.sh --check $(NEEDED)
	@$(CONFIGURE)
	@$(BUILD_IT)

demo: ## a counter, waiters and a crash, to watch (STORE=redis: on a Redis that it starts)
	@scripts/install-deps.sh $(NEEDED) $(filter redis,$(STORE))
	@$(CONFIGURE)
	@scripts/build-quietly.sh "$(BUILD)/demo.log" $(BUILD_IT) --target product
	@scripts/demo.sh "$(BUILD)" $(STORE)

test: ## build and run the tests (starts and stops its own servers; 4 minutes and the build)
	@scripts/install-deps.sh $(NEEDED) test
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON -DSYNCGUARD_TESTS=ON $(CMAKE_FLAGS)"
	@scripts/run-tests.sh "$(BUILD)"

check: ## format, lint, banned calls, documents, sanitizers over core and contract
	@scripts/install-deps.sh $(NEEDED) test check
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON -DSYNCGUARD_TESTS=ON $(CMAKE_FLAGS)"
	@scripts/check.sh --build "$(BUILD)"

nightly: ## what takes an hour: long tests, all sanitized tests, valgrind, fault matrix, mutants
	@scripts/install-deps.sh $(NEEDED) test check deb deb-test
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON -DSYNCGUARD_TESTS=ON $(CMAKE_FLAGS)"
	@CI=true scripts/check.sh --build "$(BUILD)" long asan_all tsan_all valgrind fault mutants

bench: ## measure against raw use of the same stores
	@scripts/install-deps.sh $(NEEDED) test peers
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON $(CMAKE_FLAGS)"
	@bench/run.py "$(BUILD)"

bench-peers: ## measure other lock libraries on the same Redis
	@scripts/install-deps.sh $(NEEDED) test peers
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON $(CMAKE_FLAGS)"
	@bench/peers.py "$(BUILD)"

api-docs: ## API reference as HTML in build/api/html, from the headers
	@scripts/install-deps.sh docs
	@scripts/api-docs.sh $(BUILD)/api

fault: ## break every store on purpose and judge what the clients saw, then the mutants (half an hour)
	@scripts/install-deps.sh $(NEEDED) test
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON $(CMAKE_FLAGS)"
	@scripts/check.sh --build "$(BUILD)" fault mutants

fuzz: ## fuzz every parser (SECONDS=60 each)
	@scripts/install-deps.sh $(NEEDED) test check
	@scripts/fuzz.sh --seconds $(SECONDS)

soak: ## mixed load and random faults on all stores (MINUTES=10)
	@scripts/install-deps.sh $(NEEDED) test
	@$(MAKE) --no-print-directory all CMAKE_FLAGS="-DSYNCGUARD_REQUIRE_ALL=ON $(CMAKE_FLAGS)"
	@python3 tests/fault/run.py --build "$(BUILD)" --soak $$(($(MINUTES) * 60))

install: ## build the product and install it under PREFIX (/usr/local), below DESTDIR if that is set
	@scripts/install-deps.sh --check $(NEEDED)
	@$(CONFIGURE)
	@$(BUILD_IT) --target installed
	@DESTDIR="$(DESTDIR)" scripts/install.sh "$(BUILD)"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

deb: ## build packages for this Debian or Ubuntu into this folder
	@scripts/install-deps.sh build deb
	@JOBS=$(JOBS) scripts/build-deb.sh "$(BUILD)" .
	@echo "To install them: sudo apt install ./*.deb"

wheel: ## build the wheel of the Python package into this folder
	@scripts/install-deps.sh python
	@scripts/build-wheel.sh .

uninstall: ## remove what the last install put in place; locks and counters stay
	@DESTDIR="$(DESTDIR)" scripts/uninstall.sh "$(BUILD)"

deps: ## install what building, testing and checking need
	@scripts/install-deps.sh $(NEEDED) test check deb deb-test

clean: ## remove everything that was built
	@rm -rf "$(BUILD)" build-asan build-tsan build-fuzz libsyncguard*_*.deb syncguard*_*.deb python3-syncguard_*.deb syncguard-*.whl

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
