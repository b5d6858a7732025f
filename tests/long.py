#!/usr/bin/env python3
"""What `make check-long` runs after `make test`: all seeds and draws of which `make test` takes a sample.

  tests/long.py [PART ...]     those parts, or all; as many units at a time as there are cores (-j N)
  tests/long.py --list         the parts, what they hold, how long they take on two calm cores
  tests/long.py --left         which units have not passed in the present state of what they reach; exit 1: some
  tests/long.py --for S        no unit begins later than S seconds from now

A part is cut into units, most of them ranges of seeds. A unit that has passed is not run again while nothing that its part
reaches has changed (tests/state.py), on whatever machine that was: units that passed add a line to docs/lab/check-long.tsv:
date, commit, part, units, seconds, state, processor. A commit with a + had changes beside it; a state with a + counts for
nothing. What passed before a run was killed lies in build/long.tsv. Exit 1: a unit failed or is left; the command of one that
failed and the end of its output are printed, the other units run all the same."""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import run_docs
import state

ROOT = pathlib.Path(__file__).resolve().parents[1]
DONE = ROOT / "build" / "long.tsv"
LEDGER = ROOT / "docs" / "lab" / "check-long.tsv"
GOLDEN = "tests/golden"
SIM, SHARED, MTP = f"{GOLDEN}/qwen3moe-tiny", f"{GOLDEN}/qwen2moe-tiny", f"{GOLDEN}/glm4moe-tiny"
SANITIZERS = {"UCX_MEM_EVENTS": "n", "ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}


def with_packages(group, command):
    """The command, where the packages of that group are installed."""
    return ["sh", "-c", f"tools/install-deps.sh {group} && exec {command}"]


def with_launchers(command):
    """The command, where Slurm and Open MPI are installed."""
    return with_packages("cluster", command)


FUZZ = sorted(p.stem.removeprefix("fuzz_") for p in (ROOT / "tests" / "fuzz").glob("fuzz_*.c"))
CLIENTS = sorted(p.stem.removeprefix("test_") for p in (ROOT / "tests" / "clients").glob("test_*.py"))
# Tests of which `make test` takes a sample, with SLUICE_WHOLE all of it: unit programs, the fabric between processes, files of pytest.
FABRIC = ["test_net_shm_procs", "test_net_tcp"]
ENGINES = ["test_engine_ledger", "test_engine_replay", "test_pipeline"]
WHOLE = ["test_kernel", "test_kernel_driver", "test_model_forward", "test_model_golden", "test_gang", "test_engine_memory", *ENGINES, *FABRIC]
WHOLE_FILES = ["api", "cli/test_cli.py::test_profile_without_weights", "cli/test_gpu.py", "cli/test_gpu_draws.py", "cli/test_tp.py", "multi/test_elastic.py", "multi/test_gang.py", "multi/test_kill.py", "multi/test_rank_machines.py",
               "multi/test_speculate.py", "multi/test_stall.py", "oracle/test_demo.py", "oracle/test_oracle.py"]
EMULATED = ["test_products", "test_attention", "test_fast_attention", "test_fast", "test_fast_products", "test_graphs", "test_groups", "test_exact"]  # of tests/cuda


def listed(name):
    """Programs that `make test` leaves out under a sanitizer, as tests/CMakeLists.txt has them."""
    return [f"test_{n}" for n in re.search(rf'set\({name} "(.*?)"\)', (ROOT / "tests" / "CMakeLists.txt").read_text())[1].split("|")]


NUMERICS = list(json.loads((ROOT / "tests" / "scores" / "golden.json").read_text())["numerics"])


def simulate(build, model, first, seeds, *options):
    return [f"{build}/tests/test_sim", model, str(first), str(seeds), *options]


# Windows need memory that UCX maps into both processes.
UCX_MEMORY = ["env", "UCX_TLS=tcp,sysv"]


def law(build, transport, seed, one_in):
    return [f"{build}/tests/test_law", transport, f"{build}/sluice", GOLDEN, str(seed), str(one_in)]


def whole(build, program, *arguments):
    return ["env", "SLUICE_WHOLE=1", f"{build}/tests/{program}", *arguments]


def emulated(build, name):
    driver = f"{build}/tests/libsluice-fake-cuda.so"
    return ["env", f"SLUICE_CUDA_DRIVER={driver}", *whole(build, name.replace("test_", "cuda_"), driver)]


# part -> (what it holds, minutes, units); a unit is a name and a command.
PARTS = {
    "sim": ("the engine on a virtual clock, 2,000 seeds; the first thousand meet every situation", 3,
            [("seeds 1-1000, every situation", simulate("build", SIM, 1, 1000, "--cover"))]
            + [(f"seeds {a}-{a + 249}", simulate("build", SIM, a, 250)) for a in range(1001, 2000, 250)]
            + [(f"shared, seeds {a}-{a + 249}", simulate("build", SHARED, a, 250)) for a in range(1, 500, 250)]
            + [("seeds 1-60, twice", simulate("build", SIM, 1, 60, "--twice")),
               ("simulated deployments", ["build/tests/test_sim_deploy", "full"])]
            + [(f"engine and simulator, decisions of seeds {a}-{a + 299}", ["build/tests/test_decide", SHARED, str(a), "300", "--cover"])
               for a in (1, 301)]
            + [("engine and simulator, decisions of seeds 601-900, no shared experts", ["build/tests/test_decide", SIM, "601", "300"]),
               ("engine and simulator, decisions of seeds 901-1200, a block that guesses", ["build/tests/test_decide", MTP, "901", "300"])]),
    "deferred": ("simulation and law on a device whose calls take their time", 6,
                 [("sim, seeds 1-1000, every situation", simulate("build", SIM, 1, 1000, "--cover", "--deferred"))]
                 + [(f"sim, shared, seeds {a}-{a + 249}", simulate("build", SHARED, a, 250, "--deferred")) for a in (1, 251)]
                 + [(f"sim with state, seeds {a}-{a + 249}", simulate("build", SIM, a, 250, "--stateful")) for a in (1, 251, 501, 751)]
                 + [("sim, seeds 1-60, twice", simulate("build", SIM, 1, 60, "--twice", "--deferred")),
                    ("sim, windows of devices, seeds 1-2000", simulate("build", SIM, 1, 2000, "--windows")),
                    ("law loop, seed 1", [*law("build", "loop", 1, 1), "deferred"]),
                    ("law loop, seed 2, one in 4", [*law("build", "loop", 2, 4), "deferred"])]),
    "law": ("every schedule of every deployment, three transports; draws of a second seed and of ucx", 24,
            [(f"{t}, seed 1", law("build", t, 1, 1)) for t in ("loop", "shm", "tcp")]
            + [("experts that move, loop", ["build/tests/test_adapt", "loop", "build/sluice", SIM, "1"])]
            + [(f"rows that stay on GPUs, {t}, seed {s}", ["env", "SLUICE_CUDA_DRIVER=build/tests/libsluice-fake-cuda.so", *law("build", t, s, 200), "rows"])
               for t, s in (("loop", 21), ("shm", 22))]
            + [(f"numerics exact on GPUs, {t}, seed {s}", ["env", "SLUICE_CUDA_DRIVER=build/tests/libsluice-fake-cuda.so", *law("build", t, s, n), "exact"])
               for t, s, n in (("loop", 1, 6000), ("shm", 2, 24000))]
            + [("emulated GPUs, seed 1, one in 100", ["env", "SLUICE_CUDA_DRIVER=build/tests/libsluice-fake-cuda.so",
                                                       *law("build", "loop", 1, 100), "cuda"])]
            + [(f"{t}, seed 2, one in 4", law("build", t, 2, 4)) for t in ("loop", "shm", "tcp")]
            + [("ucx, seed 1, one in 5", law("build", "ucx", 1, 5)),
               ("ucx with windows, seed 2, one in 10", [*UCX_MEMORY, *law("build", "ucx", 2, 10), "windows"])]),
    "hot": ("experts that move between a GPU of the tests' driver and a processor, by speed, load and room", 3,
            [("all", ["env", "SLUICE_CUDA_DRIVER=build/tests/libsluice-fake-cuda.so", *whole("build", "test_hot", "loop", "build/sluice", SIM)])]),
    "asan": ("simulation and law under ASan and UBSan", 11,
             [(f"sim, seeds {a}-{a + 49}", simulate("build-dev", SIM, a, 50)) for a in range(1, 200, 50)]
             + [("sim, shared, seeds 1-75", simulate("build-dev", SHARED, 1, 75)),
                ("sim, seeds 1-60, twice", simulate("build-dev", SIM, 1, 60, "--twice")),
                ("sim, seeds 1-12, deferred", simulate("build-dev", SIM, 1, 12, "--deferred")),
                ("sim, seeds 1-12, with state", simulate("build-dev", SIM, 1, 12, "--stateful")),
                ("sim, seeds 1-12, windows of devices", simulate("build-dev", SIM, 1, 12, "--windows")),
                ("sim, shared, seeds 1-12, deferred", simulate("build-dev", SHARED, 1, 12, "--deferred")),
                ("engine and simulator, decisions of seeds 1-60", ["build-dev/tests/test_decide", SHARED, "1", "60"])]
             + [(f"law {t}, seed 2", law("build-dev", t, 2, n)) for t, n in (("loop", 40), ("shm", 60), ("tcp", 60), ("ucx", 120))]
             + [("law loop, seed 1, one in 640, deferred", [*law("build-dev", "loop", 1, 640), "deferred"]),
                ("law of 72 workers", [*law("build-dev", "loop", 1, 1), "many"]),
                ("laboratory", ["python3", "tests/lab/check_run.py", "build-dev"])]
             + [(f"{what}, {t}", [f"build-dev/tests/{program}", t, "build-dev/sluice", *more, n])
                for program, what, more, rows in (("test_replan", "other plans", [SIM], (("loop", "4"), ("shm", "4"), ("tcp", "4"))),
                                                  ("test_adapt", "experts that move", [SIM], (("loop", "5"), ("shm", "5"))),
                                                  ("test_broken", "rows that are not finite", [], (("loop", "1"), ("shm", "8"), ("tcp", "8"))))
                for t, n in rows]),
    "tsan": ("law under TSan", 5,
             [(f"law {t}, seed 2", law("build-tsan", t, 2, n)) for t, n in (("loop", 80), ("shm", 160), ("tcp", 160), ("ucx", 320))]
             + [("law loop, seed 1, one in 640, deferred", [*law("build-tsan", "loop", 1, 640), "deferred"])]
             + [(f"{what}, {t}", [f"build-tsan/tests/{program}", t, "build-tsan/sluice", *more, n])
                for program, what, more, rows in (("test_replan", "other plans", [SIM], (("loop", "4"), ("shm", "4"), ("tcp", "4"))),
                                                  ("test_adapt", "experts that move", [SIM], (("loop", "5"), ("shm", "5"))),
                                                  ("test_broken", "rows that are not finite", [], (("loop", "1"), ("shm", "8"), ("tcp", "8"))))
                for t, n in rows]),
    "whole": ("tests of which `make test` takes a sample: kernels by every number of threads, models, gangs, pipelines, memory that is out, "
              "the fabric, deployments and servers of pytest", 10,
              [(name, whole("build", name)) for name in WHOLE] + [(f"cuda, {name}", emulated("build", name)) for name in EMULATED]
              + [(file, ["env", "SLUICE_WHOLE=1", ".venv/bin/python", "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"tests/{file}"])
                 for file in WHOLE_FILES]),
    "whole-asan": ("the same programs under ASan and UBSan, what looks at every place to cut, and what `make test` leaves out there", 11,
                   [(name, whole("build-dev", name)) for name in
                    dict.fromkeys((*(n for n in WHOLE if n != "test_engine_replay"), "test_answer", "test_segments", "test_net_rails", "test_sched_prompts", "test_sched_policy", *listed("SL_ASAN_LONG")))]
                   + [(f"cuda, {name}", emulated("build-dev", name)) for name in dict.fromkeys((*EMULATED, *listed("SL_ASAN_CUDA_LONG")))]),
    "whole-tsan": ("those of them that have threads, under TSan", 4,
                   [(name, whole("build-tsan", name)) for name in dict.fromkeys((*ENGINES, *listed("SL_TSAN_LONG"), *FABRIC, "test_net_rails", "test_net_collective"))]),
    "chaos": ("faults against real processes, 300 drawn schedules (tests/chaos/run.py)", 15,
              [(f"seeds {a}-{a + 29}", ["tests/chaos/run.py", "30", "--first", str(a), "-j", "1"]) for a in range(1, 300, 30)]),
    "chaos-asan": ("the same under ASan and UBSan, 40 schedules", 3,
                   [(f"seeds {a}-{a + 9}", ["tests/chaos/run.py", "10", "--first", str(a), "-j", "1"]) for a in range(301, 340, 10)]),
    "chaos-tsan": ("the same under TSan, 20 schedules", 3,
                   [(f"seeds {a}-{a + 9}", ["tests/chaos/run.py", "10", "--first", str(a), "-j", "1"]) for a in range(341, 360, 10)]),
    "sim-far": ("the engine on a virtual clock, 100,000 seeds; only when it is named", 80,
                [(f"seeds {a}-{a + 999}", simulate("build", SIM, a, 1000)) for a in range(10001, 110001, 1000)]),
    "scores": ("lm-eval through the server against transformers, each default numeric; exchanged experts must be found", 7,
               [(f"{name}{what}", ["tests/scores/check.py", name, *option]) for name in NUMERICS
                for what, option in (("", []), (", exchanged experts", ["--planted"]))]),
    "clients": ("client libraries from PyPI, unmodified, against a model that says a script", 3,
                [(name, [".venv/bin/python", "tests/clients/run.py", name]) for name in CLIENTS]),
    "lease": ("what a lent machine with a GPU is asked, rehearsed on the tests' driver", 2, [("all", ["tests/lease.sh"])]),
    "archs": ("CUDA's kernels built for compute capabilities 8.0, 9.0a, 12.0 and as PTX (nvcc)", 4, [("all", ["tests/archs.sh"])]),
    "races": ("CUDA's kernels of products, attention, draws, experts and whole steps on an emulator that watches every load and store", 6,
              [(name, ["ctest", "--test-dir", "build", "-C", "Long", "--output-on-failure", "-R", f"^cuda.races.{name}$", "--no-tests=error"])
               for name in ("fast", "products", "fast_products", "attention", "fast_attention", "groups", "exact", "graphs", "draws")]),
    "many": ("a thousand real workers in one deployment, tokens as of one worker alone; every schedule of the law on 72", 1,
             [("1,000 workers", ["build/tests/test_engine_many", "all"]), ("law, 72 workers", [*law("build", "loop", 1, 1), "many"])]),
    "stalls": ("processes that stand still: the coordinator for 30 s, workers for 10 s, shm and tcp", 3,
               [("all", [".venv/bin/python", "tests/multi/test_stall.py"]),
                ("links that begin slowly", ["env", "SLUICE_MENDS_AFTER=14", ".venv/bin/python", "-m", "pytest", "-q", "-n0",
                                             "tests/multi/test_relay.py", "-k", "begin_slowly"]),
                ("links that stay slow", ["env", "SLUICE_WAITS=1", ".venv/bin/python", "-m", "pytest", "-q", "-n0",
                                          "tests/multi/test_relay.py", "-k", "slow_link"])]),
    "coordinator": ("the coordinator is killed 40 times in the middle of 8 mixed requests, of several deployments", 6,
                    [(" ".join(args) or "shm", ["env", "SLUICE_KILLS=40", f"SLUICE_SEED={seed}", "SLUICE_SERVE_ARGS=" + " ".join(args),
                                               ".venv/bin/python", "-m", "pytest", "-q", "-n0", "tests/api/test_journal.py", "-k", "again_and_again"])
                     for seed, args in enumerate([[], ["--transport", "tcp"], ["--schedule", "pingpong"], ["--schedule", "aep"],
                                                  ["--attention", "2", "--experts", "2"], ["--journal-sync", "each"]])]),
    "https": ("all tests of the API over HTTPS", 3,
              [("all", ["env", "SLUICE_TEST_TLS=1", ".venv/bin/python", "-m", "pytest", "-q", "-n0", "tests/api"])]),
    "launchers": ("jobs under a Slurm of the test's own, under Open MPI's mpirun, and on a Ray from PyPI: kills, signals, nothing left behind", 1,
                  [(name, with_launchers(f".venv/bin/python -m pytest -q -n0 tests/launchers/test_{name}.py"))
                   for name in ("slurm", "mpi")]
                  + [("ray", [".venv/bin/python", "tests/launchers/run.py"])]),
    "docs": ("command blocks of README.md and of pages for operators, on a small model and a hub on this machine", 1,
             [(page, [".venv/bin/python", "tests/run_docs.py", page]) for page in run_docs.PAGES if page != "docs/cluster.md"]
             + [("docs/cluster.md", with_launchers(".venv/bin/python tests/run_docs.py docs/cluster.md"))]),
    "packages": ("Python wheel and Debian packages: built, installed in a fresh root, served from, removed (root, debootstrap, a mirror, an index)", 6,
                 [("all", ["sh", "-c", "tests/wheel.sh && tests/packages.sh"])]),
    "model": ("the membership protocol in spin, without what takes an hour", 1, [("all", ["tests/model/run.sh"])]),
    "neon": ("all kernel tests under qemu", 1, [("all", ["tests/neon.sh"])]),
    "numa": ("weights on the memory node of who computes with them, on a machine of two nodes (QEMU, Debian's kernel, a mirror)", 7,
             [("all", with_packages("numa", "tests/numa.sh"))]),
    "fuzz": ("every fuzz target for 20 s from its corpus", 5,
             [(f"{name}, 20 s", ["tests/fuzz/run.sh", "build-fuzz", "20", name]) for name in FUZZ]),
}
NAMED = {"sim-far"}  # parts that run only when they are named
# part -> preset of the build that its units run, build folder, what of it
BUILDS = {"sim": ("release", "build", "all"), "law": ("release", "build", "all"), "hot": ("release", "build", "all"), "asan": ("dev", "build-dev", "all"),
          "tsan": ("tsan", "build-tsan", "all"), "deferred": ("release", "build", "all"), "chaos": ("release", "build", "sluice"),
          "chaos-asan": ("dev", "build-dev", "sluice"), "chaos-tsan": ("tsan", "build-tsan", "sluice"), "sim-far": ("release", "build", "all"),
          "fuzz": ("fuzz", "build-fuzz", "fuzzers"), "scores": ("release", "build", "sluice"),
          "clients": ("release", "build", "sluice"),
          "races": ("release", "build", "all"), "lease": ("release", "build", "all"), "many": ("release", "build", "all"), "whole": ("release", "build", "all"),
          "whole-asan": ("dev", "build-dev", "all"), "whole-tsan": ("tsan", "build-tsan", "all"), "stalls": ("release", "build", "sluice"), "docs": ("release", "build", "sluice"),
          "launchers": ("release", "build", "sluice"), "https": ("release", "build", "sluice"), "numa": ("release", "build", "sluice")}


def prepare(part):
    preset, folder, target = BUILDS[part]
    targets = ["all", "long_programs"] if target == "all" else [target]
    for command in (["cmake", "--preset", preset], ["cmake", "--build", folder, "-j", str(os.cpu_count()), "--target", *targets]):
        done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            sys.exit(f"{done.stdout[-6000:]}\n{folder} does not build")


def rows_of(path):
    return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []


def noted():
    """(part, unit) of what the ledger says has passed in the present state of its part."""
    return {(row[2], unit) for row in rows_of(LEDGER) if len(row) > 6 and row[2] in PARTS and state.holds(row[2], row[1], row[5])
            for unit in row[3].split("; ")}


def read_done():
    """(part, unit) -> seconds, of what passed in the present state of its part."""
    done = dict.fromkeys(noted())
    for row in rows_of(DONE):
        if len(row) == 4 and row[1] in PARTS and row[0] == state.state(row[1]):
            done[row[1], row[2]] = float(row[3])
    return {k: v for k, v in done.items() if not state.state(k[0]).endswith("+")}


def note(part, units, seconds):
    """A line of the ledger, of units that it does not have yet."""
    if not units:
        return
    LEDGER.parent.mkdir(exist_ok=True)
    if not LEDGER.exists():
        LEDGER.write_text("date\tcommit\tpart\tunits\tseconds\tstate\tprocessor\n")
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    with LEDGER.open("a") as f:
        f.write(f"{today}\t{state.commit()}\t{part}\t{'; '.join(units)}\t{seconds:.0f}\t{state.state(part)}\t{state.processor()}\n")


def note_what_is_only_here(done):
    """What passed when a run was killed, or now."""
    known = noted()
    for part, (_, _, units) in PARTS.items():
        new = [u[0] for u in units if (part, u[0]) in done and (part, u[0]) not in known]
        note(part, new, sum(done[part, u] or 0 for u in new))


def environment(part):
    env = dict(SANITIZERS) if part.endswith(("asan", "tsan")) else {}
    return env | {"SLUICE_BIN": str(ROOT / BUILDS[part][1] / "sluice")} if part.startswith("chaos") else env


def run_unit(part, unit, command):
    """Seconds it took, or None: it failed."""
    began = time.time()
    ran = subprocess.run(["nice", *command], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         env={**os.environ, **environment(part)}, errors="replace")
    took = time.time() - began
    if ran.returncode == 0:
        print(f"{part:6} {unit}: passed, {took:.0f} s", flush=True)
        return took
    print(f"{part:6} {unit}: FAILED ({ran.returncode})\n  {' '.join(command)}\n{ran.stdout[-6000:]}", flush=True)
    return None


def run_part(part, done, jobs, until):
    what, minutes, units = PARTS[part]
    left = [u for u in units if (part, u[0]) not in done]
    print(f"== {part}: {what}; {len(left)} of {len(units)} units left, about {minutes} minutes for all", flush=True)
    if left and part in BUILDS and time.time() < until:
        prepare(part)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(lambda *unit: run_unit(*unit) if time.time() < until else None, part, unit, command): unit
                   for unit, command in left}
        for end in concurrent.futures.as_completed(running):
            unit, took = running[end], end.result()
            if took is not None:
                done[part, unit] = took
                DONE.parent.mkdir(exist_ok=True)
                with DONE.open("a") as f:
                    f.write(f"{state.state(part)}\t{part}\t{unit}\t{took:.1f}\n")
    note_what_is_only_here(done)
    return all((part, u[0]) in done for u in units)


def tell_left(done):
    """Whether none is left."""
    for part, (_, minutes, units) in PARTS.items():
        left = [u[0] for u in units if (part, u[0]) not in done]
        print(f"{part:12} {state.state(part):13} {len(units) - len(left):3d} of {len(units):3d} passed" + (f", left, about {minutes * len(left) / len(units):.0f} minutes: {'; '.join(left[:4])}{' ...' if len(left) > 4 else ''}" if left else ""))
    return all((part, u[0]) in done for part, (_, _, units) in PARTS.items() for u in units)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("parts", nargs="*", metavar="PART")
    args.add_argument("--list", action="store_true")
    args.add_argument("--left", action="store_true")
    args.add_argument("--for", dest="seconds", type=float, default=float("inf"))
    args.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="units at a time [cores]")
    args = args.parse_args()
    for part in args.parts:
        if part not in PARTS:
            sys.exit(f"no part {part}; there are {', '.join(PARTS)}")
    if args.list:
        for part, (what, minutes, units) in PARTS.items():
            print(f"{part:6} {minutes:3d} minutes, {len(units):2d} units: {what}")
        return 0
    done = read_done()
    if args.left:
        return 0 if tell_left(done) else 1
    until = time.time() + args.seconds
    good = [run_part(part, done, args.jobs, until) for part in args.parts or [p for p in PARTS if p not in NAMED]]
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
