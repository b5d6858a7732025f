#!/usr/bin/env python3
"""What an option of `serve` costs: tokens per second of streams at once, with it and without, in pairs.

  bench/pairs.py MODEL --with "OPTIONS" [--streams 16] [--tokens 200] [--pairs 9] [--rounds 1] [--prompts FILE] [-- OPTIONS OF both]

  a journal        --with "--responses 1000 --journal FOLDER/journal"
  being ready      --with "--placement replicas:2" -- --attention 1 --experts 2 --schedule dep
  a plan           --with "--plan ONE.json" --without "--plan OTHER.json"
  copies of KV     --with "--kv-replicas 1" -- --attention 2 --experts 1
  guesses          --with "--speculate lookup" --prompts bench/prompts/repeats.json
  HTTPS            --with "--tls-cert FOLDER/cert.pem --tls-key FOLDER/key.pem"

FOLDER: one of this run's own, with a certificate for HTTPS. Two servers stand side by side, one of which has the options, and the other those of --without;
they are asked in turn, so that what else the machine does falls on both. Prints each pair, and the median of the quotients with
and without, of tokens per second, of the time to a stream's first token (the median of its streams) and of the coordinator's CPU time.
--rounds N: so often, each time with two servers that are started anew, the other one first: where a process lies in memory moves all of its
figures by several percent. --handshakes N: then N new connections for each server, one after the other, each with a question. --prompts: a list of fields of requests, of which streams and
pairs take one after the other."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

SLUICE = os.environ.get("SLUICE_BIN", str(pathlib.Path(__file__).resolve().parents[1] / "build" / "sluice"))


class Server:
    def __init__(self, model, options):
        self.process = subprocess.Popen([SLUICE, "serve", model, "--port", "0", "--json", *options], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.about = json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def cpu(self):
        """Seconds of all its threads."""
        threads = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((t / "schedstat").read_text().split()[0]) for t in threads) / 1e9

    def stream(self, i, tokens, fields):
        body = {"model": self.about["model"], "prompt": [3 + i, 17, 41], "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": i, **fields}
        request, began = urllib.request.Request(self.about["url"] + "/v1/completions", json.dumps(body).encode()), time.monotonic()
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.readline()
            first = time.monotonic()
            assert answer.read().endswith(b"[DONE]\n\n")
        return (tokens - 1) / (time.monotonic() - first), first - began

    def run(self, streams, tokens, prompts, first):
        """(tokens per second, the same from each stream's first token on, seconds to that, CPU seconds of the coordinator per 1,000 tokens)"""
        began, cpu = time.monotonic(), self.cpu()
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            decodes, firsts = zip(*pool.map(lambda i: self.stream(i, tokens, prompts[(first + i) % len(prompts)]), range(streams)))
        took = time.monotonic() - began
        return streams * tokens / took, sum(decodes), statistics.median(firsts), 1000 * (self.cpu() - cpu) / (streams * tokens)

    def connect(self, times):
        """(connections per second, each with a question; CPU seconds of the coordinator for one)"""
        began, cpu = time.monotonic(), self.cpu()
        for _ in range(times):
            with urllib.request.urlopen(self.about["url"] + "/livez", timeout=60) as answer:
                answer.read()
        return times / (time.monotonic() - began), (self.cpu() - cpu) / times


def certify(folder):
    """A certificate for this machine, which is trusted here from now on."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=127.0.0.1", "-addext",
                    "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"], check=True, capture_output=True)
    os.environ["SSL_CERT_FILE"] = str(pathlib.Path(folder, "cert.pem").resolve())


def compare(servers, o, prompts):
    """Quotients of each pair, the first of two servers over the second."""
    quotients = []
    for pair in range(-1, o.pairs):
        turn = servers if pair % 2 else servers[::-1]
        got = {s: s.run(o.streams, o.tokens, prompts, max(pair, 0)) for s in turn}
        (rate, decode, first, cpu), (rate0, decode0, first0, cpu0) = (got[s] for s in servers)
        if pair < 0:
            continue
        quotients.append((rate / rate0, decode / decode0, first / first0, cpu / cpu0))
        print(f"pair {pair}: {rate:8.0f} tokens/s with, {rate0:8.0f} without: {rate / rate0:.3f}; from first tokens on {decode / decode0:.3f}; "
              f"first tokens after {1000 * first:.1f} and {1000 * first0:.1f} ms; "
              f"coordinator {1000 * cpu:.1f} and {1000 * cpu0:.1f} us a token", flush=True)
    return quotients


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, default in (("streams", 16), ("tokens", 200), ("pairs", 9), ("rounds", 1)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--with", dest="given", required=True)
    parser.add_argument("--without", default="")
    parser.add_argument("--handshakes", type=int, default=0)
    parser.add_argument("--prompts")
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[:own.index("--")], own[own.index("--") + 1:]
    o = parser.parse_args(own)
    prompts = json.loads(pathlib.Path(o.prompts).read_text()) if o.prompts else [{}]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        if "--tls-cert" in o.given:
            certify(folder)
        given = shlex.split(o.given.replace("FOLDER", folder))
        options, quotients = [[*rest, *given], [*rest, *shlex.split(o.without)]], []
        for turn in range(o.rounds):
            servers = [Server(o.model, how) for how in options[::1 if turn % 2 else -1]][::1 if turn % 2 else -1]
            quotients += compare(servers, o, prompts)
            if o.handshakes:
                for name, (rate, cpu) in zip(("with", "without"), [s.connect(o.handshakes) for s in servers]):
                    print(f"{name}: {rate:.0f} connections a second, one after the other; {1e6 * cpu:.0f} us of the coordinator's CPU time for each")
            for s in servers:
                s.stop()
    rates, decodes, firsts, cpus = zip(*quotients)
    print(f"median of {len(quotients)} pairs: {statistics.median(rates):.3f} of the tokens per second ({min(rates):.3f} to {max(rates):.3f}), "
          f"from first tokens on {statistics.median(decodes):.3f} ({min(decodes):.3f} to {max(decodes):.3f}), "
          f"{statistics.median(firsts):.3f} of the time to a first token ({min(firsts):.3f} to {max(firsts):.3f}), "
          f"{statistics.median(cpus):.2f} of the coordinator's CPU time")


if __name__ == "__main__":
    main()
