#!/bin/bash
# What only a GPU can tell, on a machine that is lent for minutes: bare but for driver, nvcc and a python3 with torch, no
# network. Run from the repository's root, beside .gpu that bench/gpu/pack.sh made.
#
#   .gpu/lease.sh [--for SECONDS] STEP...      in this order: that of their worth
#   steps: smoke fixtures units law moe dense prompt attention types decode draws graphs rows blocks offload profile exact mixed traces ceilings sanitizer
#
# $OUT (or the folder `out`) gets log.txt, all that the steps said as they said it, and table.txt: a line a step with its exit status,
# its seconds and its figures. A step that passed on this machine, or that .gpu/done names, is skipped; one that would begin
# after SECONDS is left. Nothing here changes the card's settings.
#
# SLUICE_CUDA_DRIVER set: a rehearsal on another driver, without what needs a GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$PWD/out}
work=${LEASE_WORK:-/tmp/sluice-lease}
golden=$PWD/tests/golden
device=${LEASE_DEVICE:-cuda:0}
rehearsal=${SLUICE_CUDA_DRIVER:+yes}
steps_known="smoke fixtures units law moe dense prompt attention types decode draws graphs rows blocks offload profile exact mixed traces ceilings sanitizer"

# Seconds that a step may take.
limit_of() {
    case $1 in
    smoke) echo 60 ;;
    fixtures) echo 150 ;;
    units) echo 150 ;;
    law) echo 160 ;;
    moe) echo 170 ;;
    attention) echo 60 ;;
    types) echo 60 ;;
    dense) echo 60 ;;
    prompt) echo 120 ;;
    profile) echo 120 ;;
    decode) echo 240 ;;
    draws) echo 150 ;;
    graphs) echo 170 ;;
    rows) echo 280 ;;
    blocks) echo 560 ;;
    offload) echo 300 ;;
    exact) echo 150 ;;
    mixed) echo 150 ;;
    traces) echo 300 ;;
    ceilings) echo 60 ;;
    sanitizer) echo 180 ;;
    *) return 1 ;;
    esac
}

figure() { printf 'figure: %s\n' "$*"; } # what the table shall have

unpack() {
    [ -f "$work/ready" ] && cmp -s "$here/pack.tar.xz" "$work/pack.tar.xz" && return
    mkdir -p "$work/done"
    rm -rf "$work/pack" "$work/ready"
    cp "$here/pack.tar.xz" "$work/pack.tar.xz"
    python3 -c "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter='data')" "$work/pack.tar.xz" "$work/pack" || exit 1
    # tests know the tree by the path where they were built
    local source
    source=$(cat "$work/pack/source")
    if [ ! -e "$source" ]; then
        mkdir -p "$(dirname "$source")" && ln -s "$PWD" "$source"
    fi
    touch "$work/ready"
}

sluice() { "$work/pack/bin/sluice" "$@"; }
py() { python3 "$work/pack/gpu/$1" "${@:2}"; }

# ---- steps: what they say goes to the log, exit status 0 is passed ----

ids_of() { # MODEL OPTION...
    sluice run "$1" --ids "${IDS:-3,17,41,5,29}" -n 24 --ignore-eos --temp 0 --json "${@:2}" | python3 -c '
import json, sys
print(json.load(sys.stdin)["ids"])'
}

step_smoke() {
    date -u +%FT%TZ
    cat "$work/pack/commit"
    uname -r
    nproc
    ldd --version | head -1
    [ -n "$rehearsal" ] || nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.sm,clocks.mem,power.limit --format=csv,noheader
    sluice devices --kernel-cache off || return 1
    local cpu gpu fast
    cpu=$(ids_of "$golden/qwen3moe-tiny") || return 1
    gpu=$(ids_of "$golden/qwen3moe-tiny" --device "$device" --numerics cpu) || return 1
    fast=$(ids_of "$golden/qwen3moe-tiny" --device "$device" --numerics fast)
    echo "cpu  $cpu"
    echo "cuda $gpu"
    echo "fast $fast"
    figure "ids of numerics cpu $([ "$cpu" = "$gpu" ] && echo same || echo DIFFERENT), of fast $([ "$cpu" = "$fast" ] && echo same || echo different)"
    [ "$cpu" = "$gpu" ]
}

step_fixtures() {
    py fixtures.py --sluice "$work/pack/bin/sluice" --golden "$golden" --device "$device"
}

