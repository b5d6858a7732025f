#!/usr/bin/env python3
"""What streams notice of workers that leave and come on purpose: the longest gap between two tokens of any stream, calm and
from `sluice drain`, `join` or `restart` of a worker to 0.3 s after its end.

    bench/drain_gap.py MODEL [--streams 1,16] [--rounds 5] [--workers 2,1] [-- arguments of serve]

One line a number of streams and kind: median and longest of the rounds. Loopback alone; the load is bounded. The program is $SLUICE_BIN (default build/sluice)."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
from served import SLUICE, Server  # noqa: E402

CALM_S = 0.7  # a stretch beside which the others are compared
AFTER_S = 0.3


class Streams:
    """So many streams, each begun again when it has ended; when tokens of each came."""

    def __init__(self, url, n):
        self.url, self.stopped, self.began = url, threading.Event(), []
        self.times = [[] for _ in range(n)]
        self.threads = [threading.Thread(target=self.read, args=[i], daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()
        while not all(self.times):
            time.sleep(0.05)

    def read(self, i):
        body = {"model": "m", "prompt": [3, 17, 41 + i], "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}
        while not self.stopped.is_set():
            request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            self.times[i].append(None)  # no gap between two streams
            with urllib.request.urlopen(request, timeout=120) as answer:
                for line in answer:
                    if b'"error"' in line:
                        sys.exit(line.decode())
                    if line.startswith(b"data: {"):
                        self.times[i].append(time.monotonic())
                    if self.stopped.is_set():
                        return

    def longest(self, begin, end):
        gaps = [b - a for times in self.times for a, b in zip(times, times[1:]) if a and b and b > begin and a < end]
        return max(gaps, default=0.0)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    args.add_argument("--streams", default="1,16")
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--workers", default="2,1", help="that are drained and join again, in turn")
    args.add_argument("--restart", default="", help="workers that restart")
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    o = args.parse_args(own)
    rest = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else ["--attention", "1", "--experts", "2"]
    with tempfile.TemporaryDirectory() as folder:
        key = pathlib.Path(folder) / "key"
        subprocess.run([SLUICE, "secret", "-o", key], check=True, stdout=subprocess.DEVNULL)
        server = Server(o.model, "--admin-key-file", key, *rest)
        try:
            for n in map(int, o.streams.split(",")):
                measure(o, server.url, key, n)
        finally:
            server.stop()


def measure(o, url, key, n):
    streams, found = Streams(url, n), {}
    time.sleep(CALM_S)

    def timed(kind, what):
        begin = time.monotonic()
        what()
        took = time.monotonic() - begin
        time.sleep(AFTER_S)
        found.setdefault(kind, []).append((streams.longest(begin, time.monotonic()), took))

    def ask(verb, worker):
        subprocess.run([SLUICE, verb, str(worker), "--url", url, "--admin-key-file", key], check=True, stdout=subprocess.DEVNULL)

    for i in range(o.rounds):
        timed("calm", lambda: time.sleep(CALM_S))
        for worker in o.workers.split(","):
            for verb in ("drain", "join"):
                timed(f"{verb} {worker}", lambda v=verb, w=worker: ask(v, w))
        for worker in filter(None, o.restart.split(",")):
            timed(f"restart {worker}", lambda w=worker: ask("restart", w))
    streams.stopped.set()
    for kind, all_of_it in found.items():
        gaps, took = [1e3 * g for g, _ in all_of_it], [t for _, t in all_of_it]
        print(f"{n:3} streams  {kind:10} longest gap median {statistics.median(gaps):6.1f} ms, most {max(gaps):6.1f} ms; "
              f"took {statistics.median(took):.2f} s", flush=True)
    for t in streams.threads:
        t.join(30)


if __name__ == "__main__":
    main()
