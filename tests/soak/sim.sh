#!/bin/sh
# Simulates the whole engine over many seeds (tests/sim): those that `make test` runs and far more.
#   tests/soak/sim.sh [SEEDS] [FIRST_SEED] [MODEL_FOLDER]
# A seed that fails is printed; `build/tests/test_sim MODEL_FOLDER SEED 1 --verbose` replays it.
set -eu
cd "$(dirname "$0")/../.."
seeds=${1:-50000} first=${2:-1} model=${3:-tests/golden/qwen3moe-tiny}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cover=--cover # every situation must have been met
[ "$seeds" -ge 1000 ] || cover=
# The engine's own words about killed workers are no news here; they are shown when it ends badly.
nice build/tests/test_sim "$model" "$first" "$seeds" $cover 2>"$log" || {
    tail -20 "$log"
    exit 1
}
