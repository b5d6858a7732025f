#!/usr/bin/env python3
"""Scores that users get by default, against transformers: lm-eval (PyPI) asks `sluice serve` the task of endings.yaml.

    tests/scores/check.py [NUMERIC ...] [--planted] [--sluice build/sluice] [--model models/smollm2-moe]

For each numeric of golden.json (tools/py/make_scores_golden.py) the demo model is served as users serve it, nothing but
the port and the context said (and, in one, that KV stays in f32): the folder, or the file that `sluice convert` makes of it. lm-eval's local-completions
scores every ending with `echo` and `logprobs`. One line a numeric; it fails unless

  accuracy  ours and the oracle's on the same items differ by no more than chance would have it between two equals: the
            exact test of McNemar on the items that only one gets right, p >= LEAST_P, for acc and acc_norm
  noise     the endings' log-probabilities lie from the oracle's no further than the numeric explains. Where nothing
            rounds: LARGEST_EXACT. Else the mean distance is that by which transformers itself moves when it rounds
            activations and KV as docs/numbers.md says, within SIGMAS standard errors, or less; and the largest is no more than
            LARGEST times the largest that transformers has from itself, whose distances fall off slower than exponentially

--planted does the same to the model with two experts of every block exchanged, on the first items, and passes when
every numeric fails. lm-eval and what it needs go into build/scores-venv; nothing is fetched but from PyPI."""
import argparse
import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "oracle"))
import swap_experts  # noqa: E402

VENV = ROOT / "build" / "scores-venv"
WORK = ROOT / "build" / "scores"
LEAST_P = 0.05
LARGEST_EXACT = 1e-3
SIGMAS = 4
LARGEST = 2
PLANTED = (0, 1)  # experts
PLANTED_ITEMS = 40
START_S, LM_EVAL_S = 300, 3600


# ------------------------------------------------------------------ programs

def python():
    """The interpreter of the virtual environment, made when the requirements are others than it was made for."""
    wanted, made = (HERE / "requirements.txt").read_text(), VENV / "made-for.txt"
    if not made.exists() or made.read_text() != wanted:
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([VENV / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check",
                        "-r", HERE / "requirements.txt"], check=True)
        made.write_text(wanted)
    return VENV / "bin" / "python"


@contextlib.contextmanager
def stored(folder, name, entry, sluice, work):
    """What is served: the folder, or a file made of it."""
    if entry["convert"] is None:
        yield folder
        return
    path = work / f"{name}.gguf"
    subprocess.run([sluice, "convert", folder, path, "--type", entry["convert"], "--force"], check=True,
                   stdout=subprocess.DEVNULL)
    try:
        yield path
    finally:
        path.unlink()


