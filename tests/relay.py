"""A relay between the workers of a server, over tcp: it can hold, slow down, cut and damage their links.

    with Relay() as relay:               # finds the workers among all that this process has started
        server = subprocess.Popen([SLUICE, "serve", ..., "--transport", "tcp"], env=relay.environment)
        relay.hold(0, 2)                 # nothing passes between workers 0 and 2, in either direction...
        relay.release(0, 2)              # ... and goes on
        relay.slow(0, 2, 50_000)         # bytes a second in each direction; None: as fast as it can
        relay.cut(0, 2)                  # resets what there is; the two may call again
        relay.flip(0, 2, seed)           # one bit of the header of the next message, from either of them (see DAMAGED)
        relay.spoil(0, 2, seed)          # one bit of the payload of the next message of an open connection that has one
        relay.links()                    # (caller, callee) of those that are up

Workers are told to advertise 127.0.0.2 (`--advertise`), where the relay listens on every port that one of them listens on at
127.0.0.1; also those that are started later are found. It calls them from 127.0.0.3, so the two ends of a link have different
addresses and take each other to be on different machines, whose silence ends a link after 2 s. Links with the
coordinator do not pass here. A link is known by who called whom; its faults are asked for by either order. None: any
worker. What is asked for holds also for links that come later, but for cut, and flip and spoil, which are done once.

  tests/relay.py PORT HOST:PORT    forwards a port of 127.0.0.2, where a worker is started by hand (--advertise)"""

import contextlib
import os
import pathlib
import random
import selectors
import socket
import struct
import sys
import threading
import time

from workers import children, worker_id

ADVERTISED, CALLS_FROM, WORKERS = "127.0.0.2", "127.0.0.3", "127.0.0.1"
HEADER, BYTES_AT = 72, 64  # docs/protocol.md
# All but the length: a message that seems longer than it is is waited for. The checksum guards the rest.
DAMAGED = [*range(BYTES_AT), *range(BYTES_AT + 4, HEADER)]
SESSION_AT = 16  # 0 in a handshake, which has no checksums
LOOK_S = 0.2  # between looks for new workers
CHUNK = 1 << 16


def workers_below(root):
    """pid -> worker id of the processes under that one that are workers."""
    found = {}
    with contextlib.suppress(OSError):
        for pid in children(root):
            if (worker := worker_id(pid)) is not None:
                found[pid] = worker
            else:
                found |= workers_below(pid)
    return found


def listening():
    """inode -> (host, port) of every socket of IPv4 that listens, asked of the kernel (sock_diag): /proc/net/tcp takes it
    10 ms, as it looks for connections too."""
    ask = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << 10) + bytes(48)  # TCP_LISTEN alone
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as s:  # NETLINK_SOCK_DIAG
        s.settimeout(5)
        s.send(struct.pack("=IHHII", 16 + len(ask), 20, 0x301, 1, 0) + ask)  # SOCK_DIAG_BY_FAMILY; REQUEST, DUMP
        while True:
            data, at = s.recv(1 << 16), 0
            while at < len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind != 20:  # the end, or an error
                    return found
                port, host = struct.unpack_from(">4xH2x4s", data, at + 16)
                found[struct.unpack_from("=I", data, at + 16 + 68)[0]] = socket.inet_ntoa(host), port
                at += length + 3 & ~3


def ports_of(pid, sockets):
    """Where this process listens on WORKERS; sockets: those that listen."""
    ports = set()
    with contextlib.suppress(OSError):
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError, ValueError):
                host, port = sockets.get(int(os.readlink(fd).removeprefix("socket:[").removesuffix("]")), (None, 0))
                if host == WORKERS:
                    ports.add(port)
    return ports


def has(pid, variable):
    with contextlib.suppress(OSError):
        return variable in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


