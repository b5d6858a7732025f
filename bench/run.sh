#!/bin/sh
# Speed of the kernels, the fabric and the demo model on this machine; nothing here gates a test.
#   bench/run.sh [MODEL]
set -eu
cd "$(dirname "$0")/.."
model=${1:-models/smollm2-moe}
[ -f "$model/config.json" ] || model=tests/golden/qwen3moe-tiny
echo "== kernels (GFLOP/s, GB/s)"
build/bench_kernels --ms 60
echo "== one process, then 1 attention + 2 expert workers over shm: $model"
build/sluice bench "$model"
build/sluice bench "$model" --attention 1 --experts 2 --transport shm
build/sluice bench "$model" --n-prompt 0 --batch 16
