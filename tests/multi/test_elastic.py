"""Workers that leave, restart and come on purpose while streams run: nothing is lost, no bit changes (--exact)."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_kill import FIXTURE, SLUICE, Server, assert_books_balance, ended, metric, nobody_is_left, wait_until  # noqa: E402, F401
import sample  # noqa: E402

TOKENS = 120
DEADLINE_S = 60


class Admin:
    """A server with a key for it, asked by the command line."""

    def __init__(self, folder, *options):
        self.key = folder / "admin.key"
        subprocess.run([SLUICE, "secret", "-o", self.key], check=True, stdout=subprocess.DEVNULL)
        self.server = Server("--exact", "--threads", "1", "--ctx", "512", "--admin-key-file", self.key, *options)

    def ask(self, *words, code=0):
        url = f"http://127.0.0.1:{self.server.port}"
        ran = subprocess.run([SLUICE, *map(str, words), "--url", url, "--admin-key-file", self.key, "--timeout", str(DEADLINE_S)],
                             text=True, capture_output=True, timeout=DEADLINE_S + 20)
        assert ran.returncode == code, f"{words}: {ran.returncode} {ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr

    def states(self):
        return [w["state"] for w in self.http("GET", "/admin/workers")[1]["workers"]]

    def http(self, method, path, body=None, key=None):

        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        connection.request(method, path, body, {"Authorization": f"Bearer {key or self.key.read_text().strip()}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def stop(self):
        assert self.server.stop() == 0, "".join(self.server.log)
        self.server.reader.join(10)
        return "".join(self.server.log)


class Load:
    """Streams, again and again until they are told to stop; every answer is that of a calm server, and has its end."""

    def __init__(self, server, n, tokens=TOKENS):
        self.server, self.bodies, self.ended, self.wrong, self.gap, self.n = server, [], threading.Event(), [], 0.0, 0
        for i in range(n):
            self.bodies.append({"model": "m", "prompt": [3, 17, 41 + i, 5 + i], "max_tokens": tokens, "stream": True, "logprobs": 2,
                                "temperature": 0 if i % 2 else 0.9, "seed": i, "ignore_eos": True, "return_token_ids": True})
        self.want = [self.answer(b)[0] for b in self.bodies]
        self.threads = [threading.Thread(target=self.repeat, args=[i], daemon=True) for i in range(n)]
        self.running = threading.Barrier(n + 1)

    def answer(self, body, on_token=lambda: None):
        got, gap, last = {"ids": [], "logprobs": [], "finish": None}, 0.0, None
        response = self.server.request("POST", "/v1/completions", body, timeout=DEADLINE_S)
        assert response.status == 200, response.read()
        for raw in response:
            if not raw.startswith(b"data: {"):
                continue
            event = json.loads(raw[6:], parse_float=str)
            assert "error" not in event, event
            for c in event["choices"]:
                now = time.monotonic()
                gap, last = max(gap, now - (last or now)), now
                got["ids"] += c.get("token_ids") or []
                got["logprobs"] += (c.get("logprobs") or {}).get("token_logprobs") or []
                got["finish"] = c["finish_reason"] or got["finish"]
                on_token()
        return got, gap

    def repeat(self, i):
        first = [True]

        def on_token():
            if first[0]:
                first[0] = False
                self.running.wait(DEADLINE_S)

        try:
            while first[0] or not self.ended.is_set():
                got, gap = self.answer(self.bodies[i], on_token)
                self.gap, self.n = max(self.gap, gap), self.n + 1
                if got != self.want[i]:
                    self.wrong.append(f"stream {i}: {got} is not {self.want[i]}")
        except (AssertionError, OSError) as e:
            self.wrong.append(f"stream {i}: {e}")

    def __enter__(self):
        for t in self.threads:
            t.start()
        self.running.wait(DEADLINE_S)
        return self

    def __exit__(self, *_):
        self.ended.set()
        for t in self.threads:
            t.join(DEADLINE_S)
            assert not t.is_alive(), "a stream does not end"
        assert not self.wrong, self.wrong[0]
        print(f"{self.n} answers, longest gap {1e3 * self.gap:.0f} ms")


def nothing_was_lost(admin, n_workers):
    for name in ("workers_lost_total", "requests_requeued_total", "num_preemptions_total"):
        assert metric(admin.server, name) == 0, name
    assert_books_balance(admin.server, n_workers)
    log = admin.stop()
    assert not any(word in log for word in (" error ", " warn ", "Sanitizer", "assertion")), log


DEPLOYMENTS = [("shm", "dep", 2, 2), ("tcp", "aep", 2, 2), ("tcp", "ep", 3, 0), ("shm", "findep", 2, 3)]


@pytest.mark.parametrize(("transport", "schedule", "attention", "experts"), sample.of(DEPLOYMENTS, 1, 3))
def test_drain_and_join(tmp_path, transport, schedule, attention, experts):
    """The first worker of each role, which are the sequencer and one that the others dial, and the last one."""
    n = attention + experts
    shape = ("--attention", attention, *(("--experts", experts) if experts else ()))
    admin = Admin(tmp_path, *map(str, shape), "--schedule", schedule, "--transport", transport)
    pids = admin.server.workers()
    with Load(admin.server, 4):
        for i, worker in enumerate(sorted({0, attention, n - 1} - {n})):
            assert f"worker {worker} is drained" in admin.ask("drain", worker, "--grace", i % 2 * 0.2)
            assert admin.states() == ["drained" if w == worker else "serving" for w in range(n)]
            assert not pathlib.Path(f"/proc/{pids[worker]}").exists()
            health = admin.server.request("GET", "/readyz")
            assert health.status == 200 and json.loads(health.read()) == {"status": "ok", "drained_workers": 1}
            assert f"worker {worker} serves" in admin.ask("join", worker)
            assert admin.states() == ["serving"] * n
    assert metric(admin.server, "workers_joined_total") == metric(admin.server, "workers_drained_total") > 1
    assert metric(admin.server, "workers_restarted_total") == 0
    nothing_was_lost(admin, n)


def test_rolling_restart(tmp_path):
    admin = Admin(tmp_path, "--attention", "2", "--experts", "2")
    pids = admin.server.workers()
    with Load(admin.server, 8):
        said = admin.ask("restart", "--all", "--grace", "0")  # however fast requests are, some are in flight
    assert [line.split(" (")[0] for line in said.splitlines()] == [f"worker {i} serves again" for i in range(4)]
    now = admin.server.workers()
    assert sorted(now) == sorted(pids) and not set(now.values()) & set(pids.values())
    assert metric(admin.server, "requests_moved_total") >= 1
    nothing_was_lost(admin, 4)


def test_what_is_refused(tmp_path):
    admin = Admin(tmp_path, "--attention", "1", "--experts", "2")
    assert "no worker 7" in admin.ask("drain", "7", code=2)
    assert "is no worker's id" in admin.ask("drain", "two", code=2)
    assert "--all, or the id" in admin.ask("restart", "1", "--all", code=2)
    assert "worker 1 is not drained" in admin.ask("join", "1", code=1)
    assert "last attention worker" in admin.ask("drain", "0", code=3)
    admin.ask("drain", "2", "--json")
    assert "drained already" in admin.ask("drain", "2", code=1)
    assert "last expert worker" in admin.ask("drain", "1", code=3)
    assert admin.http("POST", "/admin/workers/1/drain", key="x" * 32)[0] == 401
    assert admin.http("POST", "/admin/workers/9/drain")[1]["error"]["code"] == "unknown_worker"
    assert admin.http("POST", "/admin/workers/1/leave")[1]["error"]["code"] == "unknown_url"
    assert admin.http("POST", "/admin/workers/1/drain", '{"grace": 3}')[0] == 400
    assert admin.http("GET", "/admin/workers/1/drain")[0] == 405
    with Load(admin.server, 2) as load:  # the last one may restart: streams wait for it
        admin.ask("restart", "0", "--grace", "0")
        admin.ask("restart", "1")
        assert not load.wrong
    admin.ask("join", "2")
    assert metric(admin.server, "workers_lost_total") == 0
    admin.stop()
    server = Server("--attention", "1")
    assert server.request("GET", "/admin/workers").status == 404
    server.stop()


@pytest.mark.parametrize(("schedule", "attention", "experts"), sample.of([("dep", 2, 2), ("aep", 2, 2), ("ep", 3, 0)], 0, 2))
def test_what_has_no_memory_is_refused(tmp_path, schedule, attention, experts):
    """Experts and KV go to nobody who has no room for them, unless their worker is lost: that is made good, and the log says it."""
    last, shape = attention + experts - 1, ["--attention", attention, *(["--experts", experts, "--max-experts", experts + 1] if experts else [])]
    admin = Admin(tmp_path, *map(str, shape), "--schedule", schedule, "--adapt-memory", "0.001")
    n = last + 1 + (experts > 0)
    with Load(admin.server, 4, tokens=200):
        for verb in "drain", "restart":
            said = admin.ask(verb, last, code=3)
            assert re.search(rf"worker {last} stays: experts that move need \d+\.\d MB beside .*, worker \d's machine has 0\.0 MB left", said), said
        status, body = admin.http("POST", f"/admin/workers/{last}/drain")
        assert status == 409 and body["error"]["code"] == "no_memory", body
        admin.ask("restart", "--all", code=3)
        if experts:
            assert re.search(r"worker \d cannot come: experts that move need", admin.ask("join", n - 1, code=3))
            # Its neighbour has never been asked for so many pages.
            said = admin.http("POST", "/admin/workers/0/drain", '{"timeout": 0}')
            assert said[0] == 202 or "KV of requests that move needs" in said[1]["error"]["message"], said
            wait_until(lambda: admin.states()[0] in ("drained", "serving"), "worker 0 is neither here nor there")
            if admin.states()[0] == "drained":
                admin.ask("join", 0)
        assert admin.states()[:last + 1] == ["serving"] * (last + 1)
        assert not any(f"worker {last} is lost" in line for line in admin.server.log)
        os.kill(admin.server.worker_pid(last), 9)
        wait_until(lambda: metric(admin.server, "workers_restarted_total") == 1, "it does not come back")
    # Its experts wait for its next process, or others take over what does not fit when that takes too long.
    ways = (f"worker {last} is lost, and others take over what does not fit: experts that move need", f"experts of worker {last} wait for its next process")
    assert any(way in line for line in admin.server.log for way in ways), admin.server.log
    assert_books_balance(admin.server, n)
    admin.stop()


def test_cached_pages_need_no_memory_elsewhere(tmp_path):
    """They do not move: who has nothing else leaves also where there is no room for them."""
    admin = Admin(tmp_path, "--attention", "2", "--experts", "1", "--adapt-memory", "0.001")
    asked = {"model": "m", "prompt": list(range(3, 203)), "max_tokens": 4, "ignore_eos": True}
    response = admin.server.request("POST", "/v1/completions", asked, timeout=DEADLINE_S)
    assert response.status == 200 and response.read()
    wait_until(lambda: metric(admin.server, "kv_pages_cached") >= 6, "nothing is cached")
    admin.ask("drain", 0)
    assert metric(admin.server, "kv_pages_cached") == 0 and admin.states()[0] == "drained"
    admin.ask("join", 0)
    admin.stop()


@pytest.mark.parametrize("worker", [0, 2])
def test_one_that_dies_while_it_drains(tmp_path, worker):
    """It is simply gone, and is not started again."""
    admin = Admin(tmp_path, "--attention", "2", "--experts", "2")
    with Load(admin.server, 4):
        pid = admin.server.worker_pid(worker)
        assert admin.http("POST", f"/admin/workers/{worker}/drain", '{"timeout": 60}')[0] == 202
        with contextlib.suppress(ProcessLookupError):  # it may have left by now
            os.kill(pid, 9)
        wait_until(lambda: admin.states()[worker] == "drained", "it is not drained")
    assert admin.states().count("serving") == 3 and len(admin.server.workers()) == 3
    admin.ask("join", worker)
    assert_books_balance(admin.server, 4)
    admin.stop()


def hosted(admin):
    """Expert worker -> rows that it has computed so far."""
    text = admin.server.request("GET", "/metrics").read().decode()
    return {int(w): int(float(n)) for w, n in re.findall(r'^sluice:worker_rows_total{worker="(\d+)",role="\w+",kind="expert"} (\S+)$', text, re.M)}


GROWTH = [("shm", "dep", 1, 1, 2, 3), ("tcp", "aep", 1, 2, 2, 3), ("tcp", "ep", 2, 0, 4, 0), ("shm", "pingpong", 1, 2, 2, 4),
          ("ucx", "findep", 1, 2, 2, 3)]


@pytest.mark.parametrize(("transport", "schedule", "attention", "experts", "most_attention", "most_experts"), sample.of(GROWTH, 0, 2, 4))
def test_growth(tmp_path, transport, schedule, attention, experts, most_attention, most_experts):
    """Workers come for whom the first plan had a free place and nothing to do: they get experts and requests."""
    if transport == "ucx" and b"ucp_init" not in SLUICE.read_bytes():
        pytest.skip("built without ucx")
    first, most = attention + experts, most_attention + most_experts
    shape = ["--attention", attention, "--max-attention", most_attention]
    shape += ["--experts", experts, "--max-experts", most_experts] if experts else []
    admin = Admin(tmp_path, *map(str, shape), "--schedule", schedule, "--transport", transport)
    with Load(admin.server, 4):
        assert admin.states() == ["serving"] * first + ["free"] * (most - first)
        assert sorted(admin.server.workers()) == list(range(first))
        health = admin.server.request("GET", "/readyz")
        assert health.status == 200 and json.loads(health.read()) == {"status": "ok"}
        for worker in range(first, most):
            assert f"worker {worker} serves" in admin.ask("join", worker)
        assert admin.states() == ["serving"] * most
        expert_workers = [w for w in range(most) if not experts or attention <= w < first or w >= first + most_attention - attention]
        wait_until(lambda: all(hosted(admin)[w] > 0 for w in expert_workers), f"some have no experts: {hosted(admin)}")
        # And back: who came may leave.
        assert f"worker {most - 1} is drained" in admin.ask("drain", most - 1, "--grace", 0)
    assert metric(admin.server, "workers_joined_total") == most - first
    nothing_was_lost(admin, most)


def test_growth_beside_losses(tmp_path):
    """Who came for a free place is lost and comes again like others, and so are those who were there before it."""
    admin = Admin(tmp_path, "--attention", "1", "--experts", "1", "--max-experts", "2")
    with Load(admin.server, 2):
        assert "no worker 3" in admin.ask("join", 3, code=2)
        admin.ask("join", 2)
        for n, worker in enumerate((2, 1), 1):
            os.kill(admin.server.worker_pid(worker), 9)
            wait_until(lambda n=n: metric(admin.server, "workers_restarted_total") == n, "it does not come back")
    assert metric(admin.server, "workers_lost_total") == 2
    assert_books_balance(admin.server, 3)
    admin.stop()


def test_somebody_comes_in_an_outage(tmp_path):
    """Who is wanted again is welcome while the only attention worker, or the other expert worker, is away."""
    admin = Admin(tmp_path, "--attention", "1", "--experts", "2")
    for lost in 0, 1:
        admin.ask("drain", 2)
        with Load(admin.server, 2):
            os.kill(admin.server.worker_pid(lost), 9)
            wait_until(lambda n=lost + 1: metric(admin.server, "workers_lost_total") == n, "nobody notices")
            assert admin.http("POST", "/admin/workers/2/join")[0] == 202
            wait_until(lambda: admin.states() == ["serving"] * 3, "somebody does not come")
    assert_books_balance(admin.server, 3)
    admin.stop()


def elsewhere(folder):
    """Options of a server that starts no worker, and what starts one."""
    secret = folder / "secret"
    subprocess.run([SLUICE, "secret", "-o", secret], check=True, stdout=subprocess.DEVNULL)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])

    def worker(i):
        return ended.start([SLUICE, "worker", "--join", f"127.0.0.1:{port}", "--secret-file", secret, "--worker-id", str(i), "--transport", "tcp"],
                           stderr=subprocess.PIPE, text=True)

    return ["--remote", "--fabric-port", port, "--secret-file", str(secret)], worker


def test_what_nobody_brings_back_goes_to_others(tmp_path):
    """Room for some of a lost worker's experts, and no process that could bring them back: others take over all of them at once, and the log says
    what did not fit. On purpose none of it would have moved."""
    options, worker = elsewhere(tmp_path)
    workers = [worker(i) for i in range(3)]
    admin = Admin(tmp_path, "--attention", "1", "--experts", "2", *options, "--adapt-memory", "0.1")
    figures = r"experts that move need (\d\.\d) MB beside those that are there, worker 1's machine has 0\.1 MB left"
    with Load(admin.server, 4):
        refused = re.search(f"worker 2 stays: {figures}", admin.ask("drain", 2, code=3))
        assert refused and float(refused[1]) > 0.1
        workers[2].kill()
        wait_until(lambda: admin.states() == ["serving", "serving", "lost"], "nobody notices")
        rows = hosted(admin)[1]
        wait_until(lambda: hosted(admin)[1] > rows, "nothing goes on without it")
    said = [line for line in admin.server.log if "worker 2 is lost, and others take over what does not fit" in line]
    assert len(said) == 1 and re.search(figures, said[0])[1] == refused[1] and " warn " in said[0], admin.server.log
    assert not any("wait for its next process" in line or "cannot be started" in line for line in admin.server.log)
    assert metric(admin.server, "workers_restarted_total") == 0 and metric(admin.server, "workers_lost_total") == 1 and admin.states()[2] == "lost"
    with Load(admin.server, 2):  # one that somebody starts is welcome
        workers[2] = worker(2)
        wait_until(lambda: admin.states() == ["serving"] * 3, "it does not come")
    assert_books_balance(admin.server, 3)
    admin.stop()
    assert [w.wait(20) for w in workers] == [0] * 3


def test_remote_workers(tmp_path):
    """Nobody starts them: a drained one has ended well, its place is closed until somebody is wanted there."""
    options, worker = elsewhere(tmp_path)
    workers = [worker(i) for i in range(3)]
    admin = Admin(tmp_path, "--attention", "1", "--experts", "2", *options, "--max-experts", "3")
    with Load(admin.server, 2):
        early = worker(3)
        assert "worker 3 is not there yet" in early.communicate(timeout=60)[1]
        assert admin.http("POST", "/admin/workers/3/join")[0] == 202
        workers.append(worker(3))
        wait_until(lambda: admin.states() == ["serving"] * 4, "it does not come")
        admin.ask("drain", "2")
        assert workers[2].wait(20) == 0
        early = worker(2)
        assert "worker 2 is drained" in early.communicate(timeout=60)[1]
        assert early.returncode == 1
        assert admin.http("POST", "/admin/workers/2/join")[0] == 202
        workers.append(worker(2))
        wait_until(lambda: admin.states() == ["serving"] * 4, "it does not come")
    assert metric(admin.server, "workers_lost_total") == 0
    admin.stop()
    assert [w.wait(20) for w in workers] == [0] * 5
