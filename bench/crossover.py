#!/usr/bin/env python3
"""Which schedule wins where: a map, measured on four emulated devices (docs/when-not.md).

    bench/crossover.py [--json FILE] [--svg FILE] [--only MAP] [--reps 2] [--jobs 4]
    bench/crossover.py --columns "tp 4" --with FILE         these and ep alone, set beside the points of FILE
    bench/crossover.py --from-json FILE --predict           what sluice simulate says of such points

Every point is a deployment and a load around bench/lab/crossover.json: so many requests in a closed loop,
costs of attention and experts, skew of the experts, a link. Every schedule runs there on the same four
devices: workers of one, colocated or split as the costs suggest, or gangs whose ranks they are; what counts
is tokens a second with the same requests. Stages take milliseconds and no processor, so a few runs share the
machine; whatever disturbs a run makes it slower, so the best of its repetitions counts, and who is not
confirmed by another one is repeated (--agree). Only the standard library."""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import predict

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = HERE / "lab" / "crossover.json"
MODEL = json.loads((CONFIG.parent / json.loads(CONFIG.read_text())["model"] / "config.json").read_text())
WORKERS = 4  # of one device each
SCHEDULES = {
    # name: colocated, fields of the plan
    "ep": (True, {"schedule": "ep"}),
    "eps N=2": (True, {"schedule": "eps", "chunks": 2}),
    "aep, colocated": (True, {"schedule": "aep"}),
    "dep": (False, {"schedule": "dep"}),
    "pingpong m=2": (False, {"schedule": "pingpong", "lanes": 2}),
    "pingpong m=3": (False, {"schedule": "pingpong", "lanes": 3}),
    "findep 2x2": (False, {"schedule": "findep", "lanes": 2, "chunks": 2, "chunk_by": "experts"}),
    "aep, split": (False, {"schedule": "aep"}),
}
NEAR = "near tp 2 x ep 2"  # where links are slow: ranks of a gang share a machine. That is a better network, so it is not ranked
RAILS = "near, hybrid"  # the same with a card for each rank, as fast as the other's one
BETTER_LINKED = NEAR, RAILS
GANGS = {
    # name: devices that are one worker's ranks, linked as workers are; colocated, fields of the plan
    "tp 4": (4, True, {"schedule": "ep"}),
    "tp 2 x ep 2": (2, True, {"schedule": "ep"}),
    NEAR: (2, True, {"schedule": "ep"}),
    RAILS: (2, True, {"schedule": "hybrid", "rail_bytes": 1024}),  # rows are a 32nd of a large model's
    "tp 2, pingpong m=2": (2, False, {"schedule": "pingpong", "lanes": 2}),
}
COLUMNS = [*SCHEDULES, *GANGS]
COLOURS = {"ep": "#9aa5b1", "eps N=2": "#5b8def", "aep, colocated": "#e5a54b", "dep": "#6b7580", "pingpong m=2": "#63b26b",
           "pingpong m=3": "#2f8a4a", "findep 2x2": "#8e6bbf", "aep, split": "#d9653b", "tp 4": "#b8405e", "tp 2 x ep 2": "#d27c90",
           "tp 2, pingpong m=2": "#7a2f48"}
POINT = {"requests": 256, "ratio": "1:1", "skew": "none", "link": "shm"}
SKEWS = {"none": None, "0.6": "exp:0.6:permuted:1", "1.2": "exp:1.2:permuted:1", "1.2, same": "exp:1.2"}
LINKS = {
    "shm": None,
    "100 Mbit/s": {"rate": "100mbit", "burst": "64kbit"},
    "50 Mbit/s": {"rate": "50mbit", "burst": "64kbit"},
    "2 ms": {"delay_us": 2000},
}
RANKS_ALPHA_US = 10        # a rank's message of no length, besides the link's delay: who waits has to wake up
RANKS_BYTE_US = 1 / 7700   # of ranks that share memory: bench_collective, 1 MiB in 136 us
CABLE_BYTE_US = 1 / 450    # docs/laboratory.md: 3.6 Gbit/s through a cable with a delay
RATE_ARRIVES = 0.965       # docs/laboratory.md: 193 of 200 Mbit/s
REPEATS = 3                # at most, of who is not confirmed
BUCKET = 8192              # bytes that a link's tbf lets through at once
# Each map: what goes down and what goes across.
MAPS = {
    "ratio": (("ratio", ("1:3", "1:1", "3:1")), ("requests", (16, 64, 256, 1024))),
    "skew": (("skew", tuple(SKEWS)), ("requests", (64, 256, 1024))),
    "link": (("link", tuple(LINKS)), ("requests", (64, 256))),
}
TITLES = {"ratio": "attention : experts (time)", "skew": "skew: exp(-x rank), permuted or the same by layer", "link": "link"}


