"""Copies of KV pages at another attention worker (--kv-replicas 1): a killed worker's requests go on there, with the same tokens."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_kill import (FIXTURE, SLUICE, Server, Stream, assert_books_balance, ended, join_all, metric,  # noqa: E402
                       nobody_is_left, served, start_streams, wait_until)  # noqa: F401

LONG = [(7 * i + 3) % 1000 for i in range(300)]
PAGE = 32  # tokens
PROCESSES = [("--attention", "2", "--experts", "2", "--transport", "tcp"), ("--attention", "3", "--transport", "tcp"),
             ("--attention", "2", "--experts", "1", "--transport", "shm", "--schedule", "aep")]


class Remote:
    """A server whose workers are started by hand, so that nobody keeps their KV for them."""

    def __init__(self, folder, attention, experts):
        self.secret = folder / "secret"
        subprocess.run([SLUICE, "secret", "-o", self.secret], check=True, stdout=subprocess.DEVNULL)
        self.address = f"127.0.0.1:{20000 + os.getpid() % 10000}"
        self.workers = [self.start(i) for i in range(attention + experts)]
        self.server = Server("--exact", "--attention", str(attention), "--experts", str(experts), "--remote", "--kv-replicas", "1",
                             "--fabric-port", self.address.split(":")[1], "--secret-file", str(self.secret))

    def start(self, i):
        return ended.start([SLUICE, "worker", "--join", self.address, "--secret-file", self.secret, "--worker-id", str(i),
                                 "--transport", "tcp"], stderr=subprocess.DEVNULL)


def kill_with_copies(server, kill, n, asked):
    """Streams whose worker is killed by kill(number of the kill) when all full pages of their prompts are copied: the last ones, and the rows that
    were computed again. A stream that was over by then tells nothing."""
    for number in range(1, 11):
        kept, again, copied = (metric(server, name) for name in ("rows_kept_total", "rows_recomputed_total", "kv_pages_copied_total"))
        streams = start_streams(server, n, **asked)
        while metric(server, "kv_pages_copied_total") < copied + n * (len(LONG) // PAGE) and any(s.is_alive() for s in streams):
            time.sleep(0.005)
        kill(number)
        join_all(streams)
        wait_until(lambda n=number: metric(server, "workers_restarted_total") == n, "the worker is not back")
        assert all(s.done and not s.error for s in streams)
        if metric(server, "rows_kept_total") > kept:
            return streams, metric(server, "rows_recomputed_total") - again
    raise AssertionError("no stream was running when its worker was killed")


def as_alone(server, streams, **fields):
    again = [Stream(server, s.seed, **fields) for s in streams]
    for s in again:
        s.start()
    join_all(again)
    for s, alone in zip(streams, again, strict=True):
        assert s.done and not s.error, s.error
        assert s.ids == alone.ids and s.logprobs == alone.logprobs
        assert len(s.logprobs) == len(s.ids) == fields["max_tokens"]


def test_requests_go_on_at_the_buddy(tmp_path):
    """Of a remote worker, whose KV is gone with it: only rows that were in no full page are computed again."""
    remote = Remote(tmp_path, 2, 1)
    server, asked = remote.server, {"prompt": LONG, "max_tokens": 210, "logprobs": 2}

    def kill(_):
        remote.workers[0].kill()
        remote.workers[0].wait()
        remote.workers[0] = remote.start(0)

    streams, again = kill_with_copies(server, kill, 2, asked)
    assert metric(server, "rows_kept_total") >= len(LONG) - PAGE
    assert again < 2 * PAGE
    as_alone(server, streams, **asked)
    assert_books_balance(server, 3)
    assert server.stop() == 0
    assert [w.wait(20) for w in remote.workers] == [0] * 3


@pytest.mark.parametrize("deployment", [*PROCESSES, (*PROCESSES[0], "--kv-type", "q8_0")])
def test_processes_have_both(deployment):
    """Who is sooner there goes on with the request: its place's next process, which has the pages, or the buddy with its copies."""
    server, asked = Server("--exact", "--kv-replicas", "1", *deployment), {"prompt": LONG, "max_tokens": 200, "logprobs": 2}
    n = len(server.workers())
    streams, again = kill_with_copies(server, lambda _: os.kill(server.worker_pid(0), signal.SIGKILL), 4, asked)
    assert metric(server, "rows_kept_total") >= len(LONG) - PAGE
    assert again < 4 * PAGE
    as_alone(server, streams, **asked)
    assert_books_balance(server, n)
    assert server.stop() == 0


@pytest.mark.parametrize("options, why", [
    (("--attention", "1", "--experts", "1", "--kv-replicas", "1"), "kv_replicas 1 needs two attention workers, there is 1"),
    (("--attention", "2", "--kv-replicas", "2"), "--kv-replicas: '2' is not a whole number from 0 to 1"),
    (("--kv-type", "q4_0"), "type of KV pages 'q4_0' is unknown: f32, f16, bf16, q8_0, fp8, auto"),
    (("--kv-type", "f16", "--device", "emulated:DEVICE"), "kv_type f16 (--kv-type): an emulated device has no KV pages"),
    (("--attention", "2", "--kv-replicas", "1", "--device", "emulated:DEVICE"), "kv_replicas 1: an emulated device has no KV pages to copy"),
])
def test_what_is_refused(tmp_path, options, why):
    code, said = served.refusal(tmp_path, FIXTURE, options)
    assert code in (1, 2, 3) and why in said, said
