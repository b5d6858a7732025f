#!/usr/bin/env python3
"""What the prefix cache spares a conversation: time to first token of each turn, and what its new rows take over a KV that is there.

  bench/chat_turns.py MODEL [--turns 20] [--tokens 4096] [--new 256] [--answer 32] [--reps 5] [-- OPTIONS OF serve]

A turn is what was said before, the answers too, and what is new. The last one has so many tokens, of which so many are new (the last answer among
them); the others are equally long. It computes the rows that are in no full page of turns before: R of N. The same without cache: the difference
of prompts of N and N - R tokens, each computed from its first row, and what a prompt of one token takes. Each is the median of several runs, turn
about. The bar: at most 1.2 times that. Ids are drawn, there is no template: what one rewrites of earlier turns is computed again."""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
import urllib.request

SLUICE = os.environ.get("SLUICE_BIN", str(pathlib.Path(__file__).resolve().parents[1] / "build" / "sluice"))


class Server:
    def __init__(self, model, options):
        self.process = subprocess.Popen([SLUICE, "serve", model, "--port", "0", "--json", *options], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the server does not start")
        self.about = json.loads(line)

    def ask(self, prompt, tokens, **more):
        """(seconds to the first token, ids of the answer, tokens of the prompt that were cached)"""
        body = {"model": self.about["model"], "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0,
                "return_token_ids": True, "stream_options": {"include_usage": True}, **more}
        request = urllib.request.Request(self.about["url"] + "/v1/completions", json.dumps(body).encode())
        began, first, ids, cached = time.monotonic(), None, [], None
        with urllib.request.urlopen(request, timeout=3600) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                first = first or time.monotonic() - began
                event = json.loads(line[6:])
                for choice in event["choices"]:
                    ids += choice.get("token_ids") or []
                if event.get("usage"):
                    cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        return first, ids, cached


def conversation(server, o, rng, salt):
    """(seconds to the first token, tokens, of them computed) of each turn, and the last prompt."""
    text, turns = [], []
    for turn in range(1, o.turns + 1):
        length = o.tokens if turn == o.turns else (o.tokens - o.new) * turn // (o.turns - 1)
        text += [rng.randrange(3, o.vocab) for _ in range(length - len(text))]
        took, ids, cached = server.ask(text, o.answer, cache_salt=salt)
        turns.append((took, len(text), len(text) - cached))
        last, text = list(text), text + ids
    return turns, last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, default in (("turns", 20), ("tokens", 4096), ("new", 256), ("answer", 32), ("reps", 5), ("vocab", 500)):
        parser.add_argument("--" + name, type=int, default=default)
    mine, options = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
    o = parser.parse_args(mine)
    if o.turns < 2 or o.new >= o.tokens or (o.tokens - o.new) // (o.turns - 1) <= o.answer or o.new <= o.answer:
        parser.error("two turns at least, each longer than an answer, and the last one is not all")
    server = Server(o.model, ["--ctx", str(o.tokens + o.answer), *options])
    try:
        turns, whole, short, one = [], [], [], []
        for rep in range(o.reps):
            rng = random.Random(rep)
            took, last = conversation(server, o, rng, f"{os.getpid()}-{rep}")
            turns.append(took)
            whole.append(server.ask(last, 1, cache=False)[0])
            short.append(server.ask(last[:len(last) - took[-1][2]], 1, cache=False)[0])
            one.append(server.ask(last[:1], 1, cache=False)[0])
            print(f"run {rep}: turn {o.turns} {1e3 * took[-1][0]:.1f} ms, {took[-1][2]} of {took[-1][1]} rows; all of them {1e3 * whole[-1]:.1f} ms, "
                  f"those before {1e3 * short[-1]:.1f} ms, one row {1e3 * one[-1]:.2f} ms", flush=True)
    finally:
        server.process.terminate()
        server.process.wait()
    for turn in range(o.turns):
        print(f"turn {turn + 1:2}: {1e3 * statistics.median(t[turn][0] for t in turns):8.1f} ms, {turns[0][turn][2]} of {turns[0][turn][1]} rows")
    last = statistics.median(t[-1][0] for t in turns)
    rows = statistics.median(w - s + n for w, s, n in zip(whole, short, one))
    print(f"turn {o.turns}: {1e3 * last:.1f} ms; its rows over a KV that is there: {1e3 * rows:.1f} ms: {last / rows:.2f} times that (bar 1.2: {'met' if last <= 1.2 * rows else 'missed'}); "
          f"without cache {1e3 * statistics.median(whole):.1f} ms")


if __name__ == "__main__":
    main()
