"""Experts that move while a server answers (--adapt): metrics say so, answers stay the same; off unless asked for."""
import concurrent.futures
import subprocess
import time

import httpx
import pytest

from conftest import BINARY, GOLDEN

WORKERS = ["--attention", "1", "--experts", "2", "--exact", "--route-skew", "exp:0.5"]
STREAMS = 8


def answers(server):
    """The same requests each time, all at once."""
    def ask(i):
        body = {"model": server.model, "prompt": [5 + 7 * i + j for j in range(12)], "max_tokens": 60,
                "temperature": 0, "ignore_eos": True}
        got = httpx.post(server.url + "/v1/completions", json=body, timeout=120)
        assert got.status_code == 200, got.text
        return got.json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        return list(pool.map(ask, range(STREAMS)))


def test_experts_move_and_no_answer_changes(make_server):
    fixed = make_server("qwen3moe-tiny", *WORKERS)
    want = answers(fixed)
    for outcome in ("taken", "refused", "failed"):
        assert fixed.metric("expert_moves_total", outcome=outcome) == 0
    assert fixed.metric("expert_wait_ratio") == 0
    fixed.stop()
    server = make_server("qwen3moe-tiny", *WORKERS, "--adapt", "--adapt-every", "0.5", "--log", "info")
    end = time.monotonic() + 240
    while server.metric("expert_moves_total", outcome="taken") == 0:
        assert answers(server) == want
        assert time.monotonic() < end, server.log.read_text()
    assert answers(server) == want
    assert server.metric("expert_wait_ratio", when="before") > 1.08
    assert server.metric("expert_wait_ratio", when="predicted") < server.metric("expert_wait_ratio", when="before")
    assert 0 < server.metric("expert_move_pause_seconds") < 30
    text = server.log.read_text()
    assert "experts move: steps wait" in text and "experts have moved" in text


def test_what_does_not_fit_is_refused_with_both_figures(make_server):
    server = make_server("qwen3moe-tiny", *WORKERS, "--adapt", "--adapt-every", "0.5", "--adapt-memory", "0.001")
    want, end = answers(server), time.monotonic() + 240
    while server.metric("expert_moves_total", outcome="refused") == 0:
        assert answers(server) == want
        assert time.monotonic() < end
    assert server.metric("expert_moves_total", outcome="taken") == 0
    assert "machine has 0.0 MB left" in server.log.read_text()


@pytest.mark.parametrize("workers", [[], ["--attention", "2", "--experts", "1"]], ids=["one process", "one expert worker"])
def test_refused_where_nothing_can_move(workers):
    ran = subprocess.run([BINARY, "serve", GOLDEN / "qwen3moe-tiny", "--port", "0", "--adapt", *workers],
                         capture_output=True, text=True, timeout=60)
    assert ran.returncode != 0
    assert "experts move between expert workers (--adapt), the plan has 1" in ran.stderr
