#!/usr/bin/env python3
"""Decode over tcp in the clear, encrypted by the fabric itself (--encrypt on), and in the clear through stunnel, by turns.

  bench/tunnels.py MODEL [--net] [--turns 7] [--streams 1 16] [--tokens 48] [--json FILE]

A coordinator with an attention worker on one machine, an expert worker on another, one thread each. Without --net both are addresses of this machine's
loopback; with --net they are namespaces of bench/lab/net.sh with a cable between them (root), whose bytes are counted, heads of Ethernet, IP and TCP
and acknowledgements among them. stunnel (Debian: stunnel4) forwards each connection that leaves a machine: TLS 1.3, AES-256-GCM, no delays. All deployments
are there at once and take turns; the first turn warms up. Prints medians of tokens/s, of processor time for a token (tunnels count) and of bytes for a
token, and the median of each turn's quotient with the clear one."""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import ended  # noqa: E402
from certificates import certificate  # noqa: E402
from scale import cpu_s  # noqa: E402

SLUICE = os.environ.get("SLUICE_BIN", str(HERE.parent / "build" / "sluice"))
NET, TAG = str(HERE / "lab" / "net.sh"), "tunnels"
WAYS = ("clear", "encrypted", "stunnel")
COORDINATOR, ATTENTION, EXPERT = range(3)  # who is called, at 10 ports from its way's first one on
NODE = {COORDINATOR: 0, ATTENTION: 0, EXPERT: 1}
STARTS_WITHIN_S = 300


class Machines:
    """Two of them: namespaces, or this one twice."""

    def __init__(self, apart):
        self.apart = apart

    def __enter__(self):
        if self.apart:
            subprocess.run(["bash", NET, "up", TAG, "2"], check=True)
        return self

    def __exit__(self, *_):
        if self.apart:
            subprocess.run(["bash", NET, "down", TAG], check=True)

    def address(self, node):
        return f"10.77.0.{node + 1}" if self.apart else "127.0.0.1"

    def start(self, node, *words, **more):
        there = ["bash", NET, "exec", TAG, str(node)] if self.apart else []
        return ended.start([*there, *map(str, words)], **more)

    def wire_bytes(self):
        if not self.apart:
            return None
        text = subprocess.run(["bash", NET, "exec", TAG, "0", "cat", "/sys/class/net/eth0/statistics/tx_bytes", "/sys/class/net/eth0/statistics/rx_bytes"],
                              check=True, capture_output=True, text=True).stdout
        return sum(map(int, text.split()))


class Unix(http.client.HTTPConnection):
    """To a socket of this machine, which namespaces of networks share."""

    def __init__(self, path):
        super().__init__("localhost", timeout=300)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def stunnel(machines, node, first, folder, cert, key):
    """What this machine forwards: to its own listeners from the other one, and to that one's."""
    lines = ["foreground = yes", "pid =", "debug = 3", "sslVersion = TLSv1.3", "ciphersuites = TLS_AES_256_GCM_SHA384", "socket = l:TCP_NODELAY=1",
             "socket = r:TCP_NODELAY=1"]
    for who, its_node in NODE.items():
        lines.append(f"[{who}]")
        if its_node == node:
            lines += [f"accept = {machines.address(node)}:{first + 20 + who}", f"connect = 127.0.0.1:{first + who}", f"cert = {cert}", f"key = {key}"]
        else:
            lines += ["client = yes", f"accept = 127.0.0.1:{first + 10 + who}", f"connect = {machines.address(its_node)}:{first + 20 + who}",
                      f"CAfile = {cert}", "verifyPeer = yes"]
    file = folder / f"stunnel-{node}.conf"
    file.write_text("\n".join(lines) + "\n")
    return machines.start(node, "stunnel", file, stderr=subprocess.DEVNULL)


