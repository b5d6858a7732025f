#!/usr/bin/env python3
"""Tensor parallelism, measured.

  bench/gangs.py MODEL [--ranks 2] [--pairs 5]            ranks that are threads, processes, and processes called over TCP as on other
                                                          machines, beside one device with as many threads
  bench/gangs.py MODEL --rates 1gbit 4gbit [--ranks 2]     ranks on "machines": namespaces of bench/lab/net.sh, linked by so much; needs root
  bench/gangs.py MODEL --nodes 2 --rates 200mbit 1gbit     as many gangs of such ranks: schedule hybrid beside ep, with the bytes that each rank's link carries;
                                                          with --auto also what --schedule auto chooses
                                                          --inside 200mbit: with a second network inside each gang, of that rate
  bench/gangs.py MODEL --emulated L40S [--link 10:160]    1, 2, 4 ranks of an emulated device, beside what sluice simulate says;
                                                          with --by pp ranks of a pipeline, and as many micro-batches

The first takes turns: one device, threads, processes, machines (all on this one), and again. Prints tokens per second of a prompt of 512, and of 1 and 16 requests
that decode; medians, and medians of the quotients with the one device of the same turn; then means of the fastest third of the turns, for machines that are disturbed, and the part of the time in which ranks that share memory were in
exchanges. The second does so for ranks behind each of the links, and for
another program with --beside, against which the quotients then are. The third runs `ep` and `hybrid` over the same gangs in turns, all ranks in namespaces of their own: the time
to the first token of a prompt of --rows, the time to the last first token of one such prompt for each gang at once, the time of a step of --batch requests at each node, and what left by each
rank's links from the first request to the last; with --beside it runs `hybrid` of both programs instead. The fourth needs a config.json alone; stages
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
sys.path.insert(0, str(HERE))
import rails  # noqa: E402

SLUICE = os.environ.get("SLUICE_BIN", str(HERE.parent / "build" / "sluice"))
NET, TAG = str(HERE / "lab" / "net.sh"), "gangs"
TESTS = {"prompt 512": ["--n-prompt", 512, "--n-gen", 0], "decode 1": ["--n-prompt", 0, "--n-gen", 64],
         "decode 16": ["--n-prompt", 0, "--n-gen", 48, "--batch", 16]}


COLUMNS = "tokens/s  quotient (least, most)    of the fastest third"  # report


def sluice(*args):
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def rate_and_share(model, *args):
    """Tokens a second, and the part of the time in which ranks were in exchanges."""
    got = sluice("bench", model, "--reps", 1, "--json", *args)[-1]
    return got["median_ts"], got["ranks_share"]


def rate(model, *args):
    return rate_and_share(model, *args)[0]


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
    print(f"{model}, {ranks} ranks of one thread each, linked by {rate}, {pairs} turns\n{'':12} {'':12} {COLUMNS}")
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


# ---- gangs of machines beside each other ----

def sent(nodes):
    """Bytes that have left by each node's links."""
    count = ["sh", "-c", "cat /sys/class/net/eth*/statistics/tx_bytes"]
    return [sum(map(int, in_node(i, *count, stdout=subprocess.PIPE, text=True).communicate()[0].split())) for i in range(nodes)]


