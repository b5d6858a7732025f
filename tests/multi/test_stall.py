"""Processes that stand still for a while and go on (SIGSTOP, SIGCONT): nobody is given up, streams pause and go on with
the tokens of a run without pauses.

  tests/multi/test_stall.py    the long ones (`make check-long`): the coordinator for 30 s, workers for 10 s
The server under test is SLUICE_BIN (default build/sluice) with worker processes on this machine."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from test_kill import SLUICE, TOKENS, Server, assert_books_balance, ended, metric, nobody_is_left, of_all_workers, wait_until  # noqa: F401
import sample  # test_kill knows where

STREAMS = 6
COORDINATOR = None
ATTENTION, SEQUENCER, EXPERT = 0, 2, 3
LOCAL = ("--attention", "2", "--experts", "2")
LIMIT_S = 180  # for what takes a second on a calm machine


class Stream(threading.Thread):
    """One streamed completion: the text that came, and whether it ended as it should."""

    def __init__(self, server, i):
        super().__init__(daemon=True)
        self.server, self.i = server, i
        self.text, self.error, self.done = "", None, False
        self.began = threading.Event()

    def run(self):
        body = {"model": "m", "prompt": [3, 17, 41 + self.i], "max_tokens": TOKENS, "stream": True, "temperature": 1,
                "seed": self.i, "ignore_eos": True}
        response = self.server.request("POST", "/v1/completions", body, timeout=LIMIT_S)
        for raw in response:
            line = raw.decode().strip()
            self.done = self.done or line == "data: [DONE]"
            if not line.startswith("data: {"):
                self.error = self.error or (response.status != 200 and line)
                continue
            event = json.loads(line[6:])
            self.error = self.error or event.get("error")
            self.text += "".join(c["text"] for c in event.get("choices", []))
            self.began.set()
        self.began.set()


def begin_streams(server):
    streams = [Stream(server, i) for i in range(STREAMS)]
    for s in streams:
        s.start()
    for s in streams:
        assert s.began.wait(LIMIT_S)
    return streams


def texts(server, who="nobody", seconds=0):
    """What all streams answer while one process stands still in the middle of them."""
    streams = begin_streams(server)
    if seconds:
        pid = server.process.pid if who is COORDINATOR else server.worker_pid(who)
        os.kill(pid, signal.SIGSTOP)
        assert not all(s.done for s in streams), "it stood still too late"
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    for s in streams:
        s.join(LIMIT_S)
        assert s.done and not s.error, (who, seconds, s.error, "".join(server.log))
    return [s.text for s in streams]


def hold_up(transport, stalls, *options, local=LOCAL, moves=False):
    """stalls: (who, for how many seconds), one after the other. moves: for so long that experts move meanwhile."""
    server = Server(*local, "--exact", "--transport", transport, *options)
    try:
        want = texts(server)
        for who, seconds in stalls:
            assert texts(server, who, seconds) == want, (who, seconds)
        assert server.request("GET", "/health").status == 200
    finally:
        code = server.stop()
    server.reader.join(10)
    log = "".join(line for line in server.log if not (moves and "its experts move" in line))
    assert code == 0 and not re.search(r" (warn|error) |lost|silent|Sanitizer|assertion failed", log), log


def test_workers_stand_still():
    hold_up("shm", [(ATTENTION, 1), (SEQUENCER, 3), (EXPERT, 1)])


# Schedule -> who stands still, one after the other.
HEDGED = {"dep": (SEQUENCER, EXPERT), "pingpong": (EXPERT,), "findep": (SEQUENCER,), "aep": (EXPERT,)}


@pytest.mark.parametrize("schedule", sample.of(HEDGED, 0, -1))
def test_replicas_stand_in(schedule):
    """Streams end while an expert worker stands still, the sequencer too: others do what it owes."""
    server = Server(*LOCAL, "--exact", "--schedule", schedule, "--placement", "replicas:2", "--silence-limit", "120")
    want = texts(server)
    for n, who in enumerate(HEDGED[schedule], 1):
        wait_until(lambda: metric(server, "workers_left_out") == 0, "it is not back", 60)
        streams = begin_streams(server)
        pid = server.worker_pid(who)
        os.kill(pid, signal.SIGSTOP)
        try:
            for s in streams:
                s.join(60)
            assert [s.text for s in streams] == want and all(s.done and not s.error for s in streams)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert metric(server, "workers_hedged_total") >= n
        wait_until(lambda: metric(server, "workers_left_out") == 0, "it is not back", 60)
    assert texts(server) == want
    time.sleep(0.6)  # reports come twice a second
    assert of_all_workers(server, "worker_reissued_rows_total") > 0
    assert of_all_workers(server, "worker_steps_given_up_total") == 0
    assert metric(server, "workers_lost_total") == 0
    assert_books_balance(server, 4)
    assert server.stop() == 0


def test_coordinator_stands_still():
    hold_up("tcp", [(COORDINATOR, 5)])


@contextlib.contextmanager
def workers_by_hand(port, folder):
    """Those of a plan, started by nobody but this test; and the plan."""
    plan = pathlib.Path(folder) / "plan.json"
    roles = [["attention"], ["attention"], ["expert"], ["expert"]]
    plan.write_text(json.dumps({"version": 1, "schedule": "dep", "workers": [{"roles": r} for r in roles]}))
    command = [SLUICE, "worker", "--join", f"127.0.0.1:{port}", "--transport", "tcp", "--worker-id"]
    workers = [ended.start([*command, str(i)]) for i in range(len(roles))]
    yield plan
    assert [w.wait(LIMIT_S) for w in workers] == [0] * len(workers)


def outlive_in_line(seconds, limit):
    """Requests that wait do so no longer for the time in which the coordinator stood still."""
    server = Server("--attention", "1", "--experts", "1", "--max-num-seqs", "1", "--queue-timeout", str(limit))
    streams = [Stream(server, i) for i in range(STREAMS)]
    streams[0].start()
    assert streams[0].began.wait(LIMIT_S)
    for s in streams[1:]:
        s.start()
    time.sleep(0.05)
    os.kill(server.process.pid, signal.SIGSTOP)
    assert not all(s.began.is_set() for s in streams), "it stood still too late"
    time.sleep(seconds)
    os.kill(server.process.pid, signal.SIGCONT)
    for s in streams:
        s.join(LIMIT_S)
        assert s.done and not s.error, s.error
    assert server.stop() == 0


def main():
    outlive_in_line(30, 20)
    print("requests in line: the coordinator stood still for 30 s", flush=True)
    os.environ["SLUICE_SECRET"] = "of these processes"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, workers_by_hand(port, folder) as plan:
        hold_up("tcp", [(COORDINATOR, 30)], "--remote", "--plan", plan, "--fabric-port", str(port), local=())
    print("workers of nobody: the coordinator stood still for 30 s", flush=True)
    for transport in ("shm", "tcp"):
        hold_up(transport, [(COORDINATOR, 30)])
        print(f"{transport}: the coordinator stood still for 30 s", flush=True)
        hold_up(transport, [(ATTENTION, 10), (SEQUENCER, 10), (EXPERT, 10)], "--silence-limit", "20", moves=True)
        print(f"{transport}: workers stood still for 10 s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
