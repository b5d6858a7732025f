#!/usr/bin/env python3
"""Runs the command blocks of the documents on a test model.

  tests/run_docs.py [PAGE ...]     those pages, or all of PAGES; PAGE as README.md

Every block of these pages is run, or stands in NOT_RUN with the reason; a block that is in neither way known to work fails, and so
does a row of NOT_RUN whose block is gone. Commands run one after the other in a folder of their own, where MODEL, FOLDER and
models/demo are a fixture and a hub on this machine has ORG/MODEL. Servers get free ports, are waited for, and end with 0 at SIGTERM.
Lines behind a line with "$" are what the command says, numbers apart. `make check-long ONLY=docs` runs it."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import ended  # noqa: E402
import launched  # noqa: E402
import localhub  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
FIXTURE = ROOT / "tests" / "golden" / "mixtral-tiny"
PAGES = ["README.md", "docs/operations.md", "docs/install.md", "docs/models-by-name.md", "docs/page.md", "docs/python.md",
         "docs/api.md", "docs/planner.md", "docs/cluster.md", "examples/README.md"]
LIMIT_S = 300
CLUSTER = """
name: this-machine
devices:
  core: {memory: 4GB, bandwidth: 10GB/s, f32: 50GFLOPS, launch: 5us, price: 1}
nodes:
  - {device: core, devices_per_node: 2, count: 1, intra: {bandwidth: 2GB/s, latency: 20us}}
