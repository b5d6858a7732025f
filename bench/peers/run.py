#!/usr/bin/env python3
"""Sluice beside llama.cpp and ik_llama.cpp on the same files, in one window: A B A B ...

    bench/peers/run.py [--only TEXT[,TEXT]] [--reps N] [--json FILE] [--models DIR] [--llama DIR] [--ik DIR]

config.json has the groups: models (with options of Sluice's own, where they have some), a job, and how often each program does it. In a group every round runs each
program once, in turn, each in a process of its own with 2 threads; figures are medians over the rounds, ratios
medians of the rounds' own ratios. Beside each run: CPU time, largest resident set, what other programs and the
host took of the cores. Limits of the machine are measured before and after each model. --only takes groups whose
name has one of the texts; what was measured stays in --store and the next call replaces only its own groups.
The pages docs/performance.md and docs/lab/peers.md and the claims of --json are made from the store. Folders are those of the programs:
--llama has llama-bench, llama-batched-bench, llama-perplexity and ggml-rpc-server, --ik the first two (or
LLAMA_CPP, IK_LLAMA, MODELS in the environment). What is missing is named and left out. Only the standard library."""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import engines
import gguf_bytes
import page
import quality
from window import Failed, Run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build"


def make_engines(args):
    """Programs by name; None: not there."""
    own = str(BUILD / "sluice")
    one = ["--schedule", "ep"]
    pair = ["--threads", "1", "--pin", "0,1", "--transport", "shm"]
    found = {
        "sluice": (engines.Strips if args.strips else engines.Sluice)(own, extra=one),
        "two": engines.Sluice(own, 1, ["--attention", "2", "--schedule", "ep", *pair], "Sluice, 2 colocated workers"),
        "split": engines.Split(own, 1, ["--attention", "1", "--experts", "1", "--schedule", "pingpong", *pair],
                               "Sluice, attention worker + expert worker"),
        "llama": engines.Llama(args.llama) if args.llama else None,
        "rpc": engines.LlamaRpc(args.llama) if args.llama else None,
        "ik": engines.Ik(args.ik) if args.ik else None,
    }
    for name, program in (("llama", "llama-bench"), ("rpc", "ggml-rpc-server"), ("ik", "llama-bench")):
        if found[name] and not os.access(found[name].path(program), os.X_OK):
            print(f"{name}: no {found[name].path(program)}: left out", file=sys.stderr)
            found[name] = None
    return found


def limits(model=None):
    argv = [str(BUILD / "bench_limits"), "--threads", "2", "--tries", "5"]
    return json.loads(subprocess.check_output(argv + (["--file", model] if model else []), text=True))


def best_of(before, after):
    return {k: max(before[k], after[k]) for k in before}


def run_job(group, engine, model, seed):
    do = {"speed": engine.speed, "batch": engine.batch, "two": engine.batch, "load": engine.first_token}[group["kind"]]
    return do(model, group["job"], seed) if group["kind"] != "load" else do(model, seed)


def touched(group, path):
    """Distinct experts of a layer by rows of a decode step; as routing at random would have it where a trace fails."""
    out = {}
    for b in group["job"].get("batches", [1] if group["job"].get("decode") else []):
        try:
            out[str(b)] = engines.touched_experts(str(BUILD / "sluice"), path, b)
        except Failed:
            out[str(b)] = gguf_bytes.Work(path).uniform_experts(b)
    return out


def warm(path):
    """The file into the file cache, in large pages where the system has them, for all programs: the share in such."""
    files = json.loads(Run([str(BUILD / "sluice"), "warm", path, "--json"], timeout_s=3600).out)
    return sum(f["huge"] for f in files) / max(1, sum(f["bytes"] for f in files))


def measure(group, name, path, every, reps):
    """One model of a group: samples and conditions by engine."""
    wanted = {e: min(n, reps) for e, n in group["engines"].items() if every[e]}
    result = {"model": name, "engines": {}, "missing": sorted(e for e in group["engines"] if not every[e]),
              "failed": {}, "load": os.getloadavg()[0], "job": group["job"]}
    result["huge"] = warm(path)
    before = limits(path)
    for rep in range(max(wanted.values(), default=0)):
        for e in wanted:
            if rep >= wanted[e] or len(result["failed"].get(e, [])) > 1:
                continue
            begin = time.monotonic()
            try:
                got, runs = run_job(group, every[e], path, 1000 * rep + 7)
            except (Failed, KeyError, ValueError) as why:
                result["failed"].setdefault(e, []).append(str(why))
                print(f"{name}: {every[e].label}: {why}", file=sys.stderr)
                continue
            seen = result["engines"].setdefault(e, {"label": every[e].label, "version": every[e].version(), "runs": []})
            seen["runs"].append({
                "rep": rep, "figures": got, "rss_bytes": max(r.rss_bytes for r in runs), "cpu_s": sum(r.cpu_s for r in runs),
                "wall_s": time.monotonic() - begin, "others": max(r.others for r in runs),
                "steal": max(r.steal for r in runs), "command": [" ".join(r.argv) for r in runs]})
    result["touched"] = touched(group, path)
    result["limits"] = best_of(before, limits(path))
    return result


