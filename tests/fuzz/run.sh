#!/bin/sh
# Runs each libFuzzer target for some seconds from its corpus and from what earlier runs found, which stays
# outside the tree. Prints executions and coverage, of this run and of all runs in this build folder: a line
# of BUILD/found/ledger.tsv is time, target, seconds, executions, coverage, features, crashes.
#   tests/fuzz/run.sh BUILD SECONDS [TARGET]   every target, or one; exit 1 when something was found
#   tests/fuzz/run.sh BUILD totals             only what the ledger says
#   tests/fuzz/run.sh BUILD merge [TARGET]     adds to the corpora in the tree what widens their coverage
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1
what=$2
only=${3:-}
found=$build/found
ledger=$found/ledger.tsv
root=$here/../..
bad=0
# Short quarantine and shallow stacks of allocations are twice as fast; a crash is replayed with more.
export ASAN_OPTIONS="quarantine_size_mb=4:malloc_context_size=2${ASAN_OPTIONS:+:$ASAN_OPTIONS}"

longest() { # of an input, so that time goes into many
    case $1 in
    text) echo 512 ;;
    gguf) echo 3072 ;;
    tokenizer) echo 4096 ;;
    *) echo 2048 ;;
    esac
}

dictionary() { # the words that the reader of a format knows
    case $1 in
    answer) sources="$root/src/text/answer_formats.c $root/src/text/answer_call.c" ;;
    api) sources="$root/src/serve/params.c $root/src/serve/params_fields.c $root/src/serve/messages_read.c $root/src/serve/responses_read.c" ;;
    cluster) sources="$root/src/format/cluster_file.c $root/src/format/workload_file.c $root/src/format/shape_config.c" ;;
    coeffs) sources="$root/src/format/coeffs.c" ;;
    config) sources="$root/src/format/hf_config.c" ;;
    gguf) sources="$root/src/format/gguf_config.c $root/src/format/gguf_attention.c $root/src/text/tokenizer_gguf.c" ;;
    hub) sources="$root/src/hub/listing.c $root/src/hub/select.c" ;;
    plan) sources="$root/src/format/plan_json.c" ;;
    planning) sources="$root/src/serve/plan_request.c $root/src/format/cluster_file.c $root/src/format/workload_file.c" ;;
    safetensors) sources="$root/src/format/safetensors.c $root/src/format/safetensors.h" ;;
    tokenizer) sources="$root/src/text/tokenizer_load.c $root/src/text/tokenizer_spm.c" ;;
    *) return 0 ;;
    esac
    # shellcheck disable=SC2086
    grep -oh '"[A-Za-z_][A-Za-z_0-9]*"' $sources | sort -u | sed 's/^"\(.*\)"$/"\\"\1\\""/' >"$found/$1.dict"
    echo "-dict=$found/$1.dict"
}

run() {
    mkdir -p "$found/$1" "$found/$1.crashes"
    began=$(date +%s)
    # shellcheck disable=SC2046
    nice -n 19 "$build/tests/fuzz_$1" -max_total_time="$what" -max_len="$(longest "$1")" \
        $(dictionary "$1") -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
        -artifact_prefix="$found/$1.crashes/" "$found/$1" "$here/corpus/$1" >"$found/$1.log" 2>&1 || bad=1
    crashes=$(find "$found/$1.crashes" -type f | wc -l)
    awk -v OFS='\t' -v at="$(date -u +%FT%TZ)" -v name="$1" -v s=$(($(date +%s) - began)) -v crashes="$crashes" '
        /^#[0-9]+/ { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1); if ($i == "ft:") ft = $(i + 1) } }
        /number_of_executed_units/ { n = $2 }
        END { print at, name, s, n + 0, cov + 0, ft + 0, crashes }' "$found/$1.log" >>"$ledger"
    tail -1 "$ledger" | awk -F'\t' '{ printf "%-12s %12d executions in %d s, cov %d, ft %d\n", $2, $4, $3, $5, $6 }'
    [ "$crashes" = 0 ] && return 0
    bad=1
    grep -E 'ERROR|SUMMARY|Assertion|assert' "$found/$1.log" || true
    echo "$crashes inputs that fail: $found/$1.crashes" >&2
}

merge() {
    "$build/tests/fuzz_$1" -merge=1 -use_counters=0 -max_len=16384 "$here/corpus/$1" "$found/$1" >"$found/$1.log" 2>&1 || bad=1
    echo "$1: $(find "$here/corpus/$1" -type f | wc -l) files"
}

totals() {
    [ -f "$ledger" ] || return 0
    awk -F'\t' '{ n[$2] += $4; s[$2] += $3; cov[$2] = $5; ft[$2] = $6; all += $4; time += $3 }
        END { for (t in n) printf "%-12s %12d executions in %d s, cov %d, ft %d\n", t, n[t], s[t], cov[t], ft[t]
              printf "%-12s %12d executions in %d s\n", "~ all", all, time }' "$ledger" | sort
}

mkdir -p "$found"
for program in "$build"/tests/fuzz_*; do
    if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
    name=${program##*/fuzz_}
    [ -z "$only" ] || [ "$only" = "$name" ] || continue
    case $what in
    totals) ;;
    merge) merge "$name" ;;
    *) run "$name" ;;
    esac
done
if [ "$what" != merge ]; then
    echo "== all runs of $build"
    totals
fi
exit $bad
