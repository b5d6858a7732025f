#!/usr/bin/env python3
"""Which schedule wins where: a map, measured on four emulated workers (docs/when-not.md).

    bench/crossover.py [--json FILE] [--svg FILE] [--only MAP] [--reps 2] [--jobs 4]

Every point is a deployment and a load around bench/lab/crossover.json: so many requests in a closed loop,
costs of attention and experts, skew of the experts, a link. Every schedule runs there on the same four
workers, colocated or split as the costs suggest; what counts is tokens a second with the same requests.
Stages take milliseconds and no processor, so a few runs share the machine; whatever disturbs a run makes
it slower, so the best of its repetitions counts. Only the standard library."""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = HERE / "lab" / "crossover.json"
WORKERS = 4
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
COLOURS = {"ep": "#9aa5b1", "eps N=2": "#5b8def", "aep, colocated": "#e5a54b", "dep": "#6b7580", "pingpong m=2": "#63b26b",
           "pingpong m=3": "#2f8a4a", "findep 2x2": "#8e6bbf", "aep, split": "#d9653b"}
POINT = {"requests": 256, "ratio": "1:1", "skew": "none", "link": "shm"}
SKEWS = {"none": None, "0.6": "exp:0.6:permuted:1", "1.2": "exp:1.2:permuted:1", "1.2, same": "exp:1.2"}
LINKS = {
    "shm": None,
    "100 Mbit/s": {"rate": "100mbit", "burst": "64kbit"},
    "50 Mbit/s": {"rate": "50mbit", "burst": "64kbit"},
    "2 ms": {"delay_us": 2000},
}
# Each map: what goes down and what goes across.
MAPS = {
    "ratio": (("ratio", ("1:3", "1:1", "3:1")), ("requests", (16, 64, 256, 1024))),
    "skew": (("skew", tuple(SKEWS)), ("requests", (64, 256, 1024))),
    "link": (("link", tuple(LINKS)), ("requests", (64, 256))),
}
TITLES = {"ratio": "attention : experts (time)", "skew": "skew: exp(-x rank), permuted or the same by layer", "link": "link"}


def split_of(ratio):
    """(attention workers, expert workers, share of the time that attention takes)"""
    attention, experts = map(int, ratio.split(":"))
    n = WORKERS * attention // (attention + experts)
    return n, WORKERS - n, attention / (attention + experts)


def settings_of(point, schedule):
    """What differs from CONFIG. Attention's and experts' costs always sum up to the same."""
    colocated, plan = SCHEDULES[schedule]
    attention, experts, share = split_of(point["ratio"])
    costs = json.loads(CONFIG.read_text())["device"]
    device = {stage: {k: v * 2 * part for k, v in costs[stage].items()}
              for stage, part in (("attention", share), ("expert", 1 - share))}
    policy = {"policy": "defrag" if SKEWS[point["skew"]] else "rmf"} if plan["schedule"] == "aep" else {}
    fields = {"attention": WORKERS if colocated else attention, "experts": 0 if colocated else experts, "device": device,
              "load.concurrency": point["requests"]}
    fields |= {f"plan.{k}": v for k, v in {**plan, **policy}.items()}
    if SKEWS[point["skew"]]:
        fields["route_skew"] = SKEWS[point["skew"]]
    if LINKS[point["link"]]:
        fields["network"] = LINKS[point["link"]]
    return fields


