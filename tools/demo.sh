#!/bin/bash
# The main job, end to end: a real MoE checkpoint answers through the OpenAI API, from one attention
# worker and two expert workers, each a process of its own; and one of them dies while it does. The
# attention worker takes a GPU where there is one that can be used.
#   tools/demo.sh SLUICE MODEL_FOLDER
set -euo pipefail
sluice=$1
model=$2
question=${QUESTION:-Why is the sky blue? Answer in two sentences.}
log=$(mktemp)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -f "$log" "$log".*
}
trap cleanup EXIT

step() { printf '\n\033[1m%s\033[0m\n' "$1"; }

prepare() {
    if [ -f "$model/sluice_demo.json" ]; then
        echo "$model is there"
        return
    fi
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/python -c 'import numpy' 2>/dev/null ||
        .venv/bin/python -m pip install -q --disable-pip-version-check "$(grep '^numpy' tests/requirements.txt)"
    local rc=0
    .venv/bin/python tools/py/make_demo_model.py "$model" --cache models/cache || rc=$?
    if [ "$rc" = 3 ]; then
        echo "The demo model cannot be fetched here: using a tiny trained fixture instead (it knows little)."
        model=tests/golden/qwen3moe-tiny
    elif [ "$rc" != 0 ]; then
        exit "$rc"
    fi
}

# Which GPU there is, or why there is none. --exact has the CPU's bits there, but for KV, which is f32 with a GPU.
find_gpu() {
    local list
    gpu=()
    list=$("$sluice" devices)
    if grep '^cuda:0 .*compute capability .* free' <<<"$list"; then
        gpu=(--attention-device cuda:0)
        echo "Attention is computed on it, experts on the CPU: ${gpu[*]}"
    else
        echo "No GPU is used: $(sed -n 's/^\(gpus\|cuda:0\) *\(none: \)\{0,1\}//p' <<<"$list" | head -1)"
    fi
}

start() {
    "$sluice" serve "$model" --port 0 --served-model-name demo --attention 1 --experts 2 --exact --ctx 512 --log warn "${gpu[@]}" >"$log" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        url=$(sed -n 's/.*listening on \(http[^ ]*\).*/\1/p' "$log")
        [ -z "$url" ] || break
        kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
        sleep 0.1
    done
    [ -n "$url" ] || { echo "the server did not start:" >&2; cat "$log" >&2; exit 1; }
    grep 'listening on' "$log"
}

ask() {
    local body
    body=$(jq -n --arg q "$question" \
        '{model: "demo", stream: true, temperature: 0, max_tokens: 96,
          stream_options: {include_usage: true}, messages: [{role: "user", content: $q}]}')
    echo "> $question"
    curl -sS -N --max-time 300 -H 'Content-Type: application/json' -d "$body" \
        "$url/v1/chat/completions" | tee "$log.sse" | sed -u -n 's/^data: {/{/p' |
        jq --unbuffered -rj '(.choices[0].delta.content // empty), (.error.message // empty)'
    echo
    grep -q '^data: \[DONE\]' "$log.sse" || { echo "the stream did not end well" >&2; exit 1; }
    grep -q '"error"' "$log.sse" && exit 1
    rm -f "$log.sse"
}

# The process that is worker $1.
worker() {
    local p
    for p in $(cat /proc/"$server"/task/*/children); do
        tr '\0' ' ' <"/proc/$p/cmdline" | grep -q -- "--worker-id $1 " && echo "$p"
    done
}

# The question again; in the middle of the answer worker 2 is killed, which is said where it happens.
ask_and_kill() {
    local asker killed
    ask > >(tee "$log.again") &
    asker=$!
    until [ "$(grep -c '^data: {' "$log.sse" 2>/dev/null)" -gt 20 ] 2>/dev/null; do
        kill -0 "$asker" 2>/dev/null || break
        sleep 0.05
    done
    killed=$(worker 2)
    kill -KILL "$killed"
    printf '\033[7m kill -9 %s (worker 2) \033[0m' "$killed"
    wait "$asker"
    for _ in $(seq 50); do # until the copy has what the answer ends with
        ! cmp -s "$log.first" "$log.again" || break
        sleep 0.1
    done
    if cmp -s "$log.first" "$log.again"; then
        echo "It is the same answer; worker 2 is process $(worker 2) now."
    else
        echo "It is another answer than before." >&2
        exit 1
    fi
}

step "1. The model"
prepare
"$sluice" inspect "$model" --attention 1 --experts 2
step "2. The server and its workers"
find_gpu
start
step "3. A question over HTTP, the answer as it is generated"
ask | tee "$log.first"
step "4. The same question; an expert worker is killed in the middle of the answer"
ask_and_kill
step "5. What each worker did"
sleep 0.7 # workers report twice a second
kill -TERM "$server"
wait "$server" || { cat "$log" >&2; exit 1; }
server=
grep '^  worker' "$log"
echo
echo "Done. Next: $sluice serve $model --attention 1 --experts 2, then ask http://127.0.0.1:8000/v1"
