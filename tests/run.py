#!/usr/bin/env python3
"""What `make test` runs: everything that decides whether a change is good.

  tests/run.py [REGEX] [--force] [--stages release,neon,python,asan,tsan]

REGEX: only the CTests of the release build whose name matches. Stages build what they need; what sanitizers
need is built in the background while pytest waits for servers. A test that
passed is not run again while nothing that it can reach has changed: the bytes of its program and of the
files that it reads, the processor, and variables SL_*, SLUICE_*. Programs are linked statically, so an
edit reaches just those whose bytes it changes. What passed lies in BUILD/passed.json; --force forgets it.

Prints what each stage cost and every skipped test with its reason; ends with the sums."""
import argparse
import atexit
import hashlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[1]
JOBS = str(os.cpu_count())
TESTS_AT_ONCE = str(os.cpu_count() + 2)  # many wait for timers and children
FILES_AT_ONCE = str(os.cpu_count() + 4)  # of pytest, which waits more
SLOWEST = 12  # files that are named with what they took
# Files of pytest that take longest, the longest first: the others fill what is left of the processes that run them.
LONGEST = [f"tests/{name}.py" for name in (
    "cli/test_gpu", "multi/test_relay", "api/test_tls", "multi/test_kill", "cli/test_cli", "api/test_kept_kv", "multi/test_rank_machines",
    "multi/test_gang", "api/test_structured", "cli/test_tp", "multi/test_elastic", "cli/test_fetch", "api/test_responses", "multi/test_crowd", "multi/test_speculate", "cli/test_gpu_draws", "cli/test_gpu_auto",
    "oracle/test_oracle", "api/test_journal", "multi/test_sides", "multi/test_copies", "multi/test_stall", "multi/test_encrypt", "cli/test_auto", "cli/test_gpu_trace", "cli/test_lines",
    "page/test_page_watch", "page/test_page_chat", "oracle/test_gguf_families", "oracle/test_gguf", "oracle/test_demo", "chaos/test_chaos")]
