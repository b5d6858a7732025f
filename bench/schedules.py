#!/usr/bin/env python3
"""The claims about schedules and fabric, measured, in one table.

    bench/schedules.py [--reps N] [--only TEXT] [--json FILE] [--mpi PROGRAM]

bench/schedules/claims.json has the claims in groups. The sides of a group are experiments of the
laboratory (docs/laboratory.md) that differ in a few fields; they run in turn, `reps` times (3), or, for
emulated devices which need little of a processor, at the same time. A row is a figure of them
(bench/figures.py) for each repetition; the table has the median, the bar, the range and what was run.
Every run is traced; the traces stay in bench/schedules/traces. What cannot run here is a row with the
reason. Only the standard library."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import figures
from lab import random_model

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SCHEDULES = HERE / "schedules"
CLAIMS = SCHEDULES / "claims.json"
TRACES = SCHEDULES / "traces"
SLUICE = str(ROOT / "build" / "sluice")


class Skipped(Exception):
    """Why something cannot be measured on this machine."""


def need(what):
    if what == "two cores" and os.cpu_count() < 2:
        raise Skipped("one core only")
    if what == "network":
        can = subprocess.run([str(HERE / "lab" / "net.sh"), "can"], capture_output=True, text=True)
        if can.returncode:
            raise Skipped((can.stdout + can.stderr).strip() or "namespaces are not permitted")


def run_side(group, side, trace):
    fields = group["sides"][side]
    config = fields.get("config", group.get("config"))
    argv = [sys.executable, str(HERE / "lab" / "run.py"), str(SCHEDULES / config), "--trace", str(trace)]
    for setting in group.get("set", []) + fields.get("set", []):
        argv += ["--set", setting]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{side}: {done.stderr.strip()}")
    return figures.Run(json.loads(done.stdout), str(trace), SLUICE)


def run_once(group, rep):
    """One repetition: a Run by side."""
    sides = list(group["sides"])
    traces = {side: TRACES / f"{group['group']}-{side}-{rep}.json" for side in sides}
    if not group.get("together"):
        return {side: run_side(group, side, traces[side]) for side in sides}
    with concurrent.futures.ThreadPoolExecutor(len(sides)) as pool:
        runs = {side: pool.submit(run_side, group, side, traces[side]) for side in sides}
        return {side: run.result() for side, run in runs.items()}


def measure(group, reps):
    """Samples of each row of the group."""
    for what in group.get("needs", []):
        need(what)
    if "model" in group:
        random_model.write(HERE / "lab" / "models" / group["model"] / "config.json", ROOT / "build" / "models" / group["model"])
    samples = [[] for _ in group["rows"]]
    for rep in range(reps):
        runs = run_once(group, rep)
        for row, values in zip(group["rows"], samples):
            values.append(figures.FIGURES[row["figure"]](row, runs))
    return samples


def peers_reason(row, mpi):
    if row.get("peer") == "ucx" and not shutil.which("ucx_perftest"):
        return "ucx_perftest is missing (package ucx-utils)"
    if row.get("peer") == "mpi" and not mpi:
        return "no MPI program named (--mpi, MPI=)"
    if row.get("peer") == "mpi" and not shutil.which("mpirun"):
        return "mpirun is missing (package openmpi-bin)"
    return "the program gave no figure"


def measure_peers(group, reps, mpi):
    out = TRACES / f"{group['group']}.json"
    argv = [sys.executable, str(HERE / group["program"]), "--rounds", str(reps), "--json", str(out)]
    done = subprocess.run(argv + (["--mpi", mpi] if mpi else []), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    found = {r["claim"]: r for r in json.loads(out.read_text())}
    return [found[row["claim"]] if row["claim"] in found else Skipped(peers_reason(row, mpi)) for row in group["rows"]]


def bar_of(row):
    if "at_least" in row:
        return f">= {row['at_least']}"
    return f"<= {row['at_most']}" if "at_most" in row else ""


def trace_of(group):
    at = TRACES.relative_to(ROOT)
    return f"{at}/{group['group']}.json" if "program" in group else f"{at}/{group['group']}-*.json"


def config_of(group):
    if "program" in group:
        return f"bench/{group['program']}"
    named = {side.get("config", group.get("config")) for side in group["sides"].values()}
    return ", ".join(sorted(os.path.relpath(SCHEDULES / name, ROOT) for name in named))


def finished(group, row, values):
    """A row of the result; values: samples, a value with its samples, or an exception that says why there are none."""
    done = {"claim": row["claim"], "value": None, "unit": row["unit"], "bar": bar_of(row), "trace": trace_of(group),
            "group": group["group"], "config": config_of(group)}
    if isinstance(values, Exception):
        done["skipped" if isinstance(values, Skipped) else "failed"] = str(values)
        return done
    if isinstance(values, dict):
        value, values = values["value"], values["samples"]
    else:
        value = statistics.median(values)
    held = row.get("at_least", value) <= value <= row.get("at_most", value)
    return {**done, "value": value, "held": held, "n": len(values), "spread": [min(values), max(values)], "samples": values}


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def line(row):
    head = f"  {row['claim']:86}"
    if "skipped" in row or "failed" in row:
        word = "skipped" if "skipped" in row else "FAILED"
        return f"{head} {word}: {row[word.lower()]}"
    spread = f"{number(row['spread'][0])} .. {number(row['spread'][1])}"
    verdict = "" if not row["bar"] else "ok" if row["held"] else "MISSED"
    return f"{head} {number(row['value']):>8} {row['unit']:14} {row['bar']:>8} {verdict:6}  {spread:>16}  n {row['n']}".rstrip()


def markdown(rows):
    """The table of docs/lab/schedules.md, from the rows of --json."""
    out = ["| claim | median | bar | range | n | configuration, traces |", "|---|---|---|---|---|---|"]
    for row in rows:
        where = f"`{row['config']}`, `{pathlib.Path(row['trace']).name}`"
        if row["value"] is None:
            out.append(f"| {row['claim']} | skipped: {row.get('skipped') or row['failed']} | {row['bar']} | | | {where} |")
            continue
        spread = f"{number(row['spread'][0])} to {number(row['spread'][1])}"
        missed = "" if row["held"] else ", missed"
        out.append(f"| {row['claim']} | {number(row['value'])} {row['unit']} | {row['bar']}{missed} | {spread} | {row['n']} | {where} |")
    loads = [row["load"] for row in rows]
    out.append(f"\nThe machine's load average when a group began was {min(loads):.1f} to {max(loads):.1f}, its own runs included.")
    return "\n".join(out)


def measured(group, args):
    begin, load = time.monotonic(), os.getloadavg()[0]
    reps = min(group.get("reps", 3), args.reps or 1000)
    try:
        samples = measure_peers(group, reps, args.mpi) if "program" in group else measure(group, reps)
    except Skipped as reason:
        samples = [reason] * len(group["rows"])
    except Exception as failure:  # the other claims are worth measuring all the same
        samples = [failure] * len(group["rows"])
    print(f"{group['group']}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return [{**finished(group, row, values), "load": load} for row, values in zip(group["rows"], samples)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, help="no more repetitions than that of any group")
    parser.add_argument("--only", default="", help="groups whose name or title has this")
    parser.add_argument("--json", help="also write the figures there")
    parser.add_argument("--mpi", default=os.environ.get("MPI"), help="the MPI program of bench/net_peers.py")
    args = parser.parse_args()
    TRACES.mkdir(exist_ok=True)
    rows = []
    begin = time.monotonic()
    print(f"  {'claim':86} {'median':>8} {'':14} {'bar':>8} {'':6}  {'range':>16}  repetitions")
    for group in json.loads(CLAIMS.read_text()):
        if args.only not in group["group"] and args.only not in group["title"]:
            continue
        got = measured(group, args)
        print(f"\n{group['title']}  [{config_of(group)}; {trace_of(group)}]", *map(line, got), sep="\n", flush=True)
        rows += got
    missed = [row for row in rows if row.get("held") is False]
    skipped = [row for row in rows if row["value"] is None]
    print(f"\n{len(rows)} rows, {len(missed)} missed, {len(skipped)} not measured, {time.monotonic() - begin:.0f} s")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if any("failed" in row for row in rows) else 0)


if __name__ == "__main__":
    main()