class Deployment:
    def __init__(self, way, first, machines, a, folder):
        self.socket = str(folder / f"{way}.sock")
        tunnel, encrypt = way == "stunnel", "on" if way == "encrypted" else "off"
        secret, cert, key = folder / "secret", folder / "certificate" / "cert.pem", folder / "certificate" / "key.pem"

        def at(who):
            return "127.0.0.1" if tunnel else machines.address(NODE[who])

        common = ["--secret-file", secret, "--transport", "tcp", "--encrypt", encrypt, "--threads", 1]
        self.processes = [stunnel(machines, node, first, folder, cert, key) for node in (0, 1)] if tunnel else []
        self.processes.append(machines.start(0, SLUICE, "serve", a.model, "--remote", "--attention", 1, "--experts", 1, "--fabric-host", at(COORDINATOR), "--fabric-port",
                                             first, "--host", f"unix:{self.socket}", "--no-status", *common, stderr=subprocess.DEVNULL))
        for i, who in enumerate((ATTENTION, EXPERT)):
            join = f"127.0.0.1:{first + 10}" if tunnel and NODE[who] else f"{at(COORDINATOR)}:{first}"
            called = ["--advertise", f"127.0.0.1:{first + 10 + who}"] if tunnel else []
            self.processes.append(machines.start(NODE[who], SLUICE, "worker", "--join", join, "--worker-id", i, "--model", a.model, "--fabric-host", at(who), "--fabric-port",
                                                 first + who, *called, *common, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self.is_there():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes):
                sys.exit(f"{way}: does not serve")
            time.sleep(0.1)

    def is_there(self):
        try:
            self.ask(2)
            return True
        except OSError:
            return False

    def ask(self, tokens, _=None):
        connection = Unix(self.socket)
        body = {"prompt": [3, 17, 41], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = json.load(connection.getresponse())
        finally:
            connection.close()
        assert answer["usage"]["completion_tokens"] == tokens, answer

    def spent(self):
        return sum(cpu_s(pid) for p in self.processes for pid in ended.of_tree(p.pid))


def measure(deployment, machines, streams, tokens):
    done = max(streams, 2) * tokens
    bytes_before, spent, began = machines.wire_bytes(), deployment.spent(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        list(pool.map(lambda i: deployment.ask(tokens, i), range(max(streams, 2))))
    wall = time.monotonic() - began
    out = {"tokens_s": done / wall, "cpu_ms": 1e3 * (deployment.spent() - spent) / done}
    if machines.apart:
        out["bytes"] = (machines.wire_bytes() - bytes_before) / done
    return out


def report(turns, streams, apart):
    print(f"{streams} stream{'s' * (streams > 1)}{' between namespaces' if apart else ' over loopback'}, {len(turns)} turns:")
    for way in WAYS:
        mine = [t[way] for t in turns]
        of_clear = statistics.median(t[way]["tokens_s"] / t["clear"]["tokens_s"] for t in turns)
        middle = {k: statistics.median(m[k] for m in mine) for k in mine[0]}
        wire = f", {middle['bytes']:.0f} bytes" if apart else ""
        print(f"  {way:10} {middle['tokens_s']:7.2f} tokens/s ({of_clear:.3f} of clear), {middle['cpu_ms']:.2f} ms of processor time{wire} a token", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--net", action="store_true")
    p.add_argument("--turns", type=int, default=7)
    p.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--json")
    a = p.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as name, Machines(a.net) as machines, ended.scope():
        folder = pathlib.Path(name)
        subprocess.run([SLUICE, "secret", "-o", folder / "secret"], check=True, stdout=subprocess.DEVNULL)
        certificate(folder / "certificate")
        there = {way: Deployment(way, 21000 + 100 * i, machines, a, folder) for i, way in enumerate(WAYS)}
        for streams in a.streams:
            turns = []
            for turn in range(-1, a.turns):
                order = WAYS if turn % 2 else WAYS[::-1]
                figures = {way: measure(there[way], machines, streams, a.tokens) for way in order}
                turns += [figures] if turn >= 0 else []
            report(turns, streams, a.net)
            rows[streams] = turns
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
