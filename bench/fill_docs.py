#!/usr/bin/env python3
"""Puts measured figures into the documentation, between <!-- NAME --> and <!-- /NAME -->.

    bench/fill_docs.py [--schedules FILE] [--crossover FILE]

FILE is what bench/schedules.py or bench/crossover.py wrote with --json. Fills docs/lab/schedules.md, and
docs/when-not.md with docs/img/crossover.svg. Only the standard library."""
import argparse
import json
import pathlib
import re
import sys

import crossover
import schedules

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"


def fill(page, name, text):
    path = DOCS / page
    pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
    filled, n = pattern.subn(lambda m: f"{m[1]}{text}\n{m[2]}", path.read_text())
    if n != 1:
        sys.exit(f"{path}: {n} places called {name}, one expected")
    path.write_text(filled)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=pathlib.Path)
    parser.add_argument("--crossover", type=pathlib.Path)
    args = parser.parse_args()
    if args.schedules:
        fill("lab/schedules.md", "measured", schedules.markdown(json.loads(args.schedules.read_text())))
    if args.crossover:
        measured = json.loads(args.crossover.read_text())
        for name in crossover.MAPS:
            fill("when-not.md", f"map-{name}", crossover.table_of(name, measured))
        crossover.write_svg(DOCS / "img" / "crossover.svg", list(crossover.MAPS), measured)


if __name__ == "__main__":
    main()
