"""HTTPS: sessions, certificates that are read again, what is refused, clients that leave, are slow, or speak something else.

All other tests of this folder hold over HTTPS, too: SLUICE_TEST_TLS=1."""
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time

import httpx
import openai
import pytest

from conftest import BINARY, GOLDEN, certificate
from conftest import start as start_server

MODEL = "qwen3moe-tiny"
STREAM = {"prompt": [3, 17, 41], "max_tokens": 120, "temperature": 0, "stream": True, "ignore_eos": True}
LONG = {**STREAM, "max_tokens": 480, "n": 40}


class Secure:
    """A server with HTTPS, and clients that trust its certificate alone."""

    def __init__(self, server, trusted):
        self.server, self.trusted = server, trusted
        self.context = ssl.create_default_context(cafile=trusted)
        self.url = server.url
        self.port = httpx.URL(server.url).port
        self.http = httpx.Client(verify=self.context, timeout=60, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))

    def connect(self, context=None, **options):
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        return (context or self.context).wrap_socket(sock, server_hostname="127.0.0.1", **options)

    def log(self):
        return self.server.log.read_text()

    def await_log(self, text, times=1, seconds=15):
        end = time.monotonic() + seconds
        while self.log().count(text) < times:
            assert time.monotonic() < end, f"the log does not say {text!r}:\n{self.log()}"
            time.sleep(0.02)

    def metric(self, name):
        return sum(float(v) for v in re.findall(rf"^sluice:{name}(?:\{{.*\}})? (\S+)$", self.http.get(self.url + "/metrics").text, re.M))

    def await_idle(self, seconds=20):
        end = time.monotonic() + seconds
        while self.metric("num_requests_running") + self.metric("num_requests_waiting") > 0:
            assert time.monotonic() < end, "requests go on whose clients have left"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls") / "one")


@pytest.fixture
def secure(make_server, pair):
    """secure(*args) or, with another pair of files, secure(*args, pair=...)."""
    def make(*args, files=pair, fixture=MODEL, **options):
        return Secure(make_server(fixture, "--tls-cert", str(files[0]), "--tls-key", str(files[1]), *args, **options), files[0])
    return make


@pytest.fixture(scope="module")
def shared(tmp_path_factory, pair):
    """One for the tests that leave a server as they found it."""
    running = start_server(tmp_path_factory, MODEL, ["--tls-cert", str(pair[0]), "--tls-key", str(pair[1]), "--log", "info"])
    yield Secure(running, pair[0])
    running.stop()


def text_of(lines):
    return "".join(c["text"] for line in lines if line.startswith("data: {") for c in json.loads(line[6:])["choices"])


def stream(https, body=None, most=None):
    """The text of a streamed completion; of `most` lines of it, after which the client leaves."""
    lines = []
    with https.http.stream("POST", https.url + "/v1/completions", json=body or STREAM) as answer:
        for line in answer.iter_lines():
            lines += [line] if line else []
            if most and len(lines) >= most:
                return text_of(lines)
    assert lines[-1] == "data: [DONE]"
    return text_of(lines)


# ---- sessions


def test_the_official_client_and_streams(secure):
    https = secure("--api-key", "a key")
    assert https.url.startswith("https://127.0.0.1:")
    client = openai.OpenAI(base_url=https.url + "/v1", api_key="a key", http_client=https.http, max_retries=0)
    assert [m.id for m in client.models.list()] == [MODEL]
    whole = client.completions.create(model=MODEL, prompt=[3, 17, 41], max_tokens=12, temperature=0)
    parts = client.completions.create(model=MODEL, prompt=[3, 17, 41], max_tokens=12, temperature=0, stream=True)
    assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=https.url + "/v1", api_key="another", http_client=https.http, max_retries=0).models.list()
    with pytest.raises(httpx.ConnectError, match="certificate"):
        httpx.get(https.url + "/health", verify=ssl.create_default_context())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_and_http(shared, version):
    https = shared
    context = ssl.create_default_context(cafile=https.trusted)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with https.connect(context) as s:
        assert s.selected_alpn_protocol() == "http/1.1"
        assert "GCM" in s.cipher()[0] or "CHACHA20" in s.cipher()[0]
        for _ in range(2):  # a connection may ask again
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert s.recv(4096).startswith(b"HTTP/1.1 200 OK")
    context.set_alpn_protocols(["h2"])
    with pytest.raises((ssl.SSLError, ConnectionError)), https.connect(context) as s:
        s.sendall(b"PRI * HTTP/2.0\r\n\r\n")
        assert s.recv(4096) == b""
        raise ConnectionError


