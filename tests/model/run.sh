#!/bin/sh
# Checks membership.pml, recovery.pml and reissue.pml with spin. Without an argument: the configurations that take seconds, every
# planted bug (must be found) and every situation that must be reachable. --quick leaves out long
# ones, situations and most planted bugs, since compiling each takes seconds; --full adds the large ones (about an hour, 6 GB). Prints one line a run: states, depth, seconds. Exit 77: spin is missing.
set -u
here=$(cd "$(dirname "$0")" && pwd)
command -v spin >/dev/null || { echo "skipped: spin is not installed"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
failed=0
model=membership
mode=${1:-}
opt=-O0 # compiling takes longer than checking here

# check WANT NAME "model options" "checker options" "run options": WANT is pass (all states
# seen, no error), found (an error) or partial (no error until stopped)
check() {
    want=$1 name=$2 t0=$(date +%s)
    mkdir "$work/run" && cd "$work/run" || exit 1
    if ! spin $3 -a "$here/$model.pml" >log 2>&1 || ! "${CC:-cc}" $opt -w -o pan $4 pan.c >>log 2>&1; then
        echo "FAIL $name: does not build"; cat log; failed=1
    else
        ./pan -q $5 >log 2>&1
        errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' log)
        depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' log)
        states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' log)
        why=$(sed -n 's/^pan:1: \(.*\)/\1/p' log | tr -s ' ' | cut -c1-100)
        verdict=ok
        grep -Eq 'max search depth too small|out of memory|pan: reached -DMEMLIM' log && verdict=FAIL
        case $want in
        found) [ "${errors:-0}" -gt 0 ] || verdict=FAIL ;;
        *) [ "${errors:-1}" -eq 0 ] || verdict=FAIL
           [ $want = pass ] && grep -q 'Search not completed' log && verdict=FAIL ;;
        esac
        [ $verdict = ok ] || { failed=1; cat log; }
        printf '%-4s %-34s %10s states %5s deep %5s s  %s\n' $verdict "$name" "$states" "$depth" \
            $(($(date +%s) - t0)) "$why"
    fi
    cd "$work" && rm -rf run
}

safety="-DSAFETY -DCOLLAPSE"
run="-m200000 -w20"
dims() { echo "-DNA=$1 -DNE=$2 -DNL=$3 -DLAYERS=$4 -DROUNDS=$5 -DDEATHS=$6"; }
# the dimensions as printed: attention x expert workers x lanes, layers, rounds, deaths
all() { check pass "$1x$2x$3 l$4 r$5 d$6" "$(dims "$@")" "$safety" "$run"; }
# the same, changes of plans, workers that come back
plans() { check pass "$1x$2x$3 l$4 r$5 d$6 e$7 b$8" "$(dims "$@") -DEPOCHS=$7 -DRETURNS=$8" "$safety" "$run"; }

# all of them, or what a quick run takes
some() { [ "$mode" = --quick ] && echo "$2" || echo "$1"; }

plans 2 2 1 1 1 1 1 1
if [ "$mode" != --quick ]; then
    all 2 2 1 2 4 2
    all 2 3 1 2 2 1
    all 3 2 1 2 3 0
    all 2 2 2 2 1 0
    all 2 2 1 1 3 2
    all 3 2 1 2 2 1
    plans 2 2 1 1 2 1 1 1
    plans 2 2 1 1 1 1 2 1
    plans 2 2 1 2 1 1 1 1
fi
[ "$mode" = --quick ] || check pass "2x2x1 l2 r3 d2 no_lost_join" "$(dims 2 2 1 2 3 2) -DLTL" -DCOLLAPSE "$run -a"
for bug in $(some "OMIT_JOINER NO_ANNOUNCE NO_SET EARLY SLEEP JOIN_NOW KEEP_DEAD FORGET_DEAD NO_WAIT" ""); do
    check found "bug $bug" "$(dims 2 2 1 2 4 2) -DBUG_$bug" "$safety" "$run"
done
change="$(dims 2 2 1 1 1 1) -DEPOCHS=1 -DRETURNS=1"
for bug in $(some "HASTY_QUIET NO_HOLD GO_EARLY KEEP_ROUNDS WAIT_DEAD STALE_DEAD DROP_EARLY REJOIN_NOW" "GO_EARLY"); do
    check found "bug $bug" "$change -DBUG_$bug" "$safety" "$run"
done
for cover in $(some "STALE RETURN CHANGE" ""); do
    check found "reached $cover" "$change -DCOVER_$cover" "$safety" "$run"
done
[ "$mode" = --quick ] || check found "bug SLEEP no_lost_join" "$(dims 2 2 1 2 2 0) -DLTL -DBUG_SLEEP" -DCOLLAPSE "$run -a"
for cover in $(some "REOPEN OVERLAP SKIP EARLY" ""); do
    check found "reached $cover" "$(dims 2 2 1 2 3 2) -DCOVER_$cover" "$safety" "$run"
