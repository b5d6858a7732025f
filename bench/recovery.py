#!/usr/bin/env python3
"""What streams see of a fault: their longest pause beside the one that the same streams have undisturbed.

  bench/recovery.py MODEL [--faults expert,sequencer,attention] [--streams 1,16] [--times 5] [--prompt 8] [--tokens 96]
                    [--json FILE] [-- OPTIONS OF serve, as --attention 1 --experts 2 --schedule dep]

Starts `build/sluice serve MODEL --exact` (or $SLUICE_BIN) with worker processes. For each fault and number of streams the same
requests run undisturbed, and then again with the fault in the middle of them, --times times. A fault:

  expert       kill -9 of the last expert worker         sequencer    kill -9 of the first one
  attention    kill -9 of the last attention worker      both         of an attention and an expert worker at once
  all          kill -9 of every worker
  stop3:NAME   the process of `expert`, `sequencer`, `attention` or `coordinator` stands still for 3 s (any number)
  slow3:NAME   it gets a twentieth of its time for 3 s: it runs for 5 ms of each 100
  cut          the connection between the last attention and the last expert worker is reset (with --transport tcp, by
               tests/relay.py, as the next ones)
  dark3        nothing passes there for 3 s, and nobody is told      thin3   20 KB/s pass there for 3 s
  corrupt      a bit of the next message there is another one
  drain:NAME   it is told to leave, and wanted again as soon as it has left     restart:NAME   it is told to restart
  roll         all are, one after another
  none         nothing: how much such pauses differ by themselves, in servers that have just begun, too
Of colocated workers (no --experts) `expert` and `attention` are the last worker, `sequencer` is the first.

Each is the first fault of a server of its own: who fails again soon is started again later and later.

--placement replicas:2 among the options: others stand in for an expert worker. --prompt 4096: much KV behind each stream.

Prints one line each: the longest pause between two events of a stream, undisturbed and with the fault (median of --times, and
the longest of all), the most by which a stream's pause was longer than its own undisturbed one, how many requests ended
early, what was done again (steps given up, rows sent to others, rows of KV kept and computed again, of all --times), how often a slow
worker was done without, and whether all tokens and log-probabilities were those of the undisturbed run. Streams begin apart from each other, so
that a fault meets them at different places."""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "chaos"))
import faults  # noqa: E402
import relay  # noqa: E402
import served  # noqa: E402

AFTER = 0.25  # of the tokens of the first stream, before a fault; and as much later at random
LIMIT_S = 600
RUNS_S, TURN_S = 0.005, 0.1  # of who is slow
THIN = 20_000  # bytes a second
LINKS = re.compile(r"(cut|corrupt|dark|thin)([\d.]*)")
WISHES = re.compile(r"(drain|restart):(\w+)|roll")
AGAIN = {"hedged": "workers_hedged_total", "steps": "worker_steps_given_up_total", "rows": "worker_reissued_rows_total", "kept": "rows_kept_total", "computed": "rows_recomputed_total"}


class Server(served.Server):
    def count(self, name):
        """A metric, over all its labels."""
        return int(sum(self.metrics(name)))

    def whole(self, n):
        """Waits until all n workers serve and nothing changes any more."""
        until, calm = time.monotonic() + LIMIT_S, 0
        while calm < 10:
            ready = self.request("GET", "/readyz")
            ready.read()
            calm = calm + 1 if ready.status == 200 and self.count("worker_up") == n and len(self.workers()) == n else 0
            if time.monotonic() > until:
                sys.exit("workers did not come back:\n" + "".join(self.log[-20:]))
            time.sleep(0.1)


