#!/usr/bin/env python3
"""The include edges of the tree: a folder of src/ may include only the folders that src/layers.txt names for it, and so may
the folders of a room that is divided there.

Also: no two pytest files have one name, every file opens with what it owns, no file over 800 lines, no getenv outside the option table, no include of a .c file,
the same for the files of the web page, function names unique over src/ and each called from another file, no circle of files that call each other but those of src/circles.txt, and no macro that evaluates an argument twice (docs/architecture.md says why)."""
import collections
import pathlib
import re
import sys

MAX_LINES = 800
TOPS = ("src", "tools", "tests", "bench", "include", "examples")
COMMENT = re.compile(r"/\*.*?\*/", re.S)
GETENV_OK = ("src/base/options.c", "tests/sanitized.h")  # of the program, of how much tests take
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
FUNCTION = re.compile(r"^(?!static|typedef|return|else)[A-Za-z_][\w \t\*]*?\b((?:sl|sim)_\w+)\([^;{]*\)\s*\{", re.M)
CALL = re.compile(r"\b((?:sl|sim)_\w+)(?=\()")

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
    """folder -> the folders it may include: rooms, and as ROOM/FOLDER the folders of a room that is divided."""
    allowed, room = {}, None
    for line in (root / "src" / "layers.txt").read_text().splitlines():
        found = re.match(r"( *)([a-z]+)(?::(.*))?$", line)
        if not found:
            continue
        name, uses = found[2], (found[3] or "").split()
        if found[1]:
            name, uses = f"{room}/{name}", [f"{room}/{u}" for u in uses]
        else:
            room = name
        errors += [f"src/layers.txt: {u} does not stand above {name}" for u in uses if u not in allowed]
        allowed[name] = {name, "base", *uses}
    return allowed


def check_file(root, path, allowed, definitions, errors):
    rel = path.relative_to(root).as_posix()
    text = path.read_text()
    lines = text.count("\n")
    if lines > MAX_LINES:
        errors.append(f"{rel}: {lines} lines, limit {MAX_LINES}")
    if re.search(r"\bgetenv\s*\(", text) and rel not in GETENV_OK:
        errors.append(f"{rel}: getenv outside {', '.join(GETENV_OK)}")
    if not text.startswith("/*"):
        errors.append(f"{rel}: does not open with what it owns")
    for name, parameter in twice_evaluated(text):
        errors.append(f"{rel}: {name} evaluates its argument {parameter} more than once")
    parts = rel.split("/")
    here = parts[1] if parts[0] == "src" else None
    folder = "/".join(parts[1:-1])
    divided = any(a.startswith(f"{here}/") for a in allowed)
    if divided and (folder == here or folder not in allowed):
        errors.append(f"{rel}: src/layers.txt has no folder {folder}")
    for target in INCLUDE.findall(text):
        if target.endswith(".c"):
            errors.append(f"{rel}: includes {target}")
        there = target.split("/")[0]
        if here and "/" in target and there not in allowed.get(here, ()):
            errors.append(f"{rel}: src/{here} may not include {target}")
        if divided and there == here and target.rpartition("/")[0] not in allowed.get(folder, ()):
            errors.append(f"{rel}: src/{folder} may not include {target}")
    if parts[0] == "src" and path.suffix == ".c":
        for name in FUNCTION.findall(text):
            definitions.setdefault(name, []).append(rel)


def check_page(root, errors):
    """The files of the web page are held to the same: none too long, each opens with what it owns."""
    opens = {".js": "//", ".css": "/*", ".html": "<!doctype html>\n<!--"}
    for path in sorted((root / "src" / "serve" / "page").iterdir()):
        rel, text = path.relative_to(root).as_posix(), path.read_text()
        if text.count("\n") > MAX_LINES:
            errors.append(f"{rel}: {text.count(chr(10))} lines, limit {MAX_LINES}")
        if not text.startswith(opens.get(path.suffix, "")):
            errors.append(f"{rel}: does not open with what it owns")
        if f'"{path.name}"' not in (root / "src" / "serve" / "page.def").read_text():
            errors.append(f"{rel}: src/serve/page.def does not name it")


