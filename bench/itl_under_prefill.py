#!/usr/bin/env python3
"""Time between tokens of decoding streams while long prompts are computed beside them, of several deployments by turns.

  bench/itl_under_prefill.py MODEL --of "OPTIONS" [--of "OPTIONS" ...] [--streams 4] [--prompt 2048] [--seconds 12] [--rounds 5] [-- OPTIONS OF all]

  one worker, pacing     --of "--threads 2"
  prompts apart          --of "--attention 1 --prefill 1 --threads 1 --pin 0,1"

All servers stand side by side; one at a time is asked, in every round each once, the first one by turns. A turn: the streams decode alone for a quarter of --seconds, then
prompts of random ids (max_tokens 2: so a handed-over one is through when it has gone on) come one after the other for --seconds. Figures of a round: median, P99 and longest of the gaps between
tokens, alone and beside prompts, tokens a second of all streams meanwhile, and the median time to a prompt's first token. Prints each round, and medians over rounds, which are of one round each beside the
first deployment's. Standard library only."""
import argparse
import http.client
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

SLUICE = os.environ.get("SLUICE_BIN", str(pathlib.Path(__file__).resolve().parents[1] / "build" / "sluice"))
FIGURES = (("alone, P50 ms", 1e3), ("alone, P99 ms", 1e3), ("P50 ms", 1e3), ("P99 ms", 1e3), ("longest ms", 1e3), ("tokens/s", 1), ("prompt's first token ms", 1e3))


class Server:
    def __init__(self, model, options):
        self.process = subprocess.Popen([SLUICE, "serve", model, "--port", "0", "--json", *options], stdout=subprocess.PIPE, text=True)
        about = json.loads(self.process.stdout.readline())
        self.name, self.at = about["model"], urllib.parse.urlparse(about["url"])

    def events(self, ids, tokens):
        """When each of its tokens came."""
        connection = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=600)
        body = {"model": self.name, "prompt": ids, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield time.monotonic()
        finally:
            connection.close()

    def stream(self, seed, gaps, stop):
        rng = random.Random(seed)
        while not stop.is_set():
            last = None
            for now in self.events([rng.randrange(3, 256) for _ in range(8)], 400):
                if last is not None:
                    gaps.append((now, now - last))
                last = now
                if stop.is_set():
                    return

    def turn(self, o, seed):
        stop, gaps, firsts, rng = threading.Event(), [], [], random.Random(seed)
        streams = [threading.Thread(target=self.stream, args=(100 * seed + i, gaps, stop), daemon=True) for i in range(o.streams)]
        for s in streams:
            s.start()
        time.sleep(1)
        begin = time.monotonic()
        time.sleep(o.seconds / 4)
        middle = time.monotonic()
        while time.monotonic() < middle + o.seconds:
            asked = time.monotonic()
            firsts.append(next(iter(list(self.events([rng.randrange(3, 256) for _ in range(o.prompt)], 2)))) - asked)
        end = time.monotonic()
        stop.set()
        for s in streams:
            s.join()
        alone = sorted(g for t, g in gaps if begin < t <= middle)
        beside = sorted(g for t, g in gaps if middle < t <= end)
        return (at(alone, 0.5), at(alone, 0.99), at(beside, 0.5), at(beside, 0.99), beside[-1], len(beside) / (end - middle), statistics.median(firsts))


def at(values, p):
    return values[min(len(values) - 1, int(p * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--of", action="append", required=True)
    for name, default in (("streams", 4), ("prompt", 2048), ("rounds", 5)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--seconds", type=float, default=12)
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[:own.index("--")], own[own.index("--") + 1:]
    o = parser.parse_args(own)
    servers = [Server(o.model, [*rest, *shlex.split(of)]) for of in o.of]
    got = [[] for _ in servers]
    for r in range(o.rounds):
        for i in [(r + k) % len(servers) for k in range(len(servers))]:
            got[i].append(servers[i].turn(o, r))
            print(f"round {r}, {o.of[i]}: " + ", ".join(f"{name} {scale * x:.1f}" for (name, scale), x in zip(FIGURES, got[i][-1])), flush=True)
    for s in servers:
        s.process.terminate()
    for s in servers:
        s.process.wait()
    for of, rounds in zip(o.of, got):
        print(f"\n{of}")
        for k, (name, scale) in enumerate(FIGURES):
            ratios = [x[k] / y[k] for x, y in zip(rounds, got[0])]
            print(f"  {name:24} {scale * statistics.median(x[k] for x in rounds):9.1f}   {statistics.median(ratios):.2f} of the first ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