class Stream(threading.Thread):
    """One streamed completion: what came, and when."""

    def __init__(self, server, seed, prompt, tokens):
        super().__init__(daemon=True)
        rng = random.Random(seed)
        self.server, self.at, self.said, self.end = server, [], [], None
        self.body = {"model": "m", "prompt": [rng.randrange(3, 900) for _ in range(prompt)], "max_tokens": tokens, "stream": True,
                     "temperature": 1, "seed": seed, "ignore_eos": True, "logprobs": 1, "return_token_ids": True}

    def run(self):
        try:
            for raw in self.server.request("POST", "/v1/completions", self.body, LIMIT_S):
                line = raw.decode().strip()
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices", []):
                    if choice.get("token_ids"):
                        self.at.append(time.monotonic())
                        self.said.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
                    self.end = choice.get("finish_reason") or self.end
        except OSError as error:
            self.end = str(error)

    def longest(self):
        return max((b - a for a, b in zip(self.at, self.at[1:])), default=0.0)

    def whole(self):
        return [i for ids, _ in self.said for i in ids], [p for _, some in self.said for p in some]


def run(server, n, prompt, tokens, fault=None):
    """The streams, after `fault()` in the middle of them, if there is one; False: it came after their end."""
    streams = [Stream(server, i, prompt, tokens) for i in range(n)]
    for s in streams:
        s.start()
        time.sleep(0.01)
    struck = 0.0
    if fault:
        least = int(tokens * AFTER * (1 + random.random()))
        while len(streams[0].at) < least and streams[0].is_alive():
            time.sleep(0.001)
        struck = time.monotonic()
        fault()
    for s in streams:
        s.join(LIMIT_S)
    return streams, any(s.end != "length" or s.at[-1] > struck for s in streams)


def signal_all(pids, which):
    for pid in pids:
        os.kill(pid, which)


def stand_still(pids, seconds, by_turns):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        signal_all(pids, signal.SIGSTOP)
        time.sleep(TURN_S - RUNS_S if by_turns else seconds)
        signal_all(pids, signal.SIGCONT)
        time.sleep(RUNS_S if by_turns else 0)


def strike_link(wire, kind, seconds, a, b):
    """a, b: workers. `wire` is the relay between them."""
    if kind == "cut":
        wire.cut(a, b)
    elif kind == "corrupt":
        wire.flip(a, b, random.random())
    elif kind == "dark":
        wire.hold(a, b)
        time.sleep(seconds)
        wire.release(a, b)
    else:
        wire.slow(a, b, THIN)
        time.sleep(seconds)
        wire.slow(a, b, None)


def wish(admin, verb, ids):
    """One worker after the other; returns when the last one serves again."""
    for i in ids:
        admin.await_done(i, admin.wish(verb, i, 0))
        if verb == "drain":
            admin.await_done(i, admin.wish("join", i))


def fault_of(server, name, attention, experts):
    """What to call, and it breaks."""
    last = attention + experts - 1
    ids = {"attention": [attention - 1], "sequencer": [attention if experts else 0], "expert": [last], "both": [attention - 1, last],
           "all": list(range(last + 1))}
    stop, link, asked = re.fullmatch(r"(stop|slow)([\d.]+):(\w+)", name), LINKS.fullmatch(name), WISHES.fullmatch(name)
    if asked and (name == "roll" or asked[2] in ids):
        return lambda: wish(server.admin, asked[1] or "restart", ids[asked[2] or "all"])
    if stop and stop[3] in ("coordinator", *ids):
        def stand():
            pids = [server.workers()[i] for i in ids[stop[3]]] if stop[3] in ids else [server.process.pid]
            stand_still(pids, float(stop[2]), stop[1] == "slow")
        return stand
    if link:
        return lambda: strike_link(server.wire, link[1], float(link[2] or 0), attention - 1 if experts else 0, last)
    if name == "none":
        return lambda: None
    if name not in ids:
        sys.exit(f"no fault {name}; there are none, {', '.join(ids)}, stopSECONDS:NAME, slowSECONDS:NAME, drain:NAME, restart:NAME, roll, cut, corrupt, darkSECONDS, thinSECONDS")

    def kill():
        there = server.workers()
        for i in ids[name]:
            os.kill(there[i], signal.SIGKILL)
    return kill


