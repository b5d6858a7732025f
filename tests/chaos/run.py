#!/usr/bin/env python3
"""Seeded faults against real processes: whatever strikes the workers of a running server, each request is answered with
the same tokens as without faults.

    tests/chaos/run.py SEEDS [--first N] [-j JOBS]     that many seeds from N on
    tests/chaos/run.py 1 --first SEED --verbose        one again

A seed draws a deployment, requests and faults (tests/chaos/draw.py). The oracle is one process without faults, with
--exact: of each choice token ids, text, log-probabilities as printed, finish reason and usage are compared. Then the
books balance: nothing runs or waits, no page is taken, on each worker rows created = merged + cancelled + lost; the
server is whole again, answers, and leaves with 0 and no process behind.

What passed is not run again while nothing that it reaches has changed (tests/state.py): it lies in build/chaos.tsv, and in the
lines that --record adds to docs/lab/chaos.tsv. Exit 1: something failed; the command that repeats it is printed. Standard library only."""

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "soak"), str(HERE.parent)]
import crowd  # noqa: E402
import draw  # noqa: E402
import ended  # noqa: E402
import faults  # noqa: E402
import launched  # noqa: E402
import state  # noqa: E402
import streams  # noqa: E402
from relay import Relay  # noqa: E402

DONE = ROOT / "build" / "chaos.tsv"
LEDGER = ROOT / "docs" / "lab" / "chaos.tsv"
GOLDEN = ROOT / "tests" / "golden"
MORE_S = 12  # so long requests are sent again and again if not all has struck yet
LEAKED = 4  # more files open at the end: connections that have just been closed...
OF_ONE = 4  # ...and of each worker for which there was a place: its process, its memory, its connection
WHOLE_S = 40  # so long the server may take to be whole again when nothing strikes it any more
BAD_LOG = re.compile(r"Sanitizer|runtime error|assertion|ended by signal (?!9\b)")


class References:
    """One process a fixture, without faults. Thread: any."""

    def __init__(self, sluice):
        self.sluice, self.lock, self.running = sluice, threading.Lock(), {}

    def answers(self, schedule):
        with self.lock:
            if schedule.fixture not in self.running:
                options = ["--exact", "--threads", "1", "--ctx", str(draw.CONTEXT)]
                self.running[schedule.fixture] = crowd.start(self.sluice, GOLDEN / schedule.fixture, options)
        whole = [draw.Request(r.path, r.body, None) for r in schedule.requests]
        return [a for _, a in streams.ask_all(self.running[schedule.fixture][1], whole, "m", 8)]

    def stop(self):
        for process, *_ in self.running.values():
            process.kill()
            process.wait()


class Machines:
    """Processes of sluice rank, so many for each worker, as machines would run them. `log`: what they say."""

    def __init__(self, sluice, model, secret, sizes):
        self.of, self.log, self.readers = [], [], []
        for n in sizes:
            self.of.append([])
            for _ in range(n):
                port = launched.free_port()
                process = ended.start([sluice, "rank", model, "--fabric-port", str(port), "--secret-file", secret, "--threads", "1"],
                                      stderr=subprocess.PIPE, text=True)
                self.readers.append(threading.Thread(target=lambda p=process: self.log.extend(p.stderr), daemon=True))
                self.readers[-1].start()
                self.of[-1].append((port, process))

    def hosts(self):
        return ";".join(",".join(f"127.0.0.1:{port}" for port, _ in ranks) for ranks in self.of)

    def pids(self, worker):
        return [process.pid for _, process in self.of[worker]] if worker < len(self.of) else []

    def kill(self):
        for ranks in self.of:
            for _, process in ranks:
                process.kill()
                process.wait()
        for reader in self.readers:
            reader.join()


