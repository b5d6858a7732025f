"""Slow, silent and damaged links between workers, by a relay (tests/relay.py)."""

import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from relay import ADVERTISED, Relay  # noqa: E402

from test_kill import Server  # noqa: E402
from test_stall import LIMIT_S, LOCAL, STREAMS, Stream, texts  # noqa: E402


@pytest.fixture
def served(monkeypatch):
    monkeypatch.setenv("SLUICE_ADVERTISE", ADVERTISED)
    with Relay() as relay:
        server = Server(*LOCAL, "--exact", "--transport", "tcp")
        yield server, relay
        assert server.stop() == 0


def begin(server):
    streams = [Stream(server, i) for i in range(STREAMS)]
    for s in streams:
        s.start()
    for s in streams:
        assert s.began.wait(LIMIT_S)
    return streams


def test_all_links_pass_the_relay(served):
    server, relay = served
    assert sorted(relay.links()) == [(0, 2), (0, 3), (1, 2), (1, 3), (3, 2)]


def test_slow_and_held_links_change_no_token(served):
    server, relay = served
    want = texts(server)
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


@pytest.mark.parametrize("seed", [0])
def test_damaged_headers_end_no_stream_silently(served, seed):
    """Each ends, with all its tokens or with an error."""
    server, relay = served
    want = texts(server)
    streams = begin(server)
    relay.flip(0, 2, seed)
    for s, text in zip(streams, want):
        s.join(LIMIT_S)
        assert s.done or s.error
        assert text.startswith(s.text) if s.error else text == s.text