@pytest.mark.parametrize("version, cipher", [(ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0"), (ssl.TLSVersion.TLSv1_2, "AES128-SHA256"),
                                             (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA256")])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_what_is_old_is_not_spoken(shared, version, cipher):
    https, says = shared, "no session with 127.0.0.1"
    before = https.log().count(says)
    context = ssl.create_default_context(cafile=https.trusted)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers(cipher)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        https.connect(context)
    https.await_log(says, before + 1)
    assert https.http.get(https.url + "/health").status_code == 200


def test_a_chain_is_sent_whole(secure, tmp_path):
    def sign(name, by, usage, *more):
        (tmp_path / "ext").write_text(usage)
        subprocess.run(["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", tmp_path / f"{name}.key", "-out",
                        tmp_path / f"{name}.csr"], check=True, capture_output=True)
        subprocess.run(["openssl", "x509", "-req", "-in", tmp_path / f"{name}.csr", "-days", "30", "-extfile", tmp_path / "ext", "-out",
                        tmp_path / f"{name}.pem", *(["-CA", tmp_path / f"{by}.pem", "-CAkey", tmp_path / f"{by}.key", "-CAcreateserial"] if by else
                                                    ["-signkey", tmp_path / f"{name}.key"])], check=True, capture_output=True)
        return (tmp_path / f"{name}.pem").read_text()

    authority = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n"
    sign("root", None, authority)
    between = sign("between", "root", authority)
    own = sign("own", "between", "subjectAltName=IP:127.0.0.1\n")
    (tmp_path / "chain.pem").write_text(own + between)
    https = secure(files=(tmp_path / "chain.pem", tmp_path / "own.key"))
    https.context = ssl.create_default_context(cafile=tmp_path / "root.pem")  # knows the root alone
    with https.connect() as s:
        assert s.version() == "TLSv1.3"
    shown = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{https.port}", "-showcerts"], input="", capture_output=True, text=True)
    assert shown.stdout.count("BEGIN CERTIFICATE") == 2
    (tmp_path / "chain.pem").write_text(between + own)
    refused = start(tmp_path / "chain.pem", tmp_path / "own.key")
    assert "--tls-cert" in refused and "begins with the server's own certificate" in refused


def test_many_streams_of_which_some_leave(secure):
    https = secure("--max-num-seqs", "16")
    alone = stream(https)
    files = len(os.listdir(f"/proc/{https.server.process.pid}/fd"))
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        texts = list(pool.map(lambda i: stream(https, most=5 if i % 5 == 4 else None), range(50)))
    assert all(text == alone for i, text in enumerate(texts) if i % 5 != 4)
    assert all(alone.startswith(text) for i, text in enumerate(texts) if i % 5 == 4)
    https.await_idle()
    end = time.monotonic() + 10
    while len(os.listdir(f"/proc/{https.server.process.pid}/fd")) > files + 6:  # those of this test's last questions
        assert time.monotonic() < end, "sockets of clients that left stay open"
        time.sleep(0.1)


@pytest.mark.parametrize("how", ["close_notify", "FIN", "RST"])
def test_who_leaves_ends_its_request(shared, how):
    https = shared
    before = https.metric("request_success_total")
    body = json.dumps({"model": MODEL, **LONG})
    s = https.connect()
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    assert s.recv(1)
    if how == "close_notify":
        with contextlib.suppress(OSError, ssl.SSLError):
            s.settimeout(0.2)
            s.unwrap()  # said, and the socket stays
    if how == "RST":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if how != "close_notify":
        s.close()
    https.await_idle()
    assert https.metric("request_success_total") > before
    s.close()


def test_a_slow_reader_gets_all_of_it(secure):
    https = secure("--max-unread-tokens", "100000")
    body = {**STREAM, "max_tokens": 400, "n": 8}
    whole = stream(https, body)
    text = json.dumps(body)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", https.port))
    with https.context.wrap_socket(raw, server_hostname="127.0.0.1") as s:
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        time.sleep(1)  # by then all buffers are full
        began, got = time.monotonic(), b""
        assert https.http.get(https.url + "/health", timeout=5).status_code == 200
        while part := s.recv(2000):
            got += part
            if len(got) < 100_000:
                time.sleep(0.001)
        assert time.monotonic() - began < 60
    chunks = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", got.partition(b"\r\n\r\n")[2]).decode()
    assert chunks.count("data: [DONE]") == 1
    assert len(text_of(line for line in chunks.split("\n"))) == len(whole)


@pytest.mark.parametrize("bytes_at_once", [700, 16384, 1 << 20])
def test_large_bodies(shared, bytes_at_once):
    https = shared
    text = json.dumps({"prompt": "x" * 6_000_000}).encode()
    with https.connect() as s:
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text))
        for at in range(0, len(text), bytes_at_once):
            s.sendall(text[at:at + bytes_at_once])
        answer = s.recv(65536)
        assert b" 400 " in answer.split(b"\r\n")[0] and b"a text of 6000000 bytes" in answer


def test_a_body_larger_than_allowed(shared):
    https = shared
    answer = https.http.post(https.url + "/tokenize", content=b"x" * (17 << 20))
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"


def test_running_requests_finish_when_it_drains(secure):
    https = secure("--drain-timeout", "60")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream, https, {**STREAM, "max_tokens": 400}) for _ in range(4)]
        end = time.monotonic() + 20
        while https.metric("num_requests_running") + https.metric("generation_tokens_total") == 0:
            assert time.monotonic() < end
        https.server.process.send_signal(signal.SIGTERM)
        assert len({s.result(60) for s in streams}) == 1
    began = time.monotonic()
    assert https.server.process.wait(20) == 0 and time.monotonic() - began < 10


