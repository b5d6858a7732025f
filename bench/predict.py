#!/usr/bin/env python3
"""Prediction against reality: deployments drawn by a seed, each run by the engine (bench/lab/run.py) and by
`sluice simulate` with the same plan and load; throughput, time between tokens, time to the first token.

    bench/predict.py                      # emulated devices: the costs are known, links measured or set
    bench/predict.py --ranks --n 24       # the same of gangs (tensor parallelism), `hybrid` and pipelines
    bench/predict.py --real MODEL         # CPU kernels over local transports, costs from `sluice profile`, taken first
    bench/predict.py --seed 2 --n 12 --only 3,7 --json results.json

A profile holds kernels and links only; no end-to-end figure enters a prediction. Only the standard library."""
import argparse
import concurrent.futures
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "lab"))
import run as lab  # noqa: E402

KINDS = ["ep", "dep", "pingpong", "findep", "eps", "aep"]
TOGETHER = ("ep", "eps", "hybrid")
# With --ranks: what ranks are, and which schedules take turns there.
RANKS = {"tp": ["ep", "eps"], "tp apart": ["dep", "pingpong", "findep", "aep"], "hybrid": ["hybrid"], "pp": ["pingpong"]}


def shape(rng, kind):
    together = kind in TOGETHER
    attention = rng.choice([1, 2])
    experts = 0 if together else rng.choice([1, 2])
    plan = {"schedule": kind}
    if kind in ("pingpong", "findep"):
        plan["lanes"] = rng.choice([2, 3])
    if kind == "findep":
        plan["chunks"] = rng.choice([2, 3])
        plan["chunk_by"] = rng.choice(["tokens", "experts"])
    if kind == "eps":
        plan["chunks"] = rng.choice([2, 4])
        attention = 2
    if kind == "aep":
        plan["policy"] = rng.choice(["defrag", "rmf"])
    return attention, experts, plan


def draw_emulated(rng, kind, far):
    """A deployment whose stages wait for known times; far: over real slow links."""
    attention, experts, plan = shape(rng, kind)
    plan["limits"] = {"max_num_seqs": 256, "max_num_batched_tokens": 512, "context": 1024, "kv_pages": 8192}
    device = {"attention": {"fixed": rng.uniform(2000, 8000), "row": rng.uniform(0, 60), "key": rng.uniform(0, 0.2)},
              "router": {"fixed": rng.uniform(0, 500)},
              "expert": {"fixed": rng.uniform(0, 500), "floor": rng.uniform(0, 2000), "row": rng.uniform(20, 100)},
              "head": {"fixed": rng.uniform(500, 3000), "row": rng.uniform(0, 50)}}
    config = {"model": str(HERE / "lab" / "models" / "predict"), "attention": attention, "plan": plan, "device": device,
              "time_scale": 4,  # a sleep that ends late on a busy machine is little of a long stage
              "route_skew": f"exp:{rng.choice([0, 0.3, 0.8])}:permuted:{rng.randrange(100)}"}
    if experts:
        config["experts"] = experts
    if far:
        config["network"] = {"rate": rng.choice(["20mbit", "100mbit"]), "burst": "64kbit", "delay_us": rng.choice([4000, 12000])}
    else:
        config["transport"] = "shm"
    rows = rng.choice([32, 64, 128])
    config["load"] = {"loop": "closed", "concurrency": rows, "warmup_s": 12, "measure_s": 24, "prompt": [1, 64], "output": [10, 20],
                      "seed": rng.randrange(1000)}
    return config


def draw_ranks(rng, i):
    """Ranks, linked by a latency and a rate of their own: gangs, every third over slow links as above; nodes of `hybrid`, of which each
    rank has a real card, so slow that rows take as long as stages; a pipeline of one worker, with as many lanes as ranks or others."""
    what = list(RANKS)[i % len(RANKS)]
    turn = i // len(RANKS)
    config = draw_emulated(rng, RANKS[what][turn % len(RANKS[what])], what.startswith("tp") and turn % 3 == 2)
    plan, n = config["plan"], rng.choice([2, 4])
    config["device"]["rank_link"] = {"alpha": rng.uniform(5, 1000 if what == "pp" else 200), "byte": 10 ** rng.uniform(-4, -1.7)}
    if what == "pp":
        plan |= {"pp": {"degree": n}, "lanes": rng.choice([n, n, 2, 3])}
        config["attention"] = 1
        config.pop("experts", None)
        return what, config
    if "network" in config and "experts" not in config:
        config["attention"] = 2
    plan["tp"] = {"attention": n, "expert": rng.choice([1, 2, 4]) if what == "tp apart" else n}
    if what == "hybrid":
        config["model"] = str(HERE / "lab" / "models" / "wide")  # of narrow rows much passes in a burst
        config["attention"] = rng.choice([2, 2, 4])
        config["load"] |= {"concurrency": 32, "warmup_s": 24, "measure_s": 36}  # requests that began together have drifted apart
        # Nothing passes before its time, nothing is dropped.
        config["network"] = {"rate": rng.choice(["40mbit", "80mbit", "160mbit"]), "burst": "16kbit", "queue": "2000ms", "cards": n}
        del config["transport"]
    return what, config


