#!/usr/bin/env python3
"""What the documents name is there: functions, types and macros of ours in backticks, files and folders of the tree in
backticks, a name in the file that stands behind it as in `name` (`file.c`), links between pages and the headings that they point to. Usage: check_docs.py ROOT. CTest house.docs."""
import pathlib
import re
import sys

CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"\b(?:sl|SL)_[A-Za-z0-9_]+")
WORD = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
FILE = re.compile(r"^[\w./-]+\.(?:c|h|def|py|sh|pml)$")
PATH = re.compile(r"^(?:src|tests|tools|bench|docs|include|\.ci)/[\w./*+-]*$")
IN_FILE = re.compile(r"`(\w+)` \(`([\w./-]+\.(?:c|h|def|py))`\)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCES = ("src", "tests", "tools", "bench", "include", "examples", "CMakeLists.txt", "Makefile")
PAST = ("CHANGELOG.md",)  # names what was
FOREIGN = {"inference/model.py", "modeling_deepseek.py", "common_batch_add"}  # of other projects


def pages(root):
    return [p for p in [root / "README.md", root / "examples/README.md", *sorted((root / "docs").rglob("*.md"))] if p.name not in PAST]


def known_names(root):
    names = set()
    for top in SOURCES:
        names.update(p.stem for p in (root / top).rglob("*.c"))
        files = [root / top] if (root / top).is_file() else (root / top).rglob("*")
        for path in files:
            if path.is_file() and path.suffix in (".c", ".h", ".def", ".py", ".sh", ".txt", ".pml", ""):
                text = path.read_text(errors="replace")
                names.update(NAME.findall(text), WORD.findall(text))
    return names


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    out = set()
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            while anchor in out:
                anchor += "-1"
            out.add(anchor)
    return out


def check_code(root, text, names, files):
    for code in CODE.findall(text):
        for name in NAME.findall(code):
            # sl_x_* stands for a family of names, SL_COUNT_MAX.._MIN for a range
            family = f"{name}*" in code or name.endswith("_")
            if name not in names and not (family and any(n.startswith(name) for n in names)):
                yield f"`{name}` is not in the tree"
        if WORD.fullmatch(code) and code not in names | FOREIGN:
            yield f"`{code}` is not in the tree"
        if PATH.match(code) and "NAME" not in code:
            found = list(root.glob(code)) if "*" in code else [root / code]
            if not any(p.exists() for p in found):
                yield f"`{code}` is not there"
        elif FILE.match(code) and code not in FOREIGN and "NAME" not in code and not any(f.endswith("/" + code) for f in files):
            yield f"no file `{code}`"


def check_homes(root, text, files):
    for name, file in IN_FILE.findall(text):
        homes = [root / f[1:] for f in files if f.endswith("/" + file)]
        if homes and not any(re.search(rf"\b{name}\b", p.read_text()) for p in homes):
            yield f"`{name}` is not in `{file}`"


def check_links(root, page, text):
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists():
            yield f"link to {target}: no such file"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"link to {target}: no such heading"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    names, errors = known_names(root), []
    files = ["/" + str(p.relative_to(root)) for top in (*SOURCES, "docs", "packaging") for p in (root / top).rglob("*.*")]
    for page in pages(root):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        for what in [*check_code(root, text, names, files), *check_homes(root, text, files), *check_links(root, page, text)]:
            errors.append(f"{page.relative_to(root)}: {what}")
    print("\n".join(errors) or "the documents name what is there")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
