"""What tests of launchers (Slurm, MPI, Ray) share, and others of programs that find each other: free ports, asking a server that somebody
else has started, the processes of a job."""

import json
import os
import pathlib
import re
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request


held = []  # sockets of ports that were said to be free, until this process ends


def free_port():
    """One that only who asks for it by number gets from here on: a socket that shares its address and does not listen is bound to it."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("", 0))
    held.append(s)
    return s.getsockname()[1]


def wait(what, within_s, look):
    """Until look() says something true, which is returned. What look() cannot see yet is an OSError or an AssertionError."""
    deadline, last = time.monotonic() + within_s, None
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except (OSError, AssertionError) as e:
            last = e
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {within_s} s: {last}")


class Asked:
    """The server at a port of this machine; over HTTPS, where there is a certificate that it has to have."""

    def __init__(self, port, key="", cert=None):
        self.url, self.headers = f"http{'s' if cert else ''}://127.0.0.1:{port}", {"Content-Type": "application/json"}
        self.tls = ssl.create_default_context(cafile=cert) if cert else None
        if key:
            self.headers["Authorization"] = f"Bearer {key}"

    def answer(self, max_tokens=24, timeout=60, n=1):
        """The tokens of the first of n."""
        body = {"prompt": "Now the", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "n": n}
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), self.headers)
        with urllib.request.urlopen(request, timeout=timeout, context=self.tls) as r:
            choice = json.load(r)["choices"][0]
        return choice["token_ids"]

    def workers_that_serve(self):
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5, context=self.tls) as r:
            states = re.findall(r'^sluice:worker_state\{(.*)\} 1$', r.read().decode(), re.M)
        return sum('state="serving"' in labels for labels in states)

    def running(self):
        """Requests that run."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5, context=self.tls) as r:
            return float(re.search(r"^sluice:num_requests_running(?:\{.*\})? (\S+)$", r.read().decode(), re.M).group(1))

    def is_ready(self):
        with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=self.tls) as r:
            return r.status == 200


def processes(*words, of=""):
    """pid -> command line, in words, of this machine's processes whose command line has these words, one behind the other. Other tests
    have processes with the same ones at the same time: `of` is a variable, NAME=VALUE, that they started with."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0") if of else [of]
            except OSError:
                continue
            if of in variables and any(tuple(line[i:i + len(words)]) == words for i in range(len(line))):
                found[int(folder.name)] = line
    return found


def one(*words, of):
    found = list(processes(*words, of=of))
    assert len(found) == 1, found
    return found[0]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
