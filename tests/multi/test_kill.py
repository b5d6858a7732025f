"""Killing workers of a running server: every request goes on with the same tokens. tests/chaos draws many more faults.

The server under test is SLUICE_BIN (default build/sluice) with worker processes on this machine."""

import functools
import http.client
import json
import math
import os
import pathlib
import re
import signal
import sys
import threading
import time

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[1] / "soak")]
import crowd  # noqa: E402
import ended  # noqa: E402
import sample  # noqa: E402
import served  # noqa: E402
from served import ROOT, SLUICE  # noqa: E402, F401

FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"
TOKENS = 480
FEW = 60
GOES_ON_WITHIN_S = 60.0  # a few tenths where nothing else has the processors


class Server(served.Server):
    def __init__(self, *options):
        super().__init__(FIXTURE, *options)
        self.options = options


class Stream(threading.Thread):
    """One streamed completion: the tokens that came, the longest time between two of them, and how it ended."""

    def __init__(self, server, seed, **fields):
        super().__init__(daemon=True)
        self.server, self.seed, self.fields, self.logprobs = server, seed, fields, []
        self.ids, self.error, self.done, self.longest_gap = [], None, False, 0.0
        self.started = threading.Event()

    def run(self):
        body = {"model": "m", "prompt": [3, 17, 41 + self.seed], "max_tokens": TOKENS, "stream": True,
                "temperature": 0, "ignore_eos": True, "return_token_ids": True, **self.fields}
        response = self.server.request("POST", "/v1/completions", body)
        if response.status != 200:
            self.error = response.read().decode()
        else:
            self.read_events(response)
        self.started.set()

    def read_events(self, response):
        last = None
        for raw in response:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    self.error = event["error"]["message"]
                elif event["choices"]:
                    now = time.monotonic()
                    self.longest_gap = max(self.longest_gap, now - (last or now))
                    last = now
                    self.ids += event["choices"][0].get("token_ids") or []
                    self.logprobs += (event["choices"][0].get("logprobs") or {}).get("token_logprobs") or []
                    self.started.set()


def start_streams(server, n, **fields):
    streams = [Stream(server, i, **fields) for i in range(n)]
    for s in streams:
        s.start()
    for s in streams:
        assert s.started.wait(30), "a stream did not start"
    return streams


def join_all(streams):
    for s in streams:
        s.join(60)
        assert not s.is_alive(), "a stream did not end"


@functools.cache
def calm(*options):
    """The tokens of a process that nobody disturbs; with --exact those of every deployment, but for what a wire or KV rounds."""
    server = Server("--exact", "--transport", "loop", *options)
    streams = start_streams(server, 8)
    join_all(streams)
    assert server.stop() == 0
    return [s.ids for s in streams]


def went_on(server, streams):
    """All have ended with the tokens that they have when nothing is killed, and so do those who ask after that."""
    join_all(streams)
    exact = "--exact" in server.options and "--wire" not in server.options
    n = FEW if exact else TOKENS
    again = start_streams(server, len(streams), max_tokens=n)
    join_all(again)
    want = calm()[:len(streams)] if exact else [s.ids for s in again]
    for s, later, ids in zip(streams, again, want, strict=True):
        assert s.done and not s.error, s.error
        asked = s.fields.get("max_tokens", TOKENS)
        assert len(s.ids) == asked and s.ids == ids[:asked]
        assert s.longest_gap < GOES_ON_WITHIN_S
        assert later.done and len(later.ids) == n and later.ids == ids[:n], later.error
    print(f"longest gap {1e3 * max(s.longest_gap for s in streams):.0f} ms, undisturbed "
          f"{1e3 * max(s.longest_gap for s in again):.0f} ms")


def metric(server, name):
    return server.metrics(name)[0]


def of_all_workers(server, name):
    return sum(server.metrics(name))


