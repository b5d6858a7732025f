#!/usr/bin/env python3
"""Inter-token latency of decoding streams while a long prompt is prefilled beside them.

    bench/itl_under_prefill.py SLUICE MODEL [--streams 4] [--prompt 4096] [-- SERVE OPTIONS]

Phase 1: the streams decode alone. Phase 2: a request of --prompt random ids with max_tokens 1 joins them.
Prints median and P99 of the gaps between chunks in both, their ratio, and how long the prompt took.
Standard library only."""
import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time


def start(sluice, model, options):
    process = subprocess.Popen(
        [sluice, "serve", model, "--port", "0", "--served-model-name", "m", *options],
        stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r"listening on http://([\d.]+):(\d+)", line)
        if found:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, int(found.group(2))
    sys.exit("the server did not start")


def post(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(response.read().decode())
    return response


def stream(port, seed, times, stop):
    rng = random.Random(seed)
    while not stop.is_set():
        body = {"model": "m", "prompt": [rng.randrange(256) for _ in range(8)], "max_tokens": 400,
                "stream": True, "temperature": 0, "ignore_eos": True}
        last = None
        for line in post(port, body):
            if line.startswith(b"data: {"):
                now = time.monotonic()
                if last is not None:
                    times.append((now, now - last))
                last = now
            if stop.is_set():
                return


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))]


def report(name, gaps):
    p50, p99 = percentile(gaps, 0.5) * 1e3, percentile(gaps, 0.99) * 1e3
    print(f"{name}: {len(gaps)} gaps, median {p50:.1f} ms, P99 {p99:.1f} ms")
    return p99


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=20)
    own, _, options = " ".join(sys.argv[1:]).partition(" -- ")
    o = parser.parse_args(own.split())
    process, port = start(o.sluice, o.model, options.split())
    stop, times = threading.Event(), []
    for i in range(o.streams):
        threading.Thread(target=stream, args=(port, i, times, stop), daemon=True).start()
    time.sleep(3)
    begin = time.monotonic()
    time.sleep(o.seconds)
    middle = time.monotonic()
    rng = random.Random(99)
    post(port, {"model": "m", "prompt": [rng.randrange(256) for _ in range(o.prompt)], "max_tokens": 1}).read()
    end = time.monotonic()
    stop.set()
    alone = report("alone       ", [g for t, g in times if begin < t <= middle])
    beside = report("with prefill", [g for t, g in times if middle < t <= end])
    print(f"P99 ratio {beside / alone:.2f}; the prompt of {o.prompt} took {end - middle:.1f} s")
    process.terminate()
    process.wait(20)


main()