class Result:
    """Of one schedule: what is wrong with it, and figures."""

    def __init__(self, schedule):
        self.schedule, self.wrong, self.log, self.missed = schedule, [], [], []
        self.strikes, self.streams, self.tokens, self.seconds = {}, 0, 0, 0.0
        self.calm_gap = self.gap = self.to_next = self.whole = 0.0
        self.done_without = self.asked_again = self.asked_twice = 0

    def counts(self):
        options = self.schedule.options
        return {"wrong": len(self.wrong), "streams": self.streams, "tokens": self.tokens, "strikes": self.strikes,
                "gap": round(self.gap, 3), "seconds": round(self.seconds, 1), "replicas": self.schedule.covered,
                "schedule": options[options.index("--schedule") + 1], "transport": options[options.index("--transport") + 1],
                "done without": self.done_without, "rows again": self.asked_again, "asked twice": self.asked_twice}

    def measure(self, answers, struck):
        """Longest time between two tokens of a stream before the first strike and after it, and from a kill to the next
        token of the stream that waited longest."""
        first = min((t for _, t in struck), default=float("inf"))
        for _, a in answers:
            for before, after in zip(a.times, a.times[1:], strict=False):
                if after < first:
                    self.calm_gap = max(self.calm_gap, after - before)
                else:
                    self.gap = max(self.gap, after - before)
            for strike, t in struck:
                if strike.action in ("kill", "rank") and a.times and a.times[0] < t < a.times[-1]:
                    self.to_next = max(self.to_next, min(x for x in a.times if x > t) - t)

    def __str__(self):
        s = self.schedule
        struck = ", ".join(f"{n} {k}" for k, n in self.strikes.items()) or "none"
        end = f"FAILED in {len(self.wrong)} ways" if self.wrong else "passed"
        return (f"seed {s.seed}: {s}\n  {end}: {self.streams} answers, {self.tokens} tokens, struck: {struck}; longest gap "
                f"{1e3 * self.calm_gap:.0f} ms before, {1e3 * self.gap:.0f} ms after; kill to next token {1e3 * self.to_next:.0f} ms; "
                f"whole again {self.whole:.1f} s after the last answer; {self.seconds:.1f} s" + "".join(f"\n  missed {m}" for m in self.missed))


def compare(result, answers, wants, requests, what):
    for i, got in answers:
        want, request = wants[i], requests[i]
        if want.error:
            raise AssertionError(f"the oracle has no answer to {request}: {want.error}")
        wrong = streams.differences(got, want) if result.schedule.exact else streams.miscounts(got, request)
        result.wrong += [f"{what} {i} ({request}): {w}" for w in wrong]
        result.streams += 1
        result.tokens += got.tokens