def draw(args, rng, i):
    """What its ranks are, if it is about them, and the deployment."""
    if args.real:
        return None, draw_real(rng, i, str(pathlib.Path(args.real).resolve()))
    what, config = draw_ranks(rng, i) if args.ranks else (None, draw_emulated(rng, KINDS[i % len(KINDS)], i % 3 == 2))
    slow_down(config, args.slower)
    return what, config


def slow_down(config, times):
    """Stages, links and the run; where links are not the machine's own, everything but what the host itself takes."""
    config["time_scale"] *= times
    for field in ("warmup_s", "measure_s"):
        config["load"][field] *= times
    network = config.get("network", {})
    if "delay_us" in network:
        network["delay_us"] = round(network["delay_us"] * times)
    if "rate" in network and times != 1:
        network["queue"] = f"{float(network.get('queue', '50ms').removesuffix('ms')) * times:g}ms"  # as many bytes
        network["rate"] = f"{float(network['rate'].removesuffix('mbit')) / times:g}mbit"


def draw_poisson(config, slower):
    """The same deployment, open: arrivals at a share of what the closed loop gave, long prompts between decoding requests."""
    config["load"] = {"loop": "open", "rate": 0, "concurrency": 512, "warmup_s": 20 * slower, "measure_s": 60 * slower, "prompt": [64, 400], "output": [10, 20],
                      "seed": 7, "slo_ttft_ms": 12000 * slower, "slo_tpot_ms": 1500 * slower}
    return config


def draw_real(rng, i, model):
    """Two workers on two cores. Every third over TCP sockets of this machine: the laboratory's cables compute, too, on cores that are not left."""
    attention, experts, plan = shape(rng, KINDS[i % len(KINDS)])
    attention, experts = (1, 1) if experts else (2, 0)
    plan["limits"] = {"max_num_seqs": 64, "max_num_batched_tokens": 256, "context": 512, "kv_pages": 1024}
    config = {"model": model, "attention": attention, "plan": plan, "transport": "tcp" if i % 3 == 2 else "shm", "pin": [0, 1]}
    if experts:
        config["experts"] = experts
    config["load"] = {"loop": "closed", "concurrency": rng.choice([4, 8, 16, 32]), "warmup_s": 5, "measure_s": 12, "prompt": [4, 64], "output": [24, 48],
                      "seed": rng.randrange(1000)}
    return config


# ---- both sides ----

def processor_ticks():
    """Of all cores since the start: worked, and wanted but given by the host to somebody else. The clock by which kernels are
    profiled stands still meanwhile, that of a deployment does not."""
    user, nice, system, _, _, irq, soft, stolen = map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return user + nice + system + irq + soft, stolen


def stolen_share(since):
    worked, stolen = (now - then for now, then in zip(processor_ticks(), since))
    return stolen / max(worked + stolen, 1)