step_units() {
    local bad=0 n=0 t
    for t in "$work"/pack/bin/cuda_*; do
        [ -x "$t" ] || continue
        n=$((n + 1))
        echo "== $(basename "$t")"
        timeout 60 "$t" 2>&1 | tail -40
        [ "${PIPESTATUS[0]}" = 0 ] || { bad=$((bad + 1)); figure "$(basename "$t") FAILED"; }
    done
    figure "$((n - bad)) of $n programs passed"
    [ "$n" -gt 0 ] && [ "$bad" = 0 ]
}

step_law() {
    local rc=0 how
    for how in cuda exact; do
        timeout 75 "$work/pack/bin/test_law" loop "$work/pack/bin/sluice" "$golden" 1 "${LEASE_LAW:-8}" $how | tail -40
        local st=${PIPESTATUS[0]}
        figure "law of $how: exit status $st"
        [ "$st" = 0 ] || rc=$st
    done
    return "$rc"
}

# Built with the tree, or by hand beside the pack. It writes $OUT/moe.jsonl.
step_moe() {
    local bench=$here/bench_moe
    [ -x "$bench" ] || bench=$work/pack/bin/bench_moe
    timeout 110 "$bench" --ways all --json "$out/moe.jsonl" >"$work/moe.txt" || return 1
    cat "$work/moe.txt"
    timeout 30 "$bench" --no-ceilings --ways big,tiles,lines --rows 256,512,1024,2048,4096,8192 --many
    timeout 30 "$bench" --no-ceilings --ways big,lines --rows 512,2048,4096 --many --apart
    figure "$(awk '$2 == "auto" { printf "%s rows %s us %s; ", $1, $3, $6 }' "$work/moe.txt")"
}

# Attention over KV pages of each type, and what decode as a whole makes of the types.
step_attention() {
    local small=${rehearsal:+small}
    # shellcheck disable=SC2086
    timeout 55 "$work/pack/bin/bench_cuda_attention" $small >"$work/attention.txt" || { cat "$work/attention.txt"; return 1; }
    cat "$work/attention.txt"
    figure "$(awk 'NF > 9 && $NF == "f32" { what = $1; for (i = 2; i < NF - 9; i++) what = what " " $i; printf "%s %s %s us; ", what, $(NF - 9), $(NF - 8) }' "$work/attention.txt")"
}

step_types() {
    local rc=0 kv
    for kv in f32 f16 fp8; do
        bench "batch64 $kv" --device "$device" --kv-type $kv --reps 1 --n-prompt 0 --n-gen 64 --n-depth 1024 --batch 64 --ctx 2048 --max-num-seqs 64 --kv-pages 2600 --max-num-batched-tokens 2048 || rc=1
    done
    return $rc
}

step_dense() {
    local bench=$here/bench_dense
    [ -x "$bench" ] || bench=$work/pack/bin/bench_dense
    local rc=0 name
    for name in qkv rows gate o glu; do # a process each: one that hangs spoils no other
        timeout 11 "$bench" --only $name || rc=1
    done >"$out/dense.txt"
    cat "$out/dense.txt"
    figure "$(awk '/cublaslt|mma.sync| \*/ { print $1, $2, $3, $4, $5, $6, $7, $8, $9, $10 ";" }' "$out/dense.txt" | paste -sd' ')"
    return $rc
}

# Prompts with the forms for many rows that nobody has measured, and without: their ids, and tokens a second.
step_prompt() {
    local rc=0 forms ids=3,17,41,5,29 plain tried
    for forms in $(seq 7 7 2100); do ids=$ids,$((forms % 500)); done
    plain=$(IDS=$ids ids_of "$golden/qwen3moe-tiny" --device "$device" --numerics fast) || return 1
    tried=$(IDS=$ids SLUICE_CUDA_FORMS=try ids_of "$golden/qwen3moe-tiny" --device "$device" --numerics fast) || return 1
    figure "ids behind a prompt $([ "$plain" = "$tried" ] && echo same || echo different)"
    for forms in "" try; do
        SLUICE_CUDA_FORMS=$forms bench "prompt${forms:+ try}" --device "$device" --reps 3 --n-prompt 2048 --n-gen 0 --ctx 4096 --max-num-batched-tokens 2048 || rc=1
        SLUICE_CUDA_FORMS=$forms bench "long prompt${forms:+ try}" --device "$device" --reps 2 --n-prompt 8192 --n-gen 0 --ctx 16384 --max-num-batched-tokens 4096 || rc=1
    done
    return $rc
}

