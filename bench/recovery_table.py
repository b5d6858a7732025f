#!/usr/bin/env python3
"""What streams see of each fault in each deployment: the table of docs/lab/recovery.md.

  bench/recovery_table.py MODEL [--streams 1] [--times 3] [--tokens 96] [--only NAME,...] [--json FILE]

Each cell: by how much the longest pause of a stream was longer than its longest undisturbed one, in ms; median and most of
--times. "-": the fault cannot be there. A cell where a request ended or a token differed says so, and the exit status is 1. See
recovery.py for what the faults are."""

import argparse
import json
import pathlib
import sys

import recovery

DEPLOYMENTS = {
    "dep 1+2, replicas": "--schedule dep --attention 1 --experts 2 --placement replicas:2 --silence-limit 60",
    "dep 1+2": "--schedule dep --attention 1 --experts 2",
    "findep 2+2, tcp, replicas": "--schedule findep --attention 2 --experts 2 --transport tcp --placement replicas:2 --silence-limit 60",
    "aep 2+2, tcp": "--schedule aep --attention 2 --experts 2 --transport tcp",
    "ep 3": "--schedule ep --attention 3",
}
FAULTS = {
    "expert": "expert worker killed", "sequencer": "sequencer killed", "attention": "attention worker killed",
    "both": "an attention and an expert worker killed at once", "all": "every worker killed",
    "stop3:expert": "expert worker stopped for 3 s", "slow3:expert": "expert worker 20 times slower for 3 s",
    "stop3:coordinator": "coordinator stopped for 3 s", "cut": "connection reset", "corrupt": "message damaged",
    "dark4": "link silent for 4 s", "thin3": "link at 20 KB/s for 3 s",
    "drain:expert": "expert worker leaves and comes back", "restart:attention": "attention worker restarts", "roll": "all restart, one by one",
}


def possible(fault, options):
    """Links are struck over tcp alone, and where workers are colocated one kill is both."""
    return ("tcp" in options or not recovery.LINKS.fullmatch(fault)) and ("--experts" in options or fault not in ("both", "expert"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--only", help="faults, as recovery.py names them", default=",".join(FAULTS))
    parser.add_argument("--json")
    a = parser.parse_args()
    cells, bad = {}, 0
    print(f"{a.model}, {a.streams} streams, {a.times} times each, {a.tokens} tokens\n")
    print("| fault | " + " | ".join(DEPLOYMENTS) + " |\n|---|" + "---:|" * len(DEPLOYMENTS), flush=True)
    for fault in a.only.split(","):
        words = []
        for name, text in DEPLOYMENTS.items():
            options = text.split()
            if not possible(fault, options):
                words.append("-")
                continue
            r = cells[f"{fault}; {name}"] = recovery.measure(fault, a.streams, a, options, *recovery.sizes(options))
            bad += not recovery.is_good(r)
            words.append(f"{r['more_median_ms']:.0f}, {r['more_ms']:.0f}" + ("" if r["same"] else ", OTHER TOKENS")
                         + (f", {r['ended']} ENDED" if r["ended"] else ""))
            print(f"{name}: {recovery.line(r)}", file=sys.stderr, flush=True)
        print(f"| {FAULTS.get(fault, fault)} | " + " | ".join(words) + " |", flush=True)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"model": a.model, "tokens": a.tokens, "cells": cells}, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
