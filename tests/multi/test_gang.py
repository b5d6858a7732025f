"""Workers whose ranks are processes: a rank that is killed ends its worker, which is a lost worker as any other; ranks end with
their worker.

The server under test is SLUICE_BIN (default build/sluice) with worker processes on this machine."""

import os
import pathlib
import re
import signal
import sys
import time

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parent)]
import ended  # noqa: E402, F401
import sample  # noqa: E402
from test_kill import assert_books_balance, metric, nobody_is_left, server, start_streams, wait_until, went_on  # noqa: E402, F401
from workers import children  # noqa: E402

SLOW = 240  # tokens of a stream: gangs of processes take their time for them
GANGS = ("--exact", "--tp-ranks", "processes")


def ranks_of(server, worker):
    return children(server.worker_pid(worker))


def is_there(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


KILLED = [(*GANGS, "--attention", "1", "--experts", "2", "--tp", "2", "--attention-tp", "4"),
          (*GANGS, "--attention", "3", "--tp", "2", "--transport", "tcp"),
          (*GANGS, "--attention", "3", "--tp", "2", "--schedule", "hybrid", "--rail-bytes", "1")]


@pytest.mark.parametrize("server, worker", sample.of([(options, worker) for options in KILLED for worker in (0, 2)], 0, 5),
                         indirect=["server"])
def test_rank_killed(server, worker):
    """Of the attention worker, of one of experts, of one that is both: no request is lost."""
    n = len(server.workers())
    streams = start_streams(server, 6, max_tokens=SLOW)
    pid, ranks = server.worker_pid(worker), ranks_of(server, worker)
    assert len(ranks) in (1, 3) and all("--rank-fd" in pathlib.Path(f"/proc/{r}/cmdline").read_text() for r in ranks)
    os.kill(ranks[-1], signal.SIGKILL)
    went_on(server, streams)
    assert metric(server, "workers_lost_total") == 1
    assert re.search(rf"error gang: rank {len(ranks)} of {len(ranks) + 1} has ended, killed by signal 9", "".join(server.log)), server.log
    assert_books_balance(server, n)
    wait_until(lambda: len(server.workers()) == n and server.request("GET", "/readyz").status == 200, "the worker is not back")
    wait_until(lambda: len(ranks_of(server, worker)) == len(ranks), "its ranks are not back")
    assert not any(is_there(p) for p in (pid, *ranks))


@pytest.mark.parametrize("server", [(*GANGS, "--attention", "1", "--experts", "1", "--tp", "4")], indirect=True)
def test_ranks_end_with_their_worker(server):
    ranks = ranks_of(server, 1)
    assert len(ranks) == 3
    streams = start_streams(server, 3, max_tokens=SLOW)
    os.kill(server.worker_pid(1), signal.SIGKILL)
    went_on(server, streams)
    wait_until(lambda: not any(map(is_there, ranks)), "ranks without a worker")
    left = [r for w in server.workers() for r in ranks_of(server, w)]
    server.process.send_signal(signal.SIGTERM)  # the fixture's own finds it ended
    server.process.wait(20)
    wait_until(lambda: not any(map(is_there, left)), "ranks without a server")


@pytest.mark.parametrize("server", [(*GANGS, "--attention", "1", "--experts", "1", "--tp", "2")], indirect=True)
def test_rank_stopped_for_a_while(server):
    """Its worker waits for it, and says that it lives."""
    rank, = ranks_of(server, 1)
    streams = start_streams(server, 3, max_tokens=SLOW)
    os.kill(rank, signal.SIGSTOP)
    time.sleep(2)
    os.kill(rank, signal.SIGCONT)
    went_on(server, streams)
    assert metric(server, "workers_lost_total") == 0


PIPES = ("--exact", "--pp", "2", "--threads", "2")


PIPELINES = [((*PIPES, "--attention", "1"), 0), ((*PIPES, "--attention", "2", "--tp", "2", "--kv-replicas", "1"), 0),
             ((*PIPES, "--attention", "2", "--tp", "2", "--kv-replicas", "1"), 1),
             ((*PIPES, "--attention", "1", "--experts", "2", "--schedule", "aep"), 0),
             ((*PIPES, "--attention", "1", "--experts", "2", "--schedule", "aep"), 1)]


@pytest.mark.parametrize("server, worker", sample.of(PIPELINES, 0, 4), indirect=["server"])
def test_a_pipeline_is_killed(server, worker):
    """Its threads end with it; another process is the same pipeline again."""
    n = len(server.workers())
    streams = start_streams(server, 5, max_tokens=SLOW)
    os.kill(server.worker_pid(worker), signal.SIGKILL)
    went_on(server, streams)
    assert metric(server, "workers_lost_total") == 1
    assert_books_balance(server, n)
    wait_until(lambda: len(server.workers()) == n and server.request("GET", "/readyz").status == 200, "the worker is not back")


def cpus_of(pid):
    return os.sched_getaffinity(pid)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
@pytest.mark.parametrize("server", [(*GANGS, "--attention", "1", "--experts", "1", "--tp", "2", "--threads", "2", "--pin", "auto")], indirect=True)
def test_ranks_share_the_worker_s_cores(server):
    """Each has its own, whatever is theirs together."""
    for worker in (0, 1):
        rank, = ranks_of(server, worker)
        mine, its = cpus_of(server.worker_pid(worker)), cpus_of(rank)
        assert len(mine) == len(its) == 1 and not mine & its