"""

# A block's page and first line -> why it is not run here.
NOT_RUN = {
    ("README.md", "make demo     # install packages, build, make the demo model, ask one question, show what each worker did"):
        "installs packages; `make demo` and `make test` are run by whoever changes anything",
    ("README.md", "$ make demo"): "what `make demo` says, which makes a model of 1.4 GB",
    ("docs/install.md", "find_package(sluice 0.1 REQUIRED)"): "tests/install.sh builds a program so",
    ("docs/install.md", "install -D -m 600 /usr/share/sluice/serve.env /etc/sluice/serve.env    # then edit it: MODEL, SLUICE_ATTENTION, .."):
        "needs systemd; tests/units.sh starts the units under one",
    ("docs/install.md", "sluice secret --out /etc/sluice/admin.key"): "needs systemd; tests/units.sh does the same under one",
    ("docs/install.md", "make package"): "needs docker; tests/image.py carries out the Dockerfile",
    ("docs/models-by-name.md", "models--ORG--MODEL/"): "a folder, no command",
    ("docs/python.md", "make wheel"):
        "builds for minutes; tests/wheel.sh does so",
    ("docs/python.md", "import sluice_moe"):
        "wants the wheel; tests/wheel does the same with the installed one",
    ("docs/api.md", "stream = client.chat.completions.create(..., stream=True, extra_headers={\"Idempotency-Key\": str(uuid.uuid4())})"):
        "a piece of a program; tests/api/test_idempotency.py has all of it",
    ("docs/api.md", "rest = client.responses.retrieve(id, stream=True, starting_after=41)"):
        "a piece of a program; tests/api/test_responses.py has all of it",
    ('docs/api.md', '$ curl -s localhost:8000/plan -d \'{"model": "qwen3-30b-a3b", "cluster": "cpu-4x10g", "only": ["ep", "findep"]}\' | jq -r .result.why'):
        'its answer is cut; tests/api/test_planning.py asks the same path',
    ("docs/planner.md", "name: rack"):
        "a file that plan reads; unit.cluster reads such",
    ("docs/planner.md", "input: 512                                   # or {uniform: [64, 1024]}"):
        "a file that plan and simulate read; unit.workload reads such",
    ("docs/planner.md", "input: {uniform: [200, 4000]}"): "a file that simulate reads; tests/cli/test_simulate.py has one such",
    ("docs/planner.md", "$ sluice profile models/demo --threads 1 -o profile.json"):
        "what another machine said in a minute; the one of README.md is run",
    ("docs/planner.md", "X = a + s   Y = max(c, e, d)   F = max(X, r2 Y)   G = a + c + e + d + (r2-1) Y   L = max(G, r1 F)"):
        "a formula",
    ("docs/planner.md", "sluice simulate MODEL --plan plan.json --profile profile.json --workload load.yaml --warmup 10 --measure 60 --seed 1 --json"):
        "wants a profile, a load and a minute; tests/cli/test_simulate.py runs such",
    ("examples/README.md", "cmake --install build --prefix /opt/sluice"):
        "installs into /opt; tests/install.sh does so elsewhere",
}
# First line -> what has to be there before: commands, or files.
BEFORE = {
    "$ sluice serve models/demo --attention 1 --experts 2 --max-experts 4 --admin-key-file admin.key &": ["sluice secret -o admin.key"],
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj /CN=llm.example \\": ["sluice secret -o keys", "sluice secret -o admin.key"],
    "from openai import OpenAI": ["sluice serve models/demo"],
    'curl -s http://127.0.0.1:8000/infill -d \'{"input_prefix": "def area(r):\\n    ", "input_suffix": "\\n    return x\\n", "n_predict": 32}\'': ["sluice serve models/demo"],
    "curl -sN http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\": ["sluice serve models/demo"],
    "sluice fetch allenai/OLMoE-1B-7B-0924-Instruct      # bring it, and print where it is":
        ["sluice secret -o secret", "sluice serve MODEL --remote --secret-file secret --attention 1 --transport tcp --fabric-port 7000"],
}
# First line -> commands behind it: workers that are meant by "and likewise the others".
AFTER = {
    "sluice secret -o secret     # then copy it to the others (scp -p)":
        [f"sluice worker --join 10.0.0.1:7000 --secret-file secret --worker-id {i} --model FOLDER" for i in (0, 2)],
}
# Lines that other machines, models and disks say otherwise.
MACHINES = re.compile(r"^(cpu|tables|kernels|as|  \w+\.|weights in memory)|in pages of 2 MB|GB of weights")


def blocks(page):
    """(language, text) of each fenced block."""
    return [(m.group(1), m.group(2)) for m in re.finditer(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)]


class Place:
    """A folder in which the commands of one block run."""

    def __init__(self, folder, model, hub):
        self.folder, self.fabric, self.servers, self.workers, self.said = folder, launched.free_port(), [], [], []
        self.waited_for = []  # servers that listen when their workers have come
        (folder / "build").mkdir()
        (folder / "models").mkdir()
        (folder / "build" / "sluice").symlink_to(SLUICE)
        (folder / "bench").symlink_to(ROOT / "bench")
        for name in ("MODEL", "FOLDER", "models/demo"):
            (folder / name).symlink_to(model)
        (folder / "cluster.yaml").write_text(CLUSTER)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "HF_", "XDG_"))}
        self.env = {**clean, "HOME": str(folder), "HF_HOME": str(folder / "hf"), "HF_ENDPOINT": hub.url, "SLUICE_PORT": "0",
                    "PATH": f"{folder / 'build'}:{clean['PATH']}"}

    def here(self, command):
        """The command with addresses of this machine."""
        command = command.replace("--fabric-port 7000", f"--fabric-port {self.fabric}").replace("10.0.0.1:7000", f"127.0.0.1:{self.fabric}")
        command = re.sub(r"10\.0\.0\.\d", "127.0.0.1", command).replace("/var/lib/sluice/", "")
        return re.sub(r"https?://127\.0\.0\.1:8000", lambda m: self.env.get("SLUICE_URL", m[0]), command)

    def run(self, command):
        command = self.here(command.rstrip("& "))
        words = command.split()
        if words[:1] == ["build/sluice"] or words[:1] == ["sluice"]:
            if words[1] == "serve":
                return self.serve(command, "--remote" in words)
            if words[1] == "worker":
                log = open(self.folder / f"worker{len(self.workers)}.log", "w+")
                return self.workers.append((command, self.start(command, stderr=log), log))
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.env, input="Hello\n/exit\n", text=True, capture_output=True,
                              timeout=LIMIT_S)
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        self.said += (done.stdout + done.stderr).splitlines()

    def start(self, command, **options):
        return ended.start(["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.env, text=True, **options)

    def serve(self, command, others_come):
        process = self.start(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.servers.append((command, process))
        if others_come:
            self.waited_for.append((command, process))
        else:
            self.await_server(command, process)

    def await_server(self, command, process):
        end = threading.Timer(LIMIT_S, process.kill)
        end.start()
        found = None
        for line in process.stderr:
            self.said.append(line.rstrip("\n"))
            if found := re.search(r"listening on (https?://\S+)", line):
                self.env["SLUICE_URL"] = found.group(1)
                break
        end.cancel()
        assert found, f"{command} does not listen: {self.said}"

    def end(self):
        """As an operator does: servers at SIGTERM, and workers with theirs."""
        for command, process in self.waited_for:
            self.await_server(command, process)
        for command, process in reversed(self.servers):
            process.send_signal(signal.SIGTERM)
            _, late = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, f"{command}: exit {process.returncode}\n{late}"
        for command, process, log in self.workers:
            process.wait(LIMIT_S)
            log.seek(0)
            assert process.returncode == 0, f"{command}: exit {process.returncode}\n{log.read()}"
            log.close()


def commands(text):
    """Of a block: lines with "$", or all of them; those that go on behind a backslash are one."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    lines = [re.sub(r"\s+#.*", "", line) for line in lines]
    return [part for line in lines if line.strip() and not line.startswith("#") for part in line.split(" && ")]


