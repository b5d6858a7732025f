"""Clients that connect and ask nothing keep nobody else from being answered; a stop beside them is clean."""
import contextlib
import json
import signal
import threading

import httpx

from conftest import TLS


def test_idle_clients_and_few_open_files(make_server):
    files = 1156 if TLS else 300  # a client of HTTPS has three, not one
    server = make_server("qwen3moe-tiny", open_files=files)
    assert f"max-connections: 86 instead of 1024, as this process may have {files} open files" in server.log.read_text()
    with contextlib.ExitStack() as idle:
        for _ in range(400):
            idle.enter_context(server.connect())
        for _ in range(3):
            assert server.get("/health").status_code == 200
            assert 0 < server.metric("http_connections") <= 107 + 64
        answer = httpx.post(server.url + "/v1/completions", json={"model": server.model, "prompt": [3]}, timeout=30)
        assert answer.status_code == 200
    assert "those that wait for no answer give way" in server.log.read_text()


def test_stop_beside_new_clients_writes_the_trace(make_server, tmp_path):
    trace = tmp_path / "trace.json"
    server = make_server("qwen3moe-tiny", "--trace", trace)
    stopped = threading.Event()

    def keep_connecting():
        while not stopped.is_set():
            with contextlib.suppress(OSError):
                server.connect().close()

    clients = [threading.Thread(target=keep_connecting) for _ in range(2)]
    for c in clients:
        c.start()
    assert server.get("/health").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(60)
    finally:
        stopped.set()
        for c in clients:
            c.join()
    assert code == 0, server.log.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