# Where a prompt's time goes: each kernel of two blocks in the middle of it, one at a time.
step_profile() {
    mkdir -p "$work/model"
    cp "${LEASE_MODEL:-$golden/configs/qwen3-30b-a3b.json}" "$work/model/config.json"
    SLUICE_CUDA_FORMS=${LEASE_FORMS-try} timeout 110 ncu --launch-skip 400 --launch-count "${LEASE_LAUNCHES:-40}" --metrics gpu__time_duration.sum --csv \
        "$work/pack/bin/sluice" bench "$work/model" --random-weights --device "$device" --reps 1 --n-prompt 2048 --n-gen 0 --ctx 4096 \
        --max-num-batched-tokens 2048 >"$out/profile.csv" || return 1
    python3 -c '
import csv, sys
rows = [l for l in open(sys.argv[1]) if l.startswith("\"")]
for r in csv.DictReader(rows):
    print("%10s %s  %s %s" % (r["Metric Value"], r["Metric Unit"], r["Kernel Name"].split("(")[0], r["Grid Size"]))' "$out/profile.csv" | tee "$out/profile.txt"
    figure "$(wc -l <"$out/profile.txt") kernels in profile.txt"
}

# Options of `sluice bench` as a rehearsal has them: a round of few tokens.
briefly() {
    local most
    while [ $# -gt 0 ]; do
        case $1 in
        --reps) most=1 ;;
        --n-gen) most=4 ;;
        --n-prompt | --n-depth) most=24 ;;
        --batch) most=6 ;;
        *) most= ;;
        esac
        if [ -n "$most" ]; then
            printf '%s\n%s\n' "$1" $(($2 < most ? $2 : most))
            shift 2
        else
            printf '%s\n' "$1"
            shift
        fi
    done
}

# Qwen3-30B-A3B's shape with random weights, or the file that `weights` names; figures: tokens a second.
bench() { # NAME OPTION...
    local name=$1 few
    shift
    if [ -n "$rehearsal" ]; then
        mapfile -t few < <(briefly "$@")
        set -- "${few[@]}"
    fi
    mkdir -p "$work/model"
    cp "${LEASE_MODEL:-$golden/configs/qwen3-30b-a3b.json}" "$work/model/config.json"
    if [ -n "${weights:-}" ]; then set -- "$weights" "$@"; else set -- "$work/model" --random-weights "$@"; fi
    echo "== $name: sluice bench $*"
    timeout 110 "$work/pack/bin/sluice" bench --json "$@" >"$work/bench.json" || { figure "$name FAILED"; return 1; }
    cat "$work/bench.json"
    figure "$name: $(python3 -c '
import json, sys
for r in json.load(open(sys.argv[1])):
    what = "tg%d batch %d depth %d" % (r["n_gen"], r["n_batch"], r["n_depth"]) if r["n_gen"] else "pp%d" % r["n_prompt"]
    print(what, "%.1f tokens/s;" % r["median_ts"], end=" ")' "$work/bench.json")"
}

step_decode() {
    local rc=0
    bench one --device "$device" --reps 3 --n-prompt 2048 --n-gen 64 --ctx 4096 --max-num-batched-tokens 2048 || rc=1
    bench batch64 --device "$device" --reps 2 --n-prompt 512 --n-gen 64 --n-depth 1024 --batch 64 --ctx 2048 --max-num-seqs 64 --kv-pages 2600 --max-num-batched-tokens 2048 || rc=1
    bench batch16 --device "$device" --reps 2 --n-prompt 0 --n-gen 64 --n-depth 128 --batch 16 --ctx 2048 || rc=1
    return $rc
}

# Tokens drawn of what the GPU finds of their logits beside all logits that come to the host: the draws alone, and steps of 64
# requests, where all that SLUICE_CUDA_FORMS=try has is tried, too.
step_draws() {
    local small=${rehearsal:+small} rc=0 forms
    # shellcheck disable=SC2086
    timeout 40 "$work/pack/bin/bench_cuda_draws" $small >"$out/draws.txt" || rc=1
    cat "$out/draws.txt"
    figure "$(awk '/ rows / { gsub(/[(),]/, ""); print }' "$out/draws.txt" | awk '{ what = $1; for (i = 2; i < NF - 11; i++) what = what " " $i; print what, "us", $(NF - 10), "found", $(NF - 8) ";" }' | paste -sd' ')"
    for forms in "" try; do
        SLUICE_CUDA_FORMS=$forms bench "batch64${forms:+ try}" --device "$device" --reps 2 --n-prompt 0 --n-gen 48 --n-depth 128 --batch 64 --ctx 1024 --max-num-seqs 64 --log info || rc=1
    done
    return $rc
}