def expected(text):
    """Lines that the commands of a block say, without numbers, until "..."."""
    if "\n$ " not in "\n" + text:
        return []
    lines = [line for line in text.splitlines() if not line.startswith("$ ") and not MACHINES.search(line)]
    return [numberless(line) for line in lines if line.strip() != "..."]


def numberless(line):
    return re.sub(r"\d+(\.\d+)?", "N", line).strip()


def run_block(language, text, model, hub):
    first = text.splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(pathlib.Path(folder), model, hub)
        plan = next((t for kind, t in blocks("README.md") if kind == "json"), None)
        (place.folder / "plan.json").write_text(plan)
        for command in BEFORE.get(first, []):
            place.run(command)
        if language == "python":
            (place.folder / "block.py").write_text(place.here(text))
            place.run(f"{sys.executable} block.py")
        else:
            for command in commands(text) + AFTER.get(first, []):
                place.run(command)
        place.end()
        said = [numberless(line) for line in place.said]
        missing = [line for line in expected(text) if not any(line in s for s in said)]
        assert not missing, f"nobody said {missing}: {place.said}"


def make_model(out):
    """The fixture, with a context that takes prompts of the length that verbs have by themselves."""
    shutil.copytree(FIXTURE, out, ignore=shutil.ignore_patterns("golden.json", "*.npy", "*.jsonl"))
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return out


def make_hub(folder, model):
    """ORG/MODEL: a folder, two GGUF files, a tag."""
    hub = localhub.Hub()
    files = {p.name: p.read_bytes() for p in model.iterdir()}
    gguf = folder / "model.gguf"
    subprocess.run([SLUICE, "convert", model, gguf, "--type", "q8_0"], check=True, stdout=subprocess.DEVNULL)
    for kind in ("Q4_K_M", "Q8_0"):
        files[f"model-{kind}.gguf"] = gguf.read_bytes()
    for name in ("ORG/MODEL", "allenai/OLMoE-1B-7B-0924-Instruct"):
        hub.repos[name] = localhub.Repo(files)
        hub.repos[name].refs["v1.0"] = hub.repos[name].commit
    return hub


def main():
    pages, failed, gone = sys.argv[1:] or PAGES, 0, set(NOT_RUN)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = make_model(folder / "model")
        hub = stack.enter_context(contextlib.closing(make_hub(folder, model)))
        for page in pages:
            for language, text in blocks(page):
                first, began = text.splitlines()[0], time.monotonic()
                if why := NOT_RUN.get((page, first)):
                    gone.discard((page, first))
                    print(f"{page}: {first[:60]!r} is not run: {why}", flush=True)
                    continue
                if language == "json":
                    json.loads(text)
                    continue
                try:
                    with ended.scope():
                        run_block(language, text, model, hub)
                    print(f"{page}: {first[:60]!r}: {time.monotonic() - began:.1f} s", flush=True)
                except (AssertionError, OSError, subprocess.SubprocessError) as e:
                    failed += 1
                    print(f"{page}: {first[:60]!r}: FAILED: {e}", flush=True)
    for page, first in gone:
        if page in pages:
            failed += 1
            print(f"{page}: NOT_RUN names a block that is not there: {first!r}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