@contextlib.contextmanager
def gangs(program, schedule, o, secret, hosts):
    """A server at node 0, a worker at each gang's first node; `hosts` are where its other ranks wait."""
    at = [f"10.77.0.{i * o.ranks + 1}" for i in range(o.nodes)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    serve = ["serve", o.model, "--remote", "--attention", o.nodes, "--tp", o.ranks, "--rank-hosts", hosts, "--schedule", schedule, "--transport", "tcp", "--wire", o.wire,
             "--fabric-host", at[0], "--fabric-port", 7000, "--secret-file", secret, "--host", "127.0.0.1", "--port", 8000, "--no-status",
             "--max-num-batched-tokens", max(o.rows, 256), *(["--rail-bytes", o.rail_bytes] if o.rail_bytes and schedule == "hybrid" else [])]
    started = [in_node(0, program, *serve, **quiet)]
    for i, host in enumerate(at):
        started.append(in_node(i * o.ranks, program, "worker", "--join", f"{at[0]}:7000", "--secret-file", secret, "--fabric-host", host, "--worker-id", i,
                               "--model", o.model, "--threads", 1, **quiet))
    with rails.running(started):
        yield


def asked(o, rows, batch, tokens, at_once=0):
    """bench/rails.py's client: medians in ms, and bytes that left by each link meanwhile."""
    client = [sys.executable, HERE / "rails.py", "--client", "--rows", rows, "--batch", batch, "--tokens", tokens, "--differ", "--together", at_once]
    before = sent(o.nodes * o.ranks)
    out, _ = in_node(0, *client, stdout=subprocess.PIPE, text=True).communicate(timeout=600)
    return json.loads(out), [b - a for a, b in zip(before, sent(o.nodes * o.ranks))]


def beside(o, rate):
    n = o.nodes * o.ranks
    ways = {"beside": (o.beside, "hybrid"), "this": (SLUICE, "hybrid")} if o.beside else {s: (SLUICE, s) for s in ("ep", "hybrid", *(["auto"] if o.auto else []))}
    first, inside = next(iter(ways)), ["--gang", o.ranks, "--inside", o.inside] if o.inside else []
    print(f"{o.model}, {o.nodes} gangs of {o.ranks} ranks of one thread each, {rate}{f', {o.inside} inside' if o.inside else ''}, wire {o.wire}, {o.pairs} turns")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as there:
        secret, got, hosts = f"{folder}/secret", {way: [] for way in ways}, {}
        subprocess.run([SLUICE, "secret", "-o", secret], check=True, capture_output=True)
        subprocess.run(["bash", NET, "up", TAG, *map(str, [n, "--rate", rate, *inside])], check=True)
        there.callback(subprocess.run, ["bash", NET, "down", TAG], check=True)
        others = [i for i in range(n) if i % o.ranks]
        for port, program in enumerate(dict.fromkeys(program for program, _ in ways.values()), 7100):
            rank = ["rank", o.model, "--fabric-port", port, "--secret-file", secret, "--threads", 1, "--log", "warn"]
            servers = [in_node(i, program, *rank, "--fabric-host", f"10.77.0.{i + 1}") for i in others]
            there.callback(lambda servers: [(s.terminate(), s.wait()) for s in servers], servers)
            hosts[program] = ";".join(",".join(f"10.77.0.{i + 1}:{port}" for i in others if i // o.ranks == g) for g in range(o.nodes))
        for _ in range(o.pairs):
            for way, (program, schedule) in ways.items():
                with gangs(program, schedule, o, secret, hosts[program]):
                    prompt, bytes_prompt = asked(o, o.rows, 1, 2)
                    several, bytes_several = asked(o, o.rows, 1, 2, o.nodes)
                    decode, bytes_decode = asked(o, 1, o.batch * o.nodes, o.tokens)
                got[way].append((prompt["prompt"], several["together"], decode["decode"], bytes_prompt, bytes_several, bytes_decode, prompt["schedule"]))
        if "auto" in got:
            print("auto chose " + ", ".join(sorted({t[6] for t in got["auto"]})), flush=True)
        for i, what in enumerate((f"prompt {o.rows}", f"{o.nodes} prompts", f"decode {o.batch * o.nodes}")):
            for way, turns in got.items():
                ms = statistics.median(t[i] for t in turns)
                quotients = [e[i] / t[i] for e, t in zip(got[first], turns)]
                links = " ".join(f"{statistics.median(t[3 + i][k] for t in turns) / 1e6:.2f}" for k in range(n))
                print(f"{what:12} {way:8} {ms:9.1f} ms  {statistics.median(quotients):.2f} ({min(quotients):.2f}, {max(quotients):.2f})  MB by link: {links}", flush=True)


def upper(rates):
    """The mean of the fastest third: whatever disturbs a run makes it slower."""
    return statistics.mean(sorted(rates, reverse=True)[:(len(rates) + 2) // 3])


def report(test, got):
    """Quotients with the first."""
    first = next(iter(got.values()))
    for way, rates in got.items():
        quotients = [a / b for a, b in zip(rates, first)]
        print(f"{test:12} {way:12} {statistics.median(rates):8.1f}  {statistics.median(quotients):.3f} ({min(quotients):.3f}, {max(quotients):.3f})"
              f"  {upper(rates):8.1f}  {upper(rates) / upper(first):.3f}", flush=True)


def real(model, ranks, pairs):
    with rank_servers(model, ranks - 1) as (hosts, secret):
        compare(model, ranks, pairs, hosts, secret)


def compare(model, ranks, pairs, hosts, secret):
    ways = {"one device": [], "threads": ["--tp", ranks, "--pin", "auto"],
            "processes": ["--tp", ranks, "--tp-ranks", "processes", "--pin", "auto"],
            "machines": ["--tp", ranks, "--threads", 1, "--rank-hosts", hosts, "--secret-file", secret]}
    print(f"{model}, {ranks} ranks of one thread each, {pairs} turns\n{'':12} {'':12} {COLUMNS}")
    for test, options in TESTS.items():
        got, shares = {way: [] for way in ways}, {way: [] for way in ways}
        for _ in range(pairs):
            for way, how in ways.items():
                tokens, share = rate_and_share(model, "--threads", ranks, *options, *how)
                got[way].append(tokens)
                shares[way].append(share)
        report(test, got)
        print(f"{test:12} in exchanges: " + ", ".join(f"{way} {100 * statistics.median(of):.1f} %" for way, of in shares.items() if way in ("threads", "processes")))


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
    parser.add_argument("--nodes", type=int, help="gangs, each of --ranks ranks")
    parser.add_argument("--auto", action="store_true", help="with --nodes a third way that says no schedule")
    parser.add_argument("--inside", metavar="RATE", help="of a network of their own that a gang's ranks have")
    parser.add_argument("--wire", default="bf16")
    for name, default in (("rows", 256), ("batch", 16), ("tokens", 16), ("rail-bytes", 0)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--beside", metavar="PROGRAM", help="another sluice, which takes turns with this one behind the links")
    parser.add_argument("--emulated", metavar="DEVICE")
    parser.add_argument("--link", default="10:160")
    parser.add_argument("--by", choices=["tp", "pp"], default="tp")
    o = parser.parse_args()
    if o.nodes:
        for rate in o.rates or ["none"]:
            beside(o, rate)
    elif o.rates:
        for rate in o.rates:
            linked(o.model, o.ranks, o.pairs, rate, {"beside": o.beside, "this": SLUICE} if o.beside else {"this": SLUICE})
    elif o.emulated:
        emulated(o.model, o.emulated, o.link, o.scale, o.steps, o.by)
    else:
        real(o.model, o.ranks, o.pairs)


if __name__ == "__main__":
    main()