def mbit_of(link):
    return float(link["rate"].removesuffix("mbit"))


def split_of(ratio):
    """(attention workers, expert workers, share of the time that attention takes)"""
    attention, experts = map(int, ratio.split(":"))
    n = WORKERS * attention // (attention + experts)
    return n, WORKERS - n, attention / (attention + experts)


def rank_link(point, ranks, near):
    """The link between a gang's ranks, as rank_link of the device. It is the map's, also in that a bucket passes at once
    where ranks have it for themselves (one worker): in both sums of a block, of rows of attention and, for each of their
    experts, of experts. Times are real ones, so divided by the scale of the stages, which multiplies them."""
    link = {} if near else LINKS[point["link"]] or {}
    alpha, byte = RANKS_ALPHA_US + link.get("delay_us", 0), RANKS_BYTE_US
    if "delay_us" in link:
        byte = CABLE_BYTE_US
    if "rate" in link:
        byte = 8 / (RATE_ARRIVES * mbit_of(link))
        if ranks == WORKERS:
            row = 2 * (ranks - 1) / ranks * 4 * MODEL["hidden_size"]
            sums = [point["requests"] * row * n for n in (1, MODEL["num_experts_per_tok"])]
            byte *= sum(max(b - BUCKET, 0) for b in sums) / sum(sums)
    scale = json.loads(CONFIG.read_text())["time_scale"]
    return {"alpha": alpha / scale, "byte": byte / scale}


def runs_at(point, column):
    """Not all columns are at all points."""
    if column in BETTER_LINKED:
        return LINKS[point["link"]] is not None
    ranks, colocated, _ = GANGS.get(column, (1, True, None))
    return colocated or split_of(point["ratio"])[0] % ranks == 0


def settings_of(point, column):
    """What differs from CONFIG. Attention's and experts' costs always sum up to the same."""
    ranks, colocated, plan = GANGS[column] if column in GANGS else (1, *SCHEDULES[column])
    attention, experts, share = split_of(point["ratio"])
    costs = json.loads(CONFIG.read_text())["device"]
    device = {stage: {k: v * 2 * part for k, v in costs[stage].items()}
              for stage, part in (("attention", share), ("expert", 1 - share))}
    policy = {"policy": "defrag" if SKEWS[point["skew"]] else "rmf"} if plan["schedule"] == "aep" else {}
    if ranks > 1:
        device["rank_link"] = rank_link(point, ranks, column in BETTER_LINKED)
        policy["tp"] = {"attention": ranks, "expert": ranks}
    fields = {"attention": WORKERS // ranks if colocated else attention // ranks, "experts": 0 if colocated else experts // ranks,
              "device": device, "load.concurrency": point["requests"]}
    fields |= {f"plan.{k}": v for k, v in {**plan, **policy}.items()}
    if SKEWS[point["skew"]]:
        fields["route_skew"] = SKEWS[point["skew"]]
    if LINKS[point["link"]]:
        fields["network"] = {**LINKS[point["link"]], **({"cards": ranks} if column == RAILS else {})}
    return fields


def slowed(fields):
    """--busy: the same deployment many times as slow (stages, the ranks' link, which is scaled as stages are, and the workers'),
    so that what other programs take is little of a stage. Stages of few requests are short. A thin link's queue is 50 ms long."""
    link = dict(fields.get("network", {}))
    slow = 4 if "rate" in link else next(s for n, s in ((16, 24), (64, 16), (256, 8), (1 << 30, 6)) if fields["load.concurrency"] <= n)
    out = {**fields, "time_scale": slow * json.loads(CONFIG.read_text())["time_scale"]}
    if "rate" in link:
        link["rate"] = f"{mbit_of(link) / slow:g}mbit"
    if "delay_us" in link:
        link["delay_us"] *= slow
    if link:
        out["network"] = link
    step_s = slow * (0.05 + fields["load.concurrency"] / 5000)
    return {**out, "load.warmup_s": 3 * step_s, "load.measure_s": 6 * step_s}, slow


