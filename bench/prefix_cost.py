#!/usr/bin/env python3
"""What the prefix cache costs where no two requests begin alike: two servers, one of them with --prefix-cache off, do the same work by turns.

  bench/prefix_cost.py MODEL [--reps 9] [--streams 8] [--requests 32] [--prompt 160] [--tokens 64] [--build build] [-- OPTIONS OF serve]

A round is the same requests at either server, the first of the two by turns. Figures are medians over rounds of the processor time that a server and its
workers took, and of the time that passed; ratios are with the cache over without, each of one round. Prompts differ from the first token on, in
all rounds; all ask for as many tokens. With a full cache (--kv-pages) pages are evicted all the time, which is part of the price."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
sys.path.insert(0, str(ROOT / "tests"))
import ended  # noqa: E402


def processor_s(pid):
    """Of a process and all below it, as far as they live."""
    total = 0.0
    for one in ended.of_tree(pid):
        fields = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


class Server:
    def __init__(self, command):
        self.process = ended.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = json.loads(self.process.stdout.readline())["url"]

    def ask(self, prompt, tokens):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            usage = json.load(answer)["usage"]
        assert usage["completion_tokens"] == tokens and not (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def work(self, prompts, tokens, streams):
        """(processor seconds, seconds) of all prompts, so many at a time."""
        began, before = time.monotonic(), processor_s(self.process.pid)
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            list(pool.map(lambda prompt: self.ask(prompt, tokens), prompts))
        return processor_s(self.process.pid) - before, time.monotonic() - began


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    for name, value in (("reps", 9), ("streams", 8), ("requests", 32), ("prompt", 160), ("tokens", 64)):
        args.add_argument(f"--{name}", type=int, default=value)
    args.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    own = sys.argv[1:]
    more = own[own.index("--") + 1:] if "--" in own else []
    o = args.parse_args(own[:own.index("--")] if "--" in own else own)
    command = [o.build / "sluice", "serve", o.model, "--port", "0", "--json", "--max-num-seqs", str(o.streams), *more]
    servers = {"key": Server(command), "off": Server([*command, "--prefix-cache", "off"])}
    rng, took = random.Random(1), {"key": [], "off": []}
    for rep in range(-1, o.reps):
        prompts = [[rng.randrange(1000, 20000) for _ in range(o.prompt)] for _ in range(o.requests)]
        for name in ("key", "off") if rep % 2 else ("off", "key"):
            figures = servers[name].work(prompts, o.tokens, o.streams)
            if rep >= 0:  # the first one warms up
                took[name].append(figures)
    for server in servers.values():
        server.process.terminate()
        server.process.wait()
    for i, what in enumerate(("processor time", "time")):
        ratios = [with_cache[i] / without[i] for with_cache, without in zip(took["key"], took["off"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        print(f"{what}: {statistics.median(t[i] for t in took['key']):.2f} s with the cache, {statistics.median(t[i] for t in took['off']):.2f} s without: "
              f"{statistics.median(ratios):.4f} ({low:.4f} to {high:.4f}) over {o.reps} rounds of {o.requests} requests")


if __name__ == "__main__":
    main()