def circles(calls):
    """Sets of files that call each other in a circle, of file -> files (Tarjan)."""
    number, low, stack, found = {}, {}, [], []

    def visit(file):
        number[file] = low[file] = len(number)
        stack.append(file)
        for other in sorted(calls[file]):
            if other not in number:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], number[other])
        if low[file] == number[file]:
            at = stack.index(file)
            found.append(set(stack[at:]))
            del stack[at:]

    for file in sorted(calls):
        if file not in number:
            visit(file)
    return [c for c in found if len(c) > 1]


def check_circles(root, definitions, errors):
    calls = {}
    for path in (root / "src").rglob("*.c"):
        rel = path.relative_to(root).as_posix()
        used = {definitions[name][0] for name in CALL.findall(path.read_text()) if name in definitions}
        calls[rel] = used - {rel}
    known = []
    for line in (root / "src" / "circles.txt").read_text().splitlines():
        if re.match("[a-z]", line):
            room, files, _ = (part.strip() for part in line.split(":", 2))
            known.append((room, set(files.split())))
    seen = set()
    for circle in circles(calls):
        rooms, names = {f.split("/")[1] for f in circle}, {pathlib.Path(f).stem for f in circle}
        home = [i for i, (room, files) in enumerate(known) if rooms == {room} and names <= files]
        seen.update(home)
        if not home:
            errors.append(f"src: a circle of calls: {' '.join(sorted(circle))} (src/circles.txt names those there are)")
    for i, (room, files) in enumerate(known):
        if i not in seen:
            errors.append(f"src/circles.txt: {room} has no circle of {' '.join(sorted(files))} any more")
    return sum(len(c) for c in calls.values()), len(known)


def check_callers(root, definitions, errors):
    """Every public function is named by a file other than its own: else it is static, or nobody's."""
    named = {}
    for top in TOPS:
        for path in (root / top).rglob("*.[ch]"):
            text = COMMENT.sub("", path.read_text())
            called = set(re.findall(r"^[ \t]+.*?\b(sl_\w+)\(", text, re.M))  # not where a line begins, as declarations do
            for word, n in collections.Counter(re.findall(r"\bsl_\w+", text)).items():
                if path.suffix == ".c" or n > 1 or top != "src" or word in called:  # once in a header of src is its declaration
                    named.setdefault(word, set()).add(path.relative_to(root).as_posix())
    for name, where in sorted(definitions.items()):
        if name.startswith("sl_") and not named.get(name, set()) - set(where):
            errors.append(f"{where[0]}: {name} is public, and no other file calls it")


def check_test_names(root, errors):
    """pytest, which imports a file by its name alone, takes no two of one name."""
    files = collections.defaultdict(list)
    for path in (root / "tests").rglob("test_*.py"):
        files[path.name].append(path.relative_to(root).as_posix())
    errors += [f"{', '.join(sorted(same))}: one name" for same in files.values() if len(same) > 1]


def main():
    root = pathlib.Path(sys.argv[1])
    errors, definitions = [], {}
    allowed = read_layers(root, errors)
    for folder in sorted(p.name for p in (root / "src").iterdir() if p.is_dir()):
        if folder not in allowed:
            errors.append(f"src/{folder}: not a folder of the design")
    for top in TOPS:
        for path in sorted((root / top).rglob("*.[ch]")):
            check_file(root, path, allowed, definitions, errors)
    for name, where in sorted(definitions.items()):
        if len(where) > 1:
            errors.append(f"{name}: defined in {', '.join(where)}")
    check_callers(root, definitions, errors)
    check_page(root, errors)
    check_test_names(root, errors)
    arrows, n_circles = check_circles(root, definitions, errors)
    print("\n".join(errors) if errors else f"layers: {len(definitions)} public functions, {arrows} calls from file to file, "
          f"{n_circles} circles, all named")
    return 1 if errors else 0


sys.exit(main())
