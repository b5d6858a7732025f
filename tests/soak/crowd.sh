#!/bin/sh
# 5,000 streams at once (tests/soak/crowd.py): all of them running, most of them waiting, and in a pool of pages
# that is far too small for those that run. The books have to balance each time.
#   tests/soak/crowd.sh [STREAMS] [ROUNDS]
set -eu
cd "$(dirname "$0")/../.."
streams=${1:-5000} rounds=${2:-3}
crowd() {
    tokens=$1 && shift
    echo "-- $tokens tokens, $*"
    python3 tests/soak/crowd.py build/sluice tests/golden/qwen3moe-tiny --streams "$streams" --tokens "$tokens" -- "$@"
}
for round in $(seq "$rounds"); do
    echo "round $round of $rounds"
    crowd 40 --ctx 64 --attention 2 --max-num-seqs 2500 --kv-pages 5000
    crowd 40 --ctx 64 --attention 1 --experts 1 --max-num-seqs 1024 --kv-pages 2500
    crowd 40 --ctx 64 --attention 1 --experts 2 --transport tcp --max-num-seqs 1024 --kv-pages 600
    crowd 90 --ctx 128 --max-num-seqs 4096 --kv-pages 1000
done
