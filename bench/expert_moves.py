#!/usr/bin/env python3
"""What moving experts while serving costs and gains: servers without and with --adapt in turn, under the same skewed load.

    bench/expert_moves.py MODEL [--streams 8] [--seconds 20] [--pairs 3] [--every 2]
                          [-- arguments of serve]

Popularity falls as exp(-0.4 * rank) (--route-skew), and the first placement gives the dearest experts to one worker. Prints
for each server tokens/s (with --adapt: before the first change and after the last) and the longest gap between two tokens of
a stream: of all time, and of those that lie across a change. The load is bounded by --seconds and runs on loopback alone. The program is $SLUICE_BIN
(default build/sluice)."""
import argparse
import json
import pathlib
import random
import re
import statistics
import sys
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
from served import Server  # noqa: E402

WARM_S = 2.0  # at the start: prompts are read, kernels touch their weights


def stream(url, seed, until, came):
    """Appends the times of tokens of one stream after another; None: another one begins."""
    rng = random.Random(seed)
    while time.monotonic() < until:
        body = {"model": "m", "prompt": [rng.randrange(3, 900) for _ in range(8)], "max_tokens": 400,
                "ignore_eos": True, "stream": True, "temperature": 0}
        request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        came.append(None)
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    came.append(time.monotonic())
                if time.monotonic() > until:
                    return


def changes_so_far(url):
    with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
        text = answer.read().decode()
    figure = {}
    for name, key in (("taken", r'expert_moves_total\{outcome="taken"[^}]*\} (\S+)'),
                      ("now", r'expert_wait_ratio\{when="now"[^}]*\} (\S+)'),
                      ("before", r'expert_wait_ratio\{when="before"[^}]*\} (\S+)'),
                      ("pause", r'expert_move_pause_seconds\{[^}]*\} (\S+)')):
        figure[name] = float(re.search(key, text).group(1))
    return figure


def run(o, adapt):
    args = o.serve + ["--route-skew", "exp:0.4"] + (["--adapt", "--adapt-every", str(o.every)] if adapt else [])
    server = Server(o.model, "--log", "warn", *args)
    begin = time.monotonic()
    until = begin + o.seconds
    came = [[] for _ in range(o.streams)]
    threads = [threading.Thread(target=stream, args=(server.url, i, until, c)) for i, c in enumerate(came)]
    for t in threads:
        t.start()
    changes, seen, figure = [], 0, {}
    while time.monotonic() < until - 0.2:
        asked = time.monotonic()
        figure = changes_so_far(server.url)
        if figure["taken"] > seen:
            changes.append((asked - 0.25, time.monotonic(), figure["pause"]))
            seen = figure["taken"]
        time.sleep(0.1)
    for t in threads:
        t.join()
    server.stop()
    gaps = [(a, b) for c in came for a, b in zip(c, c[1:]) if a and b and a > begin + WARM_S]
    tokens = sorted(t for c in came for t in c if t)
    longest = max((b - a for a, b in gaps), default=0)

    def rate(first, last):
        return sum(first <= t < last for t in tokens) / max(last - first, 1e-9)

    if not adapt:
        print(f"  without: {rate(begin + WARM_S, until):7.1f} tok/s, longest gap {1e3 * longest:.1f} ms, "
              f"median {1e3 * statistics.median(b - a for a, b in gaps):.1f}", flush=True)
        return rate(begin + WARM_S, until), None
    if not changes:
        print("  with: nothing moved")
        return None, None
    across = max((b - a for a, b in gaps for c in changes if a < c[1] and b > c[0] - 0.2), default=0)
    before = rate(begin + WARM_S, changes[0][0]) if changes[0][0] > begin + WARM_S + 0.5 else float("nan")
    after = rate(changes[-1][1] + 0.5, until)
    print(f"  with:    {before:7.1f} tok/s, then {after:.1f}; {len(changes)} changes, experts {figure['before']:.2f}, then "
          f"{figure['now']:.3f} of the least; longest gap {1e3 * longest:.1f} ms, across changes {1e3 * across:.1f}, "
          f"pauses by the coordinator {', '.join(f'{1e3 * c[2]:.1f}' for c in changes)} ms", flush=True)
    return before, after


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--every", type=float, default=2)
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    o = p.parse_args(own)
    o.serve = sys.argv[len(own) + 2:]
    gains = []
    for i in range(o.pairs):
        print(f"pair {i + 1} of {o.pairs}: {o.streams} streams, {' '.join(o.serve)}")
        without, _ = run(o, False)
        _, after = run(o, True)
        if after:
            gains.append(after / without)
    if gains:
        print(f"tokens/s after the change over those without --adapt: median {statistics.median(gains):.3f}, "
              f"{min(gains):.3f} to {max(gains):.3f}")


if __name__ == "__main__":
    main()
