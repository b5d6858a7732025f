#!/usr/bin/env python3
"""Nodes with a network card a rank: schedule hybrid beside ep over the same gangs, measured in turns.

  bench/rails.py [--auto] [--nodes 2] [--ranks 2 4] [--rate 200mbit] [--rows 128] [--batch 16] [--pairs 3] [--model FOLDER] [--wire f32]
  bench/rails.py --predict [--shapes 2x2 2x4 4x2] [--schedules hybrid ep] [--draws 2] [--seed 1] [--json FILE]

A node is a namespace with one card for each rank, each on a network of its own, shaped to the rate in both directions. Stages are emulated and take next to nothing,
so what is measured is rows on their way: `ep` sends them by the first rank's card, `hybrid` in stripes by all. `prompt` is the time to the first token of one request of
so many rows, the median of three, `decode` the median time of a step of so many requests at once at each node. Prints medians in ms and the medians of the quotients of each turn. Needs root.
With --auto a third deployment says no schedule: what `--schedule auto` chooses over these links, and how fast that is.

With --predict stages take times that a seed draws, as are rates and numbers of requests, and `sluice simulate` says before each run what will be measured, from the same options."""
import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SLUICE = os.environ.get("SLUICE_BIN", str(HERE.parent / "build" / "sluice"))
NET, TAG, PORT = HERE / "lab" / "net.sh", os.environ.get("RAILS_TAG", "rails"), 8000  # laboratories beside each other have tags of their own
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def run(*words):
    subprocess.run([str(w) for w in words], check=True)


def at(node, rank):
    return f"10.77.{rank}.{node + 1}"


@contextlib.contextmanager
def network(nodes, ranks, rate, burst="512kbit", queue="50ms"):
    try:
        run(NET, "up", TAG, nodes, "--rate", rate, "--burst", burst, "--queue", queue, "--cards", ranks)
        yield
    finally:
        subprocess.run([NET, "down", TAG], **QUIET)


def make_model(folder, blocks=8, published="qwen3-30b-a3b", more=None):
    """The sizes of a published model's blocks, all with experts, and a vocabulary of little. Weights are not read."""
    folder.mkdir()
    sizes = json.loads((HERE.parent / "tests" / "golden" / "configs" / f"{published}.json").read_text())
    sizes |= {"num_hidden_layers": blocks, "vocab_size": 1040, "bos_token_id": 1, "eos_token_id": 2} | (more or {})
    (folder / "config.json").write_text(json.dumps(sizes))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        (folder / name).write_bytes((HERE.parent / "tests" / "golden" / "qwen3moe-tiny" / name).read_bytes())
    return folder


def inside(node, *command, **more):
    return subprocess.Popen(["ip", "netns", "exec", f"{TAG}-{node}", *map(str, command)], **more)


def options(schedule, nodes, ranks, a, folder):
    """Of a deployment that runs, and of one that is simulated."""
    return ["--attention", nodes, "--tp", ranks, "--schedule", schedule, "--device", f"emulated:{folder / 'device.json'}", "--rank-link", "10:160", "--wire", a.wire,
            "--max-num-seqs", 256, "--max-num-batched-tokens", max(a.rows, 256)]


@contextlib.contextmanager
def running(started):
    """Programs that end with the block."""
    try:
        yield
    finally:
        for p in started:
            p.terminate()
        for p in started:
            p.wait(30)


@contextlib.contextmanager
def joined(words, places, ranks, model, folder):
    """A coordinator with these options of `serve` at node 0, and worker i at node places[i], with a rail for each of `ranks` ranks."""
    log = open(os.environ.get("RAILS_LOG", os.devnull), "a")
    quiet, secret = {"stdout": log, "stderr": log}, folder / "secret"
    started = [inside(0, SLUICE, "serve", model, "--remote", *words, "--transport", "tcp", "--fabric-host", at(0, 0), "--fabric-port", 7000, "--secret-file", secret,
                      "--host", "127.0.0.1", "--port", PORT, "--no-status", **quiet)]
    for i, node in enumerate(places):
        rails = ["--rails", ",".join(at(node, t) for t in range(1, ranks))] if ranks > 1 else []
        started.append(inside(node, SLUICE, "worker", "--join", f"{at(0, 0)}:7000", "--secret-file", secret, "--fabric-host", at(node, 0), "--worker-id", i, "--model", model, *rails, **quiet))
    with running(started):
        yield


