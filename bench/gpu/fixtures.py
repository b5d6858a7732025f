#!/usr/bin/env python3
"""Logits of every fixture on a GPU beside the CPU's: the same bits with numerics cpu, how far with fast; with exact how far, and
the same bits of a prompt as one chunk, in chunks of 7 and of 20, row by row, and over three workers.

    fixtures.py --sluice FILE --golden FOLDER [--device cuda:0] [--only TEXT]

A line each; exit status 1: bits of numerics cpu or exact differ, or a run failed. Greedy ids with fast are compared, too. KV pages are f32, and
another type that fixtures take turns with; --types: all of them at every fixture."""
import argparse
import concurrent.futures
import functools
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy

MOST_OFF = 2e-2  # of the largest logit: models of random weights have nothing but noise in their logits
MOST_OFF_FP8 = 1e-1  # keys and values that differ in last bits come to lie at other codes, which are 6 % apart
TYPES = ["f16", "bf16", "q8_0", "fp8"]  # of KV pages, beside f32
IDS = ",".join(str((7 * i * i + 3 * i) % 90 + 5) for i in range(48))


def models(golden):
    """Folders with weights, and files of GGUF."""
    folders = [p for p in sorted(golden.iterdir()) if (p / "config.json").exists() and list(p.glob("*.safetensors"))]
    folders = [p for p in folders if p.name != "qwen3next-tiny"]  # linear attention, which GPUs do not have
    return folders + sorted(golden.glob("*.gguf")) + sorted((golden / "gguf").glob("*.gguf"))


class Failed(Exception):
    pass


def call(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit status {done.returncode}")
    return done.stdout


def compare(o, model, types, folder):
    """(same bits; whether fast and exact are near; how far they are off or None, but for fp8; what to print)"""
    @functools.cache
    def logits(*extra, kv="f32"):
        path = folder / f"{model.name}.npy"
        call(o.sluice, "logits", model, "--ids", IDS, "--npy", path, "--threads", 1, "--kv-type", kv, *extra)
        return numpy.load(path)

    def how_far(kv, numerics="fast"):
        # rows in bf16 choose other experts where two are nearly as good: nine positions in ten have to be near
        cpu, own = logits(kv=kv), logits("--device", o.device, "--numerics", numerics, kv=kv)
        return float(numpy.quantile(numpy.max(abs(own - cpu), axis=1), 0.9) / numpy.max(abs(cpu)))

    def ids(*extra):
        return json.loads(call(o.sluice, "run", model, "--ids", "3,17,41,5,29", "-n", 16, "--ignore-eos", "--temp", 0, "--json", *extra))["ids"]

    ways = [["--exact"], []] + ([["--activations", "f32"]] if model.suffix == ".gguf" else [])
    for how, kv in [(how, "f32") for how in ways] + [(["--exact"], kv) for kv in types]:
        cpu, gpu = logits(*how, kv=kv), logits(*how, "--device", o.device, "--numerics", "cpu", kv=kv)
        if not numpy.array_equal(cpu.view(numpy.uint32), gpu.view(numpy.uint32)):
            at = numpy.argwhere(cpu != gpu)
            return False, False, None, (f"FAILED: {' '.join(how) or 'plain'}, KV {kv}: {len(at)} of {cpu.size} logits differ, first at {at[0].tolist() if len(at) else 'NaN'}, "
                                 f"by {numpy.nanmax(abs(cpu - gpu)):.3g} of {numpy.nanmax(abs(cpu)):.3g}")
    exact = ["--device", o.device, "--numerics", "exact", "--exact"]
    cut = [[f"--max-num-batched-tokens={n}"] for n in (1, 7, 20)] + [["--attention", 1, "--experts", 2, "--schedule", "dep"]]
    for kv in ["f32", *types]:
        whole = logits(*exact, kv=kv)
        for how in cut if kv == "f32" else cut[:1]:
            part = logits(*exact, *how, kv=kv)
            if not numpy.array_equal(whole.view(numpy.uint32), part.view(numpy.uint32)):
                return False, False, None, f"FAILED: exact {how}, KV {kv}: {numpy.sum(whole != part)} of {whole.size} logits differ by up to {numpy.nanmax(abs(whole - part)):.3g}"
    off = {kv: how_far(kv) for kv in ["f32", *types]}
    own = how_far("f32", "exact")
    greedy = ids("--kv-type", "f32") == ids("--device", o.device, "--numerics", "fast", "--kv-type", "f32")
    far = ", ".join(f"{value:.2e} ({kv})" for kv, value in off.items())
    worst = float(numpy.max([own, *(value for kv, value in off.items() if kv != "fp8")]))
    near = worst <= MOST_OFF and off.get("fp8", 0) <= MOST_OFF_FP8
    return True, near, worst, (f"numerics cpu the same bits, exact its own; fast within {far} and exact within {own:.2e} of the largest in nine positions of ten, "
                         f"greedy ids {'the same' if greedy else 'differ'}")


def guarded(o, model, types, folder):
    try:
        return compare(o, model, types, folder)
    except (Failed, subprocess.TimeoutExpired) as e:
        return False, False, None, f"FAILED: {e}"


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--sluice", required=True)
    args.add_argument("--golden", type=pathlib.Path, required=True)
    args.add_argument("--device", default="cuda:0")
    args.add_argument("--only", default="")
    args.add_argument("--types", action="store_true")
    args.add_argument("--at-once", type=int, default=4)
    o = args.parse_args()
    chosen = [m for m in models(o.golden) if o.only in m.name]
    same, bad, worst = 0, [], 0.0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(o.at_once) as pool:
        turns = [TYPES if o.types else [TYPES[i % len(TYPES)]] for i in range(len(chosen))]
        done = pool.map(lambda model, types: guarded(o, model, types, pathlib.Path(folder)), chosen, turns)
        for model, (bits, near, off, text) in zip(chosen, done):
            print(f"{model.name}: {text}", flush=True)
            same += bits
            if not (bits and near):
                bad.append(model.name)
            if off is not None:
                worst = max(worst, off) if off == off else float("nan")
    print(f"figure: {same} of {len(chosen)} fixtures have the CPU's bits and exact's, fast and exact within {worst:.2e} (fast over fp8 apart)")
    if bad:
        print(f"figure: FAILED {', '.join(bad)}")
    return bool(bad) or not chosen


if __name__ == "__main__":
    sys.exit(main())
