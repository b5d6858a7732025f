#!/usr/bin/env python3
"""MixServe's strategies beside each other on nodes of emulated GPUs with a network card each: hybrid, the same gangs by one card (`ep`), attention by data and
experts by expert without tensor parallelism, attention of a gang a node with experts by expert, and tensor parallelism over all nodes.

  bench/strategies.py [--shapes 2x4 4x2] [--device H20] [--inside 3600] [--card 200] [--scale 500] [--rows 128] [--batch 64] [--pairs 2] [--model FOLDER]

Everything is --scale times as slow: stages by the device's data sheet, links inside a node (--inside Gbit/s) as a device's rank_link or, where its GPUs are workers of
their own, without a limit; attention and experts of one GPU in turn are two workers (schedule dep), a gang's messages go by one card then; a card carries --card Gbit/s over --scale in each direction, in namespaces of bench/lab/net.sh. Tensor parallelism over nodes is emulated: a
ring inside and between nodes, where all cards of a node carry a part, 2 (N - 1) / N of the bytes. Prompts come one a GPU at once (milliseconds to the last first
token), then --batch requests decode (milliseconds a step). Both are given in the GPUs' time, that is divided by --scale. Needs root."""
import argparse
import collections
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import rails

NET, TAG = rails.NET, rails.TAG


# A strategy: options of serve, where its workers are, how many nodes there are for them in a group that shares no card (0: each has
# a card for each of its ranks instead).
Strategy = collections.namedtuple("Strategy", "words places group")


@contextlib.contextmanager
def network(nodes, gpus, o, group):
    """Nodes with so many cards, or groups of nodes with a card each that reach those of their group by another network."""
    rate = ["--rate", f"{1000 * o.card / o.scale:g}mbit", "--burst", "64kbit", "--queue", "2s"]
    how = [nodes * group, *rate, "--gang", group, "--inside", "none"] if group else [nodes, *rate, "--cards", gpus]
    try:
        rails.run(NET, "up", TAG, *how)
        yield
    finally:
        subprocess.run([NET, "down", TAG], **rails.QUIET)


def between_nodes(nodes, gpus, o):
    """us:Gbit/s of a ring over all GPUs that takes as long as the cards do."""
    n = nodes * gpus
    return f"1:{gpus * o.card * (n - 1) / n * nodes / (nodes - 1):g}"


def strategies(nodes, gpus, o):
    n, gang, inside = nodes * gpus, ["--attention", nodes, "--tp", gpus], ["--rank-link", f"1:{o.inside}"]
    hybrid, apart = [*gang, *inside, "--schedule", "hybrid", "--rail-bytes", 1024], ["--attention", nodes, "--experts", n, "--attention-tp", gpus, *inside]
    heads = [node * (1 + gpus) for node in range(nodes)]  # of groups: attention, then the experts of its GPUs
    return {f"TP={gpus}+DP={nodes}, TP={gpus}+EP={nodes} (hybrid)": Strategy(hybrid, range(nodes), 0),
            "the same with --exact": Strategy([*hybrid, "--exact"], range(nodes), 0),
            "the same by one card (ep)": Strategy([*gang, *inside, "--schedule", "ep"], range(nodes), 0),
            f"DP={n}, EP={n}": Strategy(["--attention", n, "--schedule", "ep"], range(n), gpus),
            f"TP={gpus}+DP={nodes}, EP={n}": Strategy([*apart, "--schedule", "dep"], [*heads, *(head + 1 + i for head in heads for i in range(gpus))], 1 + gpus),
            f"TP={n}": Strategy(["--attention", 1, "--tp", n, "--rank-link", between_nodes(nodes, gpus, o)], [0], 0)}


def measure(nodes, gpus, strategy, o, folder):
    words = [*strategy.words, "--device", f"emulated:{o.device}", "--time-scale", o.scale, "--wire", "bf16", "--max-num-seqs", 256, "--max-num-batched-tokens", 2048]
    with network(nodes, gpus, o, strategy.group), rails.joined(words, strategy.places, gpus if "hybrid" in words else 1, o.model, folder):
        client = ["python3", rails.__file__, "--client", "--rows", o.rows, "--batch", o.batch, "--tokens", o.tokens, "--differ", "--together", nodes * gpus]
        out, _ = rails.inside(0, *client, stdout=subprocess.PIPE).communicate(timeout=1200)
        if not out:
            sys.exit(f"strategies.py: {words}: no answer; RAILS_LOG=FILE has what the programs say")
        return {k: v / o.scale for k, v in json.loads(out).items() if k in ("together", "decode")}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shapes", nargs="+", default=["2x4", "4x2"])
    p.add_argument("--device", default="H20")
    for name, default in (("inside", 3600), ("card", 200), ("scale", 500), ("rows", 128), ("batch", 64), ("tokens", 12), ("pairs", 2), ("blocks", 4)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--model", help="folder with a config.json; left out: four blocks of Qwen3-30B-A3B's sizes")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rails.run(rails.SLUICE, "secret", "-o", folder / "secret")
        o.model = o.model or rails.make_model(folder / "model", o.blocks)
        for shape in o.shapes:
            nodes, gpus = (int(x) for x in shape.split("x"))
            ways = strategies(nodes, gpus, o)
            turns = [{w: measure(nodes, gpus, s, o, folder) for w, s in ways.items()} for _ in range(o.pairs)]
            ours = next(iter(ways))
            for way in ways:
                cells = []
                for what in ("together", "decode"):
                    cells += [f"{statistics.median(t[way][what] for t in turns):.2f}", f"{statistics.median(t[way][what] / t[ours][what] for t in turns):.2f}"]
                print(f"| {nodes} x {gpus} | {way} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
