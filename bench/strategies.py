#!/usr/bin/env python3
"""MixServe's strategies beside each other on nodes of emulated GPUs with a network card each: hybrid, the same gangs by one card (`ep`), attention by data and
experts by expert without tensor parallelism, attention of a gang a node with experts by expert, and tensor parallelism over all nodes.

  bench/strategies.py [--shapes 2x4 4x2] [--device H20] [--inside 3600] [--card 200] [--scale 500] [--rows 128] [--batch 64] [--pairs 2] [--model FOLDER]
  bench/strategies.py --paper H20 "910B port" [--only deepseek-r1] [--scale 2000] [--rows 512] [--batch 16] [--csv FILE]
  bench/strategies.py --fused H20 "910B port" "910B mesh" [--csv FILE]

Everything is --scale times as slow: stages by the device's data sheet, links inside a node (--inside Gbit/s) as a device's rank_link or, where its GPUs are workers of
their own, without a limit; attention and experts of one GPU in turn are two workers (schedule dep), a gang's messages go by one card then; a card carries --card Gbit/s over --scale in each direction, in namespaces of bench/lab/net.sh. Tensor parallelism over nodes is emulated: a
ring inside and between nodes, where all cards of a node carry a part, 2 (N - 1) / N of the bytes. Prompts come one a GPU at once (milliseconds to the last first
token), then --batch requests decode (milliseconds a step). Both are given in the GPUs' time, that is divided by --scale. Needs root.

With --paper these are the strategies of MixServe's Figures 10 and 11 on its clusters, for blocks of its models; `make papers` has them beside the published figures (docs/reproduction.md). A prompt comes
alone, --times times; then --batch requests decode. A worker that is a gang has its GPUs' cards as one that is as fast as all of them. With --fused it is Figure 12 by build/bench_fused. --csv FILE gets a
row a run; laboratories beside each other need tags of their own (RAILS_TAG)."""
import argparse
import collections
import contextlib
import csv
import datetime
import fcntl
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import rails

NET, TAG = rails.NET, rails.TAG


# A strategy: options of serve, where its workers are, how many nodes there are for them in a group that shares no card (0: each has
# a card for each of its ranks instead), as fast as how many cards those of a place are that is not as fast as one, options that prompts are measured with on their own.
Strategy = collections.namedtuple("Strategy", "words places group fast prompts", defaults=[{}, []])

# MixServe's clusters: nodes, device, latency and GB/s of a GPU to the others of its gang, of its card, Gbit/s of the card. 910B has 480 Gbit/s inside a node: a port's, or each link's of a mesh.
Cluster = collections.namedtuple("Cluster", "nodes device alpha inside away card")
CLUSTERS = {"H20": Cluster(2, "H20", 8, lambda ranks: 450, 15, 400), "910B port": Cluster(4, "910B", 15, lambda ranks: 60, 25, 200),
            "910B mesh": Cluster(4, "910B", 15, lambda ranks: 60 * (ranks - 1), 25, 200)}
# Its own strategy comes first, then what Table II and Figure 11 have beside it.
H20 = ["TP=8+DP=2, TP=8+EP=2", "TP=8 [PP=2]", "TP=8+DP=2, EP=16", "TP=4+DP=4, EP=16", "TP=4+DP=4, TP=4+EP=4", "TP=4+DP=4, TP=8+EP=2", "TP=8+DP=2, TP=4+EP=4"]
ASCEND = ["TP=8+DP=4, TP=8+EP=4", "TP=8 [PP=4]", "TP=8+DP=4, EP=32", "TP=4+DP=8, EP=32", "TP=4+DP=8, TP=8+EP=4", "TP=8+DP=4, TP=4+EP=8"]
CASES = {"H20": H20, "910B port": ASCEND, "910B mesh": ASCEND}
# Width, heads of keys (latents: none), experts and layers; all blocks have experts, none guesses.
Model = collections.namedtuple("Model", "width keys experts layers more")
MODELS = {"deepseek-r1": Model(7168, 0, 256, 61, {"first_k_dense_replace": 0, "num_nextn_predict_layers": 0}), "qwen3-235b-a22b": Model(4096, 4, 128, 94, {})}


@contextlib.contextmanager
def network(nodes, gpus, o, group, fast):
    """Nodes with so many cards, or groups of nodes with a card each that reach those of their group by another network."""
    rate = ["--rate", f"{1000 * o.card / o.scale:g}mbit", "--burst", "64kbit", "--queue", "2s"]
    how = [nodes * group, *rate, "--gang", group, "--inside", "none"] if group else [nodes, *rate, "--cards", gpus]
    try:
        rails.run(NET, "up", TAG, *how)
        for place, cards in fast.items():
            rails.run(NET, "rate", TAG, place, f"{1000 * o.card * cards / o.scale:g}mbit", "64kbit", "2s")
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


def degrees(text):
    """Ranks and number of attention workers, ranks and number of expert workers, stages: the planner's notation (src/plan/strategy.h)."""
    tp_a, dp, tp_e, ep, pp = re.fullmatch(r"TP=(\d+)(?:\+DP=(\d+))?(?:, (?:TP=(\d+)\+)?EP=(\d+))?(?: \[PP=(\d+)\])?", text).groups()
    return [int(x or 1) for x in (tp_a, dp, tp_e if ep else tp_a, ep, pp)]


