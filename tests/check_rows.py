#!/usr/bin/env python3
"""What documents and options say of sampling is what its rows say (src/spec/sampling.def): the table of docs/api.md, the bytes of
SUBMIT in docs/protocol.md, the ranges of the options in src/base/config.def. Usage: check_rows.py ROOT. CTest house.rows."""
import pathlib
import re
import sys

RANGE = r"(FROM|ABOVE)\(([^,]+), ([^)]+)\)"
ROW = re.compile(rf'^SL_SAMPLING\((\w+), (\w+), (\d+), (\S+), (MODEL|OURS), {RANGE}, {RANGE}, (OPENAI|EXTENSION), "(.*)"\)$', re.M)
DRAW = re.compile(r'^SL_DRAW\((\w+), (\w+), (\d+), ".*"\)$', re.M)
HEAD = re.compile(r"\*\*SUBMIT\*\*: (.*?); then", re.S)
OPTIONS = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k"}
BYTES = {"u32": 4, "f32": 4, "u64": 8}


def api_line(row):
    _, name, _, standard, whence, _, _, _, edge, low, high, whose, what = row
    field = f"`{name}`" + (" (extension)" if whose == "EXTENSION" else "")
    values = f"{'above ' if edge == 'ABOVE' else ''}{low} .. {high}; {what}"
    default = f"the model's `generation_config.json`, else {standard}" if whence == "MODEL" else standard
    return f"| {field} | {values} | {default} |"


def check_api(root, rows):
    page = (root / "docs/api.md").read_text().splitlines()
    for row in rows:
        if api_line(row) not in page:
            yield f"docs/api.md lacks the line\n{api_line(row)}"


def check_protocol(root, rows):
    """Fields of the head in their order, as long as their types say, lie where the rows say."""
    at, found = 0, {}
    for kind, name in re.findall(r"\b(u64|u32|f32)\s+(\w+)", HEAD.search((root / "docs/protocol.md").read_text()).group(1)):
        found[name] = (kind, at)
        at += BYTES[kind]
    for kind, name, byte in rows:
        if found.get(name) != (kind, int(byte)):
            yield f"docs/protocol.md: SUBMIT has {found.get(name)} for {name}, the row {kind} at {byte}"


def check_options(root, rows):
    text = (root / "src/base/config.def").read_text()
    highest = {row[1]: row[7] for row in rows}
    for option, name in OPTIONS.items():
        most = re.search(rf'^SL_OPT\(\w+, {option}, "[\w-]+", [^,]+, [^,]+, ([^,]+),', text, re.M).group(1)
        if int(most, 0) != int(highest[name], 0):
            yield f"src/base/config.def: option {option} goes to {most}, {name} to {highest[name]}"


def main():
    root = pathlib.Path(sys.argv[1])
    text = (root / "src/spec/sampling.def").read_text()
    rows, draws = ROW.findall(text), DRAW.findall(text)
    errors = [] if len(rows) + len(draws) == len(re.findall(r"^SL_(?:SAMPLING|DRAW)\(", text, re.M)) else ["sampling.def: a row is not read"]
    errors += [*check_api(root, rows), *check_options(root, rows), *check_protocol(root, [r[:3] for r in rows] + draws)]
    print("\n".join(errors) or f"{len(rows) + len(draws)} rows of sampling are documented as they are")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
