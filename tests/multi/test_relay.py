"""Slow, silent and damaged links between workers, by a relay (tests/relay.py)."""

import contextlib
import functools
import os
import pathlib
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from relay import ADVERTISED, Relay  # noqa: E402

from test_kill import TOKENS, Server, join_all, metric, nobody_is_left, start_streams, wait_until  # noqa: E402, F401
from test_stall import LIMIT_S, LOCAL, STREAMS, Stream, texts  # noqa: E402


takes_long = pytest.mark.skipif("SLUICE_WAITS" not in os.environ, reason="takes a minute: SLUICE_WAITS, tests/long.py stalls")


DAMAGES = {"checksums": (["--checksums", "auto", "--encrypt", "off"], "is damaged"), "encryption": ([], "has encrypted it")}  # options, and what the log says


@pytest.fixture
def served(monkeypatch, request):
    monkeypatch.setenv("SLUICE_ADVERTISE", ADVERTISED)
    with Relay() as relay:
        options, relay.noticed = DAMAGES[getattr(request, "param", "encryption")]
        server = Server(*LOCAL, "--exact", "--transport", "tcp", "--log", "info", *options)
        yield server, relay
        assert server.stop() == 0


def begin(server):
    streams = [Stream(server, i) for i in range(STREAMS)]
    for s in streams:
        s.start()
    for s in streams:
        assert s.began.wait(LIMIT_S)
    return streams


@functools.cache
def undisturbed():
    """What the streams say of one process: with --exact that is what they say of every deployment."""
    server = Server("--exact", "--transport", "loop")
    want = texts(server)
    assert server.stop() == 0
    return want


def test_all_links_pass_the_relay(served):
    server, relay = served
    assert sorted(relay.links()) == [(0, 2), (0, 3), (1, 2), (1, 3), (3, 2)]


@contextlib.contextmanager
def started_beside(happens, *options):
    """A server whose start something happens beside, which is over when it is there; happens(done) ends early once `done` is set."""
    done = threading.Event()
    thread = threading.Thread(target=happens, args=[done])
    thread.start()
    try:
        server = Server(*options, "--exact", "--transport", "tcp")
        thread.join()
        yield server
        assert server.stop() == 0
    finally:
        done.set()
        thread.join()


def test_a_server_starts_over_links_that_begin_slowly(monkeypatch):
    """Handshakes take longer than they may, at each of their messages; links break before the first request. SLUICE_MENDS_AFTER: in
    seconds [3]; 14 is longer than a worker calls a peer at any other time."""
    monkeypatch.setenv("SLUICE_ADVERTISE", ADVERTISED)
    with Relay() as relay:
        for worker, rate in ((0, 60), (1, 110)):
            for expert in (2, 3):
                relay.slow(worker, expert, rate)

        def mend(done):
            done.wait(float(os.environ.get("SLUICE_MENDS_AFTER", "3")))
            for worker in (0, 1):
                for expert in (2, 3):
                    relay.slow(worker, expert, None)
            for _ in range(8):  # some links are up by then
                relay.cut(None, 2)
                done.wait(0.1)

        with started_beside(mend, *LOCAL) as server:
            assert all(texts(server))


def test_links_that_break_while_the_others_start_are_made_again(monkeypatch):
    """One link takes its time, so nobody serves yet; the loss of others is nobody's death."""
    monkeypatch.setenv("SLUICE_ADVERTISE", ADVERTISED)
    with Relay() as relay:
        relay.slow(0, 2, 60)

        def strike(done):
            until = time.monotonic() + 3
            while time.monotonic() < until and not done.wait(0.1):
                relay.cut(1, 2)
            relay.slow(0, 2, None)

        with started_beside(strike, "--schedule", "ep", "--attention", "3", "--join-timeout", "30") as server:
            assert all(texts(server))
            assert metric(server, "workers_lost_total") == 0


def test_slow_and_held_links_change_no_token(served):
    server, relay = served
    want = undisturbed()
    relay.slow(0, 2, 1_000_000)
    assert texts(server) == want
    relay.slow(0, 2, None)
    streams = begin(server)
    relay.hold(None, 2)
    time.sleep(1)
    relay.release(None, 2)
    for s in streams:
        s.join(LIMIT_S)
        assert s.done and not s.error, s.error
    assert [s.text for s in streams] == want


def test_a_slow_link_is_done_without(monkeypatch):
    """With replicas an expert worker behind a slow link is left out, and taken in again."""
    monkeypatch.setenv("SLUICE_ADVERTISE", ADVERTISED)
    with Relay() as relay:
        server = Server(*LOCAL, "--exact", "--transport", "tcp", "--placement", "replicas:2")
        want = texts(server)
        for _ in range(30):  # what is usual is learnt from answers
            assert texts(server) == want
            relay.slow(1, 3, 20_000)
            assert texts(server) == want
            relay.slow(1, 3, None)
            if metric(server, "workers_hedged_total"):
                break
        assert metric(server, "workers_hedged_total") >= 1
        wait_until(lambda: metric(server, "workers_left_out") == 0, "it is not taken in again", LIMIT_S)
        assert texts(server) == want
        assert metric(server, "workers_lost_total") == 0
        assert server.stop() == 0


