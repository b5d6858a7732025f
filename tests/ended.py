"""Processes that tests start, which end with their test and with the tests, whatever happens: also when a check fails, when one
of them stands still (SIGSTOP), when pytest is killed. What they started themselves ends with them."""

import contextlib
import os
import pathlib
import signal
import subprocess

running = []


def start(command, **options):
    """As subprocess.Popen. From the main thread: the kernel kills the process when the thread that started it is gone."""
    process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], **options)
    running.append(process)
    return process


def of_tree(pid):
    """pid and the processes below it."""
    pids = [pid]
    with contextlib.suppress(OSError):  # it is gone
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids += of_tree(int(child))
    return pids


def end_all(but=0):
    """All but those that were started first."""
    while len(running) > but:
        process = running.pop()
        if process.poll() is None:
            for pid in of_tree(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()
