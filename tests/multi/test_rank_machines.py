"""Workers whose ranks are on machines: processes of `sluice rank` that wait at addresses. One that is killed ends its worker, which is
a lost worker as any other, and whoever waits there next is its rank again.

The program under test is SLUICE_BIN (default build/sluice); the addresses are of this machine."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parent)]
import launched  # noqa: E402
import sample  # noqa: E402
from served import SLUICE  # noqa: E402
from test_kill import FIXTURE, Server, assert_books_balance, metric, start_streams, wait_until, went_on  # noqa: E402
from workers import children  # noqa: E402


SLOW = 240  # tokens of a stream: ranks take their time for them


class Rank:
    """sluice rank at a port; what it says."""

    def __init__(self, secret, port, *options, model=FIXTURE):
        self.process = subprocess.Popen([SLUICE, "rank", str(model), "--fabric-port", str(port), "--secret-file", str(secret), "--threads", "1",
                                         "--log", "info", *options], stderr=subprocess.PIPE, text=True)
        self.port, self.log = port, []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def computing(self):
        """The process that computes; the other one starts it."""
        return children(self.process.pid)[0]

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    subprocess.run([SLUICE, "secret", "-o", str(path)], check=True, capture_output=True)
    return path


@pytest.fixture
def ranks(secret):
    """Makes ranks, which end with the test."""
    with contextlib.ExitStack() as stack:
        def make(n):
            made = [Rank(secret, launched.free_port()) for _ in range(n)]
            for r in made:
                stack.callback(r.stop)
            return made
        yield make


def hosts(*workers):
    return ";".join(",".join(f"127.0.0.1:{r.port}" for r in w) for w in workers)


def serve(secret, *options):
    return Server("--exact", "--secret-file", str(secret), *options)


KILLED = [(("--attention", "1", "--experts", "2", "--tp", "2"), (1, 1, 1)),  # of each worker so many ranks; the last is killed
          (("--attention", "2", "--tp", "2", "--transport", "tcp"), (1, 1)),
          (("--attention", "1", "--experts", "1", "--attention-tp", "4", "--expert-tp", "1"), (3, 0)),
          (("--attention", "1", "--pp", "3"), (2,)),
          (("--attention", "2", "--pp", "2", "--kv-replicas", "1"), (1, 1)),
          (("--attention", "1", "--experts", "1", "--pp", "2", "--schedule", "aep"), (1, 1)),
          (("--attention", "3", "--tp", "2", "--schedule", "hybrid", "--rail-bytes", "1", "--placement", "replicas:2"), (1, 1, 1)),
          (("--attention", "2", "--tp", "2", "--schedule", "hybrid", "--rail-bytes", "1", "--wire", "fp8"), (1, 1))]


def a_rank_is_killed(secret, ranks, options, sizes, which):
    """Streams go on with the same tokens, and the worker comes back with a rank that waited anew."""
    made = ranks(sum(sizes))
    rest = iter(made)
    server = serve(secret, *options, "--rank-hosts", hosts(*[[next(rest) for _ in range(n)] for n in sizes]))
    try:
        n = len(server.workers())
        streams = start_streams(server, 5, max_tokens=SLOW)
        os.kill(made[which].computing(), signal.SIGKILL)
        went_on(server, streams)
        assert metric(server, "workers_lost_total") == 1
        assert re.search(r"error gang: rank \d of \d( at \S+)?: ?.*its worker ends with it|has ended: its worker ends", "".join(server.log)), server.log
        assert_books_balance(server, n)
        wait_until(lambda: len(server.workers()) == n and server.request("GET", "/readyz").status == 200, "the worker is not back")
    finally:
        assert server.stop() == 0, "".join(server.log)


@pytest.mark.parametrize("options, sizes", sample.of(KILLED, 1, 6))
def test_a_rank_is_killed(secret, ranks, options, sizes):
    a_rank_is_killed(secret, ranks, options, sizes, -1)


@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_that_hands_rows_on_is_killed(secret, ranks, which):
    """The one that waits for its rows, too, and the one that it gets its own from, are there for the next worker."""
    a_rank_is_killed(secret, ranks, ("--attention", "1", "--pp", "4"), (3,), which)


class Counted:
    """A port that stands for another one of this machine: the bytes of each connection, to the port and back."""

    def __init__(self, port):
        self.to, self.links = port, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far, bytes_of = launched.wait(f"port {self.to}", 30, self.reach), [0, 0]  # its program may have just been started
                self.links.append(bytes_of)
                for i, ends in enumerate(((near, far), (far, near))):
                    threading.Thread(target=self.carry, args=(*ends, bytes_of, i), daemon=True).start()

    def reach(self):
        return socket.create_connection(("127.0.0.1", self.to))

    @staticmethod
    def carry(source, sink, bytes_of, i):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                bytes_of[i] += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def test_rows_go_from_rank_to_rank(secret, ranks):
    """Of three ranks rank 0's links carry a prompt's rows to the second and from the third; the one between these two carries them once, one way."""
    made = ranks(2)
    config = json.loads((FIXTURE / "config.json").read_text())
    prompt = [3 + i % 50 for i in range(200)]
    rows, slack = len(prompt) * config["hidden_size"] * 4, 0.5
    second, third = (Counted(r.port) for r in made)
    server = serve(secret, "--attention", "1", "--pp", "3", "--max-num-batched-tokens", "256", "--rank-hosts", hosts([second, third]))
    try:
        assert len(second.links) == 2 and len(third.links) == 1  # rank 0's first, then the third's
        links = [*second.links, *third.links]
        before = [list(link) for link in links]
        assert server.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0}).status == 200
        there, back = ([link[i] - was[i] for link, was in zip(links, before)] for i in (0, 1))
        assert [n / rows > 1 for n in there] == [True, False, False] and [n / rows > 1 for n in back] == [False, True, True], (there, back, rows)
        assert max(there[1:] + back[:1]) < slack * rows and max(there[:1] + back[1:]) < (1 + slack) * rows, (there, back, rows)
    finally:
        assert server.stop() == 0, "".join(server.log)


HYBRID = ("--attention", "2", "--schedule", "hybrid", "--rail-bytes", "1")


@pytest.mark.parametrize("deployed", [("--attention", "1", "--experts", "1"), HYBRID])
def test_a_worker_is_killed(secret, ranks, deployed):
    """Its ranks wait for the next one, and it finds them."""
    made = ranks(2)
    server = serve(secret, *deployed, "--tp", "2", "--rank-hosts", hosts(made[:1], made[1:]))
    try:
        for worker in (0, 1):
            streams = start_streams(server, 3, max_tokens=SLOW)
            os.kill(server.worker_pid(worker), signal.SIGKILL)
            went_on(server, streams)
            wait_until(lambda: server.request("GET", "/readyz").status == 200, "the worker is not back")
        assert metric(server, "workers_lost_total") == 2
    finally:
        assert server.stop() == 0, "".join(server.log)
    for r in made:
        wait_until(lambda r=r: sum("waits for its worker" in line for line in r.log) >= 3, "".join(r.log))


def test_a_rank_is_stopped_for_a_while(secret, ranks):
    """Its worker waits for it, and says that it lives."""
    rank, = ranks(1)
    server = serve(secret, "--attention", "1", "--experts", "1", "--attention-tp", "1", "--expert-tp", "2", "--rank-hosts", hosts([], [rank]))
    try:
        streams = start_streams(server, 3, max_tokens=SLOW)
        pid = rank.computing()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(pid, signal.SIGCONT)
        went_on(server, streams)
        assert metric(server, "workers_lost_total") == 0
    finally:
        assert server.stop() == 0, "".join(server.log)


def test_ranks_exchange_rows_themselves(secret, ranks):
    """Messages of rows are spread over ranks, also once a rank has stood still and gone on."""
    made = ranks(2)
    server = serve(secret, *HYBRID, "--tp", "2", "--rank-hosts", hosts(made[:1], made[1:]))
    try:
        streams = start_streams(server, 4, max_tokens=SLOW)
        pid = made[1].computing()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(pid, signal.SIGCONT)
        went_on(server, streams)
        assert metric(server, "workers_lost_total") == 0
        wait_until(lambda: min(server.metrics("worker_striped_messages_total")) > 100 and min(server.metrics("worker_rail_bytes_total")) > 100 * 64, "nothing was spread")
    finally:
        assert server.stop() == 0, "".join(server.log)


def test_nodes_are_taken_one_by_one(secret, ranks, tmp_path, monkeypatch):
    """Of three gangs, what came from one is gathered while another's rows are on their way: the same tokens twice."""
    monkeypatch.setenv("SLUICE_GATHER", "early")
    made, trace = ranks(3), tmp_path / "trace.json"
    server = serve(secret, "--attention", "3", "--tp", "2", "--schedule", "hybrid", "--rail-bytes", "1", "--trace", str(trace), "--rank-hosts", hosts(*[[r] for r in made]))
    try:
        went_on(server, start_streams(server, 6, max_tokens=SLOW))
        assert metric(server, "workers_lost_total") == 0
    finally:
        assert server.stop() == 0, "".join(server.log)
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "early"]
    assert len(spans) > 10 and all(e["args"]["rows"] > 0 for e in spans)