@contextlib.contextmanager
def running(a, name, options, workers):
    """A server whose workers all have computed something."""
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(relay.Relay()) if LINKS.fullmatch(name) else None
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        subprocess.run([served.SLUICE, "secret", "-o", folder / "admin.key"], check=True, stdout=subprocess.DEVNULL)
        server = Server(a.model, "--exact", *options, "--admin-key-file", folder / "admin.key", environment=wire and wire.environment)
        stack.callback(server.stop)
        server.wire, server.admin = wire, faults.Admin(server.port, (folder / "admin.key").read_text().strip())
        server.whole(workers)
        run(server, 1, a.prompt, 8)
        yield server


def measure(name, n, a, options, attention, experts):
    pauses, more, ended, same, again = [], [], 0, True, dict.fromkeys(AGAIN, 0)
    with running(a, name, options, attention + experts) as server:
        plain, _ = run(server, n, a.prompt, a.tokens)
        alone = [max(s.longest(), t.longest()) for s, t in zip(plain, run(server, n, a.prompt, a.tokens)[0])]
    late = 0
    while len(pauses) < a.times:
        with running(a, name, options, attention + experts) as server:
            streams, in_time = run(server, n, a.prompt, a.tokens, fault_of(server, name, attention, experts))
            if not in_time:
                late += 1
                if late > a.times:
                    sys.exit(f"{name} comes after the streams have ended: more --tokens")
                continue
            again = {what: had + server.count(AGAIN[what]) for what, had in again.items()}
        pauses.append(max(s.longest() for s in streams))
        more.append(max(s.longest() - was for s, was in zip(streams, alone)))
        ended += sum(s.end != "length" for s in streams)
        same = same and all(s.whole() == p.whole() for s, p in zip(streams, plain))
    return {"fault": name, "streams": n, "times": a.times, "undisturbed_ms": 1e3 * max(alone),
            "median_ms": 1e3 * statistics.median(pauses), "longest_ms": 1e3 * max(pauses), "more_ms": 1e3 * max(more),
            "more_median_ms": 1e3 * statistics.median(more), "all_more_ms": sorted(round(1e3 * m, 1) for m in more), "ended": ended,
            "same": same, "again": again}


def number(options, name, default):
    return int(options[options.index(name) + 1]) if name in options else default


def sizes(options):
    """Attention workers and expert workers, 0 of the latter where they are the same."""
    attention, experts = number(options, "--attention", 0), number(options, "--experts", 0)
    if not attention:
        sys.exit("--attention and --experts say which processes there are")
    return attention, experts


HEAD = ("fault            streams  undisturbed  median  longest  more than its own (median, most)  ended  hedged  steps  rows  KV kept  "
        "computed  same tokens")


def line(r):
    return (f"{r['fault']:16} {r['streams']:7} {r['undisturbed_ms']:9.0f} ms {r['median_ms']:4.0f} ms {r['longest_ms']:5.0f} ms "
            f"{r['more_median_ms']:10.0f} {r['more_ms']:8.0f} ms {r['ended']:18} "
            f"{r['again']['hedged']:7} {r['again']['steps']:6} {r['again']['rows']:5} {r['again']['kept']:8} {r['again']['computed']:9}  "
            f"{'yes' if r['same'] else 'NO'}")


def is_good(r):
    return r["same"] and not r["ended"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--faults", default="expert,sequencer,attention")
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    a, options = parser.parse_args(words[:cut]), words[cut + 1:] or ["--attention", "1", "--experts", "2", "--schedule", "dep"]
    attention, experts = sizes(options)
    rows = []
    print(f"{a.model} {' '.join(options)}, prompts of {a.prompt}, {a.tokens} tokens each")
    print(HEAD)
    for name in a.faults.split(","):
        for n in map(int, a.streams.split(",")):
            rows.append(measure(name, n, a, options, attention, experts))
            print(line(rows[-1]), flush=True)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"model": a.model, "options": options, "prompt": a.prompt, "tokens": a.tokens, "rows": rows},
                                                   indent=1) + "\n")
    return 0 if all(map(is_good, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
