#!/bin/sh
# Runs each libFuzzer target for some seconds from its corpus; new inputs stay outside the tree.
#   tests/fuzz/run.sh BUILD SECONDS [TARGET]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1
seconds=$2
only=${3:-}
for program in "$build"/tests/fuzz_*; do
    [ -x "$program" ] && [ -f "$program" ] || continue
    name=${program##*/fuzz_}
    [ -z "$only" ] || [ "$only" = "$name" ] || continue
    found="$build/found/$name"
    mkdir -p "$found"
    echo "== $name"
    "$program" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
        -artifact_prefix="$found/crash-" "$found" "$here/corpus/$name" 2>&1 |
        grep -E 'number_of_executed_units|ERROR|SUMMARY|Test unit' || true
    if ls "$found"/crash-* >/dev/null 2>&1; then
        echo "crashes in $found" >&2
        exit 1
    fi
done
