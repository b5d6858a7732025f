#!/usr/bin/env python3
"""Compares sluice with the goldens of tests/golden: logits of every position, greedy ids, stops.

  python tests/oracle/check.py build/sluice [FIXTURE_NAME ...]

Needs numpy only. Exit 0: every bar held. `max|d|/max|ref|` is taken at each position over the
vocabulary; the table shows the worst position.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
BAR = 2e-4
F32 = ("--kv-type", "f32")  # KV as the references have it,
EXACT = ("--activations", "f32")  # and products with weights in blocks
TIMEOUT_S = 300


class Failure(Exception):
    """One bar that did not hold, or a command that failed."""


def run(sluice, *args):
    """Runs sluice, returns its stdout."""
    command = [str(sluice), *map(str, args)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{' '.join(command)}: no answer in {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def comma(ids):
    return ",".join(map(str, ids))


def golden_of(fixture):
    return json.loads((pathlib.Path(fixture) / "golden.json").read_text(encoding="utf-8"))


def fixtures():
    """Folders of tests/golden that hold a checkpoint and its goldens."""
    return sorted(
        p.parent for p in GOLDEN.glob("*/golden.json") if (p.parent / "config.json").exists()
    )


def variants():
    """Folders of goldens of another folder's weights under another configuration."""
    return sorted(p.parent for p in GOLDEN.glob("*/golden.json") if "weights_of" in golden_of(p.parent))


@contextlib.contextmanager
def checkpoint(fixture):
    """The folder itself, or one made of a variant's configuration and its source's weights."""
    golden = golden_of(fixture)
    if "weights_of" not in golden:
        yield fixture
        return
    source = fixture.parent / golden["weights_of"]
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp) / fixture.name
        folder.mkdir()
        for path in [*source.iterdir(), *fixture.iterdir()]:
            link = folder / path.name
            if path.parent == fixture or not (fixture / path.name).exists():
                link.symlink_to(path)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config | golden["config"]))
        yield folder


def sluice_logits(sluice, fixture, ids, extra=()):
    with tempfile.TemporaryDirectory() as tmp:
        out = pathlib.Path(tmp) / "logits.npy"
        run(sluice, "logits", fixture, "--ids", comma(ids), "--npy", out, *F32, *extra)
        return numpy.load(out, allow_pickle=False)


def sluice_greedy(sluice, fixture, ids, count, extra=()):
    text = run(
        sluice, "run", fixture, "--ids", comma(ids), "-n", count, "--temp", "0", "--json", *F32, *extra
    )
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise Failure(f"run --json: no JSON document on stdout: {text[:200]!r}") from error
    missing = {"prompt_ids", "ids", "text", "timings"} - set(answer)
    if missing:
        raise Failure(f"run --json: keys missing: {sorted(missing)}")
    if answer["prompt_ids"] != list(ids):
        raise Failure(f"run --json: prompt_ids {answer['prompt_ids']} are not the given {ids}")
    return answer


def exact(extra):
    return list(extra) if "--activations" in extra else [*extra, *EXACT]


def deviation(got, ref):
    """(worst max|d|/max|ref| over positions, its position)"""
    if got.dtype != numpy.float32 or got.shape != ref.shape:
        raise Failure(f"logits are {got.dtype} {got.shape}, not float32 {ref.shape}")
    if not numpy.isfinite(got).all():
        raise Failure("logits are not finite")
    each = abs(got - ref).max(-1) / abs(ref).max(-1)
    return float(each.max()), int(each.argmax())


def check_logits(sluice, fixture, case, extra=()):
    """Worst deviation of a case; raises Failure above BAR."""
    ref = numpy.load(pathlib.Path(fixture) / case["logits"], allow_pickle=False)
    got = sluice_logits(sluice, fixture, case["prompt_ids"] + case["greedy_ids"], exact(extra))
    worst, at = deviation(got, ref)
    if worst > BAR:
        raise Failure(
            f"case {case['name']}: max|d|/max|ref| {worst:.2e} > {BAR:.0e} " f"at position {at}"
        )
    return worst


def check_greedy(sluice, fixture, case, extra=()):
    want = case["greedy_ids"]
    answer = sluice_greedy(sluice, fixture, case["prompt_ids"], len(want), exact(extra))
    if answer["ids"] != want:
        at = first_difference(answer["ids"], want)
        raise Failure(
            f"case {case['name']}: greedy ids differ at {at}: got "
            f"{answer['ids'][at:at + 4]}, want {want[at:at + 4]}"
        )
    if answer["text"] != case["greedy_text"]:
        raise Failure(
            f"case {case['name']}: text {answer['text']!r}, want " f"{case['greedy_text']!r}"
        )


def check_stop(sluice, fixture, stop, extra=()):
    """The answer ends at the stop id; whether that id is listed is left open."""
    want = stop["greedy_ids"]
    got = sluice_greedy(sluice, fixture, stop["prompt_ids"], 64, exact(extra))["ids"]
    if got not in (want, want[:-1]):
        raise Failure(f"stop case: got {got}, want {want}")


def first_difference(a, b):
    """First index at which two lists differ (the shorter length if one is a prefix)."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def check_fixture(sluice, fixture, extra):
    """Prints a line a case; returns how many failed."""
    golden, failed = golden_of(fixture), 0
    for case in golden["cases"]:
        count = len(case["prompt_ids"]) + len(case["greedy_ids"])
        row = f"{fixture.name:<18}{case['name']:<10}{count:>9}  "
        try:
            worst = check_logits(sluice, fixture, case, extra)
            row += f"{worst:<17.2e}"
            check_greedy(sluice, fixture, case, extra)
            print(row + f"{len(case['greedy_ids'])} equal")
        except Failure as failure:
            failed += 1
            print(row + f"FAILED {failure}")
    if golden.get("stop_case"):
        row = f"{fixture.name:<18}{'stop':<10}{'':>9}  {'':<17}"
        try:
            check_stop(sluice, fixture, golden["stop_case"], extra)
            print(row + f"ends after {len(golden['stop_case']['greedy_ids'])}")
        except Failure as failure:
            failed += 1
            print(row + f"FAILED {failure}")
    return failed


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sluice", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="fixtures; default: all")
    parser.add_argument("--extra", default="", help="more options for each run, e.g. '--threads 1'")
    args = parser.parse_args()
    chosen = [p for p in [*fixtures(), *variants()] if not args.names or p.name in args.names]
    if not chosen or len(chosen) < len(set(args.names)):
        raise SystemExit(f"check.py: no such fixture in {GOLDEN}: {args.names}")
    extra, failed = args.extra.split(), 0
    print(f"{'fixture':<18}{'case':<10}{'positions':>9}  {'max|d|/max|ref|':<17}{'greedy'}")
    for fixture in chosen:
        with checkpoint(fixture) as folder:
            failed += check_fixture(args.sluice, folder, extra)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
