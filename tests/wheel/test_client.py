"""The Python package's client and its server of this machine, against the real program and against servers that misbehave."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
from certificates import certificate  # noqa: E402
from package import CASES, MODEL, sluice_moe  # noqa: E402

KEY = "a-key-of-the-tests"
GREEDY = CASES[0]


@pytest.fixture(scope="module")
def server():
    with sluice_moe.Server(MODEL, admin=True, api_key=KEY, attention=1, experts=2, exact=True, served_model_name="m,other") as s:
        yield s
    assert s.process.returncode == 0, "\n".join(s.log)


@pytest.fixture
def client(server):
    return server.client(timeout=30)


def value(client, name, **labels):
    return sum(s.value for s in client.metrics() if s.name == f"sluice:{name}" and all(s.labels.get(k) == v for k, v in labels.items()))


def until(true, within=20):
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_greedy_ids_are_those_of_transformers_plain_and_streamed(client):
    ids, n = GREEDY["greedy_ids"][:24], 24
    plain = client.complete(GREEDY["prompt_ids"], max_tokens=n, temperature=0, extra={"return_token_ids": True})
    assert list(plain.choices[0].token_ids) == ids
    assert plain.choices[0].finish_reason == "length" and plain.usage.completion_tokens == n and plain.model == "m"
    with client.stream_complete(GREEDY["prompt_ids"], max_tokens=n, temperature=0, extra={"return_token_ids": True}) as stream:
        pieces = list(stream)
    assert "".join(p.text for p in pieces) == plain.text
    assert [i for p in pieces for i in p.token_ids or ()] == ids
    assert pieces[-1].finish_reason == "length" and stream.usage == plain.usage and stream.id
    assert client.tokenize(client.detokenize(ids)) == ids


def test_chats_and_seeds(client):
    asked = {"max_tokens": 12, "temperature": 0.9, "top_p": 0.95, "seed": 5}
    plain = client.chat("Now the word", **asked)
    assert plain.text and plain.text == client.chat([{"role": "user", "content": "Now the word"}], **asked).text
    with client.stream_chat("Now the word", **asked) as stream:
        assert "".join(p.text for p in stream) == plain.text
    several = client.complete("Now the", max_tokens=4, temperature=1, seed=1, extra={"n": 3})
    assert [c.index for c in several.choices] == [0, 1, 2]


def test_what_the_server_says_of_itself(server, client):
    assert [m.id for m in client.models()] == ["m", "other"] and client.models()[0].context > 0
    assert client.health() == sluice_moe.Health("ok", True, {"status": "ok"})
    client.wait_ready(5)
    assert client.version()
    before = value(client, "generation_tokens_total")
    client.complete("Now", max_tokens=3, temperature=0)
    until(lambda: value(client, "generation_tokens_total") == before + 3)
    with client.live() as samples:
        sample = next(samples)
    assert sample.serving and not sample.recovering and len(sample.workers) == 3
    with pytest.raises(sluice_moe.ConnectError, match="0.05 s"):
        client.complete("Now", max_tokens=400, temperature=0, timeout=0.05, extra={"ignore_eos": True, "n": 40})


def test_a_stream_that_is_dropped_ends_its_request(client):
    before = value(client, "request_success_total", finished_reason="abort")
    stream = client.stream_complete("Now", max_tokens=480, temperature=0, extra={"ignore_eos": True})
    next(stream)
    del stream
    until(lambda: value(client, "request_success_total", finished_reason="abort") >= before + 1)


def test_workers_leave_and_come(client):
    assert [w.role for w in client.workers()] == ["attention", "expert", "expert"]
    away = client.wait(2, client.drain(2, timeout=5))
    assert away.state == "drained" and away.operation.done and away.operation.error is None
    back = client.wait(2, client.join(2))
    assert back.state == "serving" and back.pid > 0
    assert client.wait(2, client.restart(2, timeout=5)).state == "serving"
    with pytest.raises(sluice_moe.RefusedError) as e:
        client.drain(9)
    assert (e.value.status, e.value.code) == (404, "unknown_worker")
    killed = {w.id: w.pid for w in client.workers()}[1]
    client.kill(1)
    until(lambda: {w.id: w.pid for w in client.workers() if w.state == "serving"}.get(1, killed) != killed)
    client.wait_ready(20)


def test_refusals_say_field_and_code(server, client):
    for asked, status, code, param in (({"extra": {"tempreature": 1}}, 400, "unknown_parameter", "tempreature"),
                                       ({"model": "nobody"}, 404, "model_not_found", "model"),
                                       ({"temperature": 9}, 400, None, "temperature")):
        with pytest.raises(sluice_moe.RefusedError) as e:
            client.complete("a", **asked)
        assert (e.value.status, e.value.code, e.value.param) == (status, code, param)
        with pytest.raises(sluice_moe.RefusedError):
            client.stream_complete("a", **asked)
    with pytest.raises(sluice_moe.RefusedError, match="401"):
        sluice_moe.Client(server.url).models()
    with pytest.raises(ValueError, match="admin_key"):
        sluice_moe.Client(server.url).workers()
    with pytest.raises(ValueError, match="twice"):
        client.complete("a", max_tokens=1, extra={"max_tokens": 2})


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", "http://a?b=c"])
def test_addresses_are_checked(url):
    with pytest.raises(ValueError, match="url"):
        sluice_moe.Client(url)


def test_https(tmp_path):
    cert, key = certificate(tmp_path)
    with sluice_moe.Server(MODEL, tls_cert=str(cert), tls_key=str(key)) as secure:
        assert secure.url.startswith("https://127.0.0.1:")
        trusting = secure.client(cacert=cert)
        trusting.wait_ready(20)
        with trusting.stream_complete("a", max_tokens=3) as stream:
            assert "".join(delta.text for delta in stream) and stream.usage.completion_tokens == 3
        for call in (lambda: secure.client().models(), lambda: secure.client().wait_ready(20)):  # no waiting helps
            with pytest.raises(sluice_moe.UntrustedError, match="certificate"):
                call()
    with pytest.raises(ValueError, match="cacert: .*none.pem"):
        sluice_moe.Client("https://127.0.0.1:1", cacert=tmp_path / "none.pem")
    with pytest.raises(ValueError, match="cacert"):
        sluice_moe.Client("http://127.0.0.1:1", cacert=cert)


@contextlib.contextmanager
def answering(*sent, then_close=True):
    """A server that sends these bytes to whoever connects."""
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def run():
        with contextlib.suppress(OSError):
            while True:
                at, _ = listener.accept()
                held.append(at)
                if not sent:
                    continue
                at.recv(65536)
                for part in sent:
                    at.sendall(part)
                if then_close:
                    at.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield sluice_moe.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        for at in held:
            at.close()


OK, EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EVENT = b'data: {"id": "1", "choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'


def test_servers_that_misbehave():
    with answering() as silent, pytest.raises(sluice_moe.ConnectError, match="0.5 s"):
        silent.models()
    with answering(OK, b"{]") as bad, pytest.raises(sluice_moe.AnswerError, match="JSON"):
        bad.models()
    with answering(OK, b"[]") as bad, pytest.raises(sluice_moe.AnswerError, match="object"):
        bad.models()
    with answering(OK, b'{"data": [{}]}') as bad, pytest.raises(sluice_moe.AnswerError, match="shape"):
        bad.models()
    with answering(OK, b'{"choices": 7}') as bad, pytest.raises(sluice_moe.AnswerError, match="shape"):
        bad.complete("a", model="m")
    with answering(b"SSH-2.0-none\r\n") as bad, pytest.raises(sluice_moe.ConnectError):
        bad.models()
    with answering(b"HTTP/1.1 502 Bad Gateway\r\nRetry-After: 3\r\n\r\n<html>") as proxy, pytest.raises(sluice_moe.RefusedError) as e:
        proxy.models()
    assert e.value.status == 502 and e.value.retry_after == 3
    with socket.create_server(("127.0.0.1", 0)) as s:
        nobody = sluice_moe.Client(f"http://127.0.0.1:{s.getsockname()[1]}")
    with pytest.raises(sluice_moe.ConnectError, match="refused"):
        nobody.health()
    with pytest.raises(sluice_moe.ConnectError, match="not ready"):
        nobody.wait_ready(0.2)


def test_streams_that_break():
    with answering(EVENTS, EVENT) as cut:
        stream = cut.stream_complete("a", model="m")
        assert next(stream).text == "a"
        with pytest.raises(sluice_moe.ConnectError, match="before its end"):
            next(stream)
        assert list(stream) == []
    with answering(EVENTS, EVENT, then_close=False) as still, still.stream_complete("a", model="m") as stream:
        next(stream)
        with pytest.raises(sluice_moe.ConnectError):
            next(stream)
    with answering(EVENTS, EVENT, b'data: {"error": {"message": "lost", "code": "worker_lost"}}\n\n') as failed:
        stream = failed.stream_complete("a", model="m")
        next(stream)
        with pytest.raises(sluice_moe.RefusedError, match="lost"):
            next(stream)
    with answering(EVENTS, b'data: {"id": "1", "choices": [3]}\n\n') as odd, pytest.raises(sluice_moe.AnswerError, match="shape"):
        list(odd.stream_complete("a", model="m"))


def test_a_server_that_does_not_start_says_why(tmp_path):
    with pytest.raises(sluice_moe.ServerError, match="nowhere"):
        sluice_moe.Server(tmp_path / "nowhere")
    with pytest.raises(sluice_moe.ServerError, match="tempreature"):
        sluice_moe.Server(MODEL, tempreature=1)
    with pytest.raises(sluice_moe.ServerError, match="not ready within 0 s"):
        sluice_moe.Server(MODEL, ready_within=0)


def test_a_server_leaves_nothing_behind():
    with sluice_moe.Server(MODEL, admin=True) as server:
        folder, pid = server._folder.name, server.process.pid
        assert os.stat(os.path.join(folder, "admin.key")).st_mode & 0o777 == 0o600
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
    assert not os.path.exists(folder) and not os.path.exists(f"/proc/{pid}")
    with pytest.raises(sluice_moe.ConnectError):
        server.client().health()
