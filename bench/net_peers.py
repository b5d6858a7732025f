#!/usr/bin/env python3
"""The fabric beside UCX and Open MPI, in one window: every round runs each program once, in turn.

    bench/net_peers.py [--rounds N] [--mpi PROGRAM] [--json FILE] [latency|m2n ...]

latency: half round trips of 64 KB and 256 KB messages (build/bench_net) against ucx_perftest (active
messages, tagged messages, put), with several settings of UCX; the best of them counts.
m2n: 4 senders and 4 receivers of 256 KB in 8 processes (build/bench_m2n), without and with one sender that
sleeps 5 ms before each round, against an MPI program with the arguments "isend|alltoallv BYTES SECONDS DELAY_US"
that prints name,bytes,delay,MB/s,MB/s of the other senders,median round (not part of this tree: --mpi names it).
A round trip's figure is the best round's median: where others use the machine, programs that only poll are
disturbed most, and a median over rounds would flatter us. Throughputs are medians over the rounds. `samples` of the JSON are the rounds' own ratios.
Programs that are missing are named and left out."""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build")
SIZES = (65536, 262144)
BYTES, SECONDS, DELAY_US = 262144, "1.5", 5000
SHM = {"UCX_TLS": "posix,sysv,cma,tcp"}
SHM_PEER = {"UCX_TLS": "shm,tcp", "UCX_POSIX_ERROR_HANDLING": "y", "UCX_SYSV_ERROR_HANDLING": "y",
            "UCX_POSIX_SEG_SIZE": "32k", "UCX_SYSV_SEG_SIZE": "32k", "UCX_TCP_PUT_ENABLE": "n"}
TCP = {"UCX_TLS": "tcp"}
TCP_NO_PUT = {"UCX_TLS": "tcp", "UCX_TCP_PUT_ENABLE": "n"}
UCX = {
    "shm": [("am", "ucp_am_lat", SHM), ("am, 32k segments", "ucp_am_lat", SHM_PEER), ("tag", "tag_lat", SHM),
            ("put", "ucp_put_lat", SHM)],
    "tcp": [("am", "ucp_am_lat", TCP), ("am, no put", "ucp_am_lat", TCP_NO_PUT), ("tag, no put", "tag_lat", TCP_NO_PUT)],
}


