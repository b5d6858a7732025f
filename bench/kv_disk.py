#!/usr/bin/env python3
"""What --kv-disk spares a conversation after a restart: time to its first token with it and without.

  bench/kv_disk.py MODEL [--tokens 4096] [--reps 3] [-- OPTIONS OF serve]

In turn, a server without --kv-disk and one with it: a prompt of so many drawn ids is asked for one token, the server ends by SIGTERM,
and is started again with the same options; there the same prompt is asked again. Starts are until the server listens, ends until its
process has ended. The answer's token has to be the same everywhere."""
import argparse
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

from chat_turns import Server


def once(o, options, prompt):
    """Seconds to the first token, to the end, to the next start, to the first token there; tokens that were cached; the answer."""
    first = Server(o.model, options)
    cold, ids, _ = first.ask(prompt, 1)
    began = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    first.process.wait()
    ended = time.monotonic()
    second = Server(o.model, options)
    started = time.monotonic()
    warm, again, cached = second.ask(prompt, 1)
    second.process.terminate()
    second.process.wait()
    if ids != again:
        sys.exit(f"the answers differ: {ids}, {again}")
    return cold, ended - began, started - ended, warm, cached, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, default in (("tokens", 4096), ("reps", 3), ("vocab", 500)):
        parser.add_argument("--" + name, type=int, default=default)
    mine, options = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
    o = parser.parse_args(mine)
    rows = {"without": [], "with": []}
    options = ["--ctx", str(o.tokens + 32), *options]
    for rep in range(o.reps):
        rng = random.Random(rep)
        prompt = [rng.randrange(3, o.vocab) for _ in range(o.tokens)]
        with tempfile.TemporaryDirectory() as folder:
            for how, more in (("without", []), ("with", ["--kv-disk", folder])):
                rows[how].append(once(o, [*options, *more], prompt))
                *times, cached, ids = rows[how][-1]
                print(f"{how}: first token after {times[0]:.2f} s, end {times[1]:.2f} s, start {times[2]:.2f} s, first token after the restart "
                      f"{times[3]:.2f} s, {cached} tokens cached", flush=True)
            size = sum(f.stat().st_size for f in pathlib.Path(folder).iterdir())
        if len({tuple(rows[how][-1][-1]) for how in rows}) > 1:
            sys.exit("the answers differ with --kv-disk")
    print(f"{o.tokens} tokens, {size / 1e6:.1f} MB on the disk, load {os.getloadavg()[0]:.1f}; medians of {o.reps}:")
    for how, runs in rows.items():
        cold, end, start, warm = (statistics.median(r[i] for r in runs) for i in range(4))
        print(f"{how}: {cold:.2f} s to the first token, end {end:.2f} s, start {start:.2f} s, {warm:.2f} s to the first token after the restart")


if __name__ == "__main__":
    main()
