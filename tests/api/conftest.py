"""Starts the real server on fixtures of tests/golden. SLUICE_BIN names another binary than
build/sluice; SLUICE_SERVE_ARGS adds arguments, e.g. "--attention 1 --experts 2"; with SLUICE_TEST_TLS=1
all servers speak HTTPS, and clients ask them so."""
import atexit
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import zlib

import httpx
import openai
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import sample  # noqa: E402
from certificates import certificate  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice"))
GOLDEN = ROOT / "tests" / "golden"
BAD_LOG = re.compile(r"Sanitizer|runtime error|assertion", re.I)
KEY = "test-key"

TLS = []
if os.environ.get("SLUICE_TEST_TLS"):
    at = tempfile.mkdtemp(prefix="sluice-tls-")
    atexit.register(shutil.rmtree, at)
    cert, key = certificate(at)
    TLS = ["--tls-cert", str(cert), "--tls-key", str(key)]
    os.environ["SSL_CERT_FILE"] = str(cert)  # httpx trusts what stands there, and nothing else
# One for all, as making one takes longer than most answers; it keeps no connection open.
HTTP = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))


class Server:
    def __init__(self, fixture, args, log, open_files=None):
        self.fixture = fixture
        self.model = fixture
        self.golden = json.loads((GOLDEN / fixture / "golden.json").read_text())
        self.config = json.loads((GOLDEN / fixture / "config.json").read_text())
        self.log = log
        command = [str(BINARY), "serve", str(GOLDEN / fixture), "--port", "0", *args, *(TLS if "--tls-cert" not in args else []),
                   *shlex.split(os.environ.get("SLUICE_SERVE_ARGS", ""))]
        if open_files:  # the most that this process may ever have
            command = ["prlimit", f"--nofile={open_files}:{open_files}", *command]
        self.process = subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT)
        self.url = self.wait_for_url()

    def wait_for_url(self):
        for _ in range(1200):
            found = re.search(r"listening on (https?://\S+)", self.log.read_text())
            if found:
                return found.group(1)
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.process.kill()
        raise RuntimeError(f"server did not start: {self.log.read_text()}")

    def stop(self):
        self.process.terminate()
        code = self.process.wait(30)
        text = self.log.read_text()
        assert not BAD_LOG.search(text), text
        assert code == 0, f"exit code {code}: {text}"

    def client(self, **options):
        options.setdefault("api_key", KEY)
        options.setdefault("max_retries", 0)
        options.setdefault("http_client", HTTP)
        return openai.OpenAI(base_url=self.url + "/v1", timeout=60, **options)

    def get(self, path, **options):
        return HTTP.get(self.url + path, **options)

    def connect(self, timeout=None, receive_bytes=None):
        """A socket to it, over TLS where it speaks that."""
        where = httpx.URL(self.url)
        sock = socket.socket()
        sock.settimeout(timeout)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.connect((where.host, where.port))
        return ssl.create_default_context().wrap_socket(sock, server_hostname=where.host) if where.scheme == "https" else sock

    def metric(self, name, **labels):
        """Sum of the samples of a name that carry these labels."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            found = re.fullmatch(r"(sluice:\w+)(?:\{(.*)\})? (\S+)", line)
            if found and found.group(1) == "sluice:" + name:
                if all(f'{k}="{v}"' in (found.group(2) or "") for k, v in labels.items()):
                    total += float(found.group(3))
        return total

    def wait_idle(self, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric("num_requests_running") + self.metric("num_requests_waiting") == 0:
                return True
            time.sleep(0.02)
        return False


def start(tmp_path_factory, fixture, args, **options):
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not built")
    return Server(fixture, args, tmp_path_factory.mktemp("serve") / "log.txt", **options)


SERVERS = {"one process": ("qwen3moe-tiny", []), "1+2 workers": ("mixtral-tiny", ["--attention", "1", "--experts", "2"])}


def pytest_collection_modifyitems(config, items):
    """Of a sample each test has one of the servers, half of the tests this one and half that one; a test that is named has both."""
    if sample.WHOLE or any("::" in arg for arg in config.args):
        return

    def taken(item):
        which = getattr(item, "callspec", None) and item.callspec.params.get("server")
        if which not in SERVERS.values():
            return True
        case = item.nodeid.replace("one process", "").replace("1+2 workers", "")
        return which == list(SERVERS.values())[zlib.crc32(case.encode()) % len(SERVERS)]

    items[:] = [item for item in items if taken(item)]


@pytest.fixture(scope="session", params=SERVERS.values(), ids=SERVERS)
def server(request, tmp_path_factory):
    running = start(tmp_path_factory, *request.param)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def locked_server(tmp_path_factory):
    running = start(tmp_path_factory, "qwen3moe-tiny",
                    ["--api-key", KEY, "--served-model-name", "org/other name"])
    yield running
    running.stop()


@pytest.fixture(scope="session")
def named_server(tmp_path_factory):
    running = start(tmp_path_factory, "qwen3moe-tiny",
                    ["--served-model-name", "first,other/name"])
    yield running
    running.stop()


@pytest.fixture
def make_server(tmp_path_factory):
    """Servers of one test: make_server(fixture, *args). One that was stopped by the test is left alone."""
    made = []

    def make(fixture, *args, **options):
        made.append(start(tmp_path_factory, fixture, list(args), **options))
        return made[-1]

    yield make
    for running in made:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture
def client(server):
    return server.client()