def test_a_rank_that_waits_sleeps(secret, ranks):
    """Before a worker calls, and while its gang has nothing to do."""
    def wakes(rank, seconds=2):
        status = pathlib.Path(f"/proc/{rank.computing()}/status")
        before, _ = [int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.M)[1]), time.sleep(seconds)]
        return (int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.M)[1]) - before) / seconds

    rank, = ranks(1)
    wait_until(lambda: any("waits for its worker" in line for line in rank.log), "it does not wait")
    assert wakes(rank) < 50
    server = serve(secret, "--attention", "1", "--experts", "1", "--attention-tp", "1", "--expert-tp", "2", "--rank-hosts", hosts([], [rank]))
    try:
        wait_until(lambda: any("it computes" in line for line in rank.log), "no gang")
        time.sleep(1)
        assert wakes(rank) < 50
    finally:
        assert server.stop() == 0, "".join(server.log)


def test_ranks_may_come_later(secret):
    """Who opens its gang waits for those that are not there yet."""
    port = launched.free_port()
    run = subprocess.Popen([SLUICE, "run", str(FIXTURE), "-p", "x", "--max-tokens", "4", "--tp", "2", "--rank-hosts", f"127.0.0.1:{port}",
                            "--secret-file", str(secret)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    rank = Rank(secret, port)
    try:
        _, err = run.communicate(timeout=60)
        assert run.returncode == 0, err
    finally:
        rank.stop()


@pytest.mark.parametrize("arguments, said", [
    (["--tp", "2", "--rank-hosts", "127.0.0.1:1,127.0.0.1:2"], "worker 0 has 2 addresses of ranks, 1 are wanted"),
    (["--tp", "2", "--tp-ranks", "machines"], "worker 0 has 0 addresses of ranks, 1 are wanted"),
    (["--tp", "2", "--tp-ranks", "threads", "--rank-hosts", "127.0.0.1:1"], "--rank-hosts is of ranks that are machines, not threads"),
    (["--tp", "2", "--rank-hosts", "127.0.0.1:1;127.0.0.1:2"], "more than the plan's 1 workers"),
    (["--attention", "2", "--tp", "2", "--rank-hosts", "127.0.0.1:1;127.0.0.1:1"], "2 ranks are at 127.0.0.1:1, where one can be"),
    (["--tp", "2", "--rank-hosts", "nonsense"], "rank 1 of 2 at nonsense: "),
    (["--tp", "2", "--rank-hosts", "x" * 300], "addresses of ranks of 300 bytes, 255 are possible"),
    (["--tp", "2", "--rank-hosts", "127.0.0.1:1", "--device", "emulated:H100", "--rank-link", "10:160"], "ranks of emulated devices are no machines"),
    (["--pp", "3", "--rank-hosts", "127.0.0.1:1"], "worker 0 has 1 addresses of ranks, 2 are wanted"),
    (["--pp", "2", "--tp", "2", "--tp-ranks", "machines"], "pipelines of 2 ranks (pp, --pp) whose ranks are gangs (tp, --tp) are of threads"),
    (["--pp", "2", "--tp-ranks", "processes"], "ranks of pipelines (--pp) are threads or machines"),
    (["--pp", "5"], "pipelines of 5 ranks (pp, --pp): the model has 4 blocks"),
    (["--pp", "2", "--device", "emulated:H100"], "pipelines (2) of emulated devices need device.rank_link"),
    (["--pp", "2", "--device", "cuda:0"], "worker 0 is 2 ranks (--tp, --pp), on cuda:0 it can only be one"),
])
def test_what_cannot_be_is_refused(secret, arguments, said):
    done = subprocess.run([SLUICE, "run", str(FIXTURE), "-p", "x", "--secret-file", str(secret), *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and said in done.stderr, done.stderr


def test_without_a_secret_nobody_calls():
    done = subprocess.run([SLUICE, "run", str(FIXTURE), "-p", "x", "--tp", "2", "--rank-hosts", "127.0.0.1:1"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "--secret-file is missing" in done.stderr
    done = subprocess.run([SLUICE, "rank", str(FIXTURE), "--fabric-port", "7100"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "--secret-file is missing" in done.stderr


def test_a_rank_that_cannot_serve_ends(secret):
    """Another address than this machine's, a port of somebody else's, no model."""
    port = launched.free_port()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port is held
        taken.bind(("127.0.0.1", port))
        taken.listen()
        for model, options in ((FIXTURE, ["--fabric-port", str(port)]), (FIXTURE.parent / "nothing", ["--fabric-port", str(port)])):
            done = subprocess.run([SLUICE, "rank", str(model), *options, "--secret-file", str(secret)], capture_output=True, text=True, timeout=30)
            assert done.returncode != 0 and done.stderr.startswith("sluice rank: "), done.stderr