done

# of recovery.pml, as printed: attention x expert workers, steps, lost, back, links that break, deaths of
# attention workers, changes that fail
model=recovery
fates() { echo "-DNA=$1 -DNE=$2 -DSTEPS=$3 -DLOSSES=$4 -DRETURNS=$5 -DCUTS=$6 -DDEATHS=$7 -DFAILS=$8"; }
lose() { check pass "$1x$2 s$3 l$4 b$5 c$6 d$7 f$8" "$(fates "$@")" "$safety" "$run"; }
lose 2 2 1 1 1 0 0 0
if [ "$mode" != --quick ]; then
    lose 2 2 1 0 0 1 0 1
    lose 2 2 1 1 1 0 0 1
    lose 2 3 1 1 0 0 0 0
fi
for bug in $(some "NO_EPOCH OLD_SEQUENCER REJOIN_NOW GO_EARLY MISS_NOBODY" ""); do
    check found "bug $bug" "$(fates 2 2 1 1 1 0 0 0) -DBUG_$bug" "$safety" "$run"
done
for bug in $(some "UNHOLD FORGET_MEND" ""); do
    check found "bug $bug" "$(fates 2 2 1 0 0 1 0 1) -DBUG_$bug" "$safety" "$run"
done
for cover in $(some "STALE RETURN SUCCESSION" ""); do
    check found "reached $cover" "$(fates 2 2 1 1 1 0 0 0) -DCOVER_$cover" "$safety" "$run"
done

# of reissue.pml, as printed: attention x expert workers, layers, lost
model=reissue
sizes() { echo "-DNA=$1 -DNE=$2 -DLAYERS=$3 -DLOSSES=$4"; }
again() { check pass "$1x$2 l$3 lost $4" "$(sizes "$@")" "$safety" "$run"; }
# the same, and done without
slow() { check pass "$1x$2 l$3 lost $4 slow $5" "$(sizes "$@") -DSLOW=$5" "$safety" "$run"; }
slow 1 2 2 0 1
if [ "$mode" != --quick ]; then
    again 1 2 2 1
    again 2 2 1 1
    again 1 3 1 2
    slow 1 2 2 1 1
    slow 2 2 1 0 1
    slow 1 3 1 0 1
fi
for bug in $(some "LATE BOTH" ""); do
    check found "bug $bug" "$(sizes 1 3 1 0) -DSLOW=1 -DBUG_$bug" "$safety" "$run"
done
for cover in $(some "DROPPED FIRST" ""); do
    check found "reached $cover" "$(sizes 1 3 1 0) -DSLOW=1 -DCOVER_$cover" "$safety" "$run"
done
for bug in $(some "DOUBLE MIX FORGET CREDIT" "MIX"); do
    check found "bug $bug" "$(sizes 1 3 1 2) -DBUG_$bug" "$safety" "$run"
done
[ "$mode" = --quick ] || check found "bug WAIT" "$(sizes 2 2 1 1) -DBUG_WAIT" "$safety" "$run"
for cover in $(some "LATE" ""); do
    check found "reached $cover" "$(sizes 1 3 1 2) -DCOVER_$cover" "$safety" "$run"
done
[ "$mode" = --quick ] || check found "reached ALONE" "$(sizes 2 2 1 1) -DCOVER_ALONE" "$safety" "$run"

if [ "$mode" = --full ]; then
    run="-m2000000 -w26"
    opt=-O2
    model=recovery
    lose 2 2 2 1 1 0 0 0
    lose 2 2 1 1 1 0 1 0
    lose 2 2 1 2 1 0 0 0
    lose 2 2 1 1 1 1 0 0
    model=reissue
    again 2 3 1 1
    again 1 3 2 2
    slow 2 2 1 1 1
    slow 1 3 1 1 1
    model=membership
    all 2 2 1 1 4 2
    all 2 3 1 2 3 2
    all 3 2 1 2 3 1
    all 3 2 1 2 2 3
    all 3 2 1 1 2 3
    all 2 2 2 2 2 0
    all 2 2 2 2 3 0
    plans 2 3 1 1 1 1 1 1
    plans 3 2 1 1 1 1 1 1
    check pass "3x2x1 l2 r2 d1 no_lost_join" "$(dims 3 2 1 2 2 1) -DLTL" -DCOLLAPSE "$run -a"
    # No proof: stopped by the clock. Bitstate keeps a hash of 2^34 bits instead of the states.
    check partial "2x2x2 l2 r2 d2, 20 min" "$(dims 2 2 2 2 2 2)" "$safety" "$run -Q20"
    check partial "3x2x2 l2 r3 d3 bitstate, 10 min" "$(dims 3 2 2 2 3 3)" "-DSAFETY -DBITSTATE" \
        "-m1000000 -w34 -Q10"
fi
exit $failed