def deployment(schedule, nodes, ranks, a, folder):
    return joined(options(schedule, nodes, ranks, a, folder), range(nodes), ranks if schedule != "ep" else 1, a.model, folder)


def ask(rows, tokens, marks, first=3):
    body = {"prompt": [first + k % 100 for k in range(rows)], "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True, "cache": False}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    mine = []
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                mine.append(time.monotonic())
    marks.append(mine)


def together(rows, n):
    """From n prompts at once to the last one's first token."""
    marks, began = [], time.monotonic()
    threads = [threading.Thread(target=ask, args=(rows, 1, marks, 3 + 7 * i)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return max(m[0] for m in marks) - began


def client(rows, batch, tokens, differ, at_once, times):
    """differ: requests say different things, and so have different experts; at_once: prompts come together, too."""
    until = time.monotonic() + 180  # dozens of workers on few cores come slowly
    while True:
        try:
            ask(1, 2, [])
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    prompts = []
    for _ in range(times):
        began, marks = time.monotonic(), []
        ask(rows, 1, marks)
        prompts.append(marks[0][0] - began)
    several = [together(rows, at_once) for _ in range(times)] if at_once else [0]
    marks = []
    threads = [threading.Thread(target=ask, args=(1, tokens, marks, 3 + differ * 7 * i)) for i in range(batch)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    first, last = max(m[0] for m in marks), min(m[-1] for m in marks)
    steps = [y - x for m in marks for x, y in zip(m, m[1:], strict=False) if first <= x and y <= last]
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as answer:
        metrics = answer.read().decode()
    schedule, lost = re.search(r'schedule="(\w+)"', metrics)[1], re.search(r"^sluice:workers_lost_total.* (\d+)$", metrics, re.M)[1]
    print(json.dumps({"prompt": 1e3 * statistics.median(prompts), "together": 1e3 * statistics.median(several), "decode": 1e3 * statistics.median(steps),
                      "schedule": schedule, "lost": int(lost)}))


def measure(schedule, nodes, ranks, a, folder):
    with deployment(schedule, nodes, ranks, a, folder):
        done = inside(0, "python3", __file__, "--client", "--rows", a.rows, "--batch", a.batch * nodes, "--tokens", a.tokens, *(["--differ"] if a.predict else []), stdout=subprocess.PIPE)
        out, _ = done.communicate(timeout=400)
        return json.loads(out)


def compare(turns, ours, what):
    """Medians of both, and how much faster ours is than ep in the same turn."""
    ep, other = (statistics.median(t[s][what] for t in turns) for s in ("ep", ours))
    return f"{ours} {other:.1f} ms, {statistics.median(t['ep'][what] / t[ours][what] for t in turns):.2f} times as fast as ep ({ep:.1f})"


# ---- predictions ----

def simulated(schedule, nodes, ranks, a, folder, rate):
    """What `measure` will see: TTFT of one request, and the time between tokens of all. Of a shaped card 95.5 % of the rate carry bytes of messages (docs/laboratory.md)."""
    said = []
    for load, what in ((f"input: {a.rows}\noutput: 1\narrival: {{closed: 1}}\nrequests: 1\n", "ttft_ms"),
                       (f"input: 1\noutput: {a.tokens}\narrival: {{closed: {a.batch * nodes}}}\nrequests: {a.batch * nodes}\n", "itl_ms")):
        (folder / "load.yaml").write_text(load)
        words = [SLUICE, "simulate", a.model, *options(schedule, nodes, ranks, a, folder), "--link", f"85:{0.955e-3 * rate}", "--ports", "shared", "--workload", folder / "load.yaml", "--json"]
        said.append(json.loads(subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout)[what]["p50"])
    return dict(zip(("prompt", "decode"), said, strict=True))


def predict(a, folder):
    rows = []
    for nodes, ranks in ((int(x) for x in s.split("x")) for s in a.shapes):
        for draw in range(a.draws):
            rng = random.Random(f"{a.seed} {nodes}x{ranks} {draw}")
            rate, a.batch, a.rows, a.tokens = rng.choice([10, 20, 40]), rng.choice([8, 16]), rng.choice([64, 128]), 16
            costs = {"attention": {"fixed": rng.uniform(1000, 4000), "row": rng.uniform(0, 60), "key": rng.uniform(0, 0.2)}, "router": {"fixed": rng.uniform(0, 300)},
                     "expert": {"fixed": rng.uniform(0, 50), "floor": rng.uniform(0, 200), "row": rng.uniform(10, 50)},
                     "head": {"fixed": rng.uniform(500, 3000), "row": rng.uniform(0, 50)}, "time_scale": 8}  # what the machine is late is little of a long stage
            (folder / "device.json").write_text(json.dumps(costs))
            for schedule in a.schedules:
                said = simulated(schedule, nodes, ranks, a, folder, rate)
                with network(nodes, ranks, f"{rate}mbit", "16kbit", "2s"):  # nothing passes before its time, nothing is dropped
                    seen = measure(schedule, nodes, ranks, a, folder)
                for what, predicted in said.items():
                    error = predicted / seen[what] - 1
                    rows.append({"schedule": schedule, "nodes": nodes, "ranks": ranks, "rate": rate, "batch": a.batch, "rows": a.rows, "what": what, "predicted": predicted,
                                 "measured": seen[what], "error": error})
                    much = f"{a.rows} rows" if what == "prompt" else f"{a.batch * nodes} requests"
                    print(f"| {schedule} {nodes} x {ranks}, {rate} Mbit/s | {what}, {much} | {predicted:.1f} | {seen[what]:.1f} | {100 * error:+.1f} % |", flush=True)
    for schedule in a.schedules:
        errors = [abs(r["error"]) for r in rows if r["schedule"] == schedule]
        print(f"{schedule}: median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} % of {len(errors)}")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(rows, indent=1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nodes", type=int, default=2)
    p.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    p.add_argument("--rate", default="200mbit")
    p.add_argument("--rows", type=int, default=128)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--tokens", type=int, default=16)
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--wire", default="f32")
    p.add_argument("--model", help="folder with a config.json; left out: eight blocks of Qwen3-30B-A3B's sizes")
    p.add_argument("--client", action="store_true")
    p.add_argument("--together", type=int, default=0)
    p.add_argument("--times", type=int, default=3)
    p.add_argument("--differ", action="store_true")
    p.add_argument("--predict", action="store_true")
    p.add_argument("--auto", action="store_true")
    p.add_argument("--shapes", nargs="+", default=["2x2", "2x4", "4x2"])
    p.add_argument("--schedules", nargs="+", default=["hybrid", "ep"])
    p.add_argument("--draws", type=int, default=2)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json")
    a = p.parse_args()
    if a.client:
        client(a.rows, a.batch, a.tokens, a.differ, a.together, a.times)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run(SLUICE, "secret", "-o", folder / "secret")
        a.model = a.model or make_model(folder / "model")
        (folder / "device.json").write_text(json.dumps({k: {"fixed": 20, "row": 0.1} for k in ("attention", "router", "head")} | {"expert": {"fixed": 1, "row": 0.1}}))
        if a.predict:
            predict(a, folder)
            return
        for ranks in a.ranks:
            turns = []
            with network(a.nodes, ranks, a.rate):
                for _ in range(a.pairs):
                    turns.append({s: measure(s, a.nodes, ranks, a, folder) for s in ("ep", "hybrid", *(["auto"] if a.auto else []))})
            for what in ("prompt", "decode"):
                print(f"{a.nodes} nodes of {ranks} ranks, {a.rate}, {what}: {compare(turns, 'hybrid', what)}", flush=True)
                if a.auto:
                    chosen = ", ".join(sorted({t["auto"]["schedule"] for t in turns}))
                    print(f"    auto chose {chosen}: {compare(turns, 'auto', what)}", flush=True)


if __name__ == "__main__":
    main()
