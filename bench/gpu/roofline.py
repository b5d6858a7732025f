#!/usr/bin/env python3
"""Layers of routed experts under a GPU's roof, as SVG, from what bench_moe --json wrote (bench/gpu/lease.sh moe: moe.jsonl).

  bench/gpu/roofline.py FILE [FILE ...] [-o docs/img/roofline-gpu.svg] [--title TEXT]

A line of a file is a limit (read_gbs, dense_tflops) or a measurement (rows, us, gbs, tflops, way; `day`, where several files' are
beside each other). The roof is the highest limit of all files. --every: each way of a number of rows, not the fastest alone."""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import roofline  # noqa: E402


def read(path):
    """Limits and measurements of a file."""
    limits, rows = [], []
    try:
        text = path.read_text()
    except OSError as e:
        sys.exit(str(e))
    for n, line in enumerate(text.splitlines(), 1):
        try:
            r = json.loads(line)
        except json.JSONDecodeError as e:
            sys.exit(f"{path}:{n}: {e}")
        (rows if "rows" in r else limits).append({"day": path.stem} | r)
    if not rows or not limits:
        sys.exit(f"{path}: no measurement, or no limits (bench_moe without --no-ceilings has both)")
    return limits, rows


def fastest(rows):
    best = {}
    for r in rows:
        key = r["day"], r["rows"]
        if key not in best or r["us"] < best[key]["us"]:
            best[key] = r
    return list(best.values())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+", type=pathlib.Path)
    p.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "docs" / "img" / "roofline-gpu.svg")
    p.add_argument("--title", default="Layers of routed experts under the roof of the GPU")
    p.add_argument("--every", action="store_true")
    o = p.parse_args()
    limits, rows = (sum(lists, []) for lists in zip(*map(read, o.files)))
    read_gbs, peak = max(r["read_gbs"] for r in limits), max(r["dense_tflops"] for r in limits)
    points = [(r["day"], f"{r['rows']} rows, {r['way']}, {r['us']:g} us", 1e3 * r["tflops"] / r["gbs"], r["tflops"])
              for r in sorted(rows if o.every else fastest(rows), key=lambda r: (r["day"], r["rows"]))]
    o.output.write_text(roofline.draw(f"{o.title}: {peak:.0f} TFLOP/s (dense BF16), {read_gbs:.0f} GB/s read", points, peak, read_gbs / 1e3, "TFLOP/s"))
    for day, label, intensity, tflops in points:
        roof = min(peak, intensity * read_gbs / 1e3)
        print(f"{day:12} {label:28} {intensity:8.1f} flops/byte {tflops:8.1f} TFLOP/s, {100 * tflops / roof:3.0f} % of the roof")


if __name__ == "__main__":
    main()