def middle(texts):
    """Of texts that differ in their numbers alone: each number's median."""
    parts = [re.split(r"(?<![\w.])(\d+(?:\.\d+)?)(?![\w.])", t) for t in texts]
    return "".join(f"{statistics.median(map(float, same)):g}" if i % 2 else same[0]
                   for i, same in enumerate(zip(*parts, strict=True)))


def measure_kernels(group):
    """Medians of several rounds, the machine's own peaks among them; by the kernels that are chosen on this machine."""
    words = subprocess.run([str(BUILD / "sluice"), "devices"], capture_output=True, text=True, check=True).stdout
    isa = next((text.split()[-1] for text in words.splitlines() if text.startswith("as ")), "base")
    argv = [str(BUILD / "bench_kernels"), "--threads", "2", "--ms", str(group["job"]["ms"]), "--isa", isa]
    runs = [Run(argv) for _ in range(group["job"]["rounds"])]
    csv = "\n".join(middle(lines) for lines in zip(*(r.out.strip().split("\n") for r in runs), strict=True))
    return {"csv": csv, "rounds": len(runs), "others": statistics.median(r.others for r in runs),
            "steal": max(r.steal for r in runs), "command": " ".join(argv)}


def selected(group, only, machine):
    """Some groups are of machines of some kinds alone."""
    return machine in group.get("machines", [machine]) and (not only or any(text in group["group"] for text in only.split(",")))


def measured(config, group, every, args):
    if group["kind"] == "kernels":
        return measure_kernels(group)
    out = {}
    for name in group["models"]:
        path = os.path.join(args.models, config["models"][name]["file"])
        if not os.path.exists(path):
            print(f"{name}: no {path}: left out", file=sys.stderr)
        elif group["kind"] == "quality":
            out[name] = quality.measure(str(BUILD / "sluice"), every["llama"], path, group["job"])
        else:
            own = every["sluice"].with_options(config["models"][name].get("options", []))
            out[name] = measure(group, name, path, every | {"sluice": own}, args.reps)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="")
    p.add_argument("--reps", type=int, default=1000, help="no more rounds than that")
    p.add_argument("--json", help="claims: [{claim, value, unit, bar}]")
    p.add_argument("--models", default=os.environ.get("MODELS", str(ROOT / "models")))
    p.add_argument("--llama", default=os.environ.get("LLAMA_CPP"))
    p.add_argument("--ik", default=os.environ.get("IK_LLAMA"))
    p.add_argument("--strips", action="store_true", help="Sluice takes NAME-strips.gguf beside each NAME.gguf")
    p.add_argument("--store", default=str(BUILD / "peers.json"))
    p.add_argument("--machine", default="", help="of the configuration's machines this one: with pages and bars of its own")
    p.add_argument("--docs", default=str(ROOT / "docs"), help="folder of the pages; - writes none")
    args = p.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    if args.machine and args.machine not in config["machines"]:
        p.error(f"--machine {args.machine}: config.json has {', '.join(config['machines'])}")
    every = make_engines(args)
    store = {}
    if os.path.exists(args.store):
        store = json.loads(pathlib.Path(args.store).read_text())
    for group in config["groups"]:
        if not selected(group, args.only, args.machine):
            continue
        begin = time.monotonic()
        try:
            got = measured(config, group, every, args)
        except Failed as why:
            print(f"{group['group']}: {why}", file=sys.stderr)
            continue
        if group["kind"] == "kernels":
            store[group["group"]] = got
        else:
            store.setdefault(group["group"], {}).update(got)
        pathlib.Path(args.store).write_text(json.dumps(store, indent=1) + "\n")
        print(f"{group['group']}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    claims, pages, pictures = page.make(config, store, args.models, args.machine)
    print("\n".join(page.line(c) for c in claims))
    if args.docs != "-":
        for name, text in (pages | {f"img/{name}": svg for name, svg in pictures.items()}).items():
            (pathlib.Path(args.docs) / name).write_text(text)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(claims, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
