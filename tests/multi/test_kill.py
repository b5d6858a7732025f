"""Killing workers of a running server: who is affected gets a clear error within 5 s, all others go on.

The server under test is SLUICE_BIN (default build/sluice) with worker processes on this machine."""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"
TOKENS = 480
ERROR_WITHIN_S = 5.0


class Server:
    def __init__(self, *options):
        command = [SLUICE, "serve", FIXTURE, "--port", "0", "--served-model-name", "m", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        self.port = None
        deadline = time.monotonic() + 60
        while self.port is None:
            line = self.process.stderr.readline()
            assert line and time.monotonic() < deadline, "".join(self.log)
            self.log.append(line)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            self.port = int(found.group(1)) if found else None
        self.reader = threading.Thread(target=self._drain, daemon=True)
        self.reader.start()

    def _drain(self):
        for line in self.process.stderr:
            self.log.append(line)

    def worker_pid(self, worker):
        """The child process that was told to be this worker of the plan."""
        task = pathlib.Path(f"/proc/{self.process.pid}/task")
        children = [int(p) for t in task.iterdir() for p in (t / "children").read_text().split()]
        for pid in children:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--worker-id" in words and words[words.index(b"--worker-id") + 1] == b"%d" % worker:
                return pid
        raise AssertionError(f"no process of worker {worker} among {children}")

    def request(self, method, path, body=None, timeout=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        return connection.getresponse()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
        return self.process.returncode


class Stream(threading.Thread):
    """One streamed completion: what came, when it ended, and how."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.server, self.seed = server, seed
        self.chunks, self.error, self.done, self.ended = 0, None, False, None
        self.started = threading.Event()

    def run(self):
        body = {"model": "m", "prompt": [3, 17, 41 + self.seed], "max_tokens": TOKENS, "stream": True,
                "temperature": 0, "ignore_eos": True}
        response = self.server.request("POST", "/v1/completions", body)
        if response.status != 200:
            self.error = response.read().decode()
        else:
            self.read_events(response)
        self.ended = time.monotonic()
        self.started.set()

    def read_events(self, response):
        for raw in response:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    self.error = event["error"]["message"]
                else:
                    self.chunks += 1
                    self.started.set()


def start_streams(server, n):
    streams = [Stream(server, i) for i in range(n)]
    for s in streams:
        s.start()
    for s in streams:
        assert s.started.wait(30), "a stream did not start"
    return streams


def join_all(streams):
    for s in streams:
        s.join(60)
        assert not s.is_alive(), "a stream did not end"


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


@pytest.fixture
def server(request):
    s = Server(*request.param)
    yield s
    code = s.stop()
    assert code == 0, "".join(s.log)
    assert not re.search(r"Sanitizer|assertion failed", "".join(s.log)), "".join(s.log)


@pytest.mark.parametrize("server", [("--attention", "2", "--experts", "2")], indirect=True)
def test_attention_worker_killed(server):
    streams = start_streams(server, 8)
    killed_at = time.monotonic()
    os.kill(server.worker_pid(0), signal.SIGKILL)
    join_all(streams)
    lost = [s for s in streams if s.error]
    kept = [s for s in streams if not s.error]
    assert lost and kept, f"{len(lost)} lost, {len(kept)} kept"
    for s in lost:
        assert "attention worker 0 was lost" in s.error, s.error
        assert s.ended - killed_at < ERROR_WITHIN_S
    for s in kept:
        assert s.done and s.chunks >= 1
    assert server.request("GET", "/health").status == 200
    again = start_streams(server, 2)
    join_all(again)
    assert all(s.done and not s.error for s in again)
    assert_books_balance(server, 4)


@pytest.mark.parametrize(
    "server",
    [("--attention", "1", "--experts", "2"), ("--attention", "1", "--experts", "2", "--transport", "tcp")],
    indirect=True,
)
def test_expert_worker_killed(server):
    streams = start_streams(server, 4)
    killed_at = time.monotonic()
    os.kill(server.worker_pid(2), signal.SIGKILL)
    join_all(streams)
    for s in streams:
        assert s.error and "expert worker 2" in s.error and "lost" in s.error, s.error
        assert s.ended - killed_at < ERROR_WITHIN_S
    assert server.request("GET", "/health").status == 503
    assert server.request("GET", "/v1/models").status == 200
    assert_books_balance(server, 3)
    refused = server.request("POST", "/v1/completions", {"model": "m", "prompt": [3], "max_tokens": 4})
    assert refused.status == 503
    assert "error" in json.loads(refused.read())


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


@pytest.mark.parametrize("server", [("--attention", "2", "--experts", "1", "--silence-limit", "4")], indirect=True)
def test_hung_worker_is_killed(server):
    streams = start_streams(server, 2)
    pid = server.worker_pid(2)
    os.kill(pid, signal.SIGSTOP)
    join_all(streams)
    for s in streams:
        assert s.error and ("silent for" in s.error or "has lost expert worker 2" in s.error), s.error
    deadline = time.monotonic() + 30
    while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not pathlib.Path(f"/proc/{pid}").exists()
    assert server.request("GET", "/health").status == 503


@pytest.mark.parametrize("transport", ["shm", "tcp", "loop"])
def test_a_clean_stop_loses_nobody(transport):
    """Workers that leave say so, in whatever order the others hear of it."""
    for shape in (("--attention", "2", "--experts", "3"), ("--attention", "4")):
        server = Server(*shape, "--schedule", "dep" if "--experts" in shape else "ep", "--transport", transport)
        streams = [Stream(server, i) for i in range(4)]
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
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        metrics = server.request("GET", "/metrics").read().decode()
        if re.search(r"^sluice:num_requests_running\S* 0", metrics, re.M):
            break
        time.sleep(0.1)
    else:
        raise AssertionError(metrics)