PYTHON = ROOT / ".venv" / "bin" / "python"
# UCX's memory hooks and gcc's sanitizers do not go together.
SANITIZERS = {"UCX_MEM_EVENTS": "n", "ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}

# Name of a test -> what it reads beside its program and the files and folders in its command.
READS = [
    (r"^unit\.", ["tests/golden", "models/smollm2-moe", "bench/lab"]),
    (r"^fuzz\.", []),
    (r"^house\.", ["."]),
    (r"^install\.", ["build/sluice", "src", "include", "examples", "packaging", "tests/golden"]),
    (r"^model\.", ["tests/model"]),
    (r"^lab\.", ["build/sluice", "bench", "tests/lab", "tests/golden"]),
    (r"^counts\.", ["tests/counts"]),
    (r"^multi\.", ["tests/golden"]),
    (r"^python\.", ["build/sluice", "build/tests/jinja_driver", "build/tests/grammar_driver", "tests/api", "tests/cli", "tests/multi",
                    "tests/oracle", "tests/page", "tests/soak", "tests/chaos", "tests/conftest.py", "tests/long.py", "tests/state.py", "tests/localhub.py", "tests/relay.py", "tests/sample.py", "tests/served.py", "tests/launched.py", "tests/workers.py", "tests/ended.py", "tests/wheel", "packaging/python", "tests/golden", "tools/py", "bench", "docs/grafana",
                    "tests/requirements.txt", "models/smollm2-moe"]),
    (r"^python\.tests/cli/test_docs", ["README.md", "docs", "examples", "tests/run_docs.py"]),
    (r"^python\.tests/cli/test_version", ["packaging", "VERSION", ".gitattributes", "CMakeLists.txt"]),
    (r"^python\.tests/cli/test_manual", ["src/base"]),
    (r"^neon$", ["tests/neon.sh", "src/kernel", "src/quant", "src/base", "src/spec", "tests/unit"]),
]


def say(*words):
    print(*words, flush=True)


def cpu_seconds():
    """Of all children that have ended: of what is stopped in the background not all."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Reach:
    """Digests of what tests can reach; each file is read once."""

    def __init__(self):
        self.known = {}
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True,
                               capture_output=True, check=True).stdout.split("\n")
        self.tree = sorted(n for n in names if n)
        cpu = pathlib.Path("/proc/cpuinfo").read_text()
        machine = sorted(set(re.findall(r"^(?:model name|flags|Features)\s*:.*$", cpu, re.M)))
        settings = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(("SL_", "SLUICE_")))
        self.machine = "\n".join(machine + settings)

    def _files(self, path):
        if path.is_file():
            return [path]
        if path == ROOT or ROOT in path.parents and not path.relative_to(ROOT).parts[0].startswith(("build", "models")):
            inside = "" if path == ROOT else str(path.relative_to(ROOT)) + "/"
            return [ROOT / n for n in self.tree if n.startswith(inside) and (ROOT / n).is_file()]
        return sorted(p for p in path.rglob("*") if p.is_file())

    def _digest(self, path):
        if path not in self.known:
            h = hashlib.sha256()
            for f in self._files(path):
                h.update(str(f.relative_to(path) if f != path else "").encode() + b"\0")
                at = f.stat()
                # Weights are too large to read each time; nothing else here is.
                h.update(f"{at.st_size} {at.st_mtime_ns}".encode() if at.st_size > 64 << 20 else f.read_bytes())
            self.known[path] = h.hexdigest()
        return self.known[path]

    def of(self, name, command):
        h = hashlib.sha256("\0".join([self.machine, name, *command]).encode())
        reads = [p for regex, paths in READS if re.search(regex, name) for p in paths]
        paths = {(ROOT / p) for p in reads} | {pathlib.Path(c) for c in command if c.startswith("/")}
        for path in sorted(p for p in paths if p.exists()):
            if not re.fullmatch(r"build(-\w+)?", path.name):  # READS says which of its programs are meant
                h.update(self._digest(path).encode())
        return h.hexdigest()


class Ledger:
    """What passed in one build folder: name -> digest of what it reached then."""

    def __init__(self, folder, force):
        self.path = ROOT / folder / "passed.json"
        try:
            self.passed = {} if force else dict(json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            self.passed = {}

    def note(self, name, digest, passed):
        self.passed.pop(name, None)
        if passed:
            self.passed[name] = digest

    def save(self):
        self.path.parent.mkdir(exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.passed, indent=0))
        part.replace(self.path)


def builds(preset):
    """Commands that build a preset, and its folder."""
    folder = "build" if preset == "release" else f"build-{preset}"
    return [["cmake", "--preset", preset], ["cmake", "--build", folder, "-j", JOBS]], folder


class Ahead:
    """Presets that are built in the background, behind everything else, until their stages come, which build what is left:
    on a busy machine that is all. What fails there fails again, and is said, in its own stage."""

    def __init__(self, presets):
        steps = " && ".join(" ".join(command) for preset in presets for command in builds(preset)[0])
        self.process = subprocess.Popen(["nice", "-n", "19", "sh", "-c", steps], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True) if presets else None
        atexit.register(self.stop)

    def stop(self):
        """Returns when nobody writes into their folders."""
        if not self.process:
            return
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            for _ in range(600):  # ninja ends when its compilers have
                self.process.poll()
                os.killpg(self.process.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            pass
        self.process = None


class Run:
    def __init__(self, regex, force):
        self.regex, self.force = regex, force
        self.passed = self.failed = self.same = 0
        self.skips, self.costs, self.bad = [], [], []
        self.ahead = Ahead([])

    # -- pieces of a stage

    def build(self, preset):
        began = time.time()
        commands, folder = builds(preset)
        for command in commands:
            done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                say(done.stdout[-20000:])
                sys.exit(f"{folder} does not build")
        return time.time() - began

    def ctest_list(self, folder, regex="."):
        listing = subprocess.run(["ctest", "--show-only=json-v1"], cwd=ROOT / folder, text=True,
                                 capture_output=True, check=True).stdout
        tests = {t["name"]: t.get("command", []) for t in json.loads(listing)["tests"]}
        return {n: c for n, c in tests.items() if re.search(regex, n)}

    def ctest(self, folder, tests, env=None):
        """Runs those CTests of `tests` that the ledger does not have as they are."""
        reach, ledger = Reach(), Ledger(folder, self.force)
        digests = {n: reach.of(n, c) for n, c in tests.items()}
        todo = sorted(n for n in tests if ledger.passed.get(n) != digests[n])
        self.same += len(tests) - len(todo)
        if not todo:
            return
        with tempfile.TemporaryDirectory() as work:
            report = pathlib.Path(work) / "report.xml"
            names = "^(" + "|".join(re.escape(n) for n in todo) + ")$"
            subprocess.run(["ctest", "-j", TESTS_AT_ONCE, "--output-on-failure", "-R", names, "--output-junit", report,
                            "--test-output-size-passed", "65536"], cwd=ROOT / folder, env={**os.environ, **(env or {})},
                           check=False)
            cases = xml.parse(report).getroot().iter("testcase") if report.exists() else []
            seen = {c.get("name"): c for c in cases}
        for name in todo:
            self._count(folder, name, seen.get(name), ledger, digests[name])
        ledger.save()

    def _count(self, folder, name, case, ledger, digest):
        status = case.get("status") if case is not None else "lost"
        output = case.findtext("system-out", "") if case is not None else ""
        reasons = list(dict.fromkeys(re.findall(r"^skipped: (.*)$", output, re.M)))
        skipped = status in ("notrun", "disabled")
        if skipped and not reasons:
            skipped = (case.find("skipped") is not None and "SKIP" in str(case.find("skipped").get("message")))
            reasons = [str(case.find("skipped").get("message"))] if skipped else []
        self.skips += [f"{folder} {name}: {r}" for r in reasons]
        ok = status == "run" or bool(skipped)
        if status == "run":
            self.passed += 1
        elif not ok:
            self.failed += 1
            self.bad.append(f"{folder} {name}")
        ledger.note(name, digest, ok and not reasons)

    # -- stages

    def release(self):
        compile_s = self.build("release")
        self.ctest("build", self.ctest_list("build", self.regex))
        return compile_s

    def neon(self):
        reach, ledger = Reach(), Ledger("build-neon", self.force)
        digest = reach.of("neon", [])
        if ledger.passed.get("neon") == digest:
            self.same += 1
            return 0
        done = subprocess.run(["tests/neon.sh", "quick"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        say(done.stdout.strip())
        skip = re.search(r"^skipped: (.*)$", done.stdout, re.M)
        if skip:
            self.skips.append(f"neon: {skip[1]}")
        elif done.returncode == 0:
            self.passed += 1
        else:
            self.failed += 1
            self.bad.append("neon")
        ledger.note("neon", digest, done.returncode == 0 and not skip)
        ledger.save()
        return 0

    def sanitized(self, preset):
        folder = f"build-{preset}"
        self.ahead.stop()
        compile_s = self.build(preset)
        self.ctest(folder, self.ctest_list(folder), SANITIZERS)
        return compile_s

    def asan(self):
        return self.sanitized(SANITIZED["asan"])

    def tsan(self):
        return self.sanitized(SANITIZED["tsan"])

    def python(self):
        reach, ledger = Reach(), Ledger("build", self.force)
        # Client libraries have a part of the long tests, and an environment of their own.
        files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py") if p.parent.name != "clients")
        names = {f: "python." + f for f in files}
        digests = {f: reach.of(names[f], []) for f in files}
        todo = [f for f in files if ledger.passed.get(names[f]) != digests[f]]
        todo.sort(key=lambda f: LONGEST.index(f) if f in LONGEST else len(LONGEST))
        self.same += len(files) - len(todo)
        if not todo:
            return 0
        with tempfile.TemporaryDirectory() as work:
            report = pathlib.Path(work) / "report.xml"
            # A file's tests share servers, so a file stays with one of the processes. The plugin would begin with those that have most tests.
            subprocess.run([PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", FILES_AT_ONCE, "--dist", "loadfile", "--no-loadscope-reorder",
                            "-o", "junit_family=xunit1", f"--junitxml={report}", *todo], cwd=ROOT, check=False,
                           env={**os.environ, "SLUICE_BIN": "build/sluice", "PYTHONDONTWRITEBYTECODE": ""})  # compiled once for all
            cases = list(xml.parse(report).getroot().iter("testcase")) if report.exists() else []
        outcomes = {f: [] for f in todo}
        seconds = {}
        for case in cases:
            file = case.get("file") or ""
            outcomes.setdefault(file, []).append(self._count_python(case))
            seconds[file] = seconds.get(file, 0) + float(case.get("time") or 0)
        for file in sorted(seconds, key=seconds.get, reverse=True)[:SLOWEST]:
            say(f"{seconds[file]:6.0f} s  {file}")
        if not cases:
            self.failed += 1
            self.bad.append("pytest did not run")
        for f in todo:
            ledger.note(names[f], digests[f], outcomes[f] and all(outcomes[f]))
        ledger.save()
        return 0

    def _count_python(self, case):
        """True: this case passed."""
        name = f"{case.get('file')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            self.failed += 1
            self.bad.append(name)
        elif case.find("skipped") is not None:
            self.skips.append(f"{name}: {case.find('skipped').get('message')}")
        else:
            self.passed += 1
            return True
        return False

    def stage(self, name, title):
        say(f"\n== {title}")
        began, before = time.time(), cpu_seconds()
        compile_s = getattr(self, name)()
        self.costs.append((name, compile_s, time.time() - began - compile_s, cpu_seconds() - before))

    def close(self):
        said = [*self.costs, ("in all", *(sum(cost[i] for cost in self.costs) for i in (1, 2, 3)))]
        say(f"\n{'stage':10} {'build s':>8} {'tests s':>8} {'cpu s':>8}")
        for name, *costs in said:
            say(f"{name:10}" + "".join(f" {cost:8.0f}" for cost in costs))
        for reason in self.skips:
            say("skipped:", reason)
        for name in self.bad:
            say("FAILED:", name)
        if self.same:
            say(f"{self.same} passed before, and nothing they reach has changed (--force runs them again)")
        say(f"{self.passed} passed, {self.failed} failed, {len(self.skips)} skipped")
        return 1 if self.failed else 0


STAGES = {
    "release": "release: unit, fuzz corpora, house, workers, simulation, protocol model",
    "neon": "AArch64 kernels under qemu",
    "python": "oracles, API and command line",
    "asan": "ASan + UBSan",
    "tsan": "TSan: threads and workers",
}
SANITIZED = {"asan": "dev", "tsan": "tsan"}  # stage -> preset


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("regex", nargs="?", default=".")
    args.add_argument("--force", action="store_true")
    args.add_argument("--stages", default=",".join(STAGES))
    args = args.parse_args()
    wanted = args.stages.split(",") if args.regex == "." else ["release"]
    unknown = [s for s in wanted if s not in STAGES]
    if unknown:
        sys.exit(f"no stage {unknown[0]}; there are {', '.join(STAGES)}")
    run = Run(args.regex, args.force)
    for name in wanted:
        if name == "python" and "release" in wanted:
            run.ahead = Ahead([SANITIZED[n] for n in wanted if n in SANITIZED])
        run.stage(name, STAGES[name])
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
