"""--schedule auto: it measures, says what it chose and why, and changes no token.

SLUICE_BIN names the program (default build/sluice)."""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ended  # noqa: E402
import launched  # noqa: E402
from served import Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"
SPLIT = ["--attention", "1", "--experts", "2"]


def run(*args):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=120, env=clean)
    assert done.returncode == 0, done.stderr
    assert "Sanitizer" not in done.stderr
    return done.stdout, done.stderr


def generate(*args):
    out, err = run("run", FIXTURE, "--ids", "3,17,41,9,30,2", "-n", 12, "--temp", 0, "--json", *args)
    return json.loads(out)["ids"], [line for line in err.splitlines() if " auto: " in line]


@pytest.mark.parametrize("transport", ["loop", "shm", "tcp"])
def test_ids_are_those_of_the_simplest_schedule(transport):
    common = [*SPLIT, "--transport", transport]
    want, lines = generate(*common, "--schedule", "dep", "--log", "info")
    assert lines == []
    got, lines = generate(*common, "--schedule", "auto", "--log", "info")
    assert got == want
    assert len(lines) == 2
    took = re.search(r"measured in (\d+) ms: us a block, decode of 1 rows / prompt of \d+: attention", lines[0])
    assert took and int(took.group(1)) < 5000
    assert re.search(r"auto: \w+.*: decode \d+, prompt \d+ us a block; simplest schedule \d+, \d+", lines[1])
    assert generate(*common)[0] == want  # auto is the default


def test_candidates_are_in_the_debug_log():
    _, lines = generate(*SPLIT, "--transport", "loop", "--log", "debug", "--exact")
    candidates = [line for line in lines if "score" in line]
    assert any("dep: decode" in line for line in candidates)
    assert any("chunks by experts" in line for line in candidates)
    _, lines = generate(*SPLIT, "--transport", "loop", "--log", "debug")
    assert not any("by experts" in line for line in lines)  # other sums: only under --exact


def test_what_is_said_is_not_measured():
    for said in (["--schedule", "pingpong"], ["--schedule", "findep", "--chunks", "2"]):
        assert generate(*SPLIT, *said, "--log", "info")[1] == []
    _, lines = generate("--log", "info")
    assert len(lines) == 1 and "one worker does all" in lines[0]


def emulated(tmp_path, attention, expert, **others):
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"attention": {"row": attention}, "expert": {"row": expert}, **others}))
    return ["--device", f"emulated:{path}"]


def test_serve_shows_it(tmp_path):
    command = [SLUICE, "serve", FIXTURE, "--port", "0", "--json", "--attention", "1", "--experts", "1",
               "--max-num-seqs", "16", *emulated(tmp_path, 100, 50, dense={"row": 30})]
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        about = json.loads(server.stdout.readline())
        lanes = about["lanes"]  # a busy machine's link can ask for more of them
        assert (about["schedule"], about["chunks"]) == ("pingpong", 1) and lanes >= 2
        assert about["schedule_why"].startswith(f"pingpong, {lanes} lanes: decode ")
        text = urllib.request.urlopen(about["url"] + "/metrics", timeout=10).read().decode()
        assert f'sluice:schedule_info{{schedule="pingpong",lanes="{lanes}",chunks="1"}} 1' in text
        predicted = float(re.search(r'schedule_predicted_layer_seconds{rows="decode"} (\S+)', text).group(1))
        assert 16 * 100e-6 <= predicted < 0.05  # 16 rows of 100 us on the slower side, or links of a busy machine
        sample = json.loads(urllib.request.urlopen(about["url"] + "/live", timeout=10).readline().removeprefix(b"data: "))
        # of the block without experts: attention and feed-forward of a micro-batch's rows
        assert sample["predicted_dense_us"] == pytest.approx([130 * rows / lanes for rows in sample["predicted_rows"]], abs=0.01)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=30)


@pytest.mark.parametrize("floor,chunks", [(1e6, 1), (0, 4)])
def test_findep_cuts_steps_by_what_they_are(tmp_path, floor, chunks):
    """Weights that bind: one chunk has all rows. Transfers that bind: all chunks have some."""
    plan = {"version": 1, "schedule": "findep", "lanes": 1, "chunks": 4, "exact": True, "threads": 1,
            "workers": [{"roles": ["attention"]}, {"roles": ["expert"]}],
            "limits": {"max_num_seqs": 4, "max_num_batched_tokens": 64, "context": 128, "kv_pages": 16}}
    used = {}
    for name, costs in (("plain", None), ("costs", {"attention": {"row": 1}, "expert": {"floor": floor, "row": 5},
                                                    "link": {"byte": 1}})):
        path, trace = tmp_path / f"{name}.json", tmp_path / f"{name}-trace.json"
        path.write_text(json.dumps({**plan, **({"costs": costs} if costs else {})}))
        out, _ = run("run", FIXTURE, "--ids", ",".join(map(str, range(3, 35))), "-n", 1, "--temp", 0, "--json",
                     "--transport", "loop", "--plan", path, "--trace", trace)
        events = json.loads(trace.read_text())["traceEvents"]
        used[name] = (json.loads(out)["ids"],
                      {e["args"]["chunk"] for e in events if e["name"] == "expert" and e["args"].get("rows")})
    assert used["plain"][0] == used["costs"][0]
    assert len(used["plain"][1]) == 4 and len(used["costs"][1]) == chunks


