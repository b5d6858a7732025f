"""What each part of the long tests can reach, and in which state that is: a digest of the files, as git has them.

A part that has passed in a state has passed, whatever else changes: so what takes hours need not be done in one go, nor on one
machine. Which flags the compiler gets (CMakeLists.txt) and which processor runs it are not in the digest: the ledgers say on
which day, at which commit and on which processor each line ran."""
import functools
import hashlib
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Programs that have no command line. A default that is another one reaches what is started by its options.
NO_OPTIONS = [":!src/base/config.def", ":!src/base/*_options.def", ":!src/base/variables.def", ":!src/base/options.*"]
SIM = [*NO_OPTIONS, "tests/sim", "tests/decide", "tests/deferred.h", "tests/stateful.h", "tests/unit/model_folder.h", "tests/golden"]
HOT = "tests/multi/test_hot.c"
LAW = ["tests/multi/*.c", f":!{HOT}", "tests/multi/*.h", "tests/around.h", "tests/deferred.h", "tests/unit/model_folder.h", "tests/golden"]
TOP = [":(glob)tests/*.py", *(f":!tests/{n}.py" for n in ("long", "run", "state", "numa_check"))]  # what tests import
WHOLE = [*LAW, "tests/*.h", *TOP, "tests/unit", "tests/cuda", "tests/multi", "tests/api", "tests/cli/test_gpu*.py", "tests/cli/test_cli.py", "tests/oracle/*.py"]
CHAOS = ["tests/chaos/*.py", "tests/launched.py", "tests/ended.py", "tests/soak/crowd.py", "tests/relay.py", "tests/workers.py", "tests/golden"]
ALL = [".", ":!docs/lab"]

# part -> the rooms of src/ that it runs, with all that these may include (src/layers.txt), and what else it reads.
REACHES = {
    "sim": (["engine", "sim"], SIM), "deferred": (["engine"], SIM + LAW), "sim-far": (["engine"], SIM), "law": (["engine"], LAW),
    "hot": (["engine"], [HOT, "tests/multi/*.h", "tests/around.h", "tests/sanitized.h", "tests/cuda", "tests/golden"]),
    "asan": (["engine"], SIM + LAW), "tsan": (["engine"], LAW), "chaos": (["engine"], CHAOS), "chaos-asan": (["engine"], CHAOS),
    "chaos-tsan": (["engine"], CHAOS), "many": (["engine"], LAW + ["tests/unit", "tests/golden"]),
    "whole": (["engine", "serve"], WHOLE), "whole-asan": (["engine", "serve"], WHOLE), "whole-tsan": (["engine"], WHOLE),
    "scores": (["engine", "serve"], ["tests/scores", "tests/golden", "tests/served.py", "tests/workers.py"]),
    "clients": (["engine", "serve"], ["tests/clients", "tests/environment.py", "tests/api/saying.py", "tests/served.py", "tests/workers.py", "tests/ended.py", "tests/golden"]),
    "stalls": (["engine"], ["tests/multi/test_stall.py", "tests/multi/test_relay.py", "tests/relay.py", "tests/served.py", "tests/workers.py", "tests/golden"]),
    "launchers": (["engine", "serve"], ["packaging/python", "tests/wheel/package.py", "tests/launchers", "tests/environment.py", "tests/launched.py", "tests/served.py", "tests/workers.py", "tests/ended.py", "tests/golden", "tools/sluice"]),
    "https": (["engine", "serve"], ["tests/api", *TOP, "tests/golden"]),
    "coordinator": (["engine", "serve"], ["tests/api/test_journal.py", "tests/served.py", "tests/workers.py", "tests/golden"]),
    "archs": ([], ["src/stage/cuda/kernels", "tests/archs.sh", "CMakeLists.txt"]),
    "races": (["stage"], ["tests/cuda"]), "lease": (["engine"], ["bench/gpu", "bench/bench_cuda_*.c", "tests/lease.sh", "tests/cuda", "tests/golden"]), "model": ([], ["tests/model"]), "neon": (["kernel"], ["tests/neon.sh", "tests/unit"]),
    "numa": (["engine", "serve"], ["tests/numa.sh", "tests/numa_init.sh", "tests/numa_check.py", "tools/py/make_random_model.py"]),
    "docs": (None, ALL), "packages": (None, ALL), "fuzz": (None, ["src", "include", "tests/fuzz"]),
}


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, text=True, capture_output=True, check=True).stdout


def commit():
    """With a + if there are changes beside it, other than in ledgers."""
    at = git("rev-parse", "--short=12", "HEAD").strip()
    return at + ("+" if changed(ALL) else "")


def changed(paths):
    return [line for line in git("status", "--porcelain", "--", *paths).splitlines() if not (line.startswith(" M docs/lab/") and line.endswith(".tsv"))]


@functools.cache
def below():
    """Room -> the rooms that it may include, and those that these may, itself among them."""
    names = {}
    for line in (ROOT / "src" / "layers.txt").read_text().splitlines():
        if line and line[0] not in "# ":
            room, _, others = line.partition(":")
            names[room] = {room, "base", *(n for other in others.split() for n in names[other])}
    return names


def paths_of(part):
    rooms, others = REACHES[part]
    return sorted({f"src/{n}" for room in rooms or [] for n in below()[room]} | set(others))


@functools.cache
def holds(part, at, of):
    """Whether a line of the ledger, from a commit and a state, tells of what the part reaches now. The state says so, or, where
    the list of what it reaches has been made more exact since: nothing on it has changed since that commit."""
    if of == state(part):
        return True
    if at.endswith("+") or state(part).endswith("+"):
        return False
    told = subprocess.run(["git", "diff", "--quiet", at, "HEAD", "--", *paths_of(part)], cwd=ROOT, capture_output=True)
    return told.returncode == 0


@functools.cache
def state(part):
    """12 hexadecimal digits, with a + if something that the part reaches is not committed."""
    paths = paths_of(part)
    files = git("ls-files", "-s", "--", *paths)
    return hashlib.sha256(files.encode()).hexdigest()[:12] + ("+" if changed(paths) else "")


def processor():
    """Its name and the widest vectors that it has."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    flags = set(re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M).group(1).split())
    wide = next((w for w, flag in (("amx", "amx_tile"), ("avx512", "avx512f"), ("avx2", "avx2"), ("neon", "asimd")) if flag in flags), "none")
    return f"{name.group(1).strip() if name else 'unknown'}, {wide}"
