#!/usr/bin/env python3
"""All-reduce of two processes on a machine: ours in shared memory beside Open MPI's and gloo's, in one run.

    bench/collectives.py [--rounds N] [--calls N] [--python PYTHON] [--without gloo|mpi ...] [--json FILE]

Every round runs each program once, in another order than the round before, so that all see the same machine. Each process has a CPU
of its own and sums f32 in place; ours and Open MPI's poll (mpi_yield_when_idle 0), gloo has no way to (TCP over loopback, called
from torch.distributed). A figure is the median over rounds of the medians over calls, in microseconds, of 8 KiB, 16 KiB and 1 MiB.

Ours stands beside two bounds that build/bench_collective measures in the same process: what the same bytes take one way (copied
into a slot by one process and out of it by the other), and the memcpy bound: the same bytes copied twice by one core, as they
have to go into shared memory and out of it.

Needs: build/bench_collective; mpicc and mpirun (Debian: libopenmpi-dev, openmpi-bin); a Python that has torch with gloo
(PyPI: torch), --python if it is not this one. What is missing is named, and nothing is measured; --without leaves a peer out."""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SIZES = (8192, 16384, 1 << 20)
LARGE, LARGE_BAR = 1 << 20, 1.25  # of the memcpy bound
SMALL_US, SMALL_WAYS = 5, 2.5  # whichever is more, below LARGE
RANKS = 2
WARM_UP = 100
RUN_S = 180  # of one program
MPI = ("mpirun", "-n", str(RANKS), "--bind-to", "none", "--mca", "btl", "vader,self", "--mca", "mpi_yield_when_idle", "0")
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
GLOO_ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
HAS_GLOO = "import sys, torch.distributed as d; sys.exit(not (d.is_available() and d.is_gloo_available()))"


def output_of(command, **env):
    """Its lines; an error names the program and has what it said."""
    try:
        run = subprocess.run(command, env=dict(os.environ, **env), capture_output=True, text=True, timeout=RUN_S)
    except subprocess.TimeoutExpired:
        sys.exit(f"{command[0]} did not end within {RUN_S} s")
    if run.returncode:
        sys.exit(f"{command[0]} ended with status {run.returncode}: {run.stderr.strip()[-800:]}")
    return run.stdout.split()


# ---- the three, each: bytes -> its figures ----

def ours(build, calls):
    """(all-reduce, one way, memcpy)"""
    rows = [line.split(",") for line in output_of([str(build / "bench_collective"), str(RANKS), str(calls)])[1:]]
    return {int(r[1]): (float(r[4]), float(r[6]), float(r[7])) for r in rows}


def mpi(program, calls):
    rows = [line.split(",") for line in output_of([*MPI, program, str(calls), *map(str, SIZES)], **MPI_ENV)]
    return {int(r[0]): float(r[1]) for r in rows}


def gloo(python, calls):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        command = [python, __file__, "--calls", str(calls), "--gloo-at", str(pathlib.Path(folder) / "meet"), "--gloo-rank"]
        env = dict(os.environ, **GLOO_ENV)
        ranks = [subprocess.Popen([*command, str(i)], env=env, stdout=subprocess.PIPE, text=True) for i in range(RANKS)]
        for r in ranks:
            ends.callback(r.wait)
            ends.callback(r.kill)
        until = time.monotonic() + RUN_S
        try:
            said = [r.communicate(timeout=max(until - time.monotonic(), 1))[0] for r in ranks]
        except subprocess.TimeoutExpired:
            sys.exit(f"gloo's processes did not end within {RUN_S} s")
        if any(r.returncode for r in ranks):
            sys.exit(f"gloo's processes ended with {[r.returncode for r in ranks]}")
        return {int(size): float(us) for size, us in (line.split(",") for line in said[0].split())}


