#!/usr/bin/env python3
"""Inner loops of the kernels for AVX-512 and AMX, as the compiler made them, against loops.json: a guard that needs
neither such a processor nor time that can be trusted. Of each function the loops that multiply often and have no loop
inside, or none but such: how many instructions they are, and how many of these are products. And how often a function
asks for memory ahead, since a compiler has dropped such hints before. And that no function has a masked extraction to memory, which
compilers make of an extraction and a masked store: unlike that it faults on lanes that are masked out.

    check_loops.py libsl_kernel.a [--write]

More than LIMIT above a stored count fails, so do loops with other products, and fewer hints. Fewer instructions are
named; after a change that is meant, --write stores the counts anew. Exit code 77 (skipped, and why) without objdump, or
where another compiler made the library."""
import json
import pathlib
import re
import shutil
import subprocess
import sys

COUNTS = pathlib.Path(__file__).resolve().parent / "loops.json"
LIMIT = 0.03
LEAST = {"amx": 4, "avx": 8}  # products of a loop that is looked at, by how its file is called
FILES = re.compile(r"^(avx512|amx)\w*\.c\.o:")
PRODUCT = re.compile(r"^(vpdp|vdpbf16|tdp|vfn?madd\d+ps|vpmadd)")
FUNCTION = re.compile(r"^[0-9a-f]+ <(\S+)>:$")
FAULTS = re.compile(r"\tvextract[fi]\d+x\d+ .*\)\{%k\d\}")
LINE = re.compile(r"^\s+([0-9a-f]+):\t(\S+)\s*(?:([0-9a-f]+) <)?")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def compiler_of(library):
    found = subprocess.run(["readelf", "-p", ".comment", library], capture_output=True, text=True).stdout
    names = set(re.findall(r"(GCC: .*|.*clang.*)", found))
    return names.pop().strip() if len(names) == 1 else "several compilers"


def loops_of(code, least):
    """[products, instructions] of the loops of one function with so many products; code: (address, name, target of a jump or None)."""
    at = {address: i for i, (address, _, _) in enumerate(code)}
    ends = {}
    for i, (_, name, target) in enumerate(code):
        if name.startswith("j") and target in at and at[target] <= i:
            ends[at[target]] = i  # the last jump back to a place
    spans = list(ends.items())
    inside = {s: [o for o in spans if o != s and s[0] <= o[0] and o[1] <= s[1]] for s in spans}
    low = [s for s in spans if not any(inside[o] for o in inside[s])]
    counts = [[sum(bool(PRODUCT.match(name)) for _, name, _ in code[a:b + 1]), b - a + 1] for a, b in low]
    return sorted(c for c in counts if c[0] >= least)


def disassembled(library):
    return subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True).stdout


def functions_of(text):
    """{"file function": [(address, name, target)]} of the files that are looked at."""
    found, code, file = {}, None, None
    for line in text.splitlines():
        if ":     file format" in line:
            file = line.split(".c.o:")[0] if FILES.match(line) else None
        elif file and (name := FUNCTION.match(line)):
            code = found.setdefault(f"{file} {name[1]}", [])
        elif file and (got := LINE.match(line)):
            code.append((int(got[1], 16), got[2], int(got[3], 16) if got[3] else None))
    return found


def counts_of(text):
    out = {}
    for name, code in functions_of(text).items():
        if loops := loops_of(code, LEAST[name[:3]]):
            out[name] = {"hints": sum(n.startswith("prefetch") for _, n, _ in code), "loops": loops}
    return out


def compare(name, was, now):
    """What is wrong with a function, "" for nothing."""
    if was is None or now is None:
        return "is new" if was is None else "is not there any more"
    if [p for p, _ in was["loops"]] != [p for p, _ in now["loops"]]:
        return f"loops of {[p for p, _ in now['loops']]} products, not of {[p for p, _ in was['loops']]}"
    if now["hints"] < was["hints"]:
        return f"asks for memory {now['hints']} times, not {was['hints']}"
    for (products, old), (_, new) in zip(was["loops"], now["loops"]):
        share = 100 * (new / old - 1)
        if share > 100 * LIMIT:
            return f"a loop of {products} products takes {new} instructions, not {old}: {share:+.1f} %"
        if share < -100 * LIMIT:
            print(f"{name}: a loop of {products} products takes {new} instructions instead of {old}: write the counts again")
    return ""


def main():
    library, write = sys.argv[1], "--write" in sys.argv
    if not shutil.which("objdump") or not shutil.which("readelf"):
        skip("no objdump")
    text = disassembled(library)
    if faults := FAULTS.findall(text):
        sys.exit(f"{len(faults)} masked extractions to memory, the first:{faults[0]}")
    compiler, stored = compiler_of(library), json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    if not write and stored["compiler"] != compiler:
        skip(f"counts are of {stored['compiler']}, this library is of {compiler}")
    found = counts_of(text)
    if write:
        lines = [f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
        COUNTS.write_text(f'{{\n "compiler": {json.dumps(compiler)},\n "functions": {{\n' + ",\n".join(lines) + "\n }\n}\n")
        return 0
    if not found:
        skip("no tables of AVX-512 in this library")
    worse = {name: why for name in sorted({*found, *stored["functions"]})
             if (why := compare(name, stored["functions"].get(name), found.get(name)))}
    for name, why in worse.items():
        print(f"{name}: {why}")
    print(f"{len(found)} functions, {sum(len(f['loops']) for f in found.values())} loops, {len(worse)} of them worse")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