# ---- certificates


def shown(https):
    """The certificate that a client gets now."""
    return ssl.get_server_certificate(("127.0.0.1", https.port))


def hang_up(https, says, times=1):
    https.server.process.send_signal(signal.SIGHUP)
    https.await_log(says, times)


def test_files_are_read_again(secure, tmp_path):
    cert, key = certificate(tmp_path / "used", name="first")
    https = secure("--max-num-seqs", "1", files=(cert, key))
    first = cert.read_text()
    assert shown(https) == first
    with https.http.stream("POST", https.url + "/v1/completions", json={**STREAM, "max_tokens": 480, "n": 4}) as running:
        lines = running.iter_lines()
        next(lines)
        new = certificate(tmp_path / "new", name="second")
        cert.write_text(new[0].read_text())  # in the middle of a renewal: the old key is there
        hang_up(https, "the certificate is as before")
        assert re.search(r"error serve: --tls-key: \S+key.pem: is not the key of the certificate of --tls-cert", https.log())
        assert shown(https) == first
        key.write_text(new[1].read_text())
        hang_up(https, "the certificate is read again")
        assert shown(https) == new[0].read_text() != first
        assert [line for line in lines if line][-1] == "data: [DONE]"
    cert.unlink()
    hang_up(https, "the certificate is as before", 2)
    assert shown(https) == new[0].read_text()
    https.http = httpx.Client(verify=ssl.create_default_context(cafile=new[0]), timeout=60)
    assert stream(https)


