"""Strikes the processes of a running server."""

import ctypes
import os
import pathlib
import random
import signal
import socket
import threading
import time

from draw import COORDINATOR

THIN = 20_000  # bytes a second

APPEAR_S = 20  # so long a worker that is to be struck may be away: after a few deaths it is started with growing pauses


def worker_id(pid):
    """Of the plan, or None: this process is no worker (any more)."""
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return int(words[words.index(b"--worker-id") + 1]) if b"--worker-id" in words else None


def workers_of(server_pid):
    """worker id -> pid of the child process that is this worker now."""
    found = {}
    for task in pathlib.Path(f"/proc/{server_pid}/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            if (worker := worker_id(pid)) is not None:
                found[worker] = pid
    return found


class Progress:
    """How many tokens have come, and whether more will. Thread: any."""

    def __init__(self, expected):
        self.changed, self.expected, self.tokens, self.ended = threading.Condition(), expected, 0, False

    def came(self, n):
        with self.changed:
            self.tokens += n
            self.changed.notify_all()

    def end(self):
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait_for(self, share):
        """False: the streams ended before."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended or self.tokens >= share * self.expected)
            return not self.ended


class Striker(threading.Thread):
    """Carries out strikes while streams run. Processes are held by descriptors: another one that gets the same number
    is not struck."""

    def __init__(self, server_pid, strikes, progress, relay=None):
        super().__init__(daemon=True)
        self.server_pid, self.strikes, self.progress, self.relay = server_pid, strikes, progress, relay
        self.struck, self.missed, self.killed, self.ending, self.error = [], [], set(), [], None

    def run(self):
        try:
            for strike in self.strikes:
                if strike.at is None:
                    time.sleep(strike.after)
                    late = self.progress.ended
                else:
                    late = not self.progress.wait_for(strike.at)
                if late:
                    self.missed.append(f"{strike}: the streams had ended")
                else:
                    self.strike(strike, lambda: self.progress.ended)
        except Exception as e:  # told with the schedule
            self.error = f"{type(e).__name__} {e}"
        for thread in self.ending:
            thread.join()

    def strike(self, strike, given_up=lambda: False):
        pid, fd = self.find(strike.worker, given_up)
        if fd is None:
            self.missed.append(f"{strike}: there was no such process")
            return
        try:
            struck = ACTIONS[strike.action](self, strike, pid, fd)
            self.struck.append((strike, time.monotonic()))
        except OSError as e:
            self.missed.append(f"{strike}: {e}")
            struck = None
        if struck is None:
            os.close(fd)
        else:  # a thread that ends it
            self.ending.append(struck)
            struck.start()

    def silence(self, strike, _pid, fd):
        return self.over_relay(strike, fd, self.relay.hold, self.relay.release)

    def thin(self, strike, _pid, fd):
        return self.over_relay(strike, fd, lambda a, b: self.relay.slow(a, b, THIN), lambda a, b: self.relay.slow(a, b, None))

    @staticmethod
    def over_relay(strike, fd, begin, end):
        os.close(fd)
        begin(strike.worker, strike.peer)
        return threading.Timer(strike.seconds, end, [strike.worker, strike.peer])

    def kill(self, _strike, pid, fd):
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        self.killed.add(pid)

    def stop(self, strike, _pid, fd):
        signal.pidfd_send_signal(fd, signal.SIGSTOP)
        return threading.Timer(strike.seconds, resume, [fd])

    def slow(self, strike, _pid, fd):
        return threading.Thread(target=slow, args=[fd, time.monotonic() + strike.seconds])

    def cut(self, strike, pid, fd):
        with self.connection(strike, pid, fd) as c:
            c.shutdown(socket.SHUT_RDWR)

    def corrupt(self, strike, pid, fd):
        with self.connection(strike, pid, fd) as c:
            c.send(random.Random(str(strike)).randbytes(100))

    def connection(self, strike, pid, fd):
        """The socket of one that ends at the other."""
        peer = self.server_pid if strike.peer == COORDINATOR else workers_of(self.server_pid).get(strike.peer)
        ours, theirs = tcp_of(pid), tcp_of(peer) if peer else {}
        for (here, there), number in sorted(ours.items()):
            if (there, here) in theirs:
                return socket.socket(fileno=pidfd_getfd(fd, number))
        raise OSError("there was no such connection")

    def find(self, worker, given_up):
        """Number and descriptor of the process that is this worker; waits for one that is being started."""
        if worker == COORDINATOR:
            return self.server_pid, os.pidfd_open(self.server_pid)
        end = time.monotonic() + APPEAR_S
        while time.monotonic() < end and not given_up():
            pid = workers_of(self.server_pid).get(worker)
            if pid is not None and pid not in self.killed and (fd := open_worker(pid, worker)) is not None:
                return pid, fd
            time.sleep(0.005)
        return None, None


def open_worker(pid, worker):
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if worker_id(pid) == worker:
        return fd
    os.close(fd)
    return None


def resume(fd):
    try:
        signal.pidfd_send_signal(fd, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it was killed meanwhile
    os.close(fd)


def slow(fd, end):
    """A twentieth of the time."""
    try:
        while time.monotonic() < end:
            signal.pidfd_send_signal(fd, signal.SIGSTOP)
            time.sleep(0.095)
            signal.pidfd_send_signal(fd, signal.SIGCONT)
            time.sleep(0.005)
    except ProcessLookupError:
        pass
    os.close(fd)


def tcp_of(pid):
    """(this end, other end) -> number of the descriptor, of a process's established connections."""
    inodes = {}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes[os.readlink(fd)] = int(fd.name)
        except OSError:
            continue
    lines = [line.split() for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {(w[1], w[2]): inodes[f"socket:[{w[9]}]"] for w in lines if w[3] == "01" and f"socket:[{w[9]}]" in inodes}


def pidfd_getfd(fd, number):
    """A descriptor of our own for what another process has open (Linux 5.6)."""
    libc = ctypes.CDLL(None, use_errno=True)
    got = libc.syscall(438, fd, number, 0)
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


ACTIONS = {"kill": Striker.kill, "stop": Striker.stop, "slow": Striker.slow, "cut": Striker.cut, "corrupt": Striker.corrupt,
           "silence": Striker.silence, "thin": Striker.thin}