class Way:
    """One direction of a link: bytes that came from `source` and are to leave at `sink`."""

    def __init__(self, source, sink):
        self.source, self.sink = source, sink
        self.came, self.out = bytearray(), bytearray()
        self.payload = 0     # bytes of the message under way that are still to come
        self.hello = None    # worker id of the first message, a HELLO's
        self.ended = False   # the source has...
        self.told = False    # ... and the sink knows
        self.spoiled = None  # see Relay.damage
        self.allowance, self.counted = 0.0, time.monotonic()

    def sort(self, damage):
        """Moves what is whole enough from came to out; damage(header) may change a header."""
        while self.came:
            if self.payload == 0:
                if len(self.came) < HEADER + (4 if self.hello is None else 0):
                    break
                header = self.came[:HEADER]
                del self.came[:HEADER]
                if self.hello is None:
                    self.hello = struct.unpack_from("<I", self.came)[0]
                self.payload = struct.unpack_from("<I", header, BYTES_AT)[0]
                self.spoiled = damage(header, self.payload)
                self.out += header
            n = min(self.payload, len(self.came))
            if self.spoiled is not None and self.spoiled[0] >= self.payload - n:  # counted from the end
                self.came[self.payload - 1 - self.spoiled[0]] ^= self.spoiled[1]
                self.spoiled = None
            self.out += self.came[:n]
            del self.came[:n]
            self.payload -= n
        if self.ended:  # in the middle of a message
            self.out += self.came
            self.came.clear()

    def allowed(self, rate):
        now = time.monotonic()
        if rate is None:
            self.counted = now
            return CHUNK
        self.allowance = min(self.allowance + rate * (now - self.counted), max(rate / 10, 1500))
        self.counted = now
        return int(self.allowance)


class Link:
    def __init__(self, near, far, callee):
        self.there, self.back = Way(near, far), Way(far, near)
        self.callee = callee

    def ends(self):
        return (self.there.hello, self.callee)

    def ways(self):
        return (self.there, self.back)