def run(point, column, busy):
    """Tokens a second, or the reason why there are none. Busy: all requests over the median time between a request's
    tokens, as a window of so few steps counts one more or one less, and some of them are disturbed."""
    fields, slow = slowed(settings_of(point, column)) if busy else (settings_of(point, column), 1)
    argv = [sys.executable, str(HERE / "lab" / "run.py"), str(CONFIG)]
    for key, value in fields.items():
        argv += ["--set", f"{key}={json.dumps(value)}"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
    result = json.loads(done.stdout)
    itl = result["itl_ms"]["p50"] / slow
    if itl <= 0 or result["tokens_per_s"] <= 0:
        return {"failed": "no tokens while it was measured"}
    return {"tokens_per_s": 1000 * point["requests"] / itl if busy else result["tokens_per_s"], "itl_ms_p50": itl, "commit": result["commit"]}


def predicted(point, column):
    """Tokens a second in virtual time. Links have no bucket there."""
    config = json.loads(CONFIG.read_text())
    for key, value in settings_of(point, column).items():
        predict.lab.set_field(config, f"{key}={json.dumps(value)}")
    link = LINKS[point["link"]] or {}
    gbit = RATE_ARRIVES * mbit_of(link) / 1000 if "rate" in link else 20
    load = config["load"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "plan.json").write_text(json.dumps(predict.lab.make_plan(config, CONFIG.parent)))
        predict.write_load(load, MODEL["vocab_size"], folder)
        argv = [str(HERE.parent / "build" / "sluice"), "simulate", str(CONFIG.parent / config["model"]), "--plan", str(folder / "plan.json"),
                "--workload", str(folder / "load.yaml"), "--warmup", str(load["warmup_s"]), "--measure", str(load["measure_s"]),
                "--link", f"{60 + link.get('delay_us', 0)}:{gbit}", "--control-us", str(60 + link.get("delay_us", 0)), "--seed", "1", "--json"]
        done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"crossover.py: {done.stderr.strip()}")
    return json.loads(done.stdout)["tokens_per_s"]


def compare(measured):
    """Columns that were run, beside what is predicted of them."""
    print(f"{'point':34} {'column':20} tokens/s predicted measured / predicted")
    for point in measured:
        for column, rate in rates_of(point).items():
            said = predicted(point, column)
            print(f"{', '.join(str(point[k]) for k in POINT):34} {column:20} {rate:8.0f} {said:9.0f} {100 * (rate / said - 1):+8.1f} %", flush=True)


def points_of(names):
    """Distinct points of the maps, in order."""
    points = []
    for name in names:
        (down, downs), (across, acrosses) = MAPS[name]
        for d in downs:
            for a in acrosses:
                point = {**POINT, down: d, across: a}
                if point not in points:
                    points.append(point)
    return points


def best_of(repetitions):
    """The fastest repetition, with all rates; a failure only when every one failed."""
    worked = [r for r in repetitions if "tokens_per_s" in r]
    if not worked:
        return repetitions[0]
    return {**max(worked, key=lambda r: r["tokens_per_s"]), "samples": [r["tokens_per_s"] for r in worked]}


def is_confirmed(repetitions, percent):
    """The two fastest are near each other."""
    rates = sorted((r["tokens_per_s"] for r in repetitions if "tokens_per_s" in r), reverse=True)
    return len(repetitions) < 2 or (len(rates) > 1 and rates[1] >= (1 - percent / 100) * rates[0])


def save(path, points):
    if path:
        pathlib.Path(path).write_text(json.dumps(points, indent=1) + "\n")