def missing(port):
    """What keeps the server from being whole: not ready, or workers that are not there."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30).close()
    except urllib.error.HTTPError as e:
        return f"/readyz: {e.read().decode().strip()}"
    return ", ".join(f"no {labels}" for labels, up in crowd.metrics(port)["worker_up"].items() if not up)


def await_whole(port, seconds):
    end = time.monotonic() + seconds
    while why := missing(port):
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s: {why}")
        time.sleep(0.02)


def ask_twice(result, port, answers):
    """Who asks again under the same key gets the answer that is kept."""
    for i, got in answers:
        request = result.schedule.requests[i]
        kept = streams.ask(port, draw.Request(request.path, request.body, None), "m", key=got.key)
        result.wrong += [f"request {i} ({request}): {w}" for w in streams.contradictions(got, kept)]
        result.asked_twice += 1


def strike_and_compare(result, process, port, wants, relay, admin, machines):
    s = result.schedule
    expected = sum(r.cancel_after or w.tokens for r, w in zip(s.requests, wants, strict=True))
    progress = faults.Progress(expected)
    idle = [x for x in s.strikes if x.at is not None and x.at >= 1]
    striker = faults.Striker(process.pid, [x for x in s.strikes if x not in idle], progress, relay, admin, machines)
    striker.start()
    end = time.monotonic() + MORE_S
    answers = streams.ask_all(port, s.requests, "m", s.at_once, progress.came,
                              lambda: striker.is_alive() and time.monotonic() < end, s.kept)
    progress.end()
    striker.join()
    result.measure(answers, striker.struck)
    for strike in idle:
        striker.strike(strike)
    compare(result, answers, wants, s.requests, "request")
    ask_twice(result, port, [(i, a) for i, a in answers if a.key])
    result.wrong += [striker.error] if striker.error else []
    result.missed = striker.missed
    for strike, _ in striker.struck:
        result.strikes[strike.action] = result.strikes.get(strike.action, 0) + 1
    again = [draw.Request(r.path, r.body, None) for r in s.requests[:2]]
    compare(result, streams.ask_all(port, again, "m", 2), wants[:2], again, "request at the end")


def open_files(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def leave(result, process):
    """SIGTERM: the server drains and leaves nobody behind."""
    pids = faults.workers_of(process.pid)
    process.terminate()
    if process.wait(60) != 0:
        result.wrong.append(f"exit status {process.returncode}")
    end = time.monotonic() + 10
    while left := [w for w, pid in pids.items() if faults.worker_id(pid) == w]:
        if time.monotonic() > end:
            result.wrong.append(f"processes of workers {left} are still there")
            break
        time.sleep(0.02)


def make_key(sluice, folder, name="admin.key"):
    key = pathlib.Path(folder) / name
    subprocess.run([sluice, "secret", "-o", key], check=True, stdout=subprocess.DEVNULL)
    return key


def run(schedule, sluice, references):
    """The result of one schedule. Raises nothing: what goes wrong stands in it."""
    result, began, process, machines = Result(schedule), time.monotonic(), None, None
    relay = Relay(mark=f"chaos-{schedule.seed}") if draw.RELAYED & {s.action for s in schedule.strikes} else None
    asks = any(s.action in faults.WISHES for s in schedule.strikes)
    with tempfile.TemporaryDirectory() as folder, relay or contextlib.nullcontext():
        try:
            popularity = pathlib.Path(folder) / "popularity.json"
            popularity.write_text(json.dumps({"rows": schedule.popularity}))
            options = [o.replace("POPULARITY", str(popularity)) for o in schedule.options]
            if asks:
                options += ["--admin-key-file", str(make_key(sluice, folder))]
            if schedule.machines:
                secret = make_key(sluice, folder, "fabric.key")
                machines = Machines(sluice, GOLDEN / schedule.fixture, secret, schedule.machines)
                options = [o.replace("RANKS", machines.hosts()) for o in options] + ["--secret-file", str(secret)]
            wants = references.answers(schedule)
            process, port, result.log = crowd.start(sluice, GOLDEN / schedule.fixture, options,
                                                    relay and relay.environment)
            files, workers = open_files(process), len(faults.workers_of(process.pid))
            admin = faults.Admin(port, (pathlib.Path(folder) / "admin.key").read_text().strip()) if asks else None
            strike_and_compare(result, process, port, wants, relay, admin, machines)
            if asks:
                admin.want_all()
            quiet = time.monotonic()
            await_whole(port, 5 if result.wrong else WHOLE_S)
            result.whole = time.monotonic() - quiet
            end = crowd.await_balance(port)
            result.done_without, result.asked_again = (int(crowd.total(end, f"{name}_total")) for name in ("workers_hedged", "worker_reissued_rows"))
            grown = max(len(faults.workers_of(process.pid)) - workers, 0)
            if (more := open_files(process) - files) > LEAKED + OF_ONE * grown:
                result.wrong.append(f"the server has {more} more files open than at its start")
            leave(result, process)
        except AssertionError as e:
            result.wrong.append(str(e))
        except Exception:  # the other schedules go on
            result.wrong.append(traceback.format_exc())
        finally:
            if process:
                process.kill()
                process.wait()
            if machines:
                machines.kill()
    result.wrong += [line.strip() for line in result.log + (machines.log if machines else []) if BAD_LOG.search(line)]
    result.seconds = time.monotonic() - began
    return result


def tell(result, command, verbose):
    text = str(result)
    if result.wrong or verbose:
        text += "".join(f"\n  {w}" for w in result.wrong[:8])
        text += "\n  server's log, end:\n" + "".join(f"    {line}" for line in result.log[-25:]) if result.log else ""
    if result.wrong:
        text = f"{text.rstrip()}\n  again: {command} --first {result.schedule.seed} 1"
    print(text, flush=True)


def read_runs(now, drawn):
    """(seed, counts) of each run in this state."""
    lines = DONE.read_text().splitlines() if DONE.exists() and not now.endswith("+") else []
    runs = [line.split("\t") for line in lines]
    return [(int(seed), json.loads(counts)) for at, what, seed, counts in runs if (at, what) == (now, drawn)]


def read_recorded(now):
    """Seeds of the ledger's lines of this state in which none failed at last."""
    rows = [line.split("\t") for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []
    ranges = [row[2].split("-") for row in rows if row[-2] == now]
    return {s for first, last in ranges for s in range(int(first), int(last) + 1)}


def of_each(values):
    counted = collections.Counter(values)
    return ", ".join(f"{n} {what}" for what, n in sorted(counted.items()))


def record(now, first, last, counts, seconds, failed):
    """failed: runs, also those of seeds that passed another time."""
    strikes = collections.Counter()
    for c in counts:
        strikes.update(c["strikes"])
    words = [datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), state.commit(), f"{first}-{last}",
             sum(c["streams"] for c in counts), sum(c["tokens"] for c in counts),
             ", ".join(f"{n} {a}" for a, n in sorted(strikes.items())), failed,
             max(c["gap"] for c in counts), round(seconds), of_each(c["schedule"] for c in counts),
             of_each(c["transport"] for c in counts), sum(c["replicas"] for c in counts), sum(c["done without"] for c in counts),
             sum(c["rows again"] for c in counts), sum(c["asked twice"] for c in counts), now, state.processor()]
    if not LEDGER.exists():
        LEDGER.write_text("date\tcommit\tseeds\tanswers\ttokens\tstrikes\tfailed runs\tlongest gap s\tseconds\tschedules\ttransports\t"
                          "with replicas of all\tdone without\trows sent again\tasked twice\tstate\tprocessor\n")
    with LEDGER.open("a") as f:
        f.write("\t".join(map(str, words)) + "\n")


