#!/usr/bin/env python3
"""Runs an experiment: a deployment and a load from one configuration file, one JSON object on stdout.

    bench/lab/run.py bench/lab/aep-top1.json
    bench/lab/run.py FILE --set plan.schedule=pingpong --set load.measure_s=30 --trace /tmp/t.json

The file's fields are in docs/laboratory.md. Only the standard library."""
import argparse
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NET = HERE / "net.sh"
KEYS = {"comment", "model", "attention", "experts", "plan", "device", "time_scale", "route_skew", "pin", "transport",
        "trace_events", "network", "load"}
NETWORK_KEYS = {"rate", "burst", "delay_us", "jitter_us", "seed", "congestion", "queue", "cards"}


def fail(message):
    sys.exit(f"run.py: {message}")


def set_field(config, text):
    """--set a.b=VALUE; VALUE is JSON, or a string when it is not. null takes the field away."""
    path, eq, value = text.partition("=")
    if not eq:
        fail(f"--set {text}: FIELD=VALUE expected")
    try:
        value = json.loads(value)
    except ValueError:
        pass
    *above, last = path.split(".")
    for key in above:
        config = config.setdefault(key, {})
        if not isinstance(config, dict):
            fail(f"--set {text}: {key} is not an object")
    if value is None:
        config.pop(last, None)
    else:
        config[last] = value


def workers_of(config):
    attention, experts = config.get("attention", 0), config.get("experts", 0)
    if experts == 0:
        return [{"roles": ["attention", "expert"]} for _ in range(max(attention, 1))]
    return [{"roles": ["attention"]} for _ in range(max(attention, 1))] + \
           [{"roles": ["expert"]} for _ in range(experts)]


def make_plan(config, folder):
    plan = {"version": 1, **config.get("plan", {})}
    plan.setdefault("workers", workers_of(config))
    apart = len({tuple(w["roles"]) for w in plan["workers"]}) > 1
    plan.setdefault("schedule", "dep" if apart else "ep")
    plan.setdefault("threads", 1)
    if "route_skew" in config:
        plan["route_skew"] = config["route_skew"]
    if "device" in config:
        device = config["device"]
        plan["device"] = dict(device if isinstance(device, dict) else json.loads((folder / device).read_text()))
        plan["device"]["time_scale"] = config.get("time_scale", 1)
    elif "time_scale" in config:
        fail("time_scale without a device")
    for i, worker in enumerate(plan["workers"]):
        if config.get("pin"):
            worker.setdefault("cpu", config["pin"][i % len(config["pin"])])
    return plan


def free_port():
    """Below the ephemeral range, as the fabric chooses its own."""
    while True:
        port = 20000 + secrets.randbelow(12000)
        with socket.socket() as s:
            try:
                s.bind(("", port))
                return port
            except OSError:
                continue


class Network:
    """Namespaces for the coordinator (node 0) and worker i (node i + 1)."""

    def __init__(self, spec, n_workers, build):
        unknown = set(spec) - NETWORK_KEYS
        if unknown:
            fail(f"network: unknown fields {', '.join(sorted(unknown))}")
        self.tag = f"sl{os.getpid()}"
        self.n, self.cards = n_workers + 1, spec.get("cards", 1)
        self.options = ["--cable", str(build / "lab_cable")]
        for key, value in spec.items():
            self.options += ["--" + key.replace("_", "-"), str(value)]

    def __enter__(self):
        try:
            subprocess.run([NET, "up", self.tag, str(self.n), *self.options], check=True, stdout=sys.stderr)
        except subprocess.CalledProcessError:
            self.__exit__()
            fail("the network cannot be set up")
        return self

    def __exit__(self, *_):
        subprocess.run([NET, "down", self.tag], check=False)

    def command(self, node, argv):
        return [str(NET), "exec", self.tag, str(node), *argv]

    def address(self, node, card=0):
        return subprocess.check_output([NET, "address", self.tag, str(node), str(card)], text=True).strip()

    def rails(self, node):
        """Options of a worker there: the cards that its other ranks have."""
        return ["--rails", ",".join(self.address(node, t) for t in range(1, self.cards))] if self.cards > 1 else []


def describe(config, plan):
    """What the result says about how it was made."""
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {"schedule": plan["schedule"], "model": config["model"], "workers": len(plan["workers"]),
            "route_skew": plan.get("route_skew"),
            "transport": "tcp" if "network" in config else config.get("transport", "shm"),
            "network": config.get("network"), "load": config["load"], "commit": commit.stdout.strip()}


def run_local(loader, request_path):
    return subprocess.run([loader, request_path], stdout=subprocess.PIPE, text=True)


def run_joined(net, loader, request_path, build, port, n_workers, folder):
    """The coordinator and every worker in a namespace of its own."""
    env = {**os.environ, "SLUICE_SECRET": secrets.token_hex(16)}
    load = subprocess.Popen(net.command(0, [loader, request_path]), env=env, stdout=subprocess.PIPE, text=True)
    workers = []
    try:
        for i in range(n_workers):
            argv = [str(build / "sluice"), "worker", "--join", f"{net.address(0)}:{port}", "--transport", "tcp",
                    "--fabric-host", net.address(i + 1), "--worker-id", str(i), "--model", str(folder), *net.rails(i + 1)]
            workers.append(subprocess.Popen(net.command(i + 1, argv), env=env, stdout=subprocess.DEVNULL))
        out, _ = load.communicate()
        return subprocess.CompletedProcess(loader, load.returncode, out)
    finally:
        for process in [load, *workers]:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in [load, *workers]:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(config, folder, build, trace):
    unknown = set(config) - KEYS
    if unknown:
        fail(f"unknown fields {', '.join(sorted(unknown))}")
    plan = make_plan(config, folder)
    model = (folder / config["model"]).resolve()
    loader = str(build / "lab_load")
    request = {"model": str(model), "plan": plan, "transport": config.get("transport", "shm"),
               "program": str(build / "sluice"), "load": config["load"], "trace": trace or "",
               "trace_events": config.get("trace_events", 0)}
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "request.json")
        if "network" in config:
            with Network(config["network"], len(plan["workers"]), build) as net:
                port = free_port()
                request |= {"transport": "tcp", "spawn": False, "host": net.address(0), "port": port}
                pathlib.Path(path).write_text(json.dumps(request))
                done = run_joined(net, loader, path, build, port, len(plan["workers"]), model)
        else:
            pathlib.Path(path).write_text(json.dumps(request))
            done = run_local(loader, path)
    if done.returncode != 0:
        fail(f"lab_load ended with status {done.returncode}")
    return {**describe(config, plan), "trace": trace, **json.loads(done.stdout)}


def main():
    parser = argparse.ArgumentParser(description="Runs one experiment of the laboratory.")
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="replaces a field of the file")
    parser.add_argument("--trace", help="where to write the trace")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    args = parser.parse_args()
    config = json.loads(args.config.read_text())
    for text in args.set:
        set_field(config, text)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result = run(config, args.config.resolve().parent, args.build.resolve(), args.trace and os.path.abspath(args.trace))
    json.dump({"config": str(args.config), **result}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