def gaps_of(server, seconds):
    """Longest pause of streams that follow each other for so long."""
    longest, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        streams = start_streams(server, STREAMS)
        join_all(streams)
        for s in streams:
            assert s.done and not s.error and len(s.ids) == TOKENS, (s.error, "".join(server.log))
        longest = max(longest, *(s.longest_gap for s in streams))
    return longest


@takes_long
def test_a_slow_link_without_replicas(monkeypatch):
    """Nobody else hosts what the worker behind it does: that moves, the worker rests, and comes back. No stream ends, no token
    differs, also while it is slow again."""
    monkeypatch.setenv("SLUICE_ADVERTISE", ADVERTISED)
    with Relay() as relay:
        server = Server(*LOCAL, "--exact", "--transport", "tcp", "--log", "info")
        want = texts(server)
        for _ in range(5):  # what is usual is learnt from answers
            assert texts(server) == want
        streams = begin(server)
        for attention in (0, 1):
            relay.slow(attention, 3, 20_000)
        for s in streams:
            s.join(LIMIT_S)
            assert s.done and not s.error, (s.error, "".join(server.log))
        assert [s.text for s in streams] == want
        wait_until(lambda: texts(server) == want and metric(server, "workers_rehosted_total") > 0, "it is waited for", LIMIT_S)
        longest = gaps_of(server, 25)  # it comes back, is as slow as before and leaves again
        assert longest < 10, longest
        assert metric(server, "workers_rehosted_total") >= 2
        for attention in (0, 1):
            relay.slow(attention, 3, None)
        wait_until(lambda: metric(server, "workers_left_out") == 0, "it is not taken in again", LIMIT_S)
        assert texts(server) == want
        assert metric(server, "workers_lost_total") == 0
        assert any("others waited for worker 3" in line for line in server.log), "".join(server.log)
        assert server.stop() == 0


@takes_long
def test_a_slow_link_is_waited_for_where_others_have_no_room(monkeypatch):
    """What would move does not fit: a line of the log has both figures, and all wait."""
    monkeypatch.setenv("SLUICE_ADVERTISE", ADVERTISED)
    with Relay() as relay:
        server = Server(*LOCAL, "--exact", "--transport", "tcp", "--adapt-memory", "0.000001")
        want = texts(server)
        for _ in range(4):
            assert texts(server) == want
        relay.slow(None, 3, 20_000)
        wait_until(lambda: texts(server) == want and any("go on waiting" in line for line in server.log), "nothing is said", LIMIT_S)
        relay.slow(None, 3, None)
        assert texts(server) == want
        assert metric(server, "workers_hedged_total") == 0
        said = [line for line in server.log if "go on waiting" in line]
        assert len(said) == 1 and " MB left" in said[0] and " MB beside" in said[0], said
        assert server.stop() == 0


def test_a_worker_whose_links_stay_silent_is_left_out(served):
    """Both of its links with attention workers: the other expert worker does its work, and it comes back."""
    server, relay = served
    want = texts(server)
    streams = begin(server)
    for attention in (0, 1):
        relay.hold(attention, 3)
    for s in streams:
        s.join(LIMIT_S)
        assert s.done and not s.error, (s.error, "".join(server.log))
    assert [s.text for s in streams] == want
    assert any("worker 3 is left out" in line for line in server.log), "".join(server.log)
    assert len(server.workers()) == 4
    plans = sum(" holds" in line for line in server.log)
    for attention in (0, 1):
        relay.release(attention, 3)
    wait_until(lambda: sum(" holds" in line for line in server.log) > plans, "it is not taken in again", LIMIT_S)
    assert texts(server) == want


@pytest.mark.parametrize("served", DAMAGES, indirect=True)
@pytest.mark.parametrize("seed", [0])
def test_damaged_headers_end_no_stream_silently(served, seed):
    """Each ends, with all its tokens or with an error."""
    server, relay = served
    want = undisturbed()
    streams = begin(server)
    relay.flip(0, 2, seed)
    for s, text in zip(streams, want):
        s.join(LIMIT_S)
        assert s.done or s.error
        assert text.startswith(s.text) if s.error else text == s.text


@pytest.mark.parametrize("served", DAMAGES, indirect=True)
def test_damaged_payloads_change_no_token(served):
    """Each ends a connection, which is made anew."""
    server, relay = served
    want = undisturbed()
    for seed, pair in enumerate([(0, 2), (1, 3)]):
        streams = begin(server)
        relay.spoil(*pair, seed)
        for s in streams:
            s.join(LIMIT_S)
            assert s.done and not s.error, (s.error, "".join(server.log))
        assert [s.text for s in streams] == want, (seed, pair)
        assert relay.damaged == seed + 1
        assert sum(relay.noticed in line for line in server.log) > seed, "".join(server.log)