def parse():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("seeds", type=int)
    args.add_argument("--first", type=int, default=1)
    args.add_argument("-j", "--jobs", type=int, default=2, help="schedules at a time [2]")
    args.add_argument("--kinds", help=f"kinds of faults, or none [of {', '.join(draw.KINDS)} those that the engine stands]")
    args.add_argument("--transports", help="of shm, tcp and ucx [those that the engine stands and has]")
    args.add_argument("--again", action="store_true", help="also what passed at this commit")
    args.add_argument("--record", action="store_true", help="add a line to docs/lab/chaos.tsv")
    args.add_argument("--verbose", action="store_true", help="the server's log also of what passes")
    o = args.parse_args()
    o.sluice = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
    has = ["shm", "tcp"] + (["ucx"] if b"ucp_init" in o.sluice.read_bytes() else [])
    o.kinds = [k for k in draw.KINDS if k not in draw.NOT_YET] if o.kinds is None else [k for k in o.kinds.split(",") if k != "none"]
    o.transports = o.transports.split(",") if o.transports else [t for t in has if t not in draw.NOT_YET]
    for word in {*o.kinds, *o.transports} - {*draw.KINDS, *has}:
        args.error(f"no {word} here")
    return o


def run_all(o, seeds, again, keep):
    """Tells of each schedule, and gives its result to keep()."""
    references = References(o.sluice)
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        try:
            ends = [pool.submit(run, draw.draw(s, o.kinds, o.transports), o.sluice, references) for s in seeds]
            for end in concurrent.futures.as_completed(ends):
                tell(end.result(), again, o.verbose)
                keep(end.result())
        finally:  # also when somebody stops it
            pool.shutdown(cancel_futures=True)
            references.stop()


def main():
    o = parse()
    now, began = state.state("chaos"), time.monotonic()
    words = f"--kinds {','.join(o.kinds) or 'none'} --transports {','.join(o.transports)}"
    # What one program did says nothing of another.
    program = f"SLUICE_BIN={o.sluice} " if o.sluice != ROOT / "build" / "sluice" else ""
    drawn = program + words
    for what, why in draw.NOT_YET.items():
        if what not in [*o.kinds, *o.transports]:
            print(f"left out: {what}: {why}")
    seeds, done = range(o.first, o.first + o.seeds), {s: c for s, c in read_runs(now, drawn) if not c["wrong"] and not o.again}
    usual = not program and draw.NOT_YET.keys().isdisjoint(o.kinds) and set(o.kinds) == set(draw.KINDS) - set(draw.NOT_YET)
    recorded = read_recorded(now) & set(seeds) if usual and not o.again else set()
    if recorded:
        print(f"{len(recorded)} of these seeds have passed in this state: docs/lab/chaos.tsv")
    seeds = [s for s in seeds if s not in recorded]
    DONE.parent.mkdir(exist_ok=True)

    def keep(result):
        done[result.schedule.seed] = result.counts()
        with DONE.open("a") as f:
            f.write(f"{now}\t{drawn}\t{result.schedule.seed}\t{json.dumps(result.counts())}\n")

    run_all(o, [s for s in seeds if s not in done], f"{program}tests/chaos/run.py {words}", keep)
    counts, failed = [done[s] for s in seeds], [s for s in seeds if done[s]["wrong"]]
    if o.record and counts and not failed:
        tried = [c["wrong"] > 0 for s, c in read_runs(now, drawn) if s in seeds] or [s in failed for s in seeds]
        record(now, seeds[0], seeds[-1], counts, sum(c["seconds"] for c in counts), sum(tried))
    print(f"{len(counts) + len(recorded) - len(failed)} schedules passed, {len(failed)} failed{': seeds ' if failed else ''}"
          f"{', '.join(map(str, failed))}; {sum(c['streams'] for c in counts)} answers, "
          f"{sum(c['tokens'] for c in counts)} tokens; {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