def run_gloo_rank(rank, where, calls):
    """One of gloo's processes; rank 0 says what it measured."""
    import torch
    import torch.distributed as dist
    may = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {may[rank % len(may)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=RANKS)
    for size in SIZES:
        y, ns = torch.zeros(size // 4), []
        for i in range(calls + WARM_UP):
            began = time.perf_counter_ns()
            dist.all_reduce(y)
            if i >= WARM_UP:
                ns.append(time.perf_counter_ns() - began)
        if rank == 0:
            print(f"{size},{statistics.median(ns) / 1e3:.2f}", flush=True)
    dist.destroy_process_group()


# ---- what is there ----

def missing(build, python, peers):
    """What of the programs is not installed, in words."""
    if not os.access(build / "bench_collective", os.X_OK):
        yield f"{build}/bench_collective is not built (cmake --build {build} --target bench_collective)"
    if "mpi" in peers:
        absent = {"mpirun": "openmpi-bin", "mpicc": "openmpi-bin"}
        absent = {program: package for program, package in absent.items() if not shutil.which(program)}
        if not absent and subprocess.run(["mpicc", "-E", "-x", "c", "-"], input="#include <mpi.h>\n", text=True, capture_output=True).returncode:
            absent = {"mpi.h": "libopenmpi-dev"}
        for what, package in absent.items():
            yield f"{what} is not installed (Debian: {package}); --without mpi leaves Open MPI out"
    if "gloo" in peers:
        if not shutil.which(python):
            yield f"{python} is no program; --without gloo leaves gloo out"
        elif subprocess.run([python, "-c", HAS_GLOO], capture_output=True).returncode:
            yield f"{python} has no torch with gloo (PyPI: torch; --python names another); --without gloo leaves it out"


# ---- figures ----

def table(seen, peers):
    """Prints the figures; returns claims as bench/net_peers.py's, with their bars where there are any."""
    claims = []

    def claim(text, samples, bar):
        value = statistics.median(samples)
        claims.append({"claim": text, "value": value, "unit": "1", "bar": bar, "samples": samples})
        return value

    for size in SIZES:
        own = [run[size] for run in seen["sluice"]]
        us, way, copy = (statistics.median(column) for column in zip(*own))
        name = f"{size >> 10} KiB"
        print(f"{name}: sluice {us:.2f} us; one way {way:.2f} us, memcpy {copy:.2f} us")
        print(f"  {us / way:.2f} of one way, {us / (2 * copy):.2f} of the memcpy bound, {size / us / 1e3:.2f} GB/s")
        if size >= LARGE:
            claim(f"all-reduce {name} / memcpy bound", [a / (2 * c) for a, _, c in own], LARGE_BAR)
        else:
            claim(f"all-reduce {name} / the greater of {SMALL_US} us and {SMALL_WAYS} of one way",
                  [a / max(SMALL_US, SMALL_WAYS * b) for a, b, _ in own], 1.0)
        for peer in peers:
            its = [run[size] for run in seen[peer]]
            ratio = claim(f"all-reduce {name} / {peer}", [a[0] / b for a, b in zip(own, its)], 1.0)
            print(f"  {peer} {statistics.median(its):.2f} us: ours is {ratio:.2g} of it")
    return claims


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--calls", type=int, default=2000, help="sums of each size in one run")
    p.add_argument("--build", type=pathlib.Path, default=HERE.parent / "build", help="folder of bench_collective")
    p.add_argument("--python", default=sys.executable, help="one that has torch")
    p.add_argument("--without", action="append", choices=["mpi", "gloo"], default=[])
    p.add_argument("--json", help="write the claims here, too")
    p.add_argument("--gloo-rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--gloo-at", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.rounds < 1 or a.calls < 10:
        p.error(f"--rounds {a.rounds}, --calls {a.calls}: 1 and 10 at least")
    if a.gloo_rank is not None:
        return run_gloo_rank(a.gloo_rank, a.gloo_at, a.calls)
    peers = [peer for peer in ("mpi", "gloo") if peer not in a.without]
    lacks = list(missing(a.build, a.python, peers))
    if lacks:
        sys.exit("\n".join(lacks))
    with tempfile.TemporaryDirectory() as folder:
        programs = [("sluice", lambda: ours(a.build, a.calls))]
        if "mpi" in peers:
            program = os.path.join(folder, "collectives_mpi")
            output_of(["mpicc", "-O2", "-D_GNU_SOURCE", "-o", program, str(HERE / "collectives_mpi.c")])
            programs.append(("mpi", lambda: mpi(program, a.calls)))
        if "gloo" in peers:
            programs.append(("gloo", lambda: gloo(a.python, a.calls)))
        seen = {name: [] for name, _ in programs}
        for r in range(a.rounds):
            for name, run in programs[r % len(programs):] + programs[:r % len(programs)]:
                seen[name].append(run())
    claims = table(seen, peers)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(claims, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