def wait_until(holds, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def rows_of_each_worker(server):
    rows = {}
    for worker, state, n in re.findall(r'^sluice:worker_ledger_rows_total\{\S*worker="(\d+)"\S*state="(\w+)"\S*\} (\d+)',
                                       server.request("GET", "/metrics").read().decode(), re.M):
        rows.setdefault(worker, {})[state] = int(n)
    return rows


def assert_books_balance(server, n_workers):
    """Of the dead, too: what they had in flight is lost."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        rows = rows_of_each_worker(server)
        assert len(rows) == n_workers
        if all(r["created"] == r["merged"] + r["cancelled"] + r["lost"] for r in rows.values()):
            return
        time.sleep(0.1)
    raise AssertionError(rows)


@pytest.fixture(autouse=True)
def nobody_is_left():
    """For every file here that imports it."""
    with ended.scope():
        yield


@pytest.fixture
def server(request):
    s = Server(*request.param)
    yield s
    code = s.stop()
    assert code == 0, "".join(s.log)
    assert not re.search(r"Sanitizer|assertion failed", "".join(s.log)), "".join(s.log)


DEPLOYMENTS = [("--attention", "2", "--experts", "2"), ("--attention", "1", "--experts", "1", "--transport", "tcp"), ("--attention", "3")]


@pytest.mark.parametrize("server, role", sample.of([(("--exact", *d), role) for d in DEPLOYMENTS for role in ("first", "last")], 0, 3),
                         indirect=["server"])
def test_worker_killed(server, role):
    """Of attention or of experts, one of two or the only one; one that does both."""
    n = len(server.workers())
    streams = start_streams(server, 6)
    os.kill(server.worker_pid(0 if role == "first" else n - 1), signal.SIGKILL)
    went_on(server, streams)
    assert server.request("GET", "/health").status == 200
    assert metric(server, "workers_lost_total") == 1
    assert_books_balance(server, n)
    wait_until(lambda: len(server.workers()) == n and server.request("GET", "/readyz").status == 200, "the worker is not back")


FAKE_GPU = SLUICE.parent / "tests" / "libsluice-fake-cuda.so"  # the tests' driver


@pytest.mark.skipif(not FAKE_GPU.exists(), reason="no driver of the tests beside the program")
def test_worker_on_a_gpu_killed():
    """With numerics exact a request that is computed again has the same tokens: its prompt then is what it had decoded."""
    server = served.Server(FIXTURE, "--exact", "--attention", "1", "--experts", "1", "--device", "cuda:0", "--numerics", "exact", "--ctx", "128",
                           environment={**os.environ, "SLUICE_CUDA_DRIVER": str(FAKE_GPU)})
    assert json.loads(server.request("GET", "/version").read())["numerics"] == "exact"
    assert not json.loads(server.request("GET", "/props").read())["system_fingerprint"].endswith("-varies")
    fields = {"max_tokens": 12, "logprobs": 2}
    streams = start_streams(server, 2, **fields)
    os.kill(server.worker_pid(0), signal.SIGKILL)
    join_all(streams)
    again = start_streams(server, 2, **fields)
    join_all(again)
    for s, as_alone in zip(streams, again, strict=True):
        assert s.done and not s.error, s.error
        assert len(s.ids) == 12 and (s.ids, s.logprobs) == (as_alone.ids, as_alone.logprobs)
    assert metric(server, "rows_recomputed_total") > 0
    server.stop_well()


@pytest.mark.skipif(not FAKE_GPU.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("killed", sample.of([0, 3], 1))
def test_worker_killed_whose_gpu_others_write_to(killed):
    """Of attention or of experts: who stays no longer touches its memory, and exchanges rows so with who comes in its place."""
    server = served.Server(FIXTURE, "--exact", "--attention", "2", "--experts", "2", "--device", "cuda:0,cuda:1,cuda:1,cuda:0", "--ctx", "128",
                           environment={**os.environ, "SLUICE_CUDA_DRIVER": str(FAKE_GPU), "SLUICE_CUDA_ROWS": "try"})
    streams = start_streams(server, 2, max_tokens=60)
    wait_until(lambda: min(server.metrics("worker_device_bytes_total"), default=0) > 0, "no rows from GPU to GPU")
    os.kill(server.worker_pid(killed), signal.SIGKILL)
    join_all(streams)
    wait_until(lambda: len(server.workers()) == 4 and server.request("GET", "/readyz").status == 200, "the worker is not back")
    before = server.metrics("worker_device_bytes_total")
    again = start_streams(server, 2, max_tokens=12)
    join_all(again)
    for s, ids in zip(streams + again, calm("--kv-type", "f32")[:2] * 2, strict=True):  # KV of a GPU is f32
        assert s.done and not s.error, s.error
        assert len(s.ids) == s.fields["max_tokens"] and s.ids == ids[:len(s.ids)]
    wait_until(lambda: all(now > then for now, then in zip(server.metrics("worker_device_bytes_total"), before, strict=True)), "no rows from GPU to GPU any more")
    assert_books_balance(server, 4)
    server.stop_well()
    assert not any("go by the host" in line for line in server.log), "".join(server.log)


@pytest.mark.skipif(not FAKE_GPU.exists(), reason="no driver of the tests beside the program")
def test_a_request_that_a_gpu_fails_at_ends_alone():
    """A worker whose GPU fails ends as one that crashes: the prompt that a kernel cannot take is found, and given up."""
    server = served.Server(FIXTURE, "--attention", "1", "--experts", "1", "--device", "cuda:0", "--numerics", "cpu", "--ctx", "128",
                           environment={**os.environ, "SLUICE_CUDA_DRIVER": str(FAKE_GPU), "SLUICE_FAKE_CUDA_FAULT_ROWS": "40"})
    streams = start_streams(server, 1, max_tokens=16)
    body = {"model": "m", "prompt": [(7 * i + 3) % 1000 for i in range(60)], "max_tokens": 4, "temperature": 0}
    response = server.request("POST", "/v1/completions", body, timeout=60)
    error = response.read().decode()
    assert response.status == 500 and "crashes_workers" in error, error
    join_all(streams)
    assert all(s.done and not s.error for s in streams), [s.error for s in streams]
    assert any("its device has failed" in line and "CUDA_ERROR_ILLEGAL_ADDRESS" in line for line in server.log), "".join(server.log)
    assert server.stop() == 0


KEEPING = [("--attention", "1", "--experts", "1"), ("--attention", "1", "--experts", "1", "--transport", "tcp", "--schedule", "aep"),
           ("--attention", "1", "--transport", "shm"), ("--attention", "1", "--experts", "1", "--tp", "2", "--threads", "2")]
LONG = [(7 * i + 3) % 1000 for i in range(400)]


@pytest.mark.parametrize("server", sample.of([("--exact", *d) for d in KEEPING], 0, 3), indirect=True)
def test_kv_survives_its_worker(server):
    """Who comes in the place of a killed attention worker goes on with its KV: few rows of a long prompt are computed again."""
    asked = {"prompt": LONG, "max_tokens": 112, "logprobs": 3}
    for kill in range(1, 6):
        before = metric(server, "rows_recomputed_total")
        stream, = start_streams(server, 1, **asked)
        os.kill(server.worker_pid(0), signal.SIGKILL)
        join_all([stream])
        wait_until(lambda n=kill: metric(server, "workers_restarted_total") == n, "the worker is not back")
        kept, again = metric(server, "rows_kept_total"), metric(server, "rows_recomputed_total") - before
        as_alone, = start_streams(server, 1, **asked)
        join_all([as_alone])
        assert stream.done and not stream.error, stream.error
        assert len(stream.ids) == 112 and stream.ids == as_alone.ids and stream.logprobs == as_alone.logprobs
        assert len(stream.logprobs) == 112
        if kept:
            break  # else the stream was over before it was killed
    print(f"longest gap {1e3 * stream.longest_gap:.0f} ms, undisturbed {1e3 * as_alone.longest_gap:.0f} ms")
    assert kept >= len(LONG) and again < 32
    assert_books_balance(server, len(server.workers()))


REPLICATED = {"dep": (1, 2), "pingpong": (2, 3), "findep": (1, 3), "eps": (3, 0), "ep": (3, 0), "aep": (2, 3)}
MOST_KILLS = 8  # until one of them strikes while rows are away


@pytest.mark.parametrize("schedule", sample.of(REPLICATED, 1, 5))
def test_replicas_stand_in(schedule):
    """Every expert lives on two workers: whoever of them is killed, the sequencer too, no step is done again."""
    attention, experts = REPLICATED[schedule]
    n = attention + experts
    options = ["--attention", attention] + (["--experts", experts] if experts else [])
    server = Server("--exact", "--schedule", schedule, "--placement", "replicas:2", *map(str, options))
    hosts = range(attention if experts else 0, n)
    alone = start_streams(server, 3, logprobs=1)
    join_all(alone)
    killed, again = 0, 0
    while killed < 2 or (again == 0 and killed < MOST_KILLS):
        streams = start_streams(server, 3, logprobs=1)
        time.sleep(0.01 * killed)
        os.kill(server.worker_pid(hosts[-(killed % 2)]), signal.SIGKILL)
        killed += 1
        join_all(streams)
        for s, as_alone in zip(streams, alone, strict=True):
            assert s.done and not s.error, s.error
            assert len(s.ids) == len(s.logprobs) == TOKENS
            assert s.ids == as_alone.ids and s.logprobs == as_alone.logprobs
        wait_until(lambda: metric(server, "workers_restarted_total") == killed and
                   server.request("GET", "/readyz").status == 200, "the worker is not back")
        time.sleep(0.6)  # reports come twice a second
        again += of_all_workers(server, "worker_reissued_rows_total")
        # On a machine that is very busy another one may be left out as slow, and then nobody stands in.
        assert of_all_workers(server, "worker_steps_given_up_total") == 0 or metric(server, "workers_hedged_total") > 0
    assert again > 0
    assert_books_balance(server, n)
    assert server.stop() == 0


CHUNK = 64


def test_a_chunk_of_a_prompt_goes_again_and_no_more():
    """An expert worker is killed while prompts pass: of the step that was away at most its rows are asked of the replica, and no step is done again."""
    server = Server("--exact", "--schedule", "dep", "--placement", "replicas:2", "--attention", "1", "--experts", "2", "--max-num-batched-tokens", str(CHUNK))
    asked = {"prompt": LONG, "max_tokens": 2, "logprobs": 1}
    alone, = start_streams(server, 1, **asked)
    join_all([alone])
    killed, again = 0, 0
    while again == 0 and killed < 2 * MOST_KILLS:
        before = of_all_workers(server, "worker_reissued_rows_total")
        kill = threading.Timer(0.05 + 0.007 * killed, os.kill, (server.worker_pid(1 + killed % 2), signal.SIGKILL))
        kill.start()
        struck = False
        while not struck:  # one prompt after the other, the last one after the kill
            struck = not kill.is_alive()
            stream, = start_streams(server, 1, **asked)
            join_all([stream])
            assert stream.done and not stream.error, stream.error
            assert len(stream.ids) == 2 and stream.ids == alone.ids and stream.logprobs == alone.logprobs
        killed += 1
        wait_until(lambda n=killed: metric(server, "workers_restarted_total") == n and
                   server.request("GET", "/readyz").status == 200, "the worker is not back")
        time.sleep(0.6)  # reports come twice a second
        again = of_all_workers(server, "worker_reissued_rows_total") - before
        if metric(server, "workers_hedged_total") > 0:
            break  # on a machine that is very busy another one may be left out as slow
        assert again <= CHUNK
        assert of_all_workers(server, "worker_steps_given_up_total") == 0
    assert again > 0
    print(f"{again:.0f} rows of a step of at most {CHUNK} went again, after {killed} kills")
    crowd.await_balance(server.port)
    assert server.stop() == 0


@pytest.mark.parametrize("server", [("--exact", "--attention", "1", "--experts", "1")], indirect=True)
def test_who_looks_sees_a_loss(server):
    """/health, /readyz, the metric and one line of the log, while nobody stands in for who was lost."""
    streams = start_streams(server, 2)
    os.kill(server.worker_pid(1), signal.SIGKILL)
    seen, deadline = set(), time.monotonic() + 20
    while len(seen) < 3 and time.monotonic() < deadline:
        response = server.request("GET", "/health")
        health = json.loads(response.read())
        assert response.status == 200
        if health["status"] == "recovering":
            assert health["lost"].startswith("expert worker 1 was lost: "), health
            seen.add("health")
        if server.request("GET", "/readyz").status == 503:
            seen.add("readyz")
        if metric(server, "recovering") == 1:
            seen.add("metric")
    assert seen == {"health", "readyz", "metric"}
    went_on(server, streams)
    wait_until(lambda: json.loads(server.request("GET", "/health").read())["status"] == "ok", "it still recovers")
    assert metric(server, "recovering") == 0 and metric(server, "longest_pause_seconds") > 0
    assert sum("expert worker 1 was lost: " in line for line in server.log) == 1, "".join(server.log)


@pytest.mark.parametrize("server", [("--exact", "--attention", "2", "--experts", "2")], indirect=True)
def test_all_workers_killed(server):
    streams = start_streams(server, 4)
    for pid in server.workers().values():
        os.kill(pid, signal.SIGKILL)
    went_on(server, streams)
    wait_until(lambda: metric(server, "workers_restarted_total") == 4, "not all are back")  # streams need not wait for all of them
    assert_books_balance(server, 4)


VOCABULARY = json.loads((FIXTURE / "config.json").read_text())["vocab_size"]
STEP = next(s for s in range(VOCABULARY // 3 + 1, VOCABULARY) if math.gcd(s, VOCABULARY) == 1)  # of the emulated device's ids
INNOCENT = 8


def poison():
    """An id that no innocent stream has or gets."""
    said = {3, 17} | {(41 + i + k * STEP) % VOCABULARY for i in range(INNOCENT) for k in range(TOKENS + 1)}
    return next(i for i in range(100, VOCABULARY) if i not in said)


@pytest.mark.parametrize("shape, after", sample.of([(shape, after) for shape in [("--attention", "2", "--experts", "2"), ("--attention", "3"),
                                                                                  ("--attention", "1", "--experts", "1")]
                                                     for after in (0, 6)], 1, 2, 5))
def test_a_request_that_crashes_workers_ends_alone(tmp_path, shape, after):
    """Of nine streams one crashes whoever computes it, from its prompt on or when it has said some tokens."""
    device = tmp_path / "device.json"
    device.write_text(json.dumps({"attention": {"row": 50}, "expert": {"row": 50}, "crash_id": poison()}))
    server = Server(*shape, "--device", f"emulated:{device}")
    try:
        streams = start_streams(server, INNOCENT)
        body = {"model": "m", "prompt": [3, (poison() - after * STEP) % VOCABULARY], "max_tokens": TOKENS, "stream": True, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True}
        culprit = Stream(server, 0)
        response = server.request("POST", "/v1/completions", body, timeout=60)
        if after:
            culprit.read_events(response)
        else:  # nothing was said before
            culprit.error = response.read().decode()
            assert response.status == 500 and "crashes_workers" in culprit.error
        assert "crashed while this request ran alone" in culprit.error, (culprit.error, "".join(server.log))
        assert len(culprit.ids) == after
        assert metric(server, "workers_lost_total") >= 3
        went_on(server, streams)
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("server", [("--attention", "2", "--experts", "2")], indirect=True)
def test_worker_stopped_for_a_while(server):
    """Silence of a process of this machine is no death."""
    streams = start_streams(server, 2)
    pid = server.worker_pid(2)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    assert server.request("GET", "/health").status == 200
    os.kill(pid, signal.SIGCONT)
    join_all(streams)
    assert all(s.done and not s.error for s in streams), [s.error for s in streams]


@pytest.mark.parametrize("server", [("--exact", "--attention", "2", "--experts", "1", "--silence-limit", "3")], indirect=True)
def test_hung_worker_is_replaced(server):
    streams = start_streams(server, 2)
    pid = server.worker_pid(2)
    os.kill(pid, signal.SIGSTOP)
    went_on(server, streams)
    assert not pathlib.Path(f"/proc/{pid}").exists()
    assert any("silent for" in line for line in server.log), "".join(server.log)


@pytest.mark.parametrize("transport", ["shm", "tcp", "loop"])
def test_a_clean_stop_loses_nobody(transport):
    """Workers that leave say so, in whatever order the others hear of it."""
    for shape in (("--attention", "2", "--experts", "3"), ("--attention", "4")):
        server = Server(*shape, "--schedule", "dep" if "--experts" in shape else "ep", "--transport", transport)
        streams = [Stream(server, i, max_tokens=2 * FEW) for i in range(4)]
        for s in streams:
            s.start()
        join_all(streams)
        assert server.stop() == 0
        server.reader.join(10)
        assert not re.search(r" (warn|error) |lost|silent", "".join(server.log)), "".join(server.log)


@pytest.mark.parametrize("server", [("--attention", "1", "--experts", "1")], indirect=True)
def test_client_leaves(server):
    """A client that disconnects frees its request; the server goes on."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = {"model": "m", "prompt": [3, 17, 41], "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.readline()
    connection.close()
    wait_until(lambda: metric(server, "num_requests_running") == 0, "the request still runs")
