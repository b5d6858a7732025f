"""Which processes are the workers of a server on this machine, as they say on their command lines. Standard library only."""
import pathlib


def children(pid):
    """Of every thread of the process, as it is now."""
    return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def worker_id(pid):
    """Of the plan, or None: this process is no worker (any more)."""
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return int(words[words.index(b"--worker-id") + 1]) if b"--worker-id" in words else None


def workers_of(server_pid):
    """worker id -> pid of the child process that is this worker now."""
    return {worker: pid for pid in children(server_pid) if (worker := worker_id(pid)) is not None}
