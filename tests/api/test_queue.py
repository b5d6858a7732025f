"""A bounded queue with deadlines: who cannot wait, or has waited too long, gets 429 and may try again."""
import concurrent.futures
import time

import httpx
import openai
import pytest


def occupy(server, n):
    """A request of n answers, one after the other: keeps the only seat (and n - 1 places to wait)."""
    body = {"model": server.model, "prompt": [3, 17, 41], "max_tokens": 480, "n": n, "temperature": 0,
            "ignore_eos": True}
    pool = concurrent.futures.ThreadPoolExecutor(1)
    held = pool.submit(httpx.post, server.url + "/v1/completions", json=body, timeout=120)
    while server.metric("num_requests_running") == 0:
        time.sleep(0.005)
    return held


def ask(server, client, **options):
    return client.completions.create(model=server.model, prompt=[5], max_tokens=4, **options)


def test_deadline(make_server):
    server = make_server("qwen3moe-tiny", "--max-num-seqs", "1", "--isa", "ref", "--queue-timeout", "0.1")
    held = occupy(server, 1)
    began = time.monotonic()
    with pytest.raises(openai.RateLimitError) as refused:
        ask(server, server.client())
    waited = time.monotonic() - began
    assert 0.09 <= waited < 5, waited
    error = refused.value.body
    assert error["type"] == "rate_limit_error" and error["code"] == "overloaded"
    assert "request waited 0." in error["message"] and "limit is 0.1 s" in error["message"]
    assert int(refused.value.response.headers["Retry-After"]) > 0
    with pytest.raises(openai.RateLimitError):
        ask(server, server.client(), stream=True)
    assert held.result().status_code == 200
    assert server.wait_idle()
    assert server.metric("requests_rejected_total", reason="queue_timeout") == 2
    assert server.metric("requests_rejected_total", reason="queue_full") == 0
    ask(server, server.client())
    assert server.metric("request_queue_time_seconds_count") == 2
    assert server.metric("kv_cache_usage_perc") == 0


def test_length(make_server):
    server = make_server("qwen3moe-tiny", "--max-num-seqs", "1", "--max-queue", "20", "--queue-timeout", "0")
    held = occupy(server, 20)
    codes = []
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        def one(_):
            try:
                ask(server, server.client())
                return 200
            except openai.RateLimitError as e:
                assert "--max-queue" in e.body["message"] or "at most 1 run and 20 wait" in e.body["message"]
                return e.status_code
        codes = list(pool.map(one, range(12)))
    assert held.result().status_code == 200
    assert codes.count(429) == server.metric("requests_rejected_total", reason="queue_full") > 0
    # a client that tries again gets through
    held = occupy(server, 20)
    ask(server, server.client(max_retries=20))
    assert held.result().status_code == 200
    assert server.wait_idle()