def ucx_half_us(test, env, size):
    """Median half round trip of one run of ucx_perftest, microseconds; None when it did not work."""
    env = dict(os.environ, UCX_WARN_UNUSED_ENV_VARS="n", UCX_TCP_CM_REUSEADDR="y", **env)
    port = str(random.randint(20000, 28000))
    server = subprocess.Popen(["ucx_perftest", "-p", port], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        out = subprocess.run(["ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", str(size), "-n", "600",
                              "-w", "100", "-f"], env=env, capture_output=True, text=True, timeout=12)
        return float(out.stdout.split("\n")[-2].split()[1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return None
    finally:
        server.kill()
        server.wait()


def own_half_us(transport):
    out = subprocess.run([f"{BUILD}/bench_net", transport, "400"], capture_output=True, text=True, timeout=120)
    rows = [line.split(",") for line in out.stdout.split()]
    return {int(r[1]): float(r[4]) for r in rows}


def latency(rounds, results):
    seen = {}
    for _ in range(rounds):
        for transport, tests in UCX.items():
            try:
                own = own_half_us(transport)
                for size in SIZES:
                    seen.setdefault((transport, size, "sluice"), []).append(own[size])
            except (subprocess.TimeoutExpired, KeyError):
                print(f"{transport}: bench_net did not finish", file=sys.stderr)
            for name, test, env in tests:
                for size in SIZES:
                    us = ucx_half_us(test, env, size)
                    if us is not None:
                        seen.setdefault((transport, size, name), []).append(us)
    for transport, tests in UCX.items():
        for size in SIZES:
            mid = {n: min(seen[(transport, size, n)]) for n in ["sluice"] + [t[0] for t in tests]
                   if (transport, size, n) in seen}
            text = ", ".join(f"{n} {us:.1f}" for n, us in mid.items())
            print(f"{transport} {size // 1024} KB, half round trip in us: {text}")
            two_sided = [us for n, us in mid.items() if n not in ("sluice", "put")]
            if "sluice" in mid and two_sided:
                ratio = mid["sluice"] / min(two_sided)
                runs = [seen[(transport, size, n)] for n in mid if n not in ("sluice", "put")]
                rounds_of = [own / min(us) for own, *us in zip(seen[(transport, size, "sluice")], *runs)]
                print(f"  {ratio:.2f} of the best message of UCX")
                results.append({"claim": f"{transport} {size // 1024} KB message / best UCX message", "value": ratio,
                                "unit": "1", "bar": 1.25, "samples": rounds_of})


def m2n_line(command):
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=90,
                             env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))
        f = out.stdout.strip().split("\n")[-1].split(",")
        return float(f[3]), float(f[4]), float(f[5])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return None


def m2n(rounds, mpi, results):
    programs = {}
    for transport, btl in (("shm", "vader,self"), ("tcp", "tcp,self")):
        programs[f"sluice {transport}"] = [f"{BUILD}/bench_m2n", transport, str(BYTES), SECONDS]
        for mode in ("isend", "alltoallv") if mpi else ():
            programs[f"mpi {mode} {transport}"] = ["mpirun", "--oversubscribe", "--mca", "btl", btl, "-n", "8", mpi,
                                                   mode, str(BYTES), SECONDS]
    seen = {}
    for _ in range(rounds):
        for name, command in programs.items():
            for delay in (0, DELAY_US):
                line = m2n_line(command + [str(delay)])
                if line:
                    seen.setdefault((name, delay), []).append(line)
    mid = {key: [statistics.median(column) for column in zip(*lines)] for key, lines in seen.items()}
    for (name, delay), (total, others, us) in mid.items():
        print(f"{name}, delay {delay} us: {total:.0f} MB/s, other senders {others:.0f} MB/s, their round {us:.0f} us")
    for transport, bar in (("shm", 0.6), ("tcp", 0.8)):
        own, other, late = f"sluice {transport}", f"mpi isend {transport}", (f"sluice {transport}", DELAY_US)
        if (own, 0) in mid and (other, 0) in mid:
            ratio = mid[own, 0][0] / mid[other, 0][0]
            print(f"{transport}: {ratio:.2f} of Isend/Irecv")
            results.append({"claim": f"{transport} 4 x 4 of 256 KB / Open MPI Isend", "value": ratio, "unit": "1",
                            "bar": bar, "samples": [a[0] / b[0] for a, b in zip(seen[own, 0], seen[other, 0])]})
        for name in (own, other, f"mpi alltoallv {transport}"):
            if (name, 0) in mid and (name, DELAY_US) in mid:
                loss = 1 - mid[name, DELAY_US][1] / mid[name, 0][1]
                print(f"{name}: the other pairs lose {100 * loss:.0f} % to a late sender")
                if name == own:
                    results.append({"claim": f"{transport} others' loss to one late sender", "value": loss, "unit": "1",
                                    "bar": 0.05,
                                    "samples": [1 - b[1] / a[1] for a, b in zip(seen[own, 0], seen[late])]})


def main():
    global BUILD
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", nargs="*", choices=["latency", "m2n", []], default=[])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--build", default=BUILD, help="folder of bench_net and bench_m2n")
    p.add_argument("--mpi", help="the MPI program")
    p.add_argument("--json", help="write the figures here, too")
    a = p.parse_args()
    BUILD = a.build
    results = []
    what = a.what or ["latency", "m2n"]
    if "latency" in what:
        if shutil.which("ucx_perftest"):
            latency(a.rounds, results)
        else:
            print("ucx_perftest is missing (package ucx-utils): no latency", file=sys.stderr)
    if "m2n" in what:
        if a.mpi and not shutil.which("mpirun"):
            print("mpirun is missing (package openmpi-bin)", file=sys.stderr)
            a.mpi = None
        m2n(a.rounds, a.mpi, results)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(results, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
