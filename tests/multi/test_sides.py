"""Prompts apart (--prefill): workers of their own compute prompts and hand their KV over to those who decode. The same tokens as without, whoever is
killed or full meanwhile."""

import os
import pathlib
import signal
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_kill import (FIXTURE, Server, Stream, assert_books_balance, join_all, metric,  # noqa: E402
                       nobody_is_left, served, start_streams, wait_until)  # noqa: F401

LONG = [(7 * i + 3) % 1000 for i in range(300)]
SIDES = [("--attention", "1", "--prefill", "1", "--transport", "shm"),
         ("--attention", "2", "--experts", "2", "--prefill", "2", "--prefill-experts", "1", "--schedule", "pingpong", "--transport", "tcp"),
         ("--attention", "1", "--experts", "2", "--prefill", "1", "--schedule", "aep", "--transport", "shm")]
ASKED = {"prompt": LONG, "max_tokens": 120, "logprobs": 2}


def said(streams):
    return [(s.ids, s.logprobs) for s in streams]


@pytest.fixture(scope="module")
def alone():
    """What one worker says to the prompts, each with another end."""
    server = Server("--exact")
    streams = [Stream(server, i, **{**ASKED, "prompt": [*LONG, i]}) for i in range(6)]
    for s in streams:
        s.start()
    join_all(streams)
    assert server.stop() == 0
    return said(streams)


def ask(server, n=6):
    streams = [Stream(server, i, **{**ASKED, "prompt": [*LONG, i]}) for i in range(n)]
    for s in streams:
        s.start()
    return streams


def went_well(streams, alone):
    join_all(streams)
    assert all(s.done and not s.error for s in streams), [s.error for s in streams]
    assert said(streams) == alone[:len(streams)]


def prefill_pid(server, sides):
    """Of the first worker for prompts: they are behind all others."""
    told = dict(zip(sides[::2], sides[1::2], strict=True))
    return server.worker_pid(int(told["--attention"]) + int(told.get("--experts", 0)))


@pytest.mark.parametrize("sides", SIDES)
def test_prompts_are_handed_over(sides, alone):
    """Every long one, with its full pages; short ones start where they decode."""
    server = Server("--exact", "--prefix-cache", "off", *sides)
    brief = start_streams(server, 2, max_tokens=60)
    streams = ask(server)
    went_well(streams, alone)
    join_all(brief)
    assert metric(server, "requests_handed_over_total") == 6
    assert metric(server, "kv_pages_copied_total") == 6 * 9
    assert metric(server, "num_preemptions_total") == metric(server, "requests_moved_total") == 0
    assert_books_balance(server, len(server.workers()))
    assert server.stop() == 0


@pytest.mark.parametrize("sides", SIDES)
def test_its_worker_is_killed(sides, alone):
    """A worker for prompts, while it computes some and others are handed over: they go on."""
    server = Server("--exact", "--max-num-batched-tokens", "16", *sides)
    for _ in range(2):
        streams = ask(server)
        lost = metric(server, "workers_lost_total")
        time.sleep(0.05)
        os.kill(prefill_pid(server, sides), signal.SIGKILL)
        went_well(streams, alone)
        wait_until(lambda n=lost: metric(server, "workers_lost_total") > n, "nobody is missed")
        wait_until(lambda: metric(server, "workers_restarted_total") == metric(server, "workers_lost_total"), "the worker is not back")
    handed = metric(server, "requests_handed_over_total")
    streams = ask(server)
    went_well(streams, alone)
    assert metric(server, "requests_handed_over_total") >= handed
    assert_books_balance(server, len(server.workers()))
    assert server.stop() == 0


@pytest.mark.parametrize("sides", SIDES)
def test_who_decodes_is_killed(sides, alone):
    server = Server("--exact", *sides)
    streams = ask(server)
    wait_until(lambda: metric(server, "requests_handed_over_total") > 0, "nothing is handed over")
    os.kill(server.worker_pid(0), signal.SIGKILL)
    went_well(streams, alone)
    assert_books_balance(server, len(server.workers()))
    assert server.stop() == 0


def test_few_places(alone):
    """Those who decode are full: prompts wait for them, parked, and nobody is lost or turned away."""
    server = Server("--exact", "--attention", "1", "--prefill", "1", "--max-num-seqs", "2", "--ctx", "512", "--kv-pages", "18")
    went_well(ask(server), alone)
    assert server.stop() == 0


def test_shared_experts_take_no_barriers():
    """Where nobody says a schedule."""
    server = Server("--attention", "1", "--experts", "1", "--prefill", "1")
    assert 'schedule="aep"' in server.request("GET", "/metrics").read().decode()
    assert server.stop() == 0


@pytest.mark.parametrize("options, why", [
    (("--attention", "1", "--experts", "1", "--prefill", "1", "--schedule", "dep"), "workers for prompts need experts of their own"),
    (("--attention", "1", "--prefill", "1", "--prefill-experts", "1"), "--prefill-experts is for plans that keep roles apart"),
    (("--attention", "1", "--experts", "1", "--prefill-experts", "1"), "and none with attention (--prefill)"),
    (("--prefill-rows", "64"), "--prefill-rows: there are no workers for prompts (--prefill)"),
    (("--attention", "1", "--prefill", "1", "--adapt"), "--adapt: workers for prompts (--prefill) have experts that do not move"),
    (("--attention", "1", "--prefill", "1", "--device", "emulated:DEVICE"), "an emulated device has no KV pages to hand over"),
])
def test_what_is_refused(tmp_path, options, why):
    code, said = served.refusal(tmp_path, FIXTURE, options)
    assert code in (1, 2, 3) and why in said, said
