"""Experts that move while a server answers (--adapt): metrics say so, answers stay the same; off unless asked for."""
import concurrent.futures
import re
import subprocess
import time

import httpx
import pytest

from conftest import BINARY, GOLDEN

FAKE = BINARY.parent / "tests" / "libsluice-fake-cuda.so"  # the tests' driver: two GPUs, emulated, thread by thread: slow
needs_fake = pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")

WORKERS = ["--attention", "1", "--experts", "2", "--exact", "--route-skew", "exp:0.5"]
STREAMS = 8


def answers(server, streams=STREAMS, n=60):
    """The same requests each time, all at once."""
    def ask(i):
        body = {"model": server.model, "prompt": [5 + 7 * i + j for j in range(12)], "max_tokens": n,
                "temperature": 0, "ignore_eos": True}
        got = httpx.post(server.url + "/v1/completions", json=body, timeout=120)
        assert got.status_code == 200, got.text
        return got.json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        return list(pool.map(ask, range(streams)))


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


# ---- GPUs ----

ON_GPUS = ["--attention", "1", "--experts", "2", "--adapt", "--adapt-every", "0.5", "--log", "info", "--max-num-batched-tokens", "32"]
ALONE = ["--exact", "--route-skew", "exp:0.5", "--kv-type", "f32"]
SLOW = {"streams": 4, "n": 12}  # as the emulator is


def by_cpu(make_server, model):
    """What one worker on the CPU answers."""
    alone = make_server(model, *ALONE)
    want = answers(alone, **SLOW)
    alone.stop()
    return want


@pytest.fixture
def on_cpu(make_server):
    return by_cpu(make_server, "qwen3moe-tiny")


def ask_until(server, outcome, want, seconds=240):
    end = time.monotonic() + seconds
    while server.metric("expert_moves_total", outcome=outcome) == 0:
        assert answers(server, **SLOW) == want
        assert time.monotonic() < end, server.log.read_text()
    assert answers(server, **SLOW) == want


def rows_of(server):
    return [server.metric("worker_rows_total", kind="expert", worker=str(i)) for i in (1, 2)]


@needs_fake
@pytest.mark.parametrize("model, forms", [("qwen3moe-tiny", ""), ("deepseekv3-tiny", "try"), ("gptoss-tiny", "try")])  # matrices alone, with scales, with biases
def test_experts_leave_a_gpu_that_is_slow(make_server, monkeypatch, model, forms):
    """What experts cost on either is measured: the emulated GPU has the hot ones at first, and soon next to nothing."""
    on_cpu = by_cpu(make_server, model)
    monkeypatch.setenv("SLUICE_CUDA_DRIVER", str(FAKE))
    monkeypatch.setenv("SLUICE_CUDA_FORMS", forms)
    server = make_server(model, *ALONE, *ON_GPUS, "--expert-device", "cuda:0,cpu")
    before = rows_of(server)
    assert answers(server, **SLOW) == on_cpu
    ask_until(server, "taken", on_cpu)
    time.sleep(0.7)  # a report
    told = rows_of(server)
    assert answers(server, **SLOW) == on_cpu
    time.sleep(0.7)
    now = rows_of(server)
    assert before == [0, 0] and now[1] - told[1] > 2 * (now[0] - told[0]), (told, now)
    text = server.log.read_text()
    assert re.search(r"worker 1: cuda:0 has [\d.]+ MB left for experts", text), text
    assert re.search(r"an expert that is asked for takes [\d.]+ us and [\d.]+ us a row on a GPU", text), text
    assert server.metric("expert_moves_total", outcome="failed") == 0


def left(server):
    """Megabytes that each GPU has for experts, as the log says when its worker is there."""
    end = time.monotonic() + 20
    while len(found := re.findall(r"worker \d: cuda:\d has ([\d.]+) MB left for experts", server.log.read_text())) < 2:
        assert time.monotonic() < end, server.log.read_text()
        time.sleep(0.1)
    return min(map(float, found))


def with_room(make_server, megabytes, wanted):
    """A server whose GPUs have about so much room; what they say is said with caution, so the less there is the truer it is."""
    for _ in range(16):
        server = make_server("qwen3moe-tiny", *ALONE, *ON_GPUS, "--expert-device", "cuda:0,cuda:1", "--schedule", "dep", "--gpu-memory", f"{round(megabytes * 1e6)}")
        more = left(server) - wanted
        if more < 0.01:
            return server, megabytes
        server.stop()
        megabytes -= more if more > 0.1 else 0.006
    raise AssertionError(server.log.read_text())


@needs_fake
def test_experts_move_between_gpus_within_their_memory(make_server, monkeypatch, on_cpu):
    monkeypatch.setenv("SLUICE_CUDA_DRIVER", str(FAKE))
    few, memory = with_room(make_server, 64, 0.1)  # five experts of 24, beside twelve
    ask_until(few, "taken", on_cpu)
    assert few.metric("expert_moves_total", outcome="failed") == 0
    few.stop()
    none, _ = with_room(make_server, memory, 0)
    ask_until(none, "refused", on_cpu)
    assert none.metric("expert_moves_total", outcome="taken") == none.metric("expert_moves_total", outcome="failed") == 0
    assert re.search(r"experts stay where they are: experts that move need 0.0 MB beside those that are there, worker \d's GPU has 0.0 MB left", none.log.read_text())


@pytest.mark.parametrize("workers", [[], ["--attention", "2", "--experts", "1"]], ids=["one process", "one expert worker"])
def test_refused_where_nothing_can_move(workers):
    ran = subprocess.run([BINARY, "serve", GOLDEN / "qwen3moe-tiny", "--port", "0", "--adapt", *workers],
                         capture_output=True, text=True, timeout=60)
    assert ran.returncode != 0
    assert "experts move between expert workers (--adapt), the plan has 1" in ran.stderr