def run(point, schedule):
    """Tokens a second, or the reason why there are none."""
    argv = [sys.executable, str(HERE / "lab" / "run.py"), str(CONFIG)]
    for key, value in settings_of(point, schedule).items():
        argv += ["--set", f"{key}={json.dumps(value)}"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    result = json.loads(done.stdout)
    return {"tokens_per_s": result["tokens_per_s"], "itl_ms_p50": result["itl_ms"]["p50"], "commit": result["commit"]}


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


def measure_some(points, reps, jobs):
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [{**p, "schedules": {s: [] for s in SCHEDULES}} for p in points]
        for point in running:
            for _ in range(reps):
                for schedule, futures in point["schedules"].items():
                    futures.append(pool.submit(run, point, schedule))
        for point in running:
            point["schedules"] = {s: best_of([f.result() for f in futures]) for s, futures in point["schedules"].items()}
            print(f"{time.monotonic() - begin:4.0f} s  {describe(point)}", file=sys.stderr, flush=True)
    return running


def measure(points, reps, jobs):
    can = subprocess.run([str(HERE / "lab" / "net.sh"), "can"], capture_output=True, text=True)
    if can.returncode:
        print(f"slow links left out: {(can.stdout + can.stderr).strip()}", file=sys.stderr)
        points = [p for p in points if not LINKS[p["link"]]]
    near = [p for p in points if not LINKS[p["link"]]]
    far = [p for p in points if LINKS[p["link"]]]  # need the processor for their links, too
    return measure_some(near, reps, jobs) + measure_some(far, reps, max(jobs // 2, 1))


def rates_of(point):
    return {s: r["tokens_per_s"] for s, r in point["schedules"].items() if "tokens_per_s" in r}


def describe(point):
    rates = rates_of(point)
    best = max(rates, key=rates.get)
    failed = [f"{s}: {r['failed']}" for s, r in point["schedules"].items() if "failed" in r]
    return ", ".join([f"{point[k]}" for k in POINT] + [f"{best} {rates[best]:.0f} tokens/s"] + failed)


def table_of(name, measured):
    """A table for people: tokens a second relative to ep, the best in bold."""
    (down, downs), (across, acrosses) = MAPS[name]
    out = [f"| {TITLES[name]} | {across} | ep, tokens/s | " + " | ".join(s for s in SCHEDULES if s != "ep") + " |",
           "|---" * (len(SCHEDULES) + 2) + "|"]
    for d in downs:
        for a in acrosses:
            found = [p for p in measured if all(p[k] == v for k, v in {**POINT, down: d, across: a}.items())]
            if not found or "ep" not in rates_of(found[0]):
                continue
            rates = rates_of(found[0])
            best = max(rates, key=rates.get)
            cells = [f"{rates[s] / rates['ep']:.2f}" if s in rates else "-" for s in SCHEDULES if s != "ep"]
            names = [s for s in SCHEDULES if s != "ep"]
            cells = [f"**{c}**" if s == best else c for s, c in zip(names, cells)]
            ep = f"**{rates['ep']:.0f}**" if best == "ep" else f"{rates['ep']:.0f}"
            out.append(f"| {d} | {a} | {ep} | " + " | ".join(cells) + " |")
    return "\n".join(out)


CELL_W, CELL_H, LEFT, TOP = 140, 46, 96, 44


def svg_map(name, measured, y):
    (down, downs), (across, acrosses) = MAPS[name]
    out = [f'<text x="8" y="{y + 16}" class="t">{TITLES[name]}</text>']
    for j, a in enumerate(acrosses):
        out.append(f'<text x="{LEFT + j * CELL_W + CELL_W / 2}" y="{y + 36}" class="m">{a} {across}</text>')
    for i, d in enumerate(downs):
        at = y + TOP + i * CELL_H
        out.append(f'<text x="{LEFT - 8}" y="{at + 27}" class="e">{d}</text>')
        for j, a in enumerate(acrosses):
            found = [p for p in measured if all(p[k] == v for k, v in {**POINT, down: d, across: a}.items())]
            if not found:
                continue
            rates = rates_of(found[0])
            first, second = sorted(rates, key=rates.get, reverse=True)[:2]
            x = LEFT + j * CELL_W
            beside = second if first == "ep" else "ep"
            note = f"{rates[first] / rates[beside]:.2f} x {beside}"
            out.append(f'<rect x="{x}" y="{at}" width="{CELL_W - 3}" height="{CELL_H - 3}" rx="3" fill="{COLOURS[first]}"/>'
                       f'<text x="{x + CELL_W / 2}" y="{at + 19}" class="w">{first}</text>'
                       f'<text x="{x + CELL_W / 2}" y="{at + 35}" class="n">{note}</text>')
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
    parser.add_argument("--svg", help="draw the maps there")
    parser.add_argument("--only", choices=MAPS, help="one map")
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    args = parser.parse_args()
    names = [args.only] if args.only else list(MAPS)
    if args.from_json:
        measured = json.loads(pathlib.Path(args.from_json).read_text())
    else:
        measured = measure(points_of(names), args.reps, args.jobs)
    for name in names:
        print(f"\n{table_of(name, measured)}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(measured, indent=1) + "\n")
    if args.svg:
        write_svg(args.svg, names, measured)


if __name__ == "__main__":
    main()
