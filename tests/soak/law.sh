#!/bin/sh
# The law over every schedule, deployment, wire and placement that tests/multi/test_law.c knows, with
# other requests and placements at each seed; `make test` takes a share of the schedules at one seed.
#   tests/soak/law.sh [SEEDS] [FIRST_SEED] [TRANSPORT ...]
set -eu
cd "$(dirname "$0")/../.."
seeds=${1:-10} first=${2:-1}
[ $# -gt 2 ] && shift 2 || set -- loop shm tcp
for seed in $(seq "$first" $((first + seeds - 1))); do
    for transport in "$@"; do
        printf 'seed %s, %s: ' "$seed" "$transport"
        nice build/tests/test_law "$transport" build/sluice tests/golden "$seed" >build/law.log 2>&1 || {
            tail -20 build/law.log
            exit 1
        }
        echo "holds"
    done
done
