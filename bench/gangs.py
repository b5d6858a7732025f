#!/usr/bin/env python3
"""Tensor parallelism, measured.

  bench/gangs.py MODEL [--ranks 2] [--pairs 5]            ranks that are threads, processes, and processes called over TCP as on other
                                                          machines, beside one device with as many threads
  bench/gangs.py MODEL --rates 1gbit 4gbit [--ranks 2]     ranks on "machines": namespaces of bench/lab/net.sh, linked by so much; needs root
  bench/gangs.py MODEL --emulated L40S [--link 10:160]    1, 2, 4 ranks of an emulated device, beside what sluice simulate says;
                                                          with --by pp ranks of a pipeline, and as many micro-batches

The first takes turns: one device, threads, processes, machines (all on this one), and again. Prints tokens per second of a prompt of 512, and of 1 and 16 requests
that decode; medians, and medians of the quotients with the one device of the same turn. The second does so for ranks behind each of the links, and for
another program with --beside, against which the quotients then are. The third needs a config.json alone; stages
are stretched (--scale), so that they take milliseconds; what is compared are times of a step in terms of one rank's."""
import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SLUICE = os.environ.get("SLUICE_BIN", str(HERE.parent / "build" / "sluice"))
NET, TAG = str(HERE / "lab" / "net.sh"), "gangs"
TESTS = {"prompt 512": ["--n-prompt", 512, "--n-gen", 0], "decode 1": ["--n-prompt", 0, "--n-gen", 64],
         "decode 16": ["--n-prompt", 0, "--n-gen", 48, "--batch", 16]}


def sluice(*args):
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def rate(model, *args):
    return sluice("bench", model, "--reps", 1, "--json", *args)[-1]["median_ts"]


@contextlib.contextmanager
def rank_servers(model, n):
    """Addresses at which n ranks of one thread wait, and the secret that they know."""
    with tempfile.TemporaryDirectory() as folder:
        secret, addresses, servers = f"{folder}/secret", [], []
        subprocess.run([SLUICE, "secret", "-o", secret], check=True, capture_output=True)
        for _ in range(n):
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                addresses.append("127.0.0.1:%d" % s.getsockname()[1])
            servers.append(subprocess.Popen([SLUICE, "rank", model, "--fabric-port", addresses[-1].split(":")[1], "--secret-file", secret, "--threads", "1"]))
        try:
            yield ",".join(addresses), secret
        finally:
            for s in servers:
                s.kill()
                s.wait()


def in_node(node, *command, **more):
    return subprocess.Popen(["bash", NET, "exec", TAG, str(node), *map(str, command)], **more)


@contextlib.contextmanager
def linked_ranks(program, model, n, port, secret):
    """Where n ranks of one thread wait, each in a namespace of its own from the second on."""
    at = [f"10.77.0.{i + 2}" for i in range(n)]
    servers = [in_node(i + 1, program, "rank", model, "--fabric-host", host, "--fabric-port", port, "--secret-file", secret, "--threads", 1, "--log", "warn")
               for i, host in enumerate(at)]
    try:
        yield ",".join(f"{host}:{port}" for host in at)
    finally:
        for s in servers:
            s.terminate()
            s.wait()


