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


@contextlib.contextmanager
def scope():
    """What is started inside ends with it, and nothing else: servers that all tests of a session share live longer.
    Gives a function: what was started so far, the last first."""
    others = list(running)

    def started():
        return [process for process in reversed(running) if process not in others]

    try:
        yield started
    finally:
        for process in started():
            if process.poll() is None:
                for pid in of_tree(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.wait()
            running.remove(process)
