#!/usr/bin/env python3
"""A worker of a server that runs is killed while an answer streams: the answer goes on and is whole. For servers that were installed,
wherever their program lies and whoever runs them; nothing but Python is needed. `killed.py URL PID [KEY]` wants the right to kill, and a server PID with --exact,
a worker 1 that it has started itself, and no other client."""
import json
import os
import pathlib
import re
import signal
import sys
import time
import urllib.request

TRIES, TOKENS, WITHIN_S = 20, 200, 60
PAUSE_S = 8  # who cannot ask for what is in memory waits ten seconds for a disk
url, server, key = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""


def ask(path, body=None):
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    return urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode() if body else None, headers), timeout=WITHIN_S)


def complete(stream):
    return ask("/v1/completions", {"prompt": "Now the word", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": stream})


def whole():
    choice = json.load(complete(False))["choices"][0]
    assert choice["finish_reason"] == "length", choice
    return choice["text"]


def metric(name):
    return sum(float(n) for n in re.findall(rf"^\w+:{name}(?:{{.*}})? (\S+)$", ask("/metrics").read().decode(), re.M))


def worker_1():
    for task in pathlib.Path(f"/proc/{server}/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--worker-id" in words and words[words.index(b"--worker-id") + 1] == b"1":
                return pid
    return None


def texts(stream):
    """Piece by piece; the end has its word. Comments stand between them where it takes long."""
    finish = None
    for line in stream:
        what, _, said = line.decode().strip().partition(": ")
        if what != "data":
            continue
        if said == "[DONE]":
            assert finish == "length", finish
            return
        event = json.loads(said)
        assert "error" not in event, event
        finish = event["choices"][0]["finish_reason"] or finish
        yield event["choices"][0]["text"]
    raise AssertionError("the stream broke off")


def kill_under_way():
    """The text of a stream whose worker was killed before its last token was made: first it stands still, so that nobody goes on without it."""
    for _ in range(TRIES):
        pieces, pid = texts(complete(True)), worker_1()
        text = next(pieces)
        os.kill(pid, signal.SIGSTOP)
        under_way = metric("num_requests_running") == 1
        os.kill(pid, signal.SIGKILL if under_way else signal.SIGCONT)
        began = time.monotonic()
        text += "".join(pieces)
        if under_way:
            return pid, text, time.monotonic() - began
    raise AssertionError(f"{TRIES} answers of {TOKENS} tokens were there before anybody could look")


want, lost = whole(), metric("workers_lost_total")
killed, got, took_s = kill_under_way()
assert got == want, f"{got!r} instead of {want!r}"
assert took_s < PAUSE_S, f"the answer went on after {took_s:.1f} s"
assert metric("workers_lost_total") == lost + 1
until = time.monotonic() + WITHIN_S
while metric("workers_restarted_total") == 0 or worker_1() in (None, killed):
    assert time.monotonic() < until, "its process does not come again"
    time.sleep(0.1)
assert whole() == want
print(f"worker 1 was killed under way: all {TOKENS} tokens came, the last {took_s:.2f} s later, and it serves again")
