#!/usr/bin/env python3
"""Guesses predicted and measured: deployments of emulated devices whose texts repeat (`repeats`, `strays` of the device), with and without `"speculate": "lookup"`, or `"mtp"`.

  bench/guesses.py [--how mtp] [--seed 1] [--n 6] [--json FILE]

Each is run by the engine (bench/lab/run.py) and by `sluice simulate` with the same plan and the same lengths. How often the next guess of `lookup` is right, and after how many steps
there are any, is read off the text by the engine's own rule (src/sched/draft.h); those of `mtp` are right unless the text strays. Only the standard library."""
import argparse
import json
import math
import pathlib
import random
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import predict as both  # noqa: E402

MOST, MATCH = 8, 3  # SL_DRAFT_MOST, SL_DRAFT_TOKENS


def text(period, strays, vocab, start, n):
    """What the emulated device says behind a first token at position 0 (src/stage/emulated/emulated.c)."""
    step = vocab // 3 + 1
    while math.gcd(vocab, step) != 1:
        step += 1
    said = [start]
    for pos in range(n):
        rng = both.Rng(said[-1] << 32 | pos)
        following = said[-1] - step * (period - 1) if (pos + 1) % period == 0 else said[-1] + step
        if (rng.next() >> 11) * 2.0**-53 < strays:
            following += vocab // 2
        said.append(following % vocab)
    return said


def acceptance(period, strays, vocab, tokens, seed):
    """(right, found) of texts of so many tokens."""
    right = judged = found = steps = 0
    rng = random.Random(seed)
    for _ in range(50):
        said = text(period, strays, vocab, rng.randrange(vocab), tokens)
        behind, at = {}, MATCH
        while at < len(said):
            place = behind.get(tuple(said[at - MATCH:at]))
            steps += 1
            found += place is not None
            took = 1
            for i in range(MOST if place is not None else 0):
                if at + i >= len(said):
                    break
                judged += 1
                if said[place + i] != said[at + i]:  # where the place reaches the end guesses repeat, too: of what was right so far
                    break
                right += 1
                took += 1
            for p in range(at, min(at + took, len(said))):
                behind[tuple(said[p - MATCH:p])] = p
            at += took
    return right / max(judged, 1), found / steps


def draw(rng, i, model):
    together = i % 3 == 0
    attention, experts = (2, 0) if together else (1, rng.choice([1, 2]))
    schedule = "ep" if together else ("pingpong", "aep")[i % 3 - 1]
    device = {"attention": {"fixed": rng.uniform(1000, 4000), "row": rng.uniform(20, 120)}, "router": {"fixed": rng.uniform(0, 300)},
              "expert": {"fixed": rng.uniform(0, 200), "floor": rng.uniform(200, 1500), "row": rng.uniform(10, 60)}, "head": {"fixed": rng.uniform(500, 2000), "row": rng.uniform(0, 50)},
              "repeats": rng.choice([12, 20, 32]), "strays": rng.choice([0, 0.02, 0.06])}
    config = {"model": str(HERE / "lab" / "models" / model), "attention": attention, "device": device, "time_scale": 4, "transport": "shm",
              "plan": {"schedule": schedule, "limits": {"max_num_seqs": 64, "max_num_batched_tokens": 256, "context": 1024, "kv_pages": 4096}},
              "load": {"loop": "closed", "concurrency": rng.choice([1, 2, 8]), "warmup_s": 10, "measure_s": 20, "prompt": [1, 8], "output": [80, 160], "seed": rng.randrange(1000)}}
    if experts:
        config["experts"] = experts
    if schedule == "pingpong":
        config["plan"]["lanes"] = 2
    return config


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--how", choices=["lookup", "mtp"], default="lookup")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--n", type=int, default=6)
    p.add_argument("--link", default="60:20")
    p.add_argument("--json")
    p.add_argument("--build", type=pathlib.Path, default=HERE.parent / "build")
    a = p.parse_args()
    rows = []
    model = "predict-mtp" if a.how == "mtp" else "predict"
    vocab = json.loads((HERE / "lab" / "models" / model / "config.json").read_text())["vocab_size"]
    print("| deployment | text | right, found | tokens/s without: predicted / measured | with guesses | times |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for i in range(a.n):
            config = draw(random.Random(f"{a.seed} {i}"), i, model)
            device, cells, rates = config["device"], [], {}
            right, found = acceptance(device["repeats"], device["strays"], vocab, sum(config["load"]["output"]) // 2, i) if a.how == "lookup" else (1 - device["strays"], 1)
            for how in ("off", a.how):
                config["plan"]["speculate"] = how
                more = ["--acceptance", f"{right:.4f}:{found:.4f}"] if how == a.how else []
                said, seen = both.predict(config, folder, a.build.resolve(), a.link, more), both.measure(config, folder, a.build.resolve())
                for what, key in (("tokens/s", "tokens_per_s"),):
                    rows.append({"draw": i, "speculate": how, "right": right, "found": found, "config": json.loads(json.dumps(config)), "predicted": said[key], "measured": seen[key],
                                 "error": said[key] / seen[key] - 1, "guesses": said.get("guesses")})
                rates[how] = rows[-1]
                cells.append(f"{said[key]:.1f} / {seen[key]:.1f} ({100 * rows[-1]['error']:+.1f} %)")
            times = " / ".join(f"{rates[a.how][k] / rates['off'][k]:.2f}" for k in ("predicted", "measured"))
            workers = f"{config['attention']}+{config['experts']}" if config.get("experts") else f"{config['attention']} together"
            print(f"| {config['plan']['schedule']} {workers} n={config['load']['concurrency']} | repeats after {device['repeats']}, {100 * device['strays']:g} % stray "
                  f"| {right:.2f}, {found:.2f} | {' | '.join(cells)} | {times} |", flush=True)
    for how in ("off", a.how):
        errors = [abs(r["error"]) for r in rows if r["speculate"] == how]
        print(f"{how}: median error {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