@contextlib.contextmanager
def served(path, kv, sluice, work):
    """The URL of a server of that model; kv: the type of KV, if not the default."""
    log = work / "serve.log"
    said = ["--kv-type", kv] if kv else []
    with log.open("w") as out:
        server = subprocess.Popen([sluice, "serve", path, "--port", "0", "--ctx", "256", "--served-model-name", "scored", *said],
                                  stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + START_S
        while not (found := re.search(r"listening on (http://\S+)", log.read_text())):
            if server.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start: {log.read_text()}")
            time.sleep(0.1)
        yield found[1]
        server.terminate()
        if code := server.wait(60):
            raise SystemExit(f"the server ended with {code}: {log.read_text()}")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def ask(url, folder, count, work):
    """lm-eval's samples of the task, by item."""
    out = work / "samples"
    shutil.rmtree(out, ignore_errors=True)
    settings = {"base_url": url + "/v1/completions", "model": "scored", "tokenizer": str(folder),
                "tokenizer_backend": "huggingface", "num_concurrent": "8", "max_retries": "1"}
    command = [python(), "-m", "lm_eval", "--model", "local-completions", "--tasks", "endings", "--include_path", HERE,
               "--model_args", ",".join(f"{k}={v}" for k, v in settings.items()), "--output_path", out, "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(WORK / "hf"), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command + (["--limit", str(count)] if count else []), cwd=ROOT, env={**os.environ, **offline},
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LM_EVAL_S)
    found = sorted(out.rglob("samples_endings_*.jsonl"))
    if done.returncode or len(found) != 1:
        raise SystemExit(f"lm-eval: exit {done.returncode}\n{done.stdout[-6000:]}")
    samples = map(json.loads, found[0].read_text(encoding="utf-8").splitlines())
    return sorted(samples, key=lambda s: s["doc_id"])


# ------------------------------------------------------------------ figures

def right(items, scores):
    """{metric: which items are right}, by lm-eval's rules: the likeliest ending; the likeliest per character."""
    out = {"acc": [], "acc_norm": []}
    for item, of in zip(items, scores, strict=True):
        each = [x / len(e) for x, e in zip(of, item["endings"], strict=True)]
        out["acc"].append(of.index(max(of)) == item["answer"])
        out["acc_norm"].append(each.index(max(each)) == item["answer"])
    return out


def paired(ours, oracle):
    """(difference of two accuracies on the same items, its standard error, p that equals differ so much). The error counts
    half an item more in each cell of the table of both (Agresti and Min, Statistics in Medicine 24, 2005), so that it is
    not zero where no item differs."""
    n, only_ours = len(ours) + 2, sum(a and not b for a, b in zip(ours, oracle))
    only_oracle = sum(b and not a for a, b in zip(ours, oracle))
    differ, fewer = only_ours + only_oracle, min(only_ours, only_oracle)
    error = math.sqrt(differ + 1 - (only_ours - only_oracle) ** 2 / n) / n
    p = min(1, 2 * sum(math.comb(differ, k) for k in range(fewer + 1)) / 2 ** differ)
    return (only_ours - only_oracle) / len(ours), error, p


def apart(a, b):
    """(mean, its standard error, largest) distance of two lists of log-probabilities by item and ending. Endings of one
    item move together, so the error is that of a mean of items."""
    each = [[abs(x - y) for x, y in zip(p, q, strict=True)] for p, q in zip(a, b, strict=True)]
    means = [statistics.mean(of) for of in each]
    return statistics.mean(means), statistics.stdev(means) / math.sqrt(len(means)), max(map(max, each))


class Verdict:
    def __init__(self):
        self.said, self.broken = [], []

    def hold(self, text, value, limit, what="the limit"):
        """value <= limit"""
        self.said.append(text)
        if not value <= limit:
            self.broken.append(f"{text}: {what} is {limit:.4g}")


def judge_accuracy(verdict, items, samples, plain):
    """acc and acc_norm as lm-eval has them, beside the oracle's."""
    oracle = right(items, plain)
    for metric in ("acc", "acc_norm"):
        ours, n = [bool(s[metric]) for s in samples], len(samples)
        rate = sum(ours) / n
        difference, error, p = paired(ours, oracle[metric])
        verdict.hold(f"{metric} {rate:.3f} +- {math.sqrt(rate * (1 - rate) / (n - 1)):.3f}, oracle {sum(oracle[metric]) / n:.3f}, "
                     f"difference {difference:+.3f} +- {error:.3f}", LEAST_P, p, "chance of that between equals")


def judge(items, samples, entry):
    """A Verdict on the samples of one numeric."""
    verdict, n = Verdict(), len(samples)
    ours = [[float(answer[0]) for answer in s["filtered_resps"]] for s in samples]
    plain = entry["plain"][:n]
    judge_accuracy(verdict, items[:n], samples, plain)
    mean, error, largest = apart(ours, plain)
    if entry["rounded"] is None:
        verdict.hold(f"log-probabilities off by {mean:.1e} +- {error:.1e}, at most {largest:.1e}", largest, LARGEST_EXACT)
        return verdict
    noise, noise_error, once = apart(entry["rounded"][:n], plain)
    verdict.hold(f"log-probabilities off by {mean:.3f} +- {error:.3f} (transformers, where it rounds: {noise:.3f})", mean,
                 noise + SIGMAS * math.sqrt(2) * noise_error)
    verdict.hold(f"at most {largest:.2f} ({once:.2f})", largest, LARGEST * once)
    return verdict


# ------------------------------------------------------------------ runs

def digest(path):
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def check(name, folder, golden, items, args, work):
    entry = golden["numerics"][name]
    with stored(folder, name, entry, args.sluice, work) as path, served(path, entry["kv"], args.sluice, work) as url:
        other = path.is_file() and digest(path) != entry["sha256"]
        verdict = judge(items, ask(url, folder, PLANTED_ITEMS if args.planted else 0, work), entry)
    print(f"{name}: {'; '.join(verdict.said)}", flush=True)
    if verdict.broken:
        print("".join(f"  {line}\n" for line in verdict.broken), end="")
        if other and not args.planted:
            print("  the converted file is not the golden's: tools/py/make_scores_golden.py")
    return bool(verdict.broken) == args.planted


def swapped(folder, work):
    """The model with two experts of every block exchanged."""
    out = pathlib.Path(work) / folder.name
    shutil.copytree(folder, out)
    for layer in range(json.loads((out / "config.json").read_text())["num_hidden_layers"]):
        swap_experts.exchange(out, layer, PLANTED)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("numerics", nargs="*", metavar="NUMERIC", help="of golden.json; default: all")
    ap.add_argument("--planted", action="store_true", help="exchange two experts; pass when that is found")
    ap.add_argument("--sluice", type=pathlib.Path, default=ROOT / "build" / "sluice")
    ap.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "smollm2-moe")
    args = ap.parse_args()
    golden = json.loads((HERE / "golden.json").read_text())
    if unknown := set(args.numerics) - set(golden["numerics"]):
        sys.exit(f"no numeric {', '.join(sorted(unknown))}; there are {', '.join(golden['numerics'])}")
    raw = (HERE / "endings.jsonl").read_bytes()
    if hashlib.sha256(raw).hexdigest() != golden["items_sha256"]:
        sys.exit("endings.jsonl is not the golden's: tools/py/make_scores_golden.py")
    marker = args.model / "sluice_demo.json"
    if not marker.is_file() or json.loads(marker.read_text()) != golden["model"]:
        sys.exit(f"the demo model of the golden is not in {args.model}: make demo")
    items = [json.loads(line) for line in raw.decode().splitlines()]
    WORK.mkdir(parents=True, exist_ok=True)
    python()
    with tempfile.TemporaryDirectory(dir=WORK) as work:  # others may run beside
        work = pathlib.Path(work)
        folder = swapped(args.model, work) if args.planted else args.model
        good = [check(name, folder, golden, items, args, work) for name in args.numerics or golden["numerics"]]
    if args.planted:
        print(f"exchanged experts found in {sum(good)} of {len(good)} numerics")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
