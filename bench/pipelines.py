#!/usr/bin/env python3
"""Two machines and a slow link: a pipeline, a gang, and colocated workers that share experts, measured in turns.

  bench/pipelines.py MODEL [--delay-us 0 500] [--batch 1 8] [--pairs 3] [--tokens 48]

Machines are namespaces of bench/lab/net.sh with a core each (--threads 1). `pp` has half of the blocks on each, `ep` half of the experts of
every block, `tp` half of every matrix. A client in the first one's namespace decodes with so many requests at once; what counts is tokens a second from the first
token of the last request to come on. Prints medians, and medians of the quotients with `ep` of the same turn. Needs root."""
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
TAG, FIRST, SECOND = "pipes", "10.77.0.1", "10.77.0.2"


def node(n, *command, **more):
    return subprocess.Popen(["bash", NET, "exec", TAG, str(n), *map(str, command)], **more)


@contextlib.contextmanager
def network(delay_us):
    cable = ["--delay-us", str(delay_us), "--cable", str(HERE.parent / "build" / "lab_cable")] if delay_us else []
    subprocess.run(["bash", NET, "up", TAG, "2", "--rate", "1gbit", *cable], check=True)
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
def deployment(how, model, secret):
    """Serves at port 8000 of the first node."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    serve = [SLUICE, "serve", model, "--threads", 1, "--secret-file", secret, "--host", "127.0.0.1", "--port", 8000, "--no-status"]
    if how == "ep":
        server = node(0, *serve, "--remote", "--attention", 2, "--schedule", "ep", "--transport", "tcp", "--fabric-host", FIRST, "--fabric-port", 7000, **quiet)
        others = [node(i, SLUICE, "worker", "--join", f"{FIRST}:7000", "--secret-file", secret, "--fabric-host", at, "--worker-id", i, "--model", model, **quiet)
                  for i, at in enumerate((FIRST, SECOND))]
    else:
        others = [node(1, SLUICE, "rank", model, "--fabric-host", SECOND, "--fabric-port", 7100, "--secret-file", secret, "--threads", 1, **quiet)]
        server = node(0, *serve, "--attention", 1, f"--{how}", 2, "--rank-hosts", f"{SECOND}:7100", **quiet)
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


def client(batch, tokens):
    """Tokens a second from the first token of the last request on."""
    until = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError):
            if urllib.request.urlopen("http://127.0.0.1:8000/readyz", timeout=5).status == 200:
                break
        if time.monotonic() > until:
            sys.exit("nothing answers")
        time.sleep(0.2)
    ask(8000, 4, [], [])
    came = [[] for _ in range(batch)]
    threads = [threading.Thread(target=ask, args=(8000, tokens, came[i], [])) for i in range(batch)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    begin = max(c[0] for c in came)
    end = min(c[-1] for c in came)
    print(sum(begin < t <= end for c in came for t in c) / (end - begin))


def measure(how, model, secret, batch, tokens):
    with deployment(how, model, secret):
        done = node(0, sys.executable, __file__, "--client", batch, tokens, stdout=subprocess.PIPE, text=True)
        out, _ = done.communicate(timeout=600)
        if done.returncode:
            sys.exit(f"{how}: {out}")
        return float(out)


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
    with tempfile.TemporaryDirectory() as folder:
        secret = os.path.join(folder, "secret")
        subprocess.run([SLUICE, "secret", "-o", secret], check=True, capture_output=True)
        for delay in o.delay_us:
            with network(delay):
                for batch in o.batch:
                    got = {how: [] for how in o.ways}
                    for _ in range(o.pairs):
                        for how in o.ways:
                            got[how].append(measure(how, os.path.abspath(o.model), secret, batch, o.tokens))
                    for how in o.ways:
                        ratio = statistics.median(a / b for a, b in zip(got[how], got[o.ways[0]]))
                        print(f"{delay} us one way, {batch} requests, {how}: {statistics.median(got[how]):.1f} tokens/s, {ratio:.2f} of {o.ways[0]}", flush=True)


if __name__ == "__main__":
    main()
