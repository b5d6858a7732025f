#!/usr/bin/env python3
"""Instructions of the kernels' pieces under callgrind, against counts.json: more than LIMIT above it fails, fewer is
named (and counts.json may be written again with --write).

    check_counts.py count_kernels [--write]

Exit code 77 (skipped, and why) without valgrind, AVX2, or where another compiler made the program."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

COUNTS = pathlib.Path(__file__).resolve().parent / "counts.json"
LIMIT = 0.03


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def compiler_of(program):
    comment = subprocess.run(["readelf", "-p", ".comment", program], capture_output=True, text=True).stdout
    found = re.findall(r"GCC: \([^)]*\) ([0-9]+)", comment)
    return f"gcc {found[-1]}" if found and "clang" not in comment else "another compiler"


def count(program, names):
    """All pieces in one process, as it is the start that takes long: one file a piece."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        done = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=counted", "--dump-after=counted",
                               program, "all"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"status {done.returncode}: {done.stderr.strip()[-300:]}")
        dumps = [pathlib.Path(f"{out}.{i + 1}").read_text() for i in range(len(names))]
        return {name: int(re.search(r"^(?:summary|totals): (\d+)", dump, re.M)[1]) for name, dump in zip(names, dumps)}


def main():
    program, write = sys.argv[1], "--write" in sys.argv
    if not shutil.which("valgrind"):
        skip("no valgrind")
    names = subprocess.run([program, "list"], capture_output=True, text=True)
    if names.returncode == 77:
        skip("no AVX2")
    compiler = compiler_of(program)
    stored = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    if not write and stored["compiler"] != compiler:
        skip(f"counts are of {stored['compiler']}, this program is of {compiler}")
    found = count(program, names.stdout.split())
    if write:
        COUNTS.write_text(json.dumps({"compiler": compiler, "instructions": found}, indent=1) + "\n")
        return 0
    worse = 0
    for name, n in found.items():
        was = stored["instructions"].get(name)
        if was is None:
            sys.exit(f"{name}: not in {COUNTS.name} (--write)")
        share = n / was - 1
        word = "ok" if abs(share) <= LIMIT else "MORE" if share > 0 else "fewer: write the counts again"
        worse += share > LIMIT
        print(f"{name:14} {n:10} instructions, {100 * share:+6.2f} % {word}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