def test_files_that_are_replaced_are_read_without_a_signal(secure, tmp_path):
    folders = [tmp_path / name for name in ("first", "second", "third")]
    pairs = [certificate(folder, name=folder.name) for folder in folders]
    (tmp_path / "data").symlink_to(folders[0])
    used = [tmp_path / name for name in ("cert.pem", "key.pem")]  # a link to a link, as Kubernetes mounts a secret

    def lead_to(folder):
        (tmp_path / "next").symlink_to(folder)
        (tmp_path / "next").rename(tmp_path / "data")

    for path in used:
        path.symlink_to(f"data/{path.name}")
    https = secure(files=used)
    assert shown(https) == pairs[0][0].read_text()
    (tmp_path / "mixed").mkdir()
    for name, pair in (("cert.pem", pairs[1]), ("key.pem", pairs[0])):
        (tmp_path / "mixed" / name).symlink_to(pair[0].parent / name)
    lead_to(tmp_path / "mixed")
    https.await_log("is not the key of the certificate")
    assert shown(https) == pairs[0][0].read_text()
    lead_to(folders[1])
    https.await_log("the certificate is read again")
    assert shown(https) == pairs[1][0].read_text()
    pairs[1][0].write_text(pairs[2][0].read_text())  # one file after the other, in place
    pairs[1][1].write_text(pairs[2][1].read_text())
    https.await_log("the certificate is read again", 2)
    assert shown(https) == pairs[2][0].read_text()
    time.sleep(11)  # one more look, which sees nothing new
    assert https.log().count("is not the key") in (1, 2) and https.log().count("the certificate is read again") == 2  # 2: it looked between the two


def test_a_key_that_root_gives_to_a_group(secure, pair, tmp_path):
    if os.getuid() != 0:
        pytest.skip("files of root's are root's to make")
    key = tmp_path / "key.pem"
    key.write_text(pair[1].read_text())
    os.chown(key, 0, 10001)
    key.chmod(0o640)
    assert stream(secure(files=(pair[0], key)))
    os.chown(key, 10001, 10001)
    assert "mode 0640 opens the secret to others" in start(pair[0], key)
    os.chown(key, 0, 10001)
    key.chmod(0o660)
    assert "mode 0660 opens the secret to others" in start(pair[0], key)


def test_keys_and_certificate_by_one_signal(secure, tmp_path):
    cert, key = certificate(tmp_path / "used")
    keys = tmp_path / "keys"
    keys.write_text("the-first-key\n")
    keys.chmod(0o600)
    https = secure("--api-key-file", str(keys), files=(cert, key))
    keys.write_text("the-second-key\n")
    hang_up(https, "the certificate is read again")
    assert "its keys are read again" in https.log()
    assert https.http.get(https.url + "/v1/models", headers={"Authorization": "Bearer the-second-key"}).status_code == 200


