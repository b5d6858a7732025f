"""A server at a socket of this machine (--host unix:PATH).

SLUICE_BIN names the program (default build/sluice)."""

import http.client
import json
import os
import pathlib
import socket
import stat
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ended  # noqa: E402
from served import ROOT, SLUICE  # noqa: E402

FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("site.example")  # whatever Host says
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def serve(path, *options):
    process = ended.start([SLUICE, "serve", FIXTURE, "--host", f"unix:{path}", "--json", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return process, json.loads(line)["url"]


def ask(path, method, where, body=None, headers=None):
    connection = Connection(path)
    connection.request(method, where, json.dumps(body) if body else None, headers or {})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def end(process):
    process.terminate()
    assert process.wait(20) == 0


@pytest.mark.parametrize("key, mode", [(None, 0o600), ("k", 0o660)])
def test_requests_over_a_socket(tmp_path, key, mode):
    path = tmp_path / "api.sock"
    process, url = serve(path, *(["--api-key", key] if key else []))
    assert url == f"unix:{path}" and stat.S_IMODE(os.stat(path).st_mode) == mode and os.listdir(tmp_path) == ["api.sock"]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"prompt": [3, 17, 41], "max_tokens": 4, "temperature": 0}
    status, answer = ask(path, "POST", "/v1/completions", body, headers)
    assert status == 200 and answer["usage"]["completion_tokens"] == 4
    assert ask(path, "GET", "/v1/models", headers={})[0] == (401 if key else 200)
    end(process)
    assert not path.exists()


def test_who_was_killed_leaves_a_file_that_is_replaced(tmp_path):
    path = tmp_path / "api.sock"
    process, _ = serve(path)
    second = subprocess.run([SLUICE, "serve", FIXTURE, "--host", f"unix:{path}"], capture_output=True, text=True)
    assert second.returncode != 0 and f"somebody listens on unix:{path}" in second.stderr
    assert ask(path, "GET", "/health")[0] == 200
    process.kill()
    process.wait()
    assert path.exists()
    process, _ = serve(path)
    assert ask(path, "GET", "/health")[0] == 200
    end(process)


def test_workers_are_drained_by_its_url(tmp_path):
    key, path = tmp_path / "key", tmp_path / "api.sock"
    subprocess.run([SLUICE, "secret", "-o", key], check=True, stdout=subprocess.DEVNULL)
    process, url = serve(path, "--attention", "1", "--experts", "2", "--admin-key-file", str(key))
    done = subprocess.run([SLUICE, "drain", "2", "--url", url, "--admin-key-file", key], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    end(process)


@pytest.mark.parametrize("host, says", [("unix:api.sock", "the path has to begin with /"), ("unix:/tmp/" + "x" * 200, "at most 107"),
                                        ("unix:/nowhere/api.sock", "No such file or directory"), ("unix:FILE", "is no socket")])
def test_places_that_are_refused(tmp_path, host, says):
    (tmp_path / "file").write_text("mine")
    host = host.replace("FILE", str(tmp_path / "file"))
    done = subprocess.run([SLUICE, "serve", FIXTURE, "--host", host], capture_output=True, text=True)
    assert done.returncode != 0 and says in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_urls_that_are_refused(tmp_path):
    subprocess.run([SLUICE, "secret", "-o", tmp_path / "key"], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([SLUICE, "drain", "1", "--url", "unix:nowhere", "--admin-key-file", tmp_path / "key"], capture_output=True, text=True)
    assert done.returncode != 0 and "--url: 'unix:nowhere' is not unix:/PATH" in done.stderr
