"""The programs that are compared: how each is called for a job, and how its answer is read.

A job is a dict: prefill (tokens), decode (tokens), batches (list), gen (tokens a sequence). What comes back is
{test: figure} with tests "prefill N", "decode 1", "decode B", in tokens/s. Only the standard library."""
import copy
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

from window import Failed, Run


def prefill_name(job):
    return f"prefill {job['prefill']}"


class Sluice:
    name = "sluice"
    label = "Sluice"

    def __init__(self, program, threads=2, extra=(), label=None):
        self.program, self.threads, self.extra = program, threads, list(extra)
        self.label = label or self.label

    def with_options(self, options):
        other = copy.copy(self)
        other.extra = self.extra + options
        return other

    def argv(self, model, prompt, gen, batch, seed):
        return [self.program, "bench", model, "--threads", str(self.threads), "--n-prompt", str(prompt), "--n-gen", str(gen),
                "--batch", str(batch), "--reps", "1", "--seed", str(seed), "--json"] + self.extra

    def bench(self, model, prompt, gen, batch, seed):
        run = Run(self.argv(model, prompt, gen, batch, seed))
        return {("prefill" if r["n_prompt"] else "decode"): r["median_ts"] for r in json.loads(run.out)}, run

    def speed(self, model, job, seed):
        got, run = self.bench(model, job["prefill"], job["decode"], 1, seed)
        names = {"prefill": prefill_name(job), "decode": "decode 1"}
        return {names[kind]: value for kind, value in got.items()}, [run]

    def batch(self, model, job, seed):
        out, runs = {}, []
        for b in job["batches"]:
            got, run = self.bench(model, 0, job["gen"], b, seed)
            out[f"decode {b}"] = got["decode"]
            runs.append(run)
        return out, runs

    def first_token(self, model, seed):
        run = Run([self.program, "run", model, "--ids", str(seed % 1000), "-n", "1", "--threads", str(self.threads), "--schedule",
                   "ep"])
        return {"load": run.wall_s}, [run]

    def version(self):
        out = subprocess.run(["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always", "--dirty"],
                             capture_output=True, text=True)
        return out.stdout.strip() or "unknown"


class Strips(Sluice):
    """On the file that `sluice convert --repack` made of the others', which lies beside it."""

    label = "Sluice, weights in strips"

    def argv(self, model, *job):
        root, ending = os.path.splitext(model)
        return super().argv(f"{root}-strips{ending}", *job)


class Split(Sluice):
    """Attention worker and expert worker; also what a step takes over what the busier core computes."""

    def batch(self, model, job, seed):
        out, runs = {}, []
        for b in job["batches"]:
            with tempfile.NamedTemporaryFile(suffix=".json") as trace:
                plain = Run(self.argv(model, 0, job["gen"], b, seed))
                runs += [plain, Run(self.argv(model, 0, job["gen"], b, seed) + ["--trace", trace.name])]
                stats = read_trace(self.program, trace.name)
            out[f"decode {b}"] = json.loads(plain.out)[0]["median_ts"]
            busier = max(stats["workers"], key=lambda w: w["execute_ms"])
            out[f"over busier core {b}"] = (stats["to_ms"] - stats["from_ms"]) / busier["execute_ms"]
        return out, runs


def read_trace(program, path):
    return json.loads(subprocess.check_output([program, "trace", path, "--stats", "--json"], text=True))


def touched_experts(program, model, rows):
    """Distinct experts of a layer in a decode step of so many random tokens, mean. So many steps that those at the start, with fewer
    requests, hardly count."""
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        Run([program, "bench", model, "--schedule", "ep", "--threads", "2", "--n-prompt", "0", "--n-gen", "24", "--batch", str(rows),
             "--reps", "1", "--json", "--trace", trace.name])
        stats = read_trace(program, trace.name)
    return sum(stats["rows_per_expert_call"]) / (stats["steps"] * len(stats["layers"]))


