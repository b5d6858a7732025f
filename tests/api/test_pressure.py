"""Clients that leave give their pages back at once; clients that do not read cost a bounded amount."""
import json
import pathlib
import re
import socket
import time

import httpx
import openai
import pytest

STREAM = {"prompt": [3, 17, 41], "max_tokens": 480, "temperature": 0, "stream": True, "ignore_eos": True}


def ask(server, receive_bytes=None, **body):
    """A socket on which a request has been sent."""
    sock = server.connect(receive_bytes=receive_bytes)
    text = json.dumps({"model": server.model, **STREAM, **body})
    sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    return sock


def await_pages(server, taken, seconds=20):
    end = time.monotonic() + seconds
    while (server.metric("kv_cache_usage_perc") > 0) != taken:
        assert time.monotonic() < end, f"pages are not {'taken' if taken else 'free'}"


@pytest.mark.parametrize("workers", [[], ["--attention", "1", "--experts", "2"]], ids=["one process", "1+2 workers"])
def test_who_leaves_frees_pages_at_once(make_server, workers):
    # slow kernels: left alone a request runs for seconds, for longer where others have the processors
    server = make_server("qwen3moe-tiny", "--isa", "ref", *workers)
    began = time.monotonic()
    httpx.post(server.url + "/v1/completions", json={"model": server.model, **STREAM, "stream": False}, timeout=300)
    alone = time.monotonic() - began
    times = []
    for i in range(6):
        sock = ask(server, n=[1, 4][i % 2])
        sock.recv(100)
        await_pages(server, True)
        began = time.monotonic()
        if i % 3 == 0:  # reset rather than closed
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        await_pages(server, False)
        times.append(time.monotonic() - began)
    assert server.metric("num_requests_running") == 0
    assert server.metric("request_success_total", finished_reason="abort") == 6
    times.sort()
    print(f"alone {alone:.1f} s; pages free after {1e3 * times[3]:.0f} ms (median), {1e3 * times[-1]:.0f} ms (longest)")
    assert times[3] < alone / 3


def resident_mib(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


def test_who_never_reads_is_cut_off(make_server):
    server = make_server("qwen3moe-tiny", "--max-unread-tokens", "64", "--max-num-seqs", "64")
    ask(server).recv(100)
    assert server.wait_idle()
    before, n = resident_mib(server), 12
    # each would take 8 choices x 480 tokens x about 1.5 KiB
    socks = [ask(server, receive_bytes=4096, n=8, logprobs=20) for _ in range(n)]
    end = time.monotonic() + 30
    while server.metric("request_success_total", finished_reason="abort") < n:
        assert time.monotonic() < end, "streams that nobody reads still run"
        time.sleep(0.05)
    assert server.wait_idle()
    assert server.metric("kv_cache_usage_perc") == 0
    grown = resident_mib(server) - before
    print(f"{n} clients that read nothing: {grown:.0f} MiB more")
    assert grown < 50
    for sock in socks:
        data = b""
        try:
            while piece := sock.recv(65536):
                data += piece
        except ConnectionResetError:
            pass
        assert len(data) < 2 << 20 and b"[DONE]" not in data
        sock.close()


def test_whole_answers_have_a_limit(make_server):
    server = make_server("qwen3moe-tiny", "--max-answer-bytes", "20000")
    ask = lambda **o: server.client().completions.create(
        model=server.model, prompt="And", n=8, logprobs=20, max_tokens=100, extra_body={"ignore_eos": True}, **o)
    with pytest.raises(openai.BadRequestError, match="more than 20000 bytes .--max-answer-bytes.; ask for a stream") as caught:
        ask()
    assert caught.value.code == "answer_too_large"
    assert server.wait_idle()
    chunks = list(ask(stream=True))
    assert sum(len(c.logprobs.tokens) for chunk in chunks for c in chunk.choices if c.logprobs) == 800
