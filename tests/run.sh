#!/bin/sh
# Everything that decides whether a change is good: release, then the same tests under ASan+UBSan, the
# threaded and multi-process ones under TSan, the Python tests against the release program.
#   tests/run.sh [CTEST_REGEX]
set -eu
cd "$(dirname "$0")/.."
regex="${1:-.}"
jobs=$(nproc)
san="UCX_MEM_EVENTS=n ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS=halt_on_error=1"
began=$(date +%s)
say() { printf '\n== %s (%d s)\n' "$1" $(($(date +%s) - began)); }

say "release: unit, fuzz corpora, house, workers, simulation, protocol model"
(cd build && ctest --output-on-failure -j"$jobs" -R "$regex")
[ "$regex" = . ] || exit 0

say "AArch64 kernels under qemu"
tests/neon.sh quick

say "ASan + UBSan"
cmake --preset dev >/dev/null
cmake --build build-dev -j"$jobs" | tail -1
(cd build-dev && env $san ctest --output-on-failure -j"$jobs" -E model)

say "TSan: threads and workers"
cmake --preset tsan >/dev/null
cmake --build build-tsan -j"$jobs" | tail -1
(cd build-tsan && env $san ctest --output-on-failure -j"$jobs" -R '(pool|net|law|engine|serve)')

say "oracles, API and command line"
env SLUICE_BIN=build/sluice .venv/bin/python -m pytest -q -p no:cacheprovider tests
say "done"