class Llama:
    """llama.cpp, and what keeps its programs and options."""
    name = "llama"
    label = "llama.cpp"

    def __init__(self, folder, threads=2, extra=(), label=None):
        self.folder, self.threads, self.extra = folder, threads, list(extra)
        self.label = label or self.label

    def path(self, program):
        return os.path.join(self.folder, program)

    def options(self, model, batched=False):
        return list(self.extra)

    def bench(self, model, job, more=()):
        run = Run([self.path("llama-bench"), "-m", model, "-t", str(self.threads), "-p", str(job["prefill"]), "-n",
                   str(job["decode"]), "-r", "1", "-o", "json", *more, *self.options(model)])
        try:
            return json.loads(run.out[run.out.index("["):]), run
        except ValueError as bad:
            raise Failed(f"{self.path('llama-bench')}: no JSON: {bad}") from bad

    def speed(self, model, job, seed):
        rows, run = self.bench(model, job)
        out = {}
        for r in rows:
            out[prefill_name(job) if r["n_gen"] == 0 else "decode 1"] = r["avg_ts"]
        return out, [run]

    def batch(self, model, job, seed):
        most = max(job["batches"])
        run = Run([self.path("llama-batched-bench"), "-m", model, "-t", str(self.threads), "-c", str(most * (job["gen"] + 8)),
                   "-b", "2048", "-ub", "512", "-npp", "1", "-ntg", str(job["gen"]), "-npl",
                   ",".join(map(str, job["batches"])), *self.options(model, batched=True)])
        out = {}
        for line in (run.out + run.err).split("\n"):
            f = [x.strip() for x in line.split("|")]
            if len(f) > 9 and re.fullmatch(r"\d+", f[1]):
                out[f"decode {f[3]}"] = float(f[8])
        if len(out) != len(job["batches"]):
            raise Failed(f"{self.path('llama-batched-bench')}: {len(out)} of {len(job['batches'])} rows")
        return out, [run]

    def first_token(self, model, seed):
        _, run = self.bench(model, {"prefill": 0, "decode": 1}, ["--no-warmup"])
        return {"load": run.wall_s}, [run]

    def version(self):
        for above in (self.folder, os.path.join(self.folder, ".."), os.path.join(self.folder, "..", "..")):
            path = os.path.join(above, "COMMIT")
            if os.path.exists(path):
                with open(path) as f:
                    return f.read().strip()[:12]
        return "unknown"


class Ik(Llama):
    name = "ik"
    label = "ik_llama.cpp"

    def options(self, model, batched=False):
        """Interleaved at load; there is no such form of bf16 for AVX2."""
        if "bf16" in os.path.basename(model).lower():
            return list(self.extra)
        return list(self.extra) + (["-rtr"] if batched else ["-rtr", "1"])

    def first_token(self, model, seed):
        _, run = self.bench(model, {"prefill": 0, "decode": 1}, ["--warmup", "0"])
        return {"load": run.wall_s}, [run]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class LlamaRpc(Llama):
    """Two servers with a core each, layers split between them."""
    name = "rpc"
    label = "llama.cpp, 2 RPC servers"

    def batch(self, model, job, seed):
        ports = [free_port(), free_port()]
        servers = [subprocess.Popen(["taskset", "-c", str(i), self.path("ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(p),
                                     "-t", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                   for i, p in enumerate(ports)]
        try:
            self._wait_for(ports)
            client = Llama(self.folder, threads=1, extra=["--rpc", ",".join(f"127.0.0.1:{p}" for p in ports), "-ngl", "99"])
            return client.batch(model, job, seed)
        finally:
            for s in servers:
                s.send_signal(signal.SIGTERM)
                s.wait()

    def _wait_for(self, ports):
        for port in ports:
            for _ in range(100):
                with socket.socket() as s:
                    if s.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            else:
                raise Failed("ggml-rpc-server does not listen")