def start(*files, args=()):
    """What a start with these files is refused with."""
    cert, key = (["--tls-cert", files[0]] if files[0] else []), (["--tls-key", files[1]] if files[1] else [])
    done = subprocess.run([BINARY, "serve", GOLDEN / MODEL, "--port", "0", *cert, *key, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "listening" not in done.stderr and "loop" not in done.stderr
    return done.stderr


def test_pairs_that_are_refused(pair, tmp_path):
    cert, key = pair
    other_cert, other_key = certificate(tmp_path / "other")
    assert "--tls-cert: --tls-key FILE has to name its key" in start(cert, None)
    assert "--tls-key: --tls-cert FILE has to name its certificate" in start(None, key)
    assert re.search(r"--tls-cert: /nowhere/cert.pem: No such file", start("/nowhere/cert.pem", key))
    assert re.search(r"--tls-key: /nowhere/key.pem: No such file", start(cert, "/nowhere/key.pem"))
    assert f"--tls-key: {other_key}: is not the key of the certificate of --tls-cert: {cert}" in start(cert, other_key)
    text = tmp_path / "text"
    text.write_text("no PEM at all\n")
    text.chmod(0o600)
    assert f"--tls-cert: {text}: is no certificate as PEM" in start(text, key)
    assert f"--tls-key: {text}: is no private key as PEM" in start(cert, text)
    assert f"--tls-cert: {key}: is no certificate as PEM" in start(key, key)  # the wrong way round
    der = tmp_path / "key.der"
    subprocess.run(["openssl", "pkey", "-in", key, "-outform", "DER", "-out", der], check=True)
    der.chmod(0o600)
    assert f"--tls-key: {der}: " in start(cert, der)
    open_key = tmp_path / "open.pem"
    open_key.write_text(key.read_text())
    open_key.chmod(0o644)
    assert f"--tls-key: {open_key}: mode 0644 opens the secret to others: chmod 600" in start(cert, open_key)
    secret = tmp_path / "encrypted.pem"
    for form in ([], ["-traditional"]):
        subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", secret, *form], check=True)
        secret.chmod(0o600)
        assert f"--tls-key: {secret}: the key is encrypted" in start(cert, secret)
    assert "TLS is spoken at an address" in start(cert, key, args=["--host", f"unix:{tmp_path}/s"])


def test_both_in_one_file(secure, pair, tmp_path):
    both = tmp_path / "both.pem"
    both.write_text(pair[0].read_text() + pair[1].read_text())
    both.chmod(0o600)
    https = secure(files=(both, both))
    assert shown(https) == pair[0].read_text()


def test_days_are_watched(secure, tmp_path):
    https = secure(files=certificate(tmp_path / "short", days=3))
    assert re.search(r"warn serve: --tls-cert: \S+cert.pem: it ends at \d{4}-\d\d-\d\d \d\d:\d\d UTC, in [23] days", https.log())


def test_keys_in_the_clear_are_warned_of(make_server, secure):
    says = "keys and texts come there in the clear"
    beyond = ["--host", "0.0.0.0", "--api-key", "a key"]
    if not os.environ.get("SLUICE_TEST_TLS"):
        assert make_server(MODEL, *beyond).log.read_text().count(says) == 1
        assert says not in make_server(MODEL, "--api-key", "a key").log.read_text()
    assert says not in secure(*beyond).log()


# ---- clients that speak something else


def answer_to(https, data, seconds=20):
    with socket.create_connection(("127.0.0.1", https.port), timeout=seconds) as s:
        s.sendall(data)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while part := s.recv(4096):
                got += part
        return got


def test_plain_http_hears_of_it(secure):
    https = secure()
    for method in (b"GET", b"POST", b"OPTIONS"):
        head, _, body = answer_to(https, method + b" /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123456789").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"Connection: close" in head
        error = json.loads(body)["error"]
        assert error["code"] == "https_only" and "https://" in error["message"]
    assert https.log().count("plain HTTP from 127.0.0.1 is answered 400") == 1  # the same is said once a minute
    assert https.http.get(https.url + "/health").status_code == 200


def hello():
    """What a client says first."""
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(inside, outside, server_hostname="localhost").do_handshake()
    return outside.read()


def test_garbage(secure):
    https = secure("--log", "info")
    first = hello()
    for data in (b"\x16garbage garbage garbage", b"\x00" * 100, os.urandom(1000).replace(b"\x16", b"\x17"), b"\x16\x03\x01\xff\xff" + b"x" * 70000,
                 b"\x80\x2e\x01\x00\x02", first[:5] + os.urandom(len(first) - 5), first[:9] + b"\xff" * 8 + first[17:], first + first, b"\x16"):
        with socket.create_connection(("127.0.0.1", https.port), timeout=20) as s, contextlib.suppress(ConnectionError):
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            while s.recv(4096):
                pass
    with https.connect() as s:  # bytes that no session made, in the middle of one
        socket.socket(fileno=os.dup(s.fileno())).sendall(b"\x17\x03\x03\x00\x20" + os.urandom(32))
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert s.recv(4096) == b""
    assert https.log().count("no session with 127.0.0.1: ") >= 5
    assert https.http.get(https.url + "/health").status_code == 200
    assert https.metric("tls_handshakes_failed_total") >= 5


def test_handshakes_that_never_end(secure):
    https = secure("--log", "info")
    with contextlib.ExitStack() as open_ones:
        first = hello()
        began, socks = time.monotonic(), []
        for i in range(40):
            s = open_ones.enter_context(socket.create_connection(("127.0.0.1", https.port), timeout=120))
            s.sendall((b"", b"\x16", first[:50], first)[i % 4])
            socks.append(s)
        assert https.http.get(https.url + "/health", timeout=30).status_code == 200
        for s in socks:
            with contextlib.suppress(ConnectionError):
                while s.recv(4096):
                    pass
        assert 8 < time.monotonic() - began < 200  # of a busy machine
    https.await_log("its handshake takes too long", 40)
    assert https.metric("http_connections") <= 2


def test_idle_clients_give_way(secure):
    https = secure("--max-connections", "8")
    with contextlib.ExitStack() as idle:
        for i in range(200):
            s = idle.enter_context(socket.create_connection(("127.0.0.1", https.port), timeout=20))
            if i % 2:
                s.sendall(hello())
        for _ in range(3):
            assert https.http.get(https.url + "/health", timeout=10).status_code == 200
        assert https.metric("http_connections") <= 10 + 64


def test_nobody_renegotiates(secure):
    https = secure("--log", "debug")
    client = subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{https.port}", "-tls1_2", "-legacy_renegotiation"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(0.5)
    client.stdin.write("R\n")
    client.stdin.flush()
    time.sleep(0.5)
    said, _ = client.communicate("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", timeout=20)
    assert "RENEGOTIATING" in said and "200 OK" not in said
    assert https.http.get(https.url + "/health").status_code == 200


# ---- the program's own client


def verb(*words, code, **environment):
    done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=60, env={**os.environ, "SSL_CERT_FILE": "", **environment})
    assert done.returncode == code, done.stderr
    return done.stderr


def test_workers_are_asked_over_https(secure, pair, tmp_path):
    key = tmp_path / "key"
    subprocess.run([BINARY, "secret", "-o", key], check=True, stdout=subprocess.DEVNULL)
    https = secure("--attention", "1", "--experts", "2", "--admin-key-file", str(key))
    to = ["--url", https.url, "--admin-key-file", key]
    verb("drain", "2", *to, "--cacert", pair[0], code=0)
    verb("join", "2", *to, code=0, SSL_CERT_FILE=str(pair[0]))
    verb("restart", "2", "--url", https.url.replace("127.0.0.1", "localhost"), "--admin-key-file", key, code=0, SLUICE_CACERT=str(pair[0]))
    other, _ = certificate(tmp_path / "other")
    untrusted = [verb("drain", "2", *to, code=1), verb("drain", "2", *to, "--cacert", other, code=1)]
    assert all("the server's certificate is refused: The certificate is NOT trusted" in text for text in untrusted)
    assert "--cacert" in verb("drain", "2", *to, "--cacert", tmp_path / "none.pem", code=2)
    assert "SSL_CERT_FILE" in verb("drain", "2", *to, code=2, SSL_CERT_FILE=str(tmp_path / "none.pem"))
    assert "has no certificate" in verb("drain", "2", "--url", "http://127.0.0.1:1", "--admin-key-file", key, "--cacert", pair[0], code=2)
    assert https.metric("worker_up") >= 3


def test_a_certificate_of_another_name(secure, tmp_path):
    files = certificate(tmp_path / "named", name="elsewhere.example", sans="DNS:elsewhere.example")
    key = tmp_path / "key"
    subprocess.run([BINARY, "secret", "-o", key], check=True, stdout=subprocess.DEVNULL)
    https = secure("--admin-key-file", str(key), files=files)
    said = verb("drain", "0", "--url", https.url, "--admin-key-file", key, "--cacert", files[0], code=1)
    assert "The name in the certificate does not match the expected" in said


def test_https_to_a_server_without(make_server, pair, tmp_path):
    if os.environ.get("SLUICE_TEST_TLS"):
        pytest.skip("every server speaks HTTPS")
    key = tmp_path / "key"
    subprocess.run([BINARY, "secret", "-o", key], check=True, stdout=subprocess.DEVNULL)
    server = make_server(MODEL, "--admin-key-file", str(key))
    said = verb("drain", "0", "--url", server.url.replace("http:", "https:"), "--admin-key-file", key, "--cacert", pair[0], code=1)
    assert "what answers there speaks no TLS" in said or "it closes before TLS begins" in said  # as the bytes of the hello look
