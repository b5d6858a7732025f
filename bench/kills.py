#!/usr/bin/env python3
"""How long streams pause when an expert worker is killed and replicas stand in for it.

    bench/kills.py [--model DIR] [--streams 1 16] [--kills 20] [--tokens 120] [server options]

For each number of streams and each expert worker: the streams run undisturbed, then once more for each kill, which
comes at a drawn moment (kill -9). Printed is the longest time between two tokens of a stream minus the longest of the same
stream undisturbed, of all kills: middle and largest; the steps that were given up, the rows that went again, and whether
tokens differed. Figures beside other load are of that load: the load average is printed, too."""

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "multi"))
import test_kill  # noqa: E402  (its Server)


class Stream(threading.Thread):
    def __init__(self, port, seed, tokens):
        super().__init__(daemon=True)
        self.port, self.seed, self.tokens = port, seed, tokens
        self.times, self.ids, self.error = [], [], None

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        body = {"model": "m", "prompt": [3, 17, 41 + self.seed], "max_tokens": self.tokens, "stream": True, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        for raw in connection.getresponse():
            line = raw.decode().strip()
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                self.error = event["error"]["message"]
            elif event["choices"] and event["choices"][0].get("token_ids"):
                self.times.append(time.monotonic())
                self.ids += event["choices"][0]["token_ids"]

    def longest_gap(self):
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0.0)


def run_streams(server, n, tokens, kill=None):
    """All streams to their ends; kill: (worker, after so many seconds)."""
    streams = [Stream(server.port, i, tokens) for i in range(n)]
    began = time.monotonic()
    for s in streams:
        s.start()
    while kill and not all(s.times for s in streams):
        time.sleep(0.005)
    if kill:
        time.sleep(kill[1])
        os.kill(server.worker_pid(kill[0]), signal.SIGKILL)
    for s in streams:
        s.join()
    return streams, time.monotonic() - began


def total(server, name):
    text = server.request("GET", "/metrics").read().decode()
    return sum(map(float, re.findall(rf"^sluice:{name}\S* (\S+)", text, re.M)))


def measure(server, n, victim, o, rng):
    before, seconds = run_streams(server, n, o.tokens)
    extra, wrong, again = [], 0, 0
    for _ in range(o.kills):
        restarted, given_up = total(server, "workers_restarted_total"), total(server, "worker_steps_given_up_total")
        after, _ = run_streams(server, n, o.tokens, (victim, rng.uniform(0.05, 0.7) * seconds))
        undisturbed, _ = run_streams(server, n, o.tokens) if o.pairs else (before, 0)
        extra += [1e3 * (a.longest_gap() - b.longest_gap()) for a, b in zip(after, undisturbed)]
        wrong += sum(a.ids != b.ids or a.error is not None for a, b in zip(after, before))
        deadline = time.monotonic() + 60
        while total(server, "workers_restarted_total") == restarted and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.7)
        again += total(server, "worker_reissued_rows_total")
    gap = 1e3 * max(s.longest_gap() for s in before)
    print(f"{n:3} streams, worker {victim}: undisturbed {gap:.0f} ms; {o.kills} kills: {statistics.median(extra):+.0f} ms in the middle, "
          f"{max(extra):+.0f} at most, {sum(e > 50 for e in extra)} of {len(extra)} above 50; steps given up "
          f"{total(server, 'worker_steps_given_up_total'):.0f}, rows again (sum of totals) {again:.0f}, wrong {wrong}; "
          f"load {os.getloadavg()[0]:.1f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default=ROOT / "models" / "smollm2-moe")
    p.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--tokens", type=int, default=120)
    p.add_argument("--experts", type=int, default=2)
    p.add_argument("--pairs", action="store_true", help="an undisturbed run right after each kill to compare with")
    o, options = p.parse_known_args()
    rng = random.Random(1)
    test_kill.FIXTURE = pathlib.Path(o.model)
    options = options or ["--schedule", "dep"]
    server = test_kill.Server("--exact", "--attention", "1", "--experts", str(o.experts), "--placement", "replicas:2", *options)
    try:
        for n in o.streams:
            for victim in range(1, 1 + o.experts):
                measure(server, n, victim, o, rng)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
