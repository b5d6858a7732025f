#!/usr/bin/env python3
"""What an option of `serve` costs: tokens per second of streams at once, with it and without, in pairs.

  bench/pairs.py MODEL --with "OPTIONS" [--streams 16] [--tokens 200] [--pairs 9] [--prompts FILE] [-- OPTIONS OF both]

  a journal        --with "--responses 1000 --journal FOLDER/journal"
  being ready      --with "--placement replicas:2" -- --attention 1 --experts 2 --schedule dep
  a plan           --with "--plan ONE.json" --without "--plan OTHER.json"
  copies of KV     --with "--kv-replicas 1" -- --attention 2 --experts 1
  guesses          --with "--speculate lookup" --prompts bench/prompts/repeats.json

FOLDER: one of this run's own. Two servers stand side by side, one of which has the options, and the other those of --without;
they are asked in turn, so that what else the machine does falls on both. Prints each pair, and the median of the quotients with
and without, of tokens per second and of the coordinator's CPU time. --prompts: a list of fields of requests, of which streams and
pairs take one after the other."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

SLUICE = os.environ.get("SLUICE_BIN", str(pathlib.Path(__file__).resolve().parents[1] / "build" / "sluice"))


class Server:
    def __init__(self, model, options):
        self.process = subprocess.Popen([SLUICE, "serve", model, "--port", "0", "--json", *options], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.about = json.loads(self.process.stdout.readline())

    def cpu(self):
        """Seconds of all its threads."""
        threads = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((t / "schedstat").read_text().split()[0]) for t in threads) / 1e9

    def stream(self, i, tokens, fields):
        body = {"model": self.about["model"], "prompt": [3 + i, 17, 41], "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": i, **fields}
        request = urllib.request.Request(self.about["url"] + "/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.readline()
            first = time.monotonic()
            assert answer.read().endswith(b"[DONE]\n\n")
        return (tokens - 1) / (time.monotonic() - first)

    def run(self, streams, tokens, prompts, first):
        """(tokens per second, the same from each stream's first token on, CPU seconds of the coordinator per 1,000 tokens)"""
        began, cpu = time.monotonic(), self.cpu()
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            decode = sum(pool.map(lambda i: self.stream(i, tokens, prompts[(first + i) % len(prompts)]), range(streams)))
        return streams * tokens / (time.monotonic() - began), decode, 1000 * (self.cpu() - cpu) / (streams * tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, default in (("streams", 16), ("tokens", 200), ("pairs", 9)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--with", dest="given", required=True)
    parser.add_argument("--without", default="")
    parser.add_argument("--prompts")
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[:own.index("--")], own[own.index("--") + 1:]
    o = parser.parse_args(own)
    prompts = json.loads(pathlib.Path(o.prompts).read_text()) if o.prompts else [{}]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        given = shlex.split(o.given.replace("FOLDER", folder))
        servers = [Server(o.model, [*rest, *given]), Server(o.model, [*rest, *shlex.split(o.without)])]
        quotients = []
        for pair in range(-1, o.pairs):
            turn = servers if pair % 2 else servers[::-1]
            got = {s: s.run(o.streams, o.tokens, prompts, max(pair, 0)) for s in turn}
            (rate, decode, cpu), (rate0, decode0, cpu0) = (got[s] for s in servers)
            if pair < 0:
                continue
            quotients.append((rate / rate0, decode / decode0, cpu / cpu0))
            print(f"pair {pair}: {rate:8.0f} tokens/s with, {rate0:8.0f} without: {rate / rate0:.3f}; from first tokens on {decode / decode0:.3f}; "
                  f"coordinator {1000 * cpu:.1f} and {1000 * cpu0:.1f} us a token", flush=True)
        for s in servers:
            s.process.terminate()
        for s in servers:
            s.process.wait()
    rates, decodes, cpus = zip(*quotients)
    print(f"median of {o.pairs} pairs: {statistics.median(rates):.3f} of the tokens per second ({min(rates):.3f} to {max(rates):.3f}), "
          f"from first tokens on {statistics.median(decodes):.3f} ({min(decodes):.3f} to {max(decodes):.3f}), "
          f"{statistics.median(cpus):.2f} of the coordinator's CPU time")


if __name__ == "__main__":
    main()
