#!/usr/bin/env python3
"""The include edges of the tree: a folder of src/ may include only the folders that src/layers.txt names for it.

Also: no file over 800 lines, no getenv outside the option table, no include of a .c file,
function names unique over src/, and no macro that evaluates an argument twice (docs/architecture.md says why)."""
import pathlib
import re
import sys

MAX_LINES = 800
GETENV_OK = {"src/base/options.c"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
FUNCTION = re.compile(r"^(?!static|typedef|return|else)[A-Za-z_][\w \t\*]*?\b(sl_\w+)\([^;{]*\)\s*\{", re.M)

MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)(.*)$", re.M)
# What does not evaluate: texts, comments, types of expressions, members of a constant initialiser.
UNEVALUATED = re.compile(r"""
    "(?:\\.|[^"\\])*" | /\*.*?\*/ | \b(?:sizeof|__typeof__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)
    | (?<=[\s{])\.\w+\s=\s\(\w+\)""", re.X)


def twice_evaluated(text):
    """(macro, parameter) where the body has the parameter, in parentheses, more than once."""
    for name, parameters, body in MACRO.findall(text.replace("\\\n", " ")):
        body = UNEVALUATED.sub("", body)
        for parameter in re.findall(r"\w+", parameters):
            if len(re.findall(rf"\(\s*{parameter}\s*\)", body)) > 1:
                yield name, parameter


def read_layers(root, errors):
    """folder -> the folders it may include."""
    allowed = {}
    for line in (root / "src" / "layers.txt").read_text().splitlines():
        room, _, uses = line.partition(":")
        if re.match("[a-z]", room):
            allowed[room] = {"base", *uses.split()}
            errors += [f"src/layers.txt: {u} does not stand above {room}" for u in uses.split() if u not in allowed]
    return allowed


def check_file(root, path, allowed, definitions, errors):
    rel = path.relative_to(root).as_posix()
    text = path.read_text()
    lines = text.count("\n")
    if lines > MAX_LINES:
        errors.append(f"{rel}: {lines} lines, limit {MAX_LINES}")
    if re.search(r"\bgetenv\s*\(", text) and rel not in GETENV_OK:
        errors.append(f"{rel}: getenv outside {', '.join(GETENV_OK)}")
    for name, parameter in twice_evaluated(text):
        errors.append(f"{rel}: {name} evaluates its argument {parameter} more than once")
    parts = rel.split("/")
    here = parts[1] if parts[0] == "src" else None
    for target in INCLUDE.findall(text):
        if target.endswith(".c"):
            errors.append(f"{rel}: includes {target}")
        there = target.split("/")[0]
        if here and "/" in target and there != here and there not in allowed.get(here, ()):
            errors.append(f"{rel}: src/{here} may not include {target}")
    if parts[0] == "src" and path.suffix == ".c":
        for name in FUNCTION.findall(text):
            definitions.setdefault(name, []).append(rel)


def main():
    root = pathlib.Path(sys.argv[1])
    errors, definitions = [], {}
    allowed = read_layers(root, errors)
    for folder in sorted(p.name for p in (root / "src").iterdir() if p.is_dir()):
        if folder not in allowed:
            errors.append(f"src/{folder}: not a folder of the design")
    for top in ("src", "tools", "tests", "bench"):
        for path in sorted((root / top).rglob("*.[ch]")):
            check_file(root, path, allowed, definitions, errors)
    for name, where in sorted(definitions.items()):
        if len(where) > 1:
            errors.append(f"{name}: defined in {', '.join(where)}")
    print("\n".join(errors) if errors else f"layers: {len(definitions)} public functions, all in order")
    return 1 if errors else 0


sys.exit(main())