def named(text, c, hop, gpus=8):
    """A strategy on a cluster of the paper. Workers are whole gangs by their costs (device_of), but for `hybrid`, whose ranks send stripes."""
    tp_a, dp, tp_e, ep, pp = degrees(text)
    if pp > 1:
        return Strategy(["--attention", 1, "--pp", pp, "--rank-link", hop], [0], 0, prompts=["--schedule", "ep"])  # a lane for each rank would have a part of the prompt
    if (tp_a, dp) == (tp_e, ep) and tp_a == gpus:
        return Strategy(["--attention", dp, "--tp", tp_a, "--rank-link", "0:1000000", "--schedule", "hybrid", "--rail-bytes", 1024], range(dp), 0)
    if (tp_a, dp) == (tp_e, ep):
        return Strategy(["--attention", dp, "--schedule", "ep"], range(dp), dp // c.nodes, {i: tp_a for i in range(dp)})
    heads, group = dp // c.nodes, (dp + ep) // c.nodes  # of a node: its attention workers first
    places = sorted(range(dp + ep), key=lambda i: i % group >= heads)
    fast = {place: tp_a if place % group < heads else tp_e for place in places}
    return Strategy(["--attention", dp, "--experts", ep, "--schedule", "dep"], places, group, {place: cards for place, cards in fast.items() if cards > 1})


def measure(nodes, gpus, strategy, o, folder, prompts, tries=5):
    words = [*strategy.words, *o.more, "--device", f"emulated:{o.device}", "--time-scale", o.scale, "--wire", "bf16", "--max-num-seqs", 256, "--max-num-batched-tokens", o.step]
    with network(nodes, gpus, o, strategy.group, strategy.fast), rails.joined(words, strategy.places, gpus if "hybrid" in words else 1, o.model, folder):
        client = ["python3", rails.__file__, "--client", "--rows", o.rows, "--batch", o.batch, "--tokens", o.tokens, "--differ", "--together", prompts, "--times", o.times]
        out, _ = rails.inside(0, *client, stdout=subprocess.PIPE).communicate(timeout=1200)
        if not out:
            sys.exit(f"strategies.py: {words}: no answer; RAILS_LOG=FILE has what the programs say")
        got = json.loads(out)
    if got["lost"]:  # the machine was so busy that a worker was silent for too long: that is no measurement
        if tries == 1:
            sys.exit(f"strategies.py: {words}: workers were lost each time; a larger --scale gives them longer")
        print(f"strategies.py: {got['lost']} workers were lost; once more", file=sys.stderr, flush=True)
        return measure(nodes, gpus, strategy, o, folder, prompts, tries - 1)
    return {k: v / o.scale for k, v in got.items() if k in ("prompt", "together", "decode")}


# ---- the paper's clusters ----


def note(o, head, row):
    """One run more in the csv, where other laboratories write at the same time."""
    print(*row, sep=" | ", flush=True)
    if o.csv:
        with open(o.csv, "a") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            if not f.tell():
                f.write(f"# source: the engine on emulated GPUs, a row a run; bench/strategies.py {' '.join(sys.argv[1:])}; other values of options as the columns have them\n{head}\n")
            csv.writer(f, lineterminator="\n").writerow([*row, datetime.date.today()])


def row_reaches(m, groups):
    """How likely a row has an expert in one of so many groups."""
    return 1 - math.comb(m.experts - m.experts // groups, 8) / math.comb(m.experts, 8)


def gathering_us(m, c, ranks):
    """A row in BF16, gathered from ranks of a node, or added up there."""
    return 2 * m.width * (ranks - 1) / ranks / c.inside(ranks) / 1e3 if ranks > 1 else 0


def fused(o):
    """Figure 12: the fused exchange beside one step after the other, by bench_fused, whose ports take what a chunk of rows does on the paper's cluster between nodes and inside one.
    The latency inside is not hidden and left out of both; ranks are four a node (bench_fused has no more), with the times of eight."""
    for name, m in ((n, MODELS["deepseek-r1"]) for n in o.fused):
        c = CLUSTERS[name]
        for rows in (16, 512, 4096):
            chunk = rows * row_reaches(m, c.nodes)
            t_x = c.away + chunk * 2 * m.width / 8 / (c.card / 8) / 1e3 - c.alpha
            v = chunk * gathering_us(m, c, 8)
            scale = 150 / max(t_x, v)  # ms: the machine is late by single ones
            said = subprocess.check_output([pathlib.Path(rails.SLUICE).parent / "bench_fused", "tcp", "7", str(c.nodes), "4", f"{t_x * scale:.2f}", f"{v * scale:.2f}"], text=True).split()[-1].split(",")
            note(o, "cluster,rows,t_x_us,v_us,scale,dispatch_us,dispatch_apart_us,saved_us,law_us,combine_us,combine_apart_us,combine_saved_us,combine_law_us,day",
                 [name, rows, f"{t_x:.2f}", f"{v:.2f}", f"{1e3 * scale:.0f}", *(f"{float(said[i]) / scale:.2f}" for i in (5, 7, 9, 10, 11, 13, 15, 16))])


def device_of(text, c, model, o, path):
    """Costs of a strategy's workers by data sheet, with what its ranks exchange: rows in BF16, once for each row and not for each of its experts. Attention ends with an all-reduce; a gang of experts
    gathers rows of other nodes and adds up all that it has, and at home the sums are gathered. Between stages of a pipeline each rank sends its part of the rows, and they are gathered."""
    m, (tp_a, _, tp_e, ep, pp) = MODELS[model], degrees(text)

    def sheet(*ranks):
        byte = 1 if model == "deepseek-r1" and c.device == "H20" else 2  # a weight: 910B has no FP8
        return json.loads(subprocess.check_output([pathlib.Path(rails.SLUICE).parent / "bench_papers", "costs", model, c.device, str(byte), *map(str, ranks)]))

    own = "hybrid" in named(text, c, "").words  # its gang is cut by the engine, all but keys of latents
    costs, cut = sheet(1, 1) if own else sheet(tp_a, tp_e), sheet(tp_a, tp_e)
    if m.keys == 0:
        costs["attention"]["key"] = cut["attention"]["key"]
    rounds = 3 if pp == 1 else 2
    if tp_a > 1:
        costs["attention"] |= {"sum": rounds * c.alpha, "sum_row": rounds * gathering_us(m, c, tp_a)}
    if tp_e > 1:
        costs["expert"] |= {"sum": 2 * c.alpha, "sum_row": (2 * ep - 1) / ep * gathering_us(m, c, tp_e) * row_reaches(m, ep) * ep / 8 if pp == 1 else 2 * gathering_us(m, c, tp_e) / 8}
    costs["head"] = {k: v * o.blocks / m.layers for k, v in costs["head"].items() if k != "step"}  # as much of the whole as in the whole model
    path.write_text(json.dumps(costs))
    hop = 2 * m.width / tp_a / (c.card / 8) / 1e3 + gathering_us(m, c, tp_a)
    return f"{c.alpha + c.away}:{4 * m.width * 8e-3 / hop:g}"  # of F32 rows, which the engine counts


def paper(o, folder):
    for name, model in ((n, m) for n in o.paper for m in MODELS if o.only in (None, m)):
        c, m = CLUSTERS[name], MODELS[model]
        o.card, o.model, device = c.card, folder / f"{name} {model}", folder / f"{name} {model}.json"
        o.device, o.more = device, ["--route-skew", f"exp:{2.56 / m.experts:g}:permuted:1"]  # as unequal as the model's experts are (docs/reproduction.md)
        rails.make_model(o.model, o.blocks, model, m.more)
        for _ in range(o.pairs):
            for text in o.cases or CASES[name]:
                hop = device_of(text, c, model, o, device)
                strategy = named(text, c, hop)
                got = measure(c.nodes, 8, strategy, o, folder, 0)
                if strategy.prompts:
                    got["prompt"] = measure(c.nodes, 8, strategy._replace(words=[*strategy.words, *strategy.prompts]), o, folder, 0)["prompt"]
                note(o, "cluster,model,strategy,blocks,scale,ttft_ms,itl_ms,day", [name, model, text, o.blocks, o.scale, f"{got['prompt']:.4f}", f"{got['decode']:.4f}"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shapes", nargs="+", default=["2x4", "4x2"])
    p.add_argument("--device", default="H20")
    for name, default in (("inside", 3600), ("card", 200), ("scale", 500), ("rows", 128), ("batch", 64), ("tokens", 12), ("pairs", 2), ("blocks", 4), ("times", 3)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--paper", nargs="+", choices=CLUSTERS, default=[])
    p.add_argument("--fused", nargs="+", choices=CLUSTERS, help="Figure 12 instead")
    p.add_argument("--cases", nargs="+", help="of --paper: these strategies alone")
    p.add_argument("--only", choices=MODELS)
    p.add_argument("--csv", help="of --paper: where rows are kept")
    p.add_argument("--model", help="folder with a config.json; left out: four blocks of Qwen3-30B-A3B's sizes")
    o = p.parse_args()
    o.more, o.step = [], max(o.rows, 256) if o.paper else 2048
    if o.fused:
        fused(o)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rails.run(rails.SLUICE, "secret", "-o", folder / "secret")
        if o.paper:
            paper(o, folder)
            return
        o.model = o.model or rails.make_model(folder / "model", o.blocks)
        for shape in o.shapes:
            nodes, gpus = (int(x) for x in shape.split("x"))
            ways = strategies(nodes, gpus, o)
            turns = [{w: measure(nodes, gpus, s, o, folder, nodes * gpus) for w, s in ways.items()} for _ in range(o.pairs)]
            ours = next(iter(ways))
            for way in ways:
                cells = []
                for what in ("together", "decode"):
                    cells += [f"{statistics.median(t[way][what] for t in turns):.2f}", f"{statistics.median(t[way][what] / t[ours][what] for t in turns):.2f}"]
                print(f"| {nodes} x {gpus} | {way} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
