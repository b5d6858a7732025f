"""SIGTERM lets running requests finish and takes no new ones; --drain-timeout, a second signal and SIGINT end them."""
import json
import signal
import subprocess
import threading
import time

import httpx
import openai
import pytest

LONG = {"prompt": [3, 17, 41], "max_tokens": 480, "n": 100, "temperature": 0, "stream": True, "ignore_eos": True}


class Stream(threading.Thread):
    """One streamed completion, read to its end."""

    def __init__(self, server, **body):
        super().__init__(daemon=True)
        self.url, self.body = server.url + "/v1/completions", {"model": server.model, **body}
        self.lines, self.began, self.error = [], threading.Event(), None
        self.start()
        assert self.began.wait(100), "the stream did not begin"

    def run(self):
        try:
            with httpx.stream("POST", self.url, json=self.body, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.lines.append(line)
                        self.began.set()
        except httpx.TransportError as e:
            self.error = e

    def end(self, seconds=30):
        self.join(seconds)
        assert not self.is_alive(), "the stream did not end"
        return self.lines[-1]


def exit_code(server, seconds=20):
    try:
        return server.process.wait(seconds)
    finally:
        server.process.kill()


def test_running_requests_finish(make_server):
    server = make_server("qwen3moe-tiny", "--max-num-seqs", "2", "--drain-timeout", "300")
    body = {**LONG, "n": 24}
    streams = [Stream(server, **body), Stream(server, **body)]
    server.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 5
    while server.get("/health").status_code == 200:
        assert time.monotonic() < end, "/health does not say that the server drains"
    health = server.get("/health")
    assert health.status_code == 503 and health.json() == {"status": "draining"}
    refused = httpx.post(server.url + "/v1/completions", json={"model": server.model, "prompt": [3]}, timeout=30)
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.json()["error"]["code"] == "draining" and refused.json()["error"]["type"] == "server_error"
    with pytest.raises(openai.InternalServerError, match="shutting down"):
        server.client().chat.completions.create(model=server.model, messages=[{"role": "user", "content": "a"}])
    assert server.get("/metrics").status_code == 200
    assert streams[1].is_alive(), "the streams were over too early to show anything"
    for s in streams:
        assert s.end() == "data: [DONE]"
        tokens = [json.loads(line[6:]) for line in s.lines[:-1]]
        assert sum(c["finish_reason"] == "length" for t in tokens for c in t["choices"]) == 24
    assert exit_code(server) == 0


def test_idle_server_leaves_at_once(make_server):
    server = make_server("qwen3moe-tiny")
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert exit_code(server) == 0
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("how", ["timeout", "second signal", "SIGINT"])
def test_unfinished_requests_get_an_error(make_server, how):
    timeout = "1" if how == "timeout" else "60"
    server = make_server("qwen3moe-tiny", "--max-num-seqs", "1", "--drain-timeout", timeout)
    stream = Stream(server, **LONG)
    waiting = []
    whole = threading.Thread(target=lambda: waiting.append(httpx.post(
        server.url + "/v1/completions", json={"model": server.model, "prompt": [5], "max_tokens": 4}, timeout=60)))
    whole.start()
    end = time.monotonic() + 30
    while server.metric("request_params_n_count") < 2:
        assert time.monotonic() < end, "the second request did not arrive"
        time.sleep(0.05)
    assert server.metric("num_requests_waiting") > 1
    began = time.monotonic()
    server.process.send_signal(signal.SIGINT if how == "SIGINT" else signal.SIGTERM)
    if how == "second signal":
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
    assert "the server is stopping" in stream.end(15)
    whole.join(15)
    assert waiting[0].status_code == 503 and "error" in waiting[0].json()
    assert exit_code(server) == 0
    assert time.monotonic() - began < 8
    assert how != "timeout" or time.monotonic() - began >= 1


def test_waiting_for_remote_workers_ends_cleanly(make_server, tmp_path):
    from conftest import BINARY, GOLDEN
    secret = tmp_path / "secret"
    subprocess.run([BINARY, "secret", "-o", secret], check=True)
    process = subprocess.Popen([BINARY, "serve", GOLDEN / "qwen3moe-tiny", "--port", "0", "--remote", "--transport",
                                "shm", "--attention", "1", "--experts", "1", "--secret-file", secret],
                               stderr=subprocess.PIPE, text=True)
    time.sleep(0.7)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0, process.stderr.read()
