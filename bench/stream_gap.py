#!/usr/bin/env python3
"""The longest gap between two chunks of a stream: alone, and while clients send large bodies to other paths.

    bench/stream_gap.py MODEL [--binary build/sluice] [--clients 4] [--seconds 20] [-- arguments of serve]

Prints one line a case: chunks, median and longest gap of the stream, requests that the others had answered
and by what status. The load is bounded by --seconds and runs on loopback alone."""
import argparse
import collections
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

TOOL_BYTES = 7_700_000


def tools_body():
    one = {"type": "function", "function": {"name": "f", "description": "d" * 200, "parameters": {
        "type": "object", "properties": {f"p{i}": {"type": "string", "description": "a word"} for i in range(20)}}}}
    n = TOOL_BYTES // len(json.dumps(one))
    return {"messages": [{"role": "user", "content": "x"}], "tools": [one] * n}


def start(binary, model, args):
    log = tempfile.NamedTemporaryFile("w+", suffix=".log")
    server = subprocess.Popen([binary, "serve", model, "--port", "0", *args], stdout=log, stderr=subprocess.STDOUT)
    for _ in range(1200):
        with open(log.name) as text:
            found = re.search(r"listening on (http://\S+) \(model (\S+),", text.read())
        if found:
            return server, found.group(1), found.group(2)
        time.sleep(0.1)
    sys.exit("the server did not start")


def post(url, body):
    return urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})


def gaps_of(url, model, seconds):
    body = {"model": model, "prompt": "Once", "max_tokens": 100000, "truncate_prompt_tokens": 1, "ignore_eos": True,
            "stream": True, "temperature": 0}
    with urllib.request.urlopen(url + "/v1/models") as answer:
        body["max_tokens"] = json.load(answer)["data"][0]["max_model_len"] - 8
    gaps, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        last = None
        with urllib.request.urlopen(post(url + "/v1/completions", body), timeout=120) as answer:
            for line in answer:
                now = time.monotonic()
                if not line.startswith(b"data: {"):
                    continue
                if last:
                    gaps.append(now - last)
                last = now
                if now > end:
                    break
    return gaps


def flood(url, body, until, counts):
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(post(url, body), timeout=120) as answer:
                answer.read()
                counts[answer.status] += 1
        except urllib.error.HTTPError as error:
            counts[error.code] += 1
            error.read()
            time.sleep(0.1 if error.code == 503 else 0)


def show(name, gaps, counts):
    print(f"{name:28} {len(gaps):6} chunks, median gap {1e3 * statistics.median(gaps):7.1f} ms, "
          f"longest {1e3 * max(gaps):8.1f} ms" + (f"; others: {dict(counts)}" if counts else ""), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("serve", nargs="*")
    parser.add_argument("--binary", default="build/sluice")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    a = parser.parse_args()
    server, url, model = start(a.binary, a.model, a.serve)
    try:
        gaps_of(url, model, 2)
        show("alone", gaps_of(url, model, a.seconds), None)
        text = " ".join(["word"] * (TOOL_BYTES // 5))
        for name, path, body in (("7.7 MB of tools, /tokenize", "/tokenize", tools_body()),
                                 ("7.7 MB of text, /tokenize", "/tokenize", {"prompt": text})):
            counts, until = collections.Counter(), time.monotonic() + a.seconds
            others = [threading.Thread(target=flood, args=(url + path, body, until, counts)) for _ in range(a.clients)]
            for t in others:
                t.start()
            gaps = gaps_of(url, model, a.seconds)
            for t in others:
                t.join()
            show(name, gaps, counts)
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
