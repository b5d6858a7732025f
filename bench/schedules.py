#!/usr/bin/env python3
"""The claims about schedules, measured: one line each, of medians of paired runs.

    bench/schedules.py [--reps 3] [--only TEXT] [--json FILE]

bench/schedules/claims.json names for each claim a configuration of the laboratory (docs/laboratory.md)
and what differs between the two runs of a pair, which alternate; or a law in ms a layer that one run is
held against. Every run is traced; the traces stay in bench/schedules/traces. Only the standard library."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CLAIMS = HERE / "schedules" / "claims.json"
TRACES = HERE / "schedules" / "traces"
BLOCKS = 32


def run(config, settings, trace):
    argv = [sys.executable, str(HERE / "lab" / "run.py"), str(HERE / "schedules" / config), "--trace", str(trace)]
    for setting in settings:
        argv += ["--set", setting]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{config} {' '.join(settings)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def figure(result, metric):
    if metric == "layer_ms":
        return result["itl_ms"]["p50"] / BLOCKS
    return result[metric]


def measure(number, claim, reps):
    """Figures of each side: over, and base or the law."""
    over, base = [], []
    for rep in range(reps):
        trace = TRACES / f"claim{number}-{rep}"
        over.append(figure(run(claim["config"], claim.get("over", []), f"{trace}-over.json"), claim["metric"]))
        if "law" in claim:
            base.append(claim["law"])
        else:
            base.append(figure(run(claim["config"], claim["base"], f"{trace}-base.json"), claim["metric"]))
    ratios = sorted(a / b for a, b in zip(over, base))
    return {"value": statistics.median(ratios), "spread": [ratios[0], ratios[-1]], "over": over, "base": base,
            "trace": f"{TRACES.relative_to(HERE.parent)}/claim{number}-*.json"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--only", default="", help="claims whose text has this")
    parser.add_argument("--json", help="also write the figures there")
    args = parser.parse_args()
    TRACES.mkdir(exist_ok=True)
    rows = []
    print(f"{'claim':64} {'median':>8} {'range':>15}  bar")
    for number, claim in enumerate(json.loads(CLAIMS.read_text())):
        if args.only not in claim["claim"]:
            continue
        got = measure(number, claim, args.reps)
        least, most = claim.get("at_least"), claim.get("at_most")
        held = (least is None or got["value"] >= least) and (most is None or got["value"] <= most)
        bar = f">= {least}" if least is not None else f"<= {most}"
        spread = f"{got['spread'][0]:.3f}..{got['spread'][1]:.3f}"
        print(f"{claim['claim']:64} {got['value']:8.3f} {spread:>15}  {bar} {'' if held else 'MISSED'}", flush=True)
        rows.append({"claim": claim["claim"], "unit": claim["unit"], "bar": bar, "held": held, **got})
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
