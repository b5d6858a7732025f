#!/bin/bash
# What a machine with a GPU is asked (bench/gpu), rehearsed on the tests' driver: packed of a build that is there, run, brought back.
#
#   tests/lease.sh [BUILD]
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath "${1:-$tree/build}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "lease.sh: $*" >&2; cat "$work/out/table.txt" >&2 || true; exit 1; }

cd "$tree"
LEASE_BUILD=$build bench/gpu/pack.sh "$work/gpu"
# The steps ask for contexts of thousands.
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 16384/' tests/golden/qwen3moe-tiny/config.json >"$work/config.json"
export OUT=$work/out LEASE_WORK=$work/lease LEASE_MODEL=$work/config.json
export SLUICE_CUDA_DRIVER=$build/tests/libsluice-fake-cuda.so
run() { bash "$work/gpu/lease.sh" --for 1200 "$@"; }

# Not: law, units and fixtures, which make test runs on this driver as they are; what wants torch, ncu or a model of its own.
steps="smoke attention types decode draws graphs rows exact mixed traces"
run $steps
while IFS=$'\t' read -r step rc _ figures; do
    [ "$rc" = 0 ] && [ -n "$figures" ] || fail "$step: exit status $rc, figures '$figures'"
done <"$work/out/table.txt"
[ "$(cut -f1 "$work/out/table.txt" | paste -sd' ')" = "$steps" ] || fail "steps are missing"
grep -q 'of numerics cpu same' "$work/out/table.txt" || fail "smoke does not say whether ids are the same"

# What passed is not run again, there and after it was brought here.
run smoke >/dev/null
[ "$(cut -f2 "$work/out/table.txt")" = skipped ] || fail "smoke was run again"
printf 'decode\t0\t1\tkept\nrows\t1\t1\tfailed\n' >"$work/out/table.txt"
bench/gpu/pack.sh --keep "$work/out" "$work/gpu" | grep -q '^done: decode $' || fail "--keep marks other steps than those that passed"
rc=0
run nonsense 2>"$work/err" || rc=$?
[ "$rc" = 2 ] && grep -q "no step 'nonsense'" "$work/err" || fail "a step that there is not is no error"
echo "rehearsed: $steps"
