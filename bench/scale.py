#!/usr/bin/env python3
"""How a deployment of many workers starts, serves and loses some of them, and what the coordinator spends.

    bench/scale.py MODEL [--workers N ...] [--streams N ...] [--tokens N] [--deaths N] [--json FILE] [--svg FILE] [-- OPTIONS OF serve]

For each number of workers (expert workers are --experts of them, the others have attention): seconds until the server
listens, memory of a worker and of the coordinator (its share of what is shared counts), cores taken while nothing is
asked, processor time of the
coordinator and of all workers for each token with so many streams at once, and whether all streams end whole beside
--deaths workers that get SIGKILL. A tiny fixture shows what workers and coordinator cost by themselves: its kernels
take no time. How often an idle worker
wakes says whether that grows with how many others it knows: --experts 0 has the most pairs. Only the standard library."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import sys
import time

import papers_svg
import prefix_cost
from prefix_cost import ended

SLUICE = os.environ.get("SLUICE_BIN", pathlib.Path(__file__).resolve().parent.parent / "build" / "sluice")
REQUESTS = 48  # at least, of each figure
IDLE_S = 4


class Server(prefix_cost.Server):
    """A server of so many workers; its own process is the coordinator's, those below are workers'."""

    def __init__(self, args, workers):
        begin = time.monotonic()
        experts = args.experts or workers // 2
        super().__init__([SLUICE, "serve", args.model, "--port", "0", "--json", "--attention", str(workers - experts),
                          "--experts", str(experts), "--threads", "1", *args.options])
        self.start_s = time.monotonic() - begin

    def workers(self):
        return ended.of_tree(self.process.pid)[1:]

    def whole(self, tokens, i):
        """Whether all tokens of a stream come."""
        try:
            self.ask(f"Stream {i}", tokens)
            return True
        except (OSError, AssertionError):
            return False

    def end(self):
        self.process.terminate()
        self.process.wait(60)


def cpu_s(pid):
    """Processor time of a process' threads; of one that is gone, none."""
    try:
        return sum(int(t.read_text().split()[0]) for t in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    except OSError:
        return 0


def memory_mb(pid):
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def spent(server, pids):
    """Processor seconds of the coordinator and of workers, and the time."""
    return cpu_s(server.process.pid), sum(map(cpu_s, pids)), time.monotonic()


def stream(server, streams, tokens):
    """Tokens a second, and microseconds of processor time a token: of the coordinator, of all workers."""
    requests = max(REQUESTS, 2 * streams)
    pids = server.workers()
    before = spent(server, pids)
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        list(pool.map(lambda i: server.ask(f"Stream {i}", tokens), range(requests)))
    own, theirs, wall = (b - a for a, b in zip(before, spent(server, pids)))
    done = requests * tokens
    return {"streams": streams, "tokens": done, "per_s": done / wall, "coordinator_us": own / done * 1e6,
            "workers_us": theirs / done * 1e6}


def wakeups(pid):
    """How often threads of a process have given up their core to wait; of one that is gone, never."""
    try:
        texts = [t.read_text() for t in pathlib.Path(f"/proc/{pid}/task").glob("*/status")]
        return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.M)[1]) for text in texts)
    except OSError:
        return 0


def idle(server):
    """Cores that coordinator and workers take while nothing is asked, and how often a worker wakes in a second."""
    pids = server.workers()
    before, woke = spent(server, pids), sum(map(wakeups, pids))
    time.sleep(IDLE_S)
    own, theirs, wall = (b - a for a, b in zip(before, spent(server, pids)))
    return (own + theirs) / wall, (sum(map(wakeups, pids)) - woke) / wall / max(1, len(pids))


def lose(server, deaths, streams, tokens):
    """Streams that end whole while workers are killed, one after the other."""
    victims = random.Random(1).sample(server.workers(), deaths)
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        running = [pool.submit(server.whole, tokens, i) for i in range(streams)]
        for pid in victims:
            time.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
        whole = sum(r.result() for r in running)
    return {"deaths": deaths, "streams": streams, "whole": whole, "seconds": time.monotonic() - begin}


def measure(args, workers):
    server = Server(args, workers)
    try:
        server.ask("Hello", 4)
        pids = server.workers()
        cores, woke = idle(server)
        out = {"workers": workers, "processes": len(pids), "start_s": server.start_s, "idle_cores": cores, "idle_wakeups": woke,
               "worker_mb": sum(map(memory_mb, pids)) / max(1, len(pids)),
               "coordinator_mb": memory_mb(server.process.pid),
               "runs": [stream(server, n, args.tokens) for n in args.streams]}
        if args.deaths and len(pids) > 2 * args.deaths:
            out["lost"] = lose(server, args.deaths, 16, 8 * args.tokens)
    finally:
        server.end()
    return out


def draw(path, rows):
    """Processor time of the coordinator for a token, by workers, a line for each number of streams."""
    streams = [run["streams"] for run in rows[0]["runs"]]
    series = {f"{n} streams" if n > 1 else "1 stream":
              [(row["workers"], row["runs"][i]["coordinator_us"]) for row in rows] for i, n in enumerate(streams)}
    papers_svg.lines(pathlib.Path(path), "Processor time of the coordinator for a token", "us", "workers", series, log_x=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--workers", type=int, nargs="+", default=[8, 16, 64, 256])
    p.add_argument("--experts", type=int, default=4, help="of them; 0: half of them")
    p.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    p.add_argument("--tokens", type=int, default=50)
    p.add_argument("--deaths", type=int, default=10)
    p.add_argument("--json")
    p.add_argument("--svg")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args = p.parse_args(words[:at])
    args.options = words[at + 1:]
    rows = []
    for workers in args.workers:
        row = measure(args, workers)
        rows.append(row)
        print(f"{workers} workers, {row['processes']} processes: listens after {row['start_s']:.2f} s, {row['worker_mb']:.1f} MB "
              f"a worker, {row['coordinator_mb']:.0f} MB the coordinator, {row['idle_cores']:.2f} cores idle, "
              f"a worker wakes {row['idle_wakeups']:.0f} times a second")
        for run in row["runs"]:
            print(f"  {run['streams']} streams: {run['per_s']:.0f} tokens/s, processor time of a token "
                  f"{run['coordinator_us']:.0f} us of the coordinator, {run['workers_us']:.0f} us of workers")
        if "lost" in row:
            lost = row["lost"]
            print(f"  {lost['deaths']} workers killed: {lost['whole']} of {lost['streams']} streams whole, {lost['seconds']:.1f} s",
                  flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    if args.svg:
        draw(args.svg, rows)


if __name__ == "__main__":
    main()