# Tokens a second with steps as graphs and without: of one request, with the forms that are measured, too, and of 16.
step_graphs() {
    local rc=0 how graphs forms
    for how in "" graphs forms "graphs forms"; do
        graphs=
        forms=
        case $how in *graphs*) graphs=try ;; esac
        case $how in *forms*) forms=try ;; esac
        SLUICE_CUDA_GRAPHS=$graphs SLUICE_CUDA_FORMS=$forms bench "one ${how:-plain}" --device "$device" --reps 3 --n-prompt 0 --n-gen 96 --ctx 1024 --log info || rc=1
    done
    for graphs in "" try; do
        SLUICE_CUDA_GRAPHS=$graphs bench "batch16${graphs:+ graphs}" --device "$device" --reps 2 --n-prompt 0 --n-gen 64 --n-depth 128 --batch 16 --ctx 2048 || rc=1
    done
    return $rc
}

# Attention and experts as two workers on this one GPU, or on two (LEASE_SECOND=cuda:1), whose rows stay there and go by the host:
# threads of one process and two processes. First the same bits, then tokens a second.
step_rows() {
    local rc=0 rows transport plain tried second=${LEASE_SECOND:-$device}
    for transport in loop shm; do
        set -- --exact --attention 1 --experts 2 --device "$device,$second,$device" --schedule dep --transport $transport
        plain=$(ids_of "$golden/qwen3moe-tiny" "$@") || return 1
        tried=$(SLUICE_CUDA_ROWS=try ids_of "$golden/qwen3moe-tiny" "$@" --log warn 2>"$work/rows.txt") || rc=1
        cat "$work/rows.txt"
        grep -q 'by the host' "$work/rows.txt" && { figure "$transport: $(grep -m1 -o 'rows .*by the host.*' "$work/rows.txt")"; rc=1; }
        figure "$transport: ids $([ "$plain" = "$tried" ] && echo same || echo DIFFERENT)"
        [ "$plain" = "$tried" ] || rc=1
        [ -z "$rehearsal" ] || continue # ctest has the law on the tests' driver
        timeout 75 "$work/pack/bin/test_law" $transport "$work/pack/bin/sluice" "$golden" 1 "${LEASE_LAW:-40}" rows | tail -20
        local st=${PIPESTATUS[0]}
        figure "law of rows, $transport: exit status $st"
        [ "$st" = 0 ] || rc=$st
    done
    for transport in loop shm; do
        for rows in "" try; do
            set -- --attention 1 --experts 1 --device "$device,$second" --schedule dep --transport $transport
            SLUICE_CUDA_ROWS=$rows bench "$transport one${rows:+ rows}" "$@" --reps 2 --n-prompt 2048 --n-gen 32 --ctx 4096 --max-num-batched-tokens 2048 || rc=1
            SLUICE_CUDA_ROWS=$rows bench "$transport batch64${rows:+ rows}" "$@" --reps 1 --n-prompt 0 --n-gen 32 --n-depth 128 --batch 64 --ctx 1024 --max-num-seqs 64 || rc=1
        done
    done
    return $rc
}

# Some blocks with experts of a kind: Qwen3-30B-A3B's as a GGUF file of Q8_0, gpt-oss-20b's as one of MXFP4, DeepSeek-V3's with a
# quarter of its experts as a folder of F8_E4M3; weights: where.
blocks_of() { # q8_0|mxfp4|f8
    local config like of=$work/blocks/$1
    case $1 in
    q8_0) config=${LEASE_MODEL:-$golden/configs/qwen3-30b-a3b.json} like=qwen3moe-tiny ;;
    mxfp4) config=${LEASE_GPT_OSS:-$golden/configs/gpt-oss-20b.json} like=gptoss-tiny ;;
    f8) config=${LEASE_DEEPSEEK:-$golden/configs/deepseek-v3.json} like=deepseekv3-tiny ;;
    esac
    mkdir -p "$of/shape" "$of/folder"
    python3 -c '