def measure_some(points, columns, jobs, args, before):
    """before: points that are there already. What is known is written as it comes."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [{**p, "schedules": {c: [] for c in columns if runs_at(p, c)}} for p in points]
        for point in running:
            for _ in range(args.reps):
                for column, futures in point["schedules"].items():
                    futures.append(pool.submit(run, point, column, args.busy))
        for n, point in enumerate(running):
            point["schedules"] = {c: [f.result() for f in futures] for c, futures in point["schedules"].items()}
            print(f"{time.monotonic() - begin:4.0f} s  {describe(finished(point))}", file=sys.stderr, flush=True)
            save(args.json, before + [finished(p) for p in running[:n + 1]])
        for _ in range(REPEATS):
            again = [(p, c, pool.submit(run, p, c, args.busy))
                     for p in running for c, got in p["schedules"].items() if not is_confirmed(got, args.agree)]
            print(f"{time.monotonic() - begin:4.0f} s  {len(again)} repeated", file=sys.stderr, flush=True)
            for point, column, future in again:
                point["schedules"][column].append(future.result())
            save(args.json, before + [finished(p) for p in running])
    return before + [finished(p) for p in running]


def finished(point):
    return {**point, "schedules": {c: best_of(got) for c, got in point["schedules"].items()}}


def joined(earlier, measured):
    """The earlier points, with the columns that were measured now: each in the ratio to the ep of its own run."""
    out = []
    for point in measured:
        base = next((p for p in earlier if all(p[k] == point[k] for k in POINT) and "ep" in rates_of(p)), None)
        if not base or "ep" not in rates_of(point):
            out.append(base or point)
            continue
        times = rates_of(base)["ep"] / rates_of(point)["ep"]
        new = {c: {**got, "tokens_per_s": times * got["tokens_per_s"], "ep": rates_of(point)["ep"]}
               for c, got in point["schedules"].items() if c != "ep" and "tokens_per_s" in got}
        out.append({**base, "schedules": {**base["schedules"], **new}})
    return out


def measure(points, columns, args):
    can = subprocess.run([str(HERE / "lab" / "net.sh"), "can"], capture_output=True, text=True)
    if can.returncode:
        print(f"slow links left out: {(can.stdout + can.stderr).strip()}", file=sys.stderr)
        points = [p for p in points if not LINKS[p["link"]]]
    near = [p for p in points if not LINKS[p["link"]]]
    far = [p for p in points if LINKS[p["link"]]]  # need the processor for their links, too
    measured = measure_some(near, columns, args.jobs, args, [])
    return measure_some(far, columns, args.jobs if args.busy else max(args.jobs // 2, 1), args, measured)


def rates_of(point):
    return {s: r["tokens_per_s"] for s, r in point["schedules"].items() if "tokens_per_s" in r}


def describe(point):
    rates = rates_of(point) or {"nothing": 0}
    best = max(rates, key=rates.get)
    failed = [f"{s}: {r['failed']}" for s, r in point["schedules"].items() if "failed" in r]
    return ", ".join([f"{point[k]}" for k in POINT] + [f"{best} {rates[best]:.0f} tokens/s"] + failed)


def at(measured, **fields):
    """The point of a map there, or None."""
    return next((p for p in measured if all(p[k] == v for k, v in {**POINT, **fields}.items())), None)


def best_two(rates):
    """The best of all, and the best whose workers are one device each."""
    return max((c for c in rates if c not in BETTER_LINKED), key=rates.get), max((c for c in rates if c in SCHEDULES), key=rates.get)


def table_of(name, measured):
    """A table for people: tokens a second relative to ep; the best in bold, the best without gangs in italics."""
    (down, downs), (across, acrosses) = MAPS[name]
    rows = [(d, a, rates_of(p)) for d in downs for a in acrosses if (p := at(measured, **{down: d, across: a})) and "ep" in rates_of(p)]
    columns = [c for c in COLUMNS if c != "ep" and (c in SCHEDULES or any(c in rates for _, _, rates in rows))]
    out = [f"| {TITLES[name]} | {across} | ep, tokens/s | " + " | ".join(columns) + " |", "|---" * (len(columns) + 3) + "|"]
    for d, a, rates in rows:
        best, alone = best_two(rates)
        cells = {"ep": f"{rates['ep']:.0f}", **{c: f"{rates[c] / rates['ep']:.2f}" if c in rates else "-" for c in columns}}
        cells |= {alone: f"*{cells[alone]}*"}
        cells |= {best: f"**{cells[best].strip('*')}**"}
        out.append(f"| {d} | {a} | " + " | ".join(cells.values()) + " |")
    return "\n".join(out)


CELL_W, CELL_H, LEFT, TOP = 156, 64, 96, 44


def beside(rates, column):
    other = "ep" if column != "ep" else max((c for c in rates if c != "ep" and c in SCHEDULES), key=rates.get)
    return f"{rates[column] / rates[other]:.2f} x {other}"


def svg_cell(x, y, rates):
    """The best; below, where it is a gang, the best without."""
    best, alone = best_two(rates)
    w, h, half = CELL_W - 3, CELL_H - 3, x + CELL_W / 2
    out = [f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="3" fill="{COLOURS[best]}"/>',
           f'<text x="{half}" y="{y + 18}" class="w">{best}</text>', f'<text x="{half}" y="{y + 33}" class="n">{beside(rates, best)}</text>']
    if best != alone:
        out.append(f'<path d="M{x} {y + 41}h{w}v{h - 41}h-{w}z" fill="{COLOURS[alone]}"/>'
                   f'<text x="{half}" y="{y + 55}" class="n">{alone}{"" if alone == "ep" else ", " + beside(rates, alone)}</text>')
    return out


def svg_map(name, measured, y):
    (down, downs), (across, acrosses) = MAPS[name]
    out = [f'<text x="8" y="{y + 16}" class="t">{TITLES[name]}</text>']
    for j, a in enumerate(acrosses):
        out.append(f'<text x="{LEFT + j * CELL_W + CELL_W / 2}" y="{y + 36}" class="m">{a} {across}</text>')
    for i, d in enumerate(downs):
        top = y + TOP + i * CELL_H
        out.append(f'<text x="{LEFT - 8}" y="{top + 34}" class="e">{d}</text>')
        for j, a in enumerate(acrosses):
            point = at(measured, **{down: d, across: a})
            if point:
                out += svg_cell(LEFT + j * CELL_W, top, rates_of(point))
    return out, y + TOP + len(downs) * CELL_H + 14


def write_svg(path, names, measured):
    body, y = [], 4
    for name in names:
        part, y = svg_map(name, measured, y)
        body += part
    width = LEFT + CELL_W * max(len(MAPS[name][1][1]) for name in names) + 8
    style = ("text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.m{text-anchor:middle}.e{text-anchor:end}"
             ".w{text-anchor:middle;fill:#fff;font-weight:bold}.n{text-anchor:middle;fill:#fff;font-size:11px}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}">'
    text = [head, f"<style>{style}</style>", f'<rect width="{width}" height="{y}" fill="#fff"/>', *body, "</svg>"]
    pathlib.Path(path).write_text("\n".join(text) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the points there")
    parser.add_argument("--from-json", help="draw the points of such a file, measure nothing")
    parser.add_argument("--predict", action="store_true", help="say what sluice simulate makes of them, draw nothing")
    parser.add_argument("--with", dest="earlier", help="points of an earlier run: what is measured now is set beside them")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, metavar="COLUMN", default=COLUMNS, help="these and ep alone")
    parser.add_argument("--svg", help="draw the maps there")
    parser.add_argument("--only", choices=MAPS, help="one map")
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--busy", action="store_true", help="on a busy machine: everything many times as slow, and medians, which are no rates of aep")
    parser.add_argument("--agree", type=float, default=5, help="per cent that the best two repetitions may differ, or else it is repeated")
    args = parser.parse_args()
    names, columns = [args.only] if args.only else list(MAPS), [c for c in COLUMNS if c == "ep" or c in args.columns]
    if args.from_json:
        measured = json.loads(pathlib.Path(args.from_json).read_text())
    else:
        measured = measure(points_of(names), columns, args)
    if args.predict:
        return compare(measured)
    if args.earlier:
        measured = joined(json.loads(pathlib.Path(args.earlier).read_text()), measured)
    for name in names:
        print(f"\n{table_of(name, measured)}")
    save(args.json, measured)
    if args.svg:
        write_svg(args.svg, names, measured)


if __name__ == "__main__":
    main()
