"""Messages between workers are encrypted (--encrypt): what a listener on the way sees, what becomes of who changes a byte, who insists and who does not want it.

SLUICE_BIN names the program (default build/sluice)."""

import json
import pathlib
import socket
import subprocess
import sys
import threading

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parent)]
import ended  # noqa: E402
import launched  # noqa: E402
from served import ROOT, SLUICE, Server  # noqa: E402

FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"
PROMPT = [3, 17, 41, 9, 30, 2]


class Listener:
    """Between a worker and the coordinator: keeps all bytes, and changes one that either of them sends when it is told to."""

    def __init__(self, port):
        self.target, self.seen, self.damage = port, bytearray(), None
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.socket.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the coordinator comes later
                near.close()
                continue
            for source, sink, is_worker in ((near, far, True), (far, near, False)):
                threading.Thread(target=self.carry, args=(source, sink, is_worker), daemon=True).start()

    def carry(self, source, sink, is_worker):
        try:
            while some := source.recv(65536):
                self.seen += some
                if self.damage and self.damage == ("worker" if is_worker else "coordinator"):
                    self.damage, some = None, some[:-1] + bytes([some[-1] ^ 1])
                sink.sendall(some)
        except OSError:
            pass
        for end in (source, sink):
            end.close()


class Deployment:
    """A coordinator, and an attention worker with all experts that reaches it by way of a listener."""

    def __init__(self, folder, serve=(), work=(), start=True):
        self.port = launched.free_port()
        self.secret = folder / f"secret{self.port}"
        subprocess.run([SLUICE, "secret", "-o", self.secret], check=True, stdout=subprocess.DEVNULL)
        self.listener = Listener(self.port)
        self.worker = self.start(*work)
        options = ["--exact", "--remote", "--attention", "1", "--fabric-port", str(self.port), "--secret-file", str(self.secret), "--log", "info", *serve]
        self.server = Server(FIXTURE, *options) if start else None
        self.options = options

    def start(self, *options):
        return ended.start([SLUICE, "worker", "--join", f"127.0.0.1:{self.listener.port}", "--secret-file", self.secret, "--transport", "tcp", "--log", "info", *options],
                           stderr=subprocess.PIPE, text=True)

    def ask(self):
        asked = {"model": "m", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
        answer = self.server.request("POST", "/v1/completions", asked)
        return answer.read()

    def joined(self):
        return next(line for line in self.server.log if "joined from" in line)


@pytest.mark.parametrize("how", ["on", "off"])
def test_what_a_listener_sees(tmp_path, how):
    """The same answer; of the plan, the words of the answer and everything else nothing, unless it is off."""
    deployment = Deployment(tmp_path, ["--encrypt", how], ["--encrypt", how])
    assert b'"token_ids":[' in deployment.ask()
    assert deployment.joined().rstrip().endswith(", encrypted") == (how == "on"), deployment.joined()
    deployment.server.stop_well()
    seen = bytes(deployment.listener.seen)
    assert len(seen) > 2000
    for known in (b'"max_num_seqs"', b'"schedule"', str(FIXTURE).encode(), b"".join(i.to_bytes(4, "little") for i in PROMPT)):
        assert (known in seen) == (how == "off"), known


@pytest.mark.parametrize("whose", ["worker", "coordinator"])
def test_who_changes_a_byte(tmp_path, whose):
    """The worker's link ends; the next one serves."""
    deployment = Deployment(tmp_path, ["--encrypt", "on"], ["--encrypt", "on", "--rejoin", "20"])
    first = deployment.ask()
    deployment.listener.damage = whose
    second = deployment.ask()
    assert b'"token_ids":[' in second and first.split(b'"token_ids"')[1] == second.split(b'"token_ids"')[1]
    deployment.server.stop_well()
    said = deployment.server.log if whose == "worker" else deployment.worker.communicate(timeout=20)[1].splitlines()
    assert any("is not as" in line and "has encrypted it" in line for line in said), said


@pytest.mark.parametrize("serve, work", [("on", "off"), ("off", "on")])
def test_who_insists(tmp_path, serve, work):
    deployment = Deployment(tmp_path, start=False, work=["--encrypt", work, "--join-timeout", "3"])
    server = ended.start([SLUICE, "serve", FIXTURE, "--port", "0", *deployment.options, "--encrypt", serve, "--join-timeout", "8"], stderr=subprocess.PIPE, text=True)
    said = deployment.worker.communicate(timeout=30)[1]
    assert deployment.worker.returncode != 0
    assert "does not encrypt, here --encrypt is on" in said + (server.communicate(timeout=30)[1]), said


def gang(folder, rank, run):
    """One run of a worker whose second rank is `sluice rank`, which it reaches by way of a listener: what `run` did, what the rank said, the listener."""
    secret, port = folder / "secret", launched.free_port()
    subprocess.run([SLUICE, "secret", "-o", secret], check=True, stdout=subprocess.DEVNULL)
    listener = Listener(port)
    with ended.scope():
        waits = ended.start([SLUICE, "rank", FIXTURE, "--fabric-port", str(port), "--secret-file", secret, "--threads", "1", "--encrypt", rank, "--log", "info"],
                            stderr=subprocess.PIPE, text=True)
        done = subprocess.run([SLUICE, "run", FIXTURE, "--ids", ",".join(map(str, PROMPT)), "-n", "8", "--tp", "2", "--exact", "--json", "--rank-hosts",
                               f"127.0.0.1:{listener.port}", "--secret-file", secret, "--encrypt", run], capture_output=True, text=True, timeout=60)
        waits.terminate()
        return done, waits.communicate(timeout=20)[1], bytes(listener.seen)


@pytest.mark.parametrize("rank, run", [("on", "on"), ("on", "auto"), ("auto", "on"), ("off", "off"), ("auto", "auto")])
def test_a_rank_and_its_worker(tmp_path, rank, run):
    """Who insists gets it, of one with `auto` on the same machine, too. The tokens are those of one process."""
    done, said, seen = gang(tmp_path, rank, run)
    alone = subprocess.run([SLUICE, "run", FIXTURE, "--ids", ",".join(map(str, PROMPT)), "-n", "8", "--exact", "--json"], capture_output=True, text=True, check=True)
    assert done.returncode == 0 and json.loads(done.stdout)["ids"] == json.loads(alone.stdout)["ids"], done.stderr + said
    encrypted = "on" in (rank, run)
    assert ("it computes for a worker, encrypted" in said) == encrypted and "it computes for a worker" in said, said
    for known in (str(FIXTURE).encode(), b"".join(i.to_bytes(4, "little") for i in PROMPT)):
        assert (known in seen) != encrypted, known


@pytest.mark.parametrize("rank, run", [("on", "off"), ("off", "on")])
def test_a_rank_or_a_worker_that_insists(tmp_path, rank, run):
    done, said, seen = gang(tmp_path, rank, run)
    assert done.returncode == 1 and not done.stdout
    assert "rank 1 of 2 at 127.0.0.1:" in done.stderr and "rank does not encrypt, here --encrypt is on" in done.stderr, done.stderr
    assert "it computes" not in said and "was turned away" in said, said  # and the rank waits on
    assert b"".join(i.to_bytes(4, "little") for i in PROMPT) not in seen


@pytest.mark.parametrize("verb", [["serve"], ["rank", "--fabric-port", "7000"]])
def test_nonsense_is_refused(verb, tmp_path):
    secret = tmp_path / "secret"
    subprocess.run([SLUICE, "secret", "-o", secret], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([SLUICE, *verb, FIXTURE, "--secret-file", secret, "--encrypt", "perhaps"], capture_output=True, text=True)
    assert done.returncode != 0 and "--encrypt 'perhaps': off, on or auto expected" in done.stderr
