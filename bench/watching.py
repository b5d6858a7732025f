#!/usr/bin/env python3
"""What it costs that somebody watches (GET /live): tokens per second of streams at once, with a watcher and without, in pairs.

  bench/watching.py MODEL [--streams 8] [--tokens 40] [--pairs 9] [-- OPTIONS OF serve]

One server is asked in turn with an open feed and without. Prints each pair, and the median of the quotients, of tokens per second and of the
CPU time of the coordinator and of all workers that are processes. A feed that is closed is given the time in which workers forget that somebody watched."""
import argparse
import pathlib
import statistics
import sys
import threading
import time
import urllib.request

from pairs import Server

FORGETS_S = 4


class Watcher:
    """Reads the feed for as long as it lasts."""

    def __init__(self, url):
        self.answer = urllib.request.urlopen(url + "/live", timeout=60)
        self.samples, self.over = 0, False
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while not self.over:
            self.samples += self.answer.readline().startswith(b"data: ")
        self.answer.close()

    def close(self):
        self.over = True
        self.thread.join()
        time.sleep(FORGETS_S)


def workers_cpu(server):
    """Seconds that all child processes of the server have used: those of this moment; none ends here."""
    children = [pid for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir() for pid in (task / "children").read_text().split()]
    threads = [thread for pid in children for thread in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def run(server, watched, o):
    """(tokens per second, ms of the coordinator's CPU time a token, ms of the workers')"""
    watcher, before = Watcher(server.about["url"]) if watched else None, workers_cpu(server)
    rate, _, _, cpu = server.run(o.streams, o.tokens, [{}], 0)
    got = (rate, cpu, 1000 * (workers_cpu(server) - before) / (o.streams * o.tokens))
    if watcher:
        watcher.close()
        assert watcher.samples > 1, "nothing was watched"
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, default in (("streams", 8), ("tokens", 40), ("pairs", 9)):
        parser.add_argument("--" + name, type=int, default=default)
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[:own.index("--")], own[own.index("--") + 1:]
    o = parser.parse_args(own)
    server, quotients = Server(o.model, rest), []
    run(server, False, o)
    for pair in range(o.pairs):
        got = {watched: run(server, watched, o) for watched in ((True, False) if pair % 2 else (False, True))}
        (rate, cpu, workers), (rate0, cpu0, workers0) = got[True], got[False]
        quotients.append((rate / rate0, cpu / cpu0, workers / workers0 if workers0 else 1))
        print(f"pair {pair}: {rate:8.1f} tokens/s watched, {rate0:8.1f} not: {rate / rate0:.3f}; coordinator {1000 * cpu:.1f} and {1000 * cpu0:.1f} us a token, "
              f"worker processes {1000 * workers:.0f} and {1000 * workers0:.0f}", flush=True)
    server.process.terminate()
    server.process.wait()
    rates, cpus, workers = zip(*quotients)
    print(f"median of {o.pairs} pairs: {statistics.median(rates):.3f} of the tokens per second ({min(rates):.3f} to {max(rates):.3f}), {statistics.median(cpus):.2f} of the coordinator's CPU time, "
          f"{statistics.median(workers):.3f} of the worker processes'")


main()