def test_it_is_quick():
    began = time.monotonic()
    generate(*SPLIT, "--transport", "shm")
    assert time.monotonic() - began < 10


class Elsewhere:
    """A server and workers that somebody else has started."""

    def __init__(self, folder, n, options, worker=()):
        port = str(launched.free_port())
        secret = folder / f"secret{port}"
        run("secret", "-o", secret)
        self.workers = [ended.start([SLUICE, "worker", "--join", f"127.0.0.1:{port}", "--secret-file", secret, "--threads", "1", "--log", "info", *worker],
                                    stderr=subprocess.PIPE, text=True) for _ in range(n)]
        self.server = Server(FIXTURE, "--remote", "--fabric-port", port, "--secret-file", secret, "--log", "debug", *options)
        self.said = [line for line in self.server.log if " auto: " in line]

    def stop(self):
        self.server.stop_well()
        return [worker.communicate(timeout=20)[1] for worker in self.workers]


def tokens(server):
    asked = {"model": "m", "prompt": [3, 17, 41, 9, 30, 2], "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    return json.loads(server.request("POST", "/v1/completions", asked).read())["choices"][0]["token_ids"]


def test_workers_elsewhere_say_what_they_cost(tmp_path):
    """They are asked before they have a plan; the tokens are those of one process."""
    deployment = Elsewhere(tmp_path, 3, [*SPLIT, "--exact"])
    assert re.search(r"measured in \d+ ms: us a block, decode of \d+ rows / prompt of \d+: attention [1-9]", deployment.said[-2]), deployment.said
    chosen = re.search(r"auto: (\w+).*: decode \d+, prompt \d+ us a block; simplest schedule \d+, \d+", deployment.said[-1])
    assert any("chunks by experts" in line for line in deployment.said)
    assert tokens(deployment.server) == generate("--exact")[0]
    assert f'schedule="{chosen[1]}"' in deployment.server.request("GET", "/metrics").read().decode()
    deployment.stop()


def test_ranks_with_network_cards_elsewhere(tmp_path):
    """hybrid is a candidate where each worker has a card a rank, and runs where messages are long; nothing is measured of a device that is emulated."""
    ranks = ["--attention", "2", "--tp", "2"]
    emulated = ["--device", "emulated:H100", "--rank-link", "5:400", "--max-num-batched-tokens", "4096"]
    deployment = Elsewhere(tmp_path, 2, [*ranks, *emulated], ["--rails", "127.0.0.1"])
    assert any("auto: hybrid: decode" in line for line in deployment.said), deployment.said  # which one is chosen depends on how busy the machine is
    assert len(tokens(deployment.server)) == 12
    deployment.stop()
    deployment = Elsewhere(tmp_path, 2, [*ranks, *emulated])
    assert not any("hybrid" in line for line in deployment.said)
    deployment.stop()


@pytest.mark.parametrize("numerics", [[], ["--exact"]])
def test_resolved_elsewhere(tmp_path, numerics):
    """Workers that somebody else started choose anew as they run, from what they measure; no token is another one."""
    many = ["--schedule", "findep", "--microbatches", "4", "--chunks", "4", "--resolve", "1"]  # for one request at a time four lanes are three too many
    deployment = Elsewhere(tmp_path, 3, [*SPLIT, *many, *numerics])
    want = generate(*SPLIT, "--schedule", "dep", *numerics)[0]
    deadline = time.monotonic() + 60
    while sum(deployment.server.metrics("worker_schedule_changes_total")) == 0:
        assert tokens(deployment.server) == want
        assert time.monotonic() < deadline, "nothing was chosen anew"
    with concurrent.futures.ThreadPoolExecutor(8) as asking:
        assert all(got == want for got in asking.map(tokens, [deployment.server] * 16))
    said = "".join(deployment.stop())
    assert re.search(r"resolved: (\d lanes, order \w+|steps of up to \d+ rows in \d chunks of)", said), said


def test_a_worker_that_cannot_measure(tmp_path):
    """Its model is another one's: whatever it says then, nobody waits for it."""
    (tmp_path / "empty").mkdir()
    secret, port = tmp_path / "secret", str(launched.free_port())
    run("secret", "-o", secret)
    worker = ended.start([SLUICE, "worker", "--join", f"127.0.0.1:{port}", "--secret-file", secret, "--model", tmp_path / "empty"],
                         stderr=subprocess.PIPE, text=True)
    server = ended.start([SLUICE, "serve", FIXTURE, "--port", "0", "--remote", "--attention", "1", "--experts", "1", "--fabric-port", port,
                          "--secret-file", secret], stderr=subprocess.PIPE, text=True)
    other = ended.start([SLUICE, "worker", "--join", f"127.0.0.1:{port}", "--secret-file", secret], stderr=subprocess.PIPE, text=True)
    said = server.communicate(timeout=60)[1]
    assert re.search(r"auto: dep: worker \d does not know what its stages cost: ", said), said
    assert server.returncode != 0  # without a model it is no worker either
    for process in (worker, other):
        process.communicate(timeout=20)
