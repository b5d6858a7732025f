#!/usr/bin/env python3
"""Machines and a slow link: a pipeline, a gang, and colocated workers that share experts, measured in turns.

  bench/pipelines.py MODEL [--delay-us 0 500] [--batch 1 8] [--pairs 3] [--tokens 48] [--ways ep tp pp]
  bench/pipelines.py MODEL --ways pp4@OTHER/sluice pp4      the same by another program of the same wire, in turns

Machines are namespaces of bench/lab/net.sh with a core each (--threads 1), two unless a way says how many. `pp` has half of the blocks on each, `ep` half of the
experts of every block, `tp` half of every matrix. A client in the first one's namespace decodes with so many requests at once; what counts is tokens a second from the
first token of the last request to come on. Prints medians, medians of the quotients with the first way of the same turn, and KB that left and came by the first
machine's link for each token, prompts included. Needs root."""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SLUICE = os.environ.get("SLUICE_BIN", str(HERE.parent / "build" / "sluice"))
NET = str(HERE / "lab" / "net.sh")
TAG = "pipes"


def address(n):
    return f"10.77.0.{n + 1}"


class Way:
    """`pp`, `tp` or `ep`, of how many machines, by which program."""

    def __init__(self, text):
        self.text = text
        how, _, program = text.partition("@")
        self.how, self.nodes, self.program = how[:2], int(how[2:] or 2), os.path.abspath(program or SLUICE)


def node(n, *command, **more):
    return subprocess.Popen(["bash", NET, "exec", TAG, str(n), *map(str, command)], **more)


@contextlib.contextmanager
def network(nodes, delay_us):
    cable = ["--delay-us", str(delay_us), "--cable", str(HERE.parent / "build" / "lab_cable")] if delay_us else []
    subprocess.run(["bash", NET, "up", TAG, str(nodes), "--rate", "1gbit", *cable], check=True)
    try:
        yield
    finally:
        subprocess.run(["bash", NET, "down", TAG], check=True)


def stop(*processes):
    for p in processes:
        p.terminate()
    for p in processes:
        p.wait(30)


@contextlib.contextmanager
def deployment(way, model, secret):
    """Serves at port 8000 of the first node."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    serve = [way.program, "serve", model, "--threads", 1, "--secret-file", secret, "--host", "127.0.0.1", "--port", 8000, "--no-status"]
    if way.how == "ep":
        server = node(0, *serve, "--remote", "--attention", way.nodes, "--schedule", "ep", "--transport", "tcp", "--fabric-host", address(0), "--fabric-port", 7000, **quiet)
        others = [node(i, way.program, "worker", "--join", f"{address(0)}:7000", "--secret-file", secret, "--fabric-host", address(i), "--worker-id", i, "--model", model,
                       **quiet) for i in range(way.nodes)]
    else:
        others = [node(i, way.program, "rank", model, "--fabric-host", address(i), "--fabric-port", 7100, "--secret-file", secret, "--threads", 1, **quiet)
                  for i in range(1, way.nodes)]
        server = node(0, *serve, "--attention", 1, f"--{way.how}", way.nodes, "--rank-hosts", ",".join(f"{address(i)}:7100" for i in range(1, way.nodes)), **quiet)
    try:
        yield
    finally:
        stop(server)
        stop(*others)


def ask(port, tokens, first, done):
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True, "cache": False}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                first.append(time.monotonic())
    done.append(time.monotonic())


def by_link():
    """Bytes that have left and come by this machine's link."""
    return [int(pathlib.Path(f"/sys/class/net/eth0/statistics/{way}_bytes").read_text()) for way in ("tx", "rx")]


def client(batch, tokens):
    """Tokens a second from the first token of the last request on, and KB a token that left and came meanwhile."""
    until = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError):
            if urllib.request.urlopen("http://127.0.0.1:8000/readyz", timeout=5).status == 200:
                break
        if time.monotonic() > until:
            sys.exit("nothing answers")
        time.sleep(0.2)
    ask(8000, 4, [], [])
    before = by_link()
    came = [[] for _ in range(batch)]
    threads = [threading.Thread(target=ask, args=(8000, tokens, came[i], [])) for i in range(batch)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    begin = max(c[0] for c in came)
    end = min(c[-1] for c in came)
    print(sum(begin < t <= end for c in came for t in c) / (end - begin), *((b - a) / 1000 / batch / tokens for a, b in zip(before, by_link())))


def measure(way, model, secret, batch, tokens):
    with deployment(way, model, secret):
        done = node(0, sys.executable, __file__, "--client", batch, tokens, stdout=subprocess.PIPE, text=True)
        out, _ = done.communicate(timeout=600)
        if done.returncode:
            sys.exit(f"{way.text}: {out}")
        return [float(x) for x in out.split()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?")
    p.add_argument("--delay-us", type=int, nargs="+", default=[0, 500])
    p.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--ways", nargs="+", default=["ep", "tp", "pp"])
    p.add_argument("--client", type=int, nargs=2, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.client:
        client(*o.client)
        return
    ways = [Way(text) for text in o.ways]
    with tempfile.TemporaryDirectory() as folder:
        secret = os.path.join(folder, "secret")
        subprocess.run([SLUICE, "secret", "-o", secret], check=True, capture_output=True)
        for delay in o.delay_us:
            with network(max(way.nodes for way in ways), delay):
                for batch in o.batch:
                    got = {way: [] for way in ways}
                    for _ in range(o.pairs):
                        for way in ways:
                            got[way].append(measure(way, os.path.abspath(o.model), secret, batch, o.tokens))
                    for way in ways:
                        ratios = [a[0] / b[0] for a, b in zip(got[way], got[ways[0]])]
                        rate, left, came = (statistics.median(x) for x in zip(*got[way]))
                        print(f"{delay} us one way, {batch} requests, {way.text}: {rate:.1f} tokens/s, {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) of "
                              f"{ways[0].text}; KB a token at the first link: {left:.2f} left, {came:.2f} came", flush=True)


if __name__ == "__main__":
    main()
