"""Servers of tests end with their test and with the tests (tests/ended.py), also where a worker stands still."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from test_kill import Server, ended, nobody_is_left, wait_until  # noqa: F401

HERE = pathlib.Path(__file__).resolve().parent
LEFT = f"""
import os, signal, sys
sys.path.insert(0, {str(HERE)!r})
from test_kill import Server
server = Server("--attention", "1", "--experts", "1")
os.kill(server.worker_pid(1), signal.SIGSTOP)
print(server.process.pid, *server.workers().values(), flush=True)
signal.pause()
"""


def is_there(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_test_that_fails():
    """What others started before it stays: servers of a session, too."""
    shared = ended.start(["sleep", "600"])
    with pytest.raises(ZeroDivisionError), ended.scope() as started:
        server = Server("--attention", "1", "--experts", "1")
        assert started() == [server.process]
        pids = [server.process.pid, *server.workers().values()]
        os.kill(pids[1], signal.SIGSTOP)
        raise ZeroDivisionError
    assert shared.poll() is None and shared in ended.running
    wait_until(lambda: not any(map(is_there, pids)), f"some of {pids} are left")


def test_tests_that_are_killed():
    """The kernel ends the server; a worker that stands still ends when it goes on."""
    tests = subprocess.Popen([sys.executable, "-c", LEFT], stdout=subprocess.PIPE, text=True)
    server, *workers = map(int, tests.stdout.readline().split())
    tests.kill()
    tests.wait()
    wait_until(lambda: not is_there(server), "the server is left")
    for pid in filter(is_there, workers):
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not any(map(is_there, workers)), f"some of {workers} are left")