class Relay(threading.Thread):
    """Thread: its own owns the links; calls from any."""

    def __init__(self, follows=True, mark=None):
        """With a mark it follows only servers that are started in its `environment`."""
        super().__init__(daemon=True)
        self.follows, self.mark = follows, mark and f"RELAY={mark}".encode()
        self.lock = threading.Lock()
        self.select = selectors.DefaultSelector()
        self.listeners = {}  # port -> (socket, callee, target)
        self.open, self.waiting = [], set()  # links; (link, way) that may not, or cannot leave now
        self.stopped, self.next_look = False, 0.0
        self.held, self.rates, self.damages, self.damaged = set(), {}, {}, 0
        self.environment = {**os.environ, "SLUICE_ADVERTISE": ADVERTISED, "RELAY": mark or ""}
        self.error = None

    # ---- calls ----

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped = True
        self.join()
        for listener, *_ in self.listeners.values():
            listener.close()
        for link in list(self.open):
            self.close(link)
        assert self.error is None, self.error

    def forward(self, port, target, callee=None):
        """Port of ADVERTISED to target, (host, port) of worker `callee`."""
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setblocking(False)
        s.bind((ADVERTISED, port))
        s.listen(64)
        with self.lock:
            self.listeners[port] = (s, callee, target)
        self.select.register(s, selectors.EVENT_READ, port)

    def links(self):
        with self.lock:
            return [link.ends() for link in self.open]

    def hold(self, a, b):
        with self.lock:
            self.held.add(self.pair(a, b))

    def release(self, a, b):
        with self.lock:
            self.held.discard(self.pair(a, b))

    def slow(self, a, b, bytes_per_s):
        with self.lock:
            self.rates[self.pair(a, b)] = bytes_per_s

    def cut(self, a, b):
        """How many links there were."""
        with self.lock:
            links = [link for link in self.open if self.concerns(self.pair(a, b), link)]
            for link in links:
                self.close(link)
            return len(links)

    def flip(self, a, b, seed):
        with self.lock:
            self.damages[self.pair(a, b), False] = random.Random(seed)

    def spoil(self, a, b, seed):
        with self.lock:
            self.damages[self.pair(a, b), True] = random.Random(seed)

    # ---- what holds for a link ----

    @staticmethod
    def pair(a, b):
        return frozenset((a, b))

    @staticmethod
    def concerns(pair, link):
        caller, callee = link.ends()
        if caller is None:  # it has not said who it is
            return False
        return pair == {None} or (None in pair and (pair - {None}) & {caller, callee}) or pair == {caller, callee}

    def is_held(self, link):
        return any(self.concerns(p, link) for p in self.held)

    def rate(self, link):
        rates = [r for p, r in self.rates.items() if r is not None and self.concerns(p, link)]
        return min(rates, default=None)

    def damage(self, link, header, payload):
        """Of the payload: which byte from the end, and how; None: none."""
        spoiled = None
        for (pair, inside), rng in list(self.damages.items()):
            if not self.concerns(pair, link) or (inside and not (payload and any(header[SESSION_AT:SESSION_AT + 8]))):
                continue
            if inside:
                spoiled = (rng.randrange(payload), 1 << rng.randrange(8))
            else:
                header[rng.choice(DAMAGED)] ^= 1 << rng.randrange(8)
            self.damaged += 1
            del self.damages[pair, inside]
        return spoiled

    # ---- its thread ----

    def run(self):
        try:
            while not self.stopped:
                events = self.select.select(0.002 if self.waiting else 0.02)
                with self.lock:
                    ways = {key.data for key, _ in events if not isinstance(key.data, int)}
                    for link, way in ways | self.waiting:
                        self.move(link, way)
                for key, _ in events:
                    if isinstance(key.data, int):
                        self.accept(key.data)
                if self.follows and time.monotonic() >= self.next_look:
                    self.look()
        except Exception as e:
            self.error = e

    def look(self):
        self.next_look = time.monotonic() + LOOK_S
        sockets = listening()
        there = {port: worker for pid, worker in workers_below(os.getpid()).items() if not self.mark or has(pid, self.mark)
                 for port in ports_of(pid, sockets)}
        for port in set(self.listeners) - set(there):
            s, *_ = self.listeners.pop(port)
            self.select.unregister(s)
            s.close()
        for port in set(there) - set(self.listeners):
            self.forward(port, (WORKERS, port), there[port])

    def accept(self, port):
        with contextlib.suppress(OSError, KeyError):
            listener, callee, target = self.listeners[port]
            near, _ = listener.accept()
            far = socket.socket()
            try:
                far.bind((CALLS_FROM, 0))
                far.connect(target)  # on this machine: it is there or refuses
            except OSError:
                near.close()
                far.close()
                return
            link = Link(near, far, callee)
            with self.lock:
                self.open.append(link)
                for way in link.ways():
                    way.source.setblocking(False)
                    way.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.select.register(way.source, selectors.EVENT_READ, (link, way))

    def move(self, link, way):
        """What way has, as far as it may."""
        if link not in self.open:
            self.waiting.discard((link, way))
            return
        held = self.is_held(link)
        try:
            if not held:
                self.read(way)
                way.sort(lambda header, payload: self.damage(link, header, payload))
                self.write(way, self.rate(link))
        except OSError:
            self.close(link)
            return
        wanted, watched = not held and not way.ended and len(way.out) < CHUNK, way.source.fileno() in self.select.get_map()
        if wanted and not watched:
            self.select.register(way.source, selectors.EVENT_READ, (link, way))
        elif watched and not wanted:
            self.select.unregister(way.source)
        (self.waiting.add if held or way.out else self.waiting.discard)((link, way))
        if all(w.told for w in link.ways()):
            self.close(link)

    @staticmethod
    def read(way):
        if len(way.out) >= CHUNK or way.ended:
            return
        with contextlib.suppress(BlockingIOError):
            data = way.source.recv(CHUNK)
            way.came += data
            way.ended = not data

    @staticmethod
    def write(way, rate):
        n = min(way.allowed(rate), len(way.out))
        if n:
            with contextlib.suppress(BlockingIOError):
                n = way.sink.send(way.out[:n])
                del way.out[:n]
                way.allowance -= n if rate is not None else 0
        if way.ended and not way.out and not way.told:
            way.sink.shutdown(socket.SHUT_WR)
            way.told = True

    def close(self, link):
        """With a reset, unless both sides have closed it."""
        self.open.remove(link)
        for way in link.ways():
            with contextlib.suppress(KeyError, ValueError):
                self.select.unregister(way.source)
            way.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            way.source.close()


def main():
    if len(sys.argv) != 3 or ":" not in sys.argv[2]:
        sys.exit(__doc__)
    host, port = sys.argv[2].rsplit(":", 1)
    with Relay(follows=False) as relay:
        relay.forward(int(sys.argv[1]), (host, int(port)))
        while relay.is_alive():
            time.sleep(1)


if __name__ == "__main__":
    main()