import json, sys
config, n = json.load(open(sys.argv[1])), int(sys.argv[2])
config["num_hidden_layers"] = n
if sys.argv[3] == "mxfp4":
    config["layer_types"] = config["layer_types"][:n]
    del config["quantization_config"]
if sys.argv[3] == "f8":
    config |= {"first_k_dense_replace": 1, "n_routed_experts": min(64, config["n_routed_experts"]), "num_nextn_predict_layers": 0}
json.dump(config, open(sys.argv[4], "w"))' "$config" "${LEASE_BLOCKS:-4}" "$1" "$of/shape/config.json" || return 1
    cp "$golden/$like"/{tokenizer,tokenizer_config,special_tokens_map}.json "$of/folder/"
    python3 bench/lab/random_model.py "$of/shape" "$of/folder" || return 1
    weights=$of/folder
    [ "$1" = f8 ] && return
    sluice convert "$of/folder" "$of/$1.gguf" --type "$1" --force && rm "$of/folder/model.safetensors" "$of/folder/config.json" && weights=$of/$1.gguf
}

# Those with experts whose lists the GPU makes and without: tokens a second.
step_blocks() {
    local kind forms rc=0 weights=
    for kind in ${LEASE_KINDS:-q8_0 mxfp4 f8}; do
        blocks_of "$kind" || { figure "$kind FAILED"; rc=1; continue; }
        for forms in "" try; do
            export SLUICE_CUDA_FORMS=$forms
            bench "$kind one${forms:+ try}" --device "$device" --reps 3 --n-prompt 2048 --n-gen 64 --ctx 4096 --max-num-batched-tokens 2048 --log info || rc=1
            bench "$kind batch16${forms:+ try}" --device "$device" --reps 2 --n-prompt 0 --n-gen 64 --n-depth 128 --batch 16 --ctx 2048 || rc=1
            bench "$kind batch64${forms:+ try}" --device "$device" --reps 1 --n-prompt 0 --n-gen 48 --n-depth 128 --batch 64 --ctx 1024 --max-num-seqs 64 || rc=1
        done
        rm -rf "$work/blocks/$kind"
    done
    return $rc
}

# Experts whose weights stay in the host's memory: prompts beside those whose weights lie on the GPU, and for others who decode.
step_offload() {
    local kind rc=0 weights=
    local prompt=(--reps 3 --n-prompt 8192 --n-gen 0 --ctx 8448 --max-num-batched-tokens 8192 --log info)
    for kind in ${LEASE_KINDS:-q8_0}; do
        blocks_of "$kind" || { figure "$kind FAILED"; rc=1; continue; }
        bench "$kind on the GPU" --device "$device" "${prompt[@]}" || rc=1
        bench "$kind offloaded" --device "$device" --offload-experts "${prompt[@]}" || rc=1
        bench "$kind decode offloaded" --device "$device" --offload-experts --reps 2 --n-prompt 0 --n-gen 32 --ctx 1024 || rc=1
        bench "$kind on processors" --attention 1 --experts 1 --attention-device "$device" --threads 14 "${prompt[@]}" --reps 1 || rc=1
        bench "$kind for processors" --attention 1 --experts 1 --attention-device "$device" --prefill 1 --offload-experts --threads 14 "${prompt[@]}" || rc=1
        rm -rf "$work/blocks/$kind"
    done
    return $rc
}

# What the same bits for every batch cost: beside `decode`.
step_exact() {
    local rc=0
    set -- --device "$device" --numerics exact --exact
    bench exact-one "$@" --reps 3 --n-prompt 2048 --n-gen 64 --ctx 4096 --max-num-batched-tokens 2048 || rc=1
    bench exact-batch64 "$@" --reps 1 --n-prompt 0 --n-gen 64 --n-depth 1024 --batch 64 --ctx 2048 --max-num-seqs 64 --kv-pages 2600 --max-num-batched-tokens 2048 || rc=1
    bench exact-batch16 "$@" --reps 2 --n-prompt 0 --n-gen 64 --n-depth 128 --batch 16 --ctx 2048 || rc=1
    return $rc
}

