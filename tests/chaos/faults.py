"""Strikes the processes of a running server, and asks it for workers to leave and come."""

import ctypes
import dataclasses
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import threading
import time

from draw import COORDINATOR
from workers import children, worker_id, workers_of

THIN = 20_000  # bytes a second

ASKED_S = 20  # so long the server may answer that lost workers have to be made good first
DONE_S = 60  # so long it may take to do what it said it would
APPEAR_S = 20  # so long a worker that is to be struck may be away: after a few deaths it is started with growing pauses


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


class Refused(OSError):
    """What was asked of the server cannot be: why."""


class Admin:
    """What the server does for who has its key. Thread: any."""

    def __init__(self, port, key):
        self.port, self.key = port, key

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DONE_S)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Authorization": f"Bearer {self.key}"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def workers(self):
        return self.ask("GET", "/admin/workers")[1]["workers"]

    def is_drained(self, worker):
        return self.workers()[worker]["state"] == "drained"

    def wish(self, verb, worker, grace=None):
        """The number of the operation; again and again while it cannot be now."""
        end = time.monotonic() + ASKED_S
        while True:
            status, said = self.ask("POST", f"/admin/workers/{worker}/{verb}", grace is not None and {"timeout": grace} or None)
            if status == 202:
                return said["operation"]
            if said["error"]["code"] != "not_now" or time.monotonic() > end:
                raise Refused(said["error"]["message"])
            time.sleep(0.02)

    def await_done(self, worker, number):
        """Until this operation is over, or a later one has taken its place. It is seen a moment after it was asked for."""
        end = time.monotonic() + DONE_S
        while True:
            operation = self.workers()[worker]["operation"] or {"number": 0}
            if operation["number"] > number or (operation["number"] == number and operation["done"]):
                return
            if time.monotonic() > end:
                raise AssertionError(f"what was asked of worker {worker} does not end: {operation}")
            time.sleep(0.02)

    def want_all(self):
        """Nobody is to be away, and what was asked for is done."""
        for worker in self.workers():
            if worker["state"] in ("drained", "draining", "free"):
                self.wish("join", worker["id"])
        for worker in self.workers():
            if worker["operation"]:
                self.await_done(worker["id"], worker["operation"]["number"])


class Striker(threading.Thread):
    """Carries out strikes while streams run. Processes are held by descriptors: another one that gets the same number
    is not struck."""

    def __init__(self, server_pid, strikes, progress, relay=None, admin=None, machines=None):
        super().__init__(daemon=True)
        self.server_pid, self.strikes, self.progress, self.relay, self.admin = server_pid, strikes, progress, relay, admin
        self.machines = machines
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
        if strike.action in WISHES:
            self.ending.append(threading.Thread(target=self.wish, args=[strike]))
            self.ending[-1].start()
            return
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

    def wish(self, strike):
        """It may have to wait for its turn, and the next strike does not."""
        try:
            WISHES[strike.action](self, strike)
        except Refused as e:
            self.missed.append(f"{strike}: {e}")
        except Exception as e:  # told with the schedule
            self.error = f"{strike}: {type(e).__name__} {e}"

    def asked(self, strike, verb, grace=None):
        number = self.admin.wish(verb, strike.worker, grace)
        self.struck.append((strike, time.monotonic()))
        return number

    def drain(self, strike):
        self.asked(strike, "drain", strike.seconds)

    def join_again(self, strike):
        self.asked(strike, "join")

    def restart(self, strike):
        self.admin.await_done(strike.worker, self.asked(strike, "restart", strike.seconds))

    def roll(self, strike):
        """All workers that there are, that one first."""
        all_of_them = self.admin.workers()
        for worker in all_of_them[strike.worker:] + all_of_them[: strike.worker]:
            if worker["state"] != "free":
                self.restart(dataclasses.replace(strike, worker=worker["id"]))

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

    def rank(self, strike, pid, fd):
        """Of a gang of processes, which ends with it; a worker that is none is struck itself."""
        ranks = children(pid)
        if self.machines:  # each is a process that starts the one that computes
            ranks = [p for waiting in self.machines.pids(strike.worker) for p in children(waiting)]
        if not ranks:
            self.kill(strike, pid, fd)
            return
        os.kill(ranks[-1], signal.SIGKILL)
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
        """Number and descriptor of the process that is this worker; waits for one that is being started, none if nobody is
        wanted there."""
        if worker == COORDINATOR:
            return self.server_pid, os.pidfd_open(self.server_pid)
        end = time.monotonic() + APPEAR_S
        while time.monotonic() < end and not given_up():
            pid = workers_of(self.server_pid).get(worker)
            if pid is not None and pid not in self.killed and (fd := open_worker(pid, worker)) is not None:
                return pid, fd
            if self.admin and self.admin.is_drained(worker):
                break
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


ACTIONS = {"kill": Striker.kill, "rank": Striker.rank, "stop": Striker.stop, "slow": Striker.slow, "cut": Striker.cut, "corrupt": Striker.corrupt,
           "silence": Striker.silence, "thin": Striker.thin}
WISHES = {"drain": Striker.drain, "join": Striker.join_again, "restart": Striker.restart, "roll": Striker.roll}
