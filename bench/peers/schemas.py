#!/usr/bin/env python3
"""How many of the schemas of JSONSchemaBench are taken, and whether their instances are told apart, beside llguidance in the same run.

  bench/peers/schemas.py FOLDER [--driver build/tests/grammar_driver] [--peer] [--list FILE]

FOLDER: maskbench/data of a checkout of guidance-ai/jsonschemabench: files with a schema and instances that are valid or not. --peer needs a Python that
has llguidance. Instances are read as they are written: a valid one whose properties come in another order than the schema names them is refused by both.
A schema that nothing satisfies counts as taken where none of its instances is valid. --list: what was refused, and each instance that was told wrongly."""
import argparse
import collections
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "oracle"))


def sluice_of(program):
    import grammar_drive

    grammar_drive.PROGRAM = program
    driver = grammar_drive.Driver([bytes([b]) for b in range(256)])

    def judge(schema, texts, any_valid):
        try:
            return [a == 1 for a in driver.ask(schema=schema, accept=[t.hex() for t in texts])["accept"]], ""
        except grammar_drive.Refused as e:
            if "no value satisfies" in str(e) and not any_valid:
                return [False] * len(texts), ""
            return None, str(e)

    return judge


def llguidance_of():
    import llguidance

    tokenizer = llguidance.LLTokenizer("byte")

    def accepts(matcher, text):
        own = matcher.deep_copy()
        return own.try_consume_tokens(list(text)) == len(text) and own.is_accepting()

    def judge(schema, texts, _):
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), {"whitespace_flexible": True})
            matcher = llguidance.LLMatcher(tokenizer, grammar)
            error = matcher.get_error()
        except ValueError as e:
            error = str(e)
        return (None, error) if error else ([accepts(matcher, t) for t in texts], "")

    return judge


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folder", type=pathlib.Path)
    args.add_argument("--driver", type=pathlib.Path, default=ROOT / "build" / "tests" / "grammar_driver")
    args.add_argument("--peer", action="store_true")
    args.add_argument("--list", type=argparse.FileType("w"))
    args = args.parse_args()
    judges = {"sluice": sluice_of(args.driver)} | ({"llguidance": llguidance_of()} if args.peer else {})
    counts = {name: collections.Counter() for name in judges}
    for path in sorted(args.folder.glob("*.json")):
        case = json.loads(path.read_text())
        tests = case.get("tests", [])
        texts = [json.dumps(t["data"], ensure_ascii=False).encode("utf-8", "surrogatepass") for t in tests]
        for name, judge in judges.items():
            got, error = judge(case["schema"], texts, any(t["valid"] for t in tests))
            counts[name]["refused" if got is None else "taken"] += 1
            if args.list and got is None:
                print(name, path.name, "refused", error.replace("\n", " "), sep="\t", file=args.list)
            for test, ok in zip(tests, got or [], strict=False):
                counts[name]["valid" if test["valid"] else "invalid"] += 1
                if ok != test["valid"]:
                    counts[name]["valid, refused" if test["valid"] else "invalid, accepted"] += 1
                    if args.list:
                        print(name, path.name, "accepted" if ok else "refused", json.dumps(test["data"])[:300], sep="\t", file=args.list)
    for name, c in counts.items():
        print(f"{name}: {c['taken']} of {c['taken'] + c['refused']} schemas taken ({100 * c['taken'] / (c['taken'] + c['refused']):.1f} %); "
              f"{c['invalid, accepted']} of {c['invalid']} invalid instances accepted, {c['valid, refused']} of {c['valid']} valid ones refused")


if __name__ == "__main__":
    main()