step_mixed() {
    local rc=0
    bench attention-gpu --attention 1 --experts 1 --attention-device "$device" --schedule dep --threads 15 --reps 2 --n-prompt 512 --n-gen 16 --ctx 2048 || rc=1
    bench pingpong --attention 1 --experts 1 --attention-device "$device" --schedule pingpong --threads 15 --reps 2 --n-prompt 0 --n-gen 16 --batch 16 --ctx 2048 || rc=1
    return $rc
}

# Pictures of a step: of one request, launched and as graphs, of 64, and of attention on the GPU with experts on its host.
step_traces() {
    local rc=0 from to
    traced() { # NAME OPTION...
        local name=$1
        shift
        bench "trace-$name" --reps 1 --n-prompt 0 --ctx 2048 --trace "$work/trace.json" "$@" || return 1
        sluice trace "$work/trace.json" >"$out/trace-$name.txt" && cat "$out/trace-$name.txt" || return 1
        # the last three steps but one
        read -r from to < <(python3 -c '
import json, sys
ends = sorted(e["ts"] + e["dur"] for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X" and e["name"] == "step")
print(ends[-min(5, len(ends))] / 1e3, ends[-min(2, len(ends))] / 1e3)' "$work/trace.json")
        sluice trace "$work/trace.json" --svg "$out/trace-$name.svg" --from "$from" --to "$to" || return 1
        figure "$name: $(sed -n '/^devices, /,$ { /computes/p }' "$out/trace-$name.txt" | sed 's/  */ /g')"
    }
    traced one --device "$device" --n-gen 24 || rc=1
    SLUICE_CUDA_GRAPHS=try SLUICE_CUDA_FORMS=try traced graphs --device "$device" --n-gen 24 || rc=1
    traced batch64 --device "$device" --n-gen 12 --batch 64 --max-num-seqs 64 || rc=1
    traced mixed --attention 1 --experts 1 --attention-device "$device" --schedule pingpong --threads 15 --n-gen 8 --batch 16 || rc=1
    return $rc
}

step_ceilings() { py ceilings.py; }

step_sanitizer() {
    local tool t rc=0
    for tool in memcheck racecheck; do
        for t in "$work"/pack/bin/cuda_*; do
            [ -x "$t" ] || return 1
            echo "== $tool $(basename "$t")"
            timeout 80 compute-sanitizer --tool $tool --error-exitcode 99 --print-limit 20 "$t" 2>&1 | tail -30
            local st=${PIPESTATUS[0]}
            figure "$tool $(basename "$t"): exit status $st"
            [ "$st" = 0 ] || rc=1
        done
    done
    return $rc
}

# ---- the run ----

if [ "${1:-}" = --step ]; then # one step, in a process of its own so that it can be stopped
    export LD_LIBRARY_PATH=$work/pack/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    "step_$2"
    exit
fi

most=570
if [ "${1:-}" = --for ]; then
    most=$2
    shift 2
fi
mkdir -p "$out"
for step in "$@"; do
    limit_of "$step" >/dev/null || { echo "no step '$step'; there are: $steps_known" >&2; exit 2; }
done
unpack
log=$out/log.txt table=$out/table.txt
: >"$log"
: >"$table"
for step in "$@"; do
    if [ -e "$work/done/$step" ] || [ -e "$here/done/$step" ]; then
        printf '%s\tskipped\t0\tpassed before\n' "$step" >>"$table"
        continue
    fi
    left=$((most - SECONDS))
    if [ "$left" -lt 10 ]; then
        printf '%s\tleft\t0\tno time\n' "$step" >>"$table"
        continue
    fi
    limit=$(limit_of "$step")
    [ "$limit" -le "$left" ] || limit=$left
    began=$SECONDS
    printf '\n==== %s (at most %s s) ====\n' "$step" "$limit" >>"$log"
    LEASE_WORK=$work OUT=$out timeout -k 5 "$limit" bash "$here/lease.sh" --step "$step" 2>&1 | tee -a "$log" >"$work/$step.log"
    rc=${PIPESTATUS[0]}
    [ "$rc" = 0 ] && touch "$work/done/$step"
    printf '%s\t%s\t%s\t%s\n' "$step" "$rc" $((SECONDS - began)) "$(sed -n 's/^figure: //p' "$work/$step.log" | paste -sd'|')" >>"$table"
    [ "$rc" = 0 ] || { echo "---- $step: exit status $rc, its last lines:"; tail -15 "$work/$step.log"; }
done
echo
column -t -s$'\t' "$table" 2>/dev/null || cat "$table"
