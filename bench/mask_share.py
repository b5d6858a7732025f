#!/usr/bin/env python3
"""What masks of structured output take of a server's processor time, with many requests that decode together.

  bench/mask_share.py MODEL [--streams 64] [--seconds 25] [--tokens 60] [--build build] [-- OPTIONS OF serve]

Each stream asks for JSON of one of bench/schemas.json again and again. `perf` samples the server meanwhile; what is counted are the functions of
src/grammar, compiling among them, and the drawing of tokens beside them, which every request has. A busy machine does little to shares."""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]


def functions_of(library):
    listed = subprocess.run(["nm", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[2].split(".")[0] for line in listed.splitlines() if re.match(r"^[0-9a-f]+ [Tt] ", line)}


def shares(data):
    report = subprocess.run(["perf", "report", "-i", data, "--no-children", "-g", "none", "--sort", "dso,symbol", "--percent-limit", "0"], capture_output=True, text=True, check=True).stdout
    for line in report.splitlines():
        found = re.match(r"\s*([0-9.]+)%\s+(\S+)\s+\[\.\]\s+(\S+)", line)
        if found and found[2] == "sluice":
            yield found[3].split(".")[0], float(found[1])


class Streams:
    def __init__(self, url, schemas, tokens):
        self.url, self.schemas, self.tokens, self.done, self.answers = url, schemas, tokens, False, 0

    def ask(self, n):
        body = {"prompt": f"x{n}", "max_tokens": self.tokens, "temperature": 1, "seed": n, "guided_json": self.schemas[n % len(self.schemas)]}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            self.answers += json.load(answer)["usage"]["completion_tokens"]

    def run(self, first, streams):
        n = first
        while not self.done:
            self.ask(n)
            n += streams


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    args.add_argument("--streams", type=int, default=64)
    args.add_argument("--seconds", type=int, default=25)
    args.add_argument("--tokens", type=int, default=60)
    args.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    own = sys.argv[1:]
    more = own[own.index("--") + 1:] if "--" in own else []
    args = args.parse_args(own[:own.index("--")] if "--" in own else own)
    schemas = [case["schema"] for case in json.loads((ROOT / "bench" / "schemas.json").read_text())]
    command = [args.build / "sluice", "serve", args.model, "--port", "0", "--json", "--max-num-seqs", str(args.streams), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server, tempfile.NamedTemporaryFile() as data:
        streams = Streams(json.loads(server.stdout.readline())["url"], schemas, args.tokens)
        threads = [threading.Thread(target=streams.run, args=(i, args.streams)) for i in range(args.streams)]
        for t in threads:
            t.start()
        time.sleep(10)  # all of them decode
        subprocess.run(["perf", "record", "-o", data.name, "-p", str(server.pid), "--", "sleep", str(args.seconds)], check=True, capture_output=True)
        streams.done = True
        for t in threads:
            t.join()
        server.terminate()
        names, drawing, of_masks, of_draws = functions_of(args.build / "libsl_grammar.a"), {"sl_sample"}, 0.0, 0.0
        for name, share in shares(data.name):
            of_masks += share if name in names else 0
            of_draws += share if name in drawing else 0
    print(f"{streams.answers} tokens of {args.streams} streams: masks and compiling {of_masks:.2f} % of the processor time, drawing {of_draws:.2f} %")


if __name__ == "__main__":
    main()