def linked_rate(program, model, *args):
    bench = in_node(0, program, "bench", model, "--reps", 1, "--json", *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = bench.communicate(timeout=600)
    if bench.returncode:
        sys.exit(err)
    return json.loads(out)[-1]["median_ts"]


def linked(model, ranks, pairs, rate, programs):
    """programs by name; quotients are with the first."""
    print(f"{model}, {ranks} ranks of one thread each, linked by {rate}, {pairs} turns\n{'':12} {'':12} tokens/s  quotient (least, most)")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as there:
        secret = f"{folder}/secret"
        subprocess.run([SLUICE, "secret", "-o", secret], check=True, capture_output=True)
        subprocess.run(["bash", NET, "up", TAG, str(ranks), "--rate", rate], check=True)
        there.callback(subprocess.run, ["bash", NET, "down", TAG], check=True)
        hosts = {name: there.enter_context(linked_ranks(program, model, ranks - 1, 7100 + i, secret)) for i, (name, program) in enumerate(programs.items())}
        for test, options in TESTS.items():
            got = {name: [] for name in programs}
            for _ in range(pairs):
                for name, program in programs.items():
                    how = ["--tp", ranks, "--threads", 1, "--rank-hosts", hosts[name], "--secret-file", secret]
                    got[name].append(linked_rate(program, model, *options, *how))
            report(test, got)


def report(test, got):
    """Quotients with the first."""
    first = next(iter(got.values()))
    for way, rates in got.items():
        quotients = [a / b for a, b in zip(rates, first)]
        print(f"{test:12} {way:12} {statistics.median(rates):8.1f}  {statistics.median(quotients):.3f} ({min(quotients):.3f}, {max(quotients):.3f})", flush=True)


def real(model, ranks, pairs):
    with rank_servers(model, ranks - 1) as (hosts, secret):
        compare(model, ranks, pairs, hosts, secret)


def compare(model, ranks, pairs, hosts, secret):
    ways = {"one device": [], "threads": ["--tp", ranks, "--pin", "auto"],
            "processes": ["--tp", ranks, "--tp-ranks", "processes", "--pin", "auto"],
            "machines": ["--tp", ranks, "--threads", 1, "--rank-hosts", hosts, "--secret-file", secret]}
    print(f"{model}, {ranks} ranks of one thread each, {pairs} turns\n{'':12} {'':12} tokens/s  quotient (least, most)")
    for test, options in TESTS.items():
        got = {way: [] for way in ways}
        for _ in range(pairs):
            for way, how in ways.items():
                got[way].append(rate(model, "--threads", ranks, *options, *how))
        report(test, got)


def predicted(model, device, batch, steps):
    """Tokens per second of as many requests that only decode, in virtual time."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as load:
        load.write(f"input: 1\noutput: {steps}\narrival: {{closed: {batch}}}\n")
        load.flush()
        got = sluice("simulate", model, *device, "--workload", load.name, "--requests", batch, "--control-us", 0, "--json")
    return batch / (got["itl_ms"]["p50"] / 1e3)


def emulated(model, device, link, scale, steps, by):
    print(f"{model} on emulated {device}, ranks linked by {link} (us:Gbit/s), stages {scale} times as long\n"
          "batch ranks  tokens/s  predicted  deviation  faster than one rank: measured, predicted")
    for batch in (1, 64):
        alone = None
        for ranks in (1, 2, 4):
            how = ["--device", f"emulated:{device}", "--time-scale", scale, "--max-num-seqs", batch]
            how += [f"--{by}", ranks, "--rank-link", link] if ranks > 1 else []
            how += ["--schedule", "pingpong", "--microbatches", ranks] if ranks > 1 and by == "pp" else []
            # The first request's first step runs before the others have come: what twice as many steps take longer is without it.
            took = [batch * n / rate(model, *how, "--n-prompt", 0, "--n-gen", n, "--batch", batch) for n in (steps, 2 * steps)]
            measured = batch * steps / (took[1] - took[0])
            want = predicted(model, how, batch, steps)
            alone = alone or (measured, want)
            print(f"{batch:5} {ranks:5} {measured:9.2f} {want:10.2f} {100 * (measured / want - 1):8.1f} % {measured / alone[0]:12.2f} "
                  f"{want / alone[1]:5.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, default in (("ranks", 2), ("pairs", 5), ("scale", 20), ("steps", 12)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--rates", nargs="+", metavar="RATE")
    parser.add_argument("--beside", metavar="PROGRAM", help="another sluice, which takes turns with this one behind the links")
    parser.add_argument("--emulated", metavar="DEVICE")
    parser.add_argument("--link", default="10:160")
    parser.add_argument("--by", choices=["tp", "pp"], default="tp")
    o = parser.parse_args()
    if o.rates:
        for rate in o.rates:
            linked(o.model, o.ranks, o.pairs, rate, {"beside": o.beside, "this": SLUICE} if o.beside else {"this": SLUICE})
    elif o.emulated:
        emulated(o.model, o.emulated, o.link, o.scale, o.steps, o.by)
    else:
        real(o.model, o.ranks, o.pairs)


if __name__ == "__main__":
    main()