def measure(config, folder, build):
    """What bench/lab/run.py says of a run, and "stolen", the share of the processors' time that the host took meanwhile."""
    since = processor_ticks()
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        done = subprocess.run([sys.executable, str(HERE / "lab" / "run.py"), file.name, "--build", str(build)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"predict.py: {done.stderr[-2000:]}")
    return {**json.loads(done.stdout), "stolen": stolen_share(since)}


MASK = (1 << 64) - 1


class Rng:
    """sl_rng_next and sl_rng_below of src/base/rng.h."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = z = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return (self.next() * n) >> 64


def write_load(load, vocab, folder):
    """The requests that lab_load draws from its seed (bench/lab/drive.c), as a trace."""
    rng, at_ns, lines = Rng(load["seed"]), 0.0, []
    for _ in range(3000):
        stamp = at_ns / 1e6
        if load["loop"] == "open":
            at_ns += -math.log(1 - (rng.next() >> 11) * 2.0**-53) / load["rate"] * 1e9
        prompt, output = (low + rng.below(high - low + 1) for low, high in (load["prompt"], load["output"]))
        for _ in range(prompt):
            rng.below(vocab)
        lines.append(json.dumps({"timestamp": stamp, "input_length": prompt, "output_length": output}))
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    arrival = "trace: 1.0" if load["loop"] == "open" else f"closed: {load['concurrency']}"
    text = f"trace: requests.jsonl\narrival: {{{arrival}}}\n"
    if "slo_ttft_ms" in load:
        text += f"slo: {{ttft: {load['slo_ttft_ms']}ms, tpot: {load['slo_tpot_ms']}ms}}\n"
    (folder / "load.yaml").write_text(text)


def link_of(config, local):
    """US:GBIT. A set link is its rate (193 of 200 Mbit/s arrive, docs/laboratory.md) and its delay with what the cable adds."""
    network = config.get("network")
    if not network:
        return local
    mbit = float(network["rate"].removesuffix("mbit"))
    return f"{network.get('delay_us', 0) + 85}:{0.955 * mbit / 1000}"


def predict(config, folder, build, local_link, more):
    plan = lab.make_plan(config, folder)
    (folder / "plan.json").write_text(json.dumps(plan))
    load = config["load"]
    write_load(load, json.loads((pathlib.Path(config["model"]) / "config.json").read_text())["vocab_size"], folder)
    command = [str(build / "sluice"), "simulate", config["model"], "--plan", str(folder / "plan.json"), "--workload", str(folder / "load.yaml"),
               "--transport", config.get("transport", "shm"), "--warmup", str(load["warmup_s"]), "--measure", str(load["measure_s"]), "--seed", "1", "--json", *more]
    link = link_of(config, local_link)
    if config["plan"].get("tp") and "network" in config:  # cards, as flows of TCP share them
        command += ["--ports", "shared"]
    if link:
        command += ["--link", link]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"predict.py: {' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


METRICS = [("tokens/s", lambda r: r["tokens_per_s"]), ("ITL ms", lambda r: r["itl_ms"]["mean"]), ("ITL p99", lambda r: r["itl_ms"]["p99"]),
           ("TTFT ms", lambda r: r["ttft_ms"]["mean"])]


def describe(config):
    plan, load = config["plan"], config["load"]
    workers = f"{config['attention']}+{config['experts']}" if config.get("experts") else f"{config['attention']} together"
    parts = [plan["schedule"], workers]
    if "tp" in plan:
        degrees = plan["tp"]["attention"], plan["tp"]["expert"]
        parts.append(f"tp {degrees[0]}" if degrees[0] == degrees[1] else f"tp {degrees[0]}, {degrees[1]}")
    if "pp" in plan:
        parts.append(f"pp {plan['pp']['degree']}")
    for key, name in (("lanes", "m"), ("chunks", "x"), ("policy", "")):
        if key in plan:
            parts.append(f"{name}{plan[key]}")
    network = config.get("network")
    parts.append(f"{network['rate']} {network.get('delay_us', 0) / 1000:g}ms" if network else config.get("transport", "shm"))
    parts.append(f"{load['rate']:.2f}/s" if load["loop"] == "open" else f"n={load['concurrency']}")
    return " ".join(parts)


def compare(config, measured, predicted):
    row = {"name": describe(config), "config": config, "run": measured}
    for name, get in METRICS + ([("goodput/s", lambda r: r["goodput_per_s"])] if config["load"]["loop"] == "open" else []):
        m, p = get(measured), get(predicted)
        row[name] = {"measured": m, "predicted": p, "error": p / m - 1 if m else 0.0}
    return row


def show(row):
    cells = " | ".join(f"{v['predicted']:.1f} / {v['measured']:.1f} ({100 * v['error']:+.1f} %)" for k, v in row.items() if k not in ("name", "config", "run", "draw", "what"))
    print(f"| {row['name']} | {cells} |", flush=True)


def both_errors(rows):
    """Median and worst error of throughput and ITL."""
    errors = [abs(r[name]["error"]) for r in rows for name in ("tokens/s", "ITL ms")]
    return statistics.median(errors), max(errors)


def summary(rows, bars):
    for name in ("tokens/s", "ITL ms", "ITL p99", "TTFT ms", "goodput/s"):
        errors = [abs(r[name]["error"]) for r in rows if name in r]
        if errors:
            print(f"{name}: median error {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} % of {len(errors)}")
    for what in dict.fromkeys(r["what"] for r in rows if "what" in r):
        median, worst = both_errors([r for r in rows if r["what"] == what])
        print(f"{what}: throughput and ITL: median {100 * median:.1f} %, worst {100 * worst:.1f} %")
    median, worst = both_errors(rows)
    good = median < bars[0] / 100 and worst < bars[1] / 100
    print(f"throughput and ITL together: median {100 * median:.1f} % (bar {bars[0]}), worst {100 * worst:.1f} % (bar {bars[1]}): {'kept' if good else 'MISSED'}")
    return good


TRIES = 4


def speed(build):
    """Read bandwidth and f32 arithmetic of both cores just now."""
    done = subprocess.run([str(build / "bench_limits")], capture_output=True, text=True, check=True)
    limits = json.loads(done.stdout)
    return limits["read_median_gbs"], limits["fma_gflops"]


def measure_steady(config, folder, build, reference, within):
    """A run is kept when the machine gave what it gave to the profile, before and after it; else it is done again.
    After TRIES runs the one whose machine was nearest is taken. Whatever is left out is said."""
    best = None
    for _ in range(TRIES):
        before = speed(build)
        run = measure(config, folder, build)
        shares = [now / then for at in (before, speed(build)) for now, then in zip(at, reference)]
        away = max(abs(s - 1) for s in shares)
        if best is None or away < best[0]:
            best = (away, run)
        if away <= within:
            break
        print(f"  (not kept: {run['tokens_per_s']:.1f} tokens/s with the machine at {100 * min(shares):.0f} to {100 * max(shares):.0f} % of its "
              "speed during the profile)", flush=True)
    return best[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--n", type=int, default=12)
    parser.add_argument("--only", help="numbers of the draws to run")
    parser.add_argument("--ranks", action="store_true", help="emulated devices that are ranks of gangs and pipelines")
    parser.add_argument("--slower", type=float, default=1, metavar="TIMES",
                        help="of emulated devices: stages, slow links and runs take as many times as long, for busy machines")
    parser.add_argument("--jobs", type=int, default=1, help="emulated deployments at a time: they wait, and take little of the machine")
    parser.add_argument("--real", metavar="MODEL", help="CPU kernels on this model instead of emulated devices")
    parser.add_argument("--profile", help="with --real: a profile taken before; left out: it is taken now")
    parser.add_argument("--steady", type=float, metavar="PERCENT", help="with --real: do a run again when memory or arithmetic was further than this "
                        "from their speed right after the profile (bench_limits, before and after each run)")
    parser.add_argument("--link", default="60:20", help="local transport of emulated devices, US:GBIT")
    parser.add_argument("--json", help="where to write everything; a profile taken now goes beside it, as .profile.json")
    parser.add_argument("--again", help="predict once more what such a file has measured")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    args = parser.parse_args()
    build = args.build.resolve()
    only = {int(x) for x in args.only.split(",")} if args.only else None
    known = {row["draw"]: row for row in json.loads(pathlib.Path(args.again).read_text())} if args.again else {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        more, link = [], args.link
        if args.real:
            kept = pathlib.Path(args.json).with_suffix(".profile.json") if args.json else folder / "profile.json"
            profile = args.profile or str(kept)
            if not args.profile:
                since = processor_ticks()
                subprocess.run([str(build / "sluice"), "profile", args.real, "--threads", "1", "-o", profile], check=True, stdout=sys.stderr)
                print(f"the host took {100 * stolen_share(since):.1f} % of the processors from the profile", file=sys.stderr)
            more, link = ["--profile", profile], None
        reference = speed(build) if args.steady else None
        print("| deployment | predicted / measured tokens/s | ITL mean, ms | ITL P99, ms | TTFT mean, ms | goodput/s |\n|---|---|---|---|---|---|")
        tasks, rows = [], []
        for i in range(args.n + 1):
            if args.ranks and i == args.n:
                continue
            rng = random.Random(f"{args.seed} {i}")
            what, config = draw(args, rng, i)
            if i == args.n:  # open loop at half of what the simulator says a closed loop gives
                _, config = draw(args, rng, 2 if args.real else 1)
                lengths = {"prompt": [32, 200], "output": [20, 40]} if args.real else {}
                config["load"].update(lengths)
                closed = predict(config, folder, build, link, more)
                config = draw_poisson(config, args.slower)
                if args.real:
                    config["load"].update(lengths, slo_ttft_ms=2000, slo_tpot_ms=200)
                config["load"]["rate"] = round(0.5 * closed["tokens_per_s"] / (sum(config["load"]["output"]) / 2), 3)
            if only and i not in only:
                continue
            config = known[i]["config"] if i in known else config
            tasks.append((i, what, config, predict(config, folder, build, link, more)))

        def run(task):
            i, _, config, _ = task
            if i in known:
                return known[i]["run"]
            return measure_steady(config, folder, build, reference, args.steady / 100) if args.steady else measure(config, folder, build)

        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for (i, what, config, predicted), measured in zip(tasks, pool.map(run, tasks)):
                rows.append({**compare(config, measured, predicted), "draw": i, **({"what": what} if what else {})})
                show(rows[-1])
        stolen = [r["run"]["stolen"] for r in rows if "stolen" in r["run"]]
        if stolen:
            print(f"the host took from runs {100 * statistics.median(stolen):.1f} % of the processors' work in the median, {100 * max(stolen):.1f} % at worst")
        good = summary(rows, (2, 8) if args.ranks else (10, 25))
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
