"""A server of this machine for as long as a `with` lasts."""

from __future__ import annotations

import atexit
import collections
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from types import TracebackType
from typing import Deque, List, Mapping, Optional, Type, Union

from ._client import Client
from ._errors import ServerError
from ._program import environment, program

Option = Union[None, bool, int, float, str]
_LISTENING = re.compile(r"listening on (https?://\S+)")
_LINES_KEPT = 200
_running: "weakref.WeakSet[Server]" = weakref.WeakSet()


def _words(options: Mapping[str, Option]) -> List[str]:
    words: List[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words


class Server:
    """`sluice serve MODEL` on a free port: ready when the constructor returns, stopped by `stop` or at the end of the `with`.

        with sluice_moe.Server("models/demo", attention=1, experts=2) as server:
            print(server.client().chat("Why is the sea salty?").text)

    Every option `--some-name` is a keyword `some_name`; True is an option without a value. `admin` makes a key for workers' verbs, which
    clients of `client` have. What the server says goes to `log`, and with `echo` to stderr, too. The process is stopped at the
    interpreter's end at the latest; one that is killed with SIGKILL leaves its server behind.
    """

    def __init__(self, model: Union[str, "os.PathLike[str]"], *, admin: bool = False, api_key: Optional[str] = None, echo: bool = False,
                 ready_within: float = 600.0, stop_within: float = 60.0, **options: Option) -> None:
        self.url = ""
        self.log: Deque[str] = collections.deque(maxlen=_LINES_KEPT)
        self._echo = echo
        self._stop_within = stop_within
        self._api_key = api_key
        self._admin_key: Optional[str] = secrets.token_hex(32) if admin else None
        self._listening = threading.Event()
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        env = environment()
        if api_key is not None:
            env["SLUICE_API_KEY"] = api_key
        given: List[str] = []
        if self._admin_key is not None:
            self._folder = tempfile.TemporaryDirectory(prefix="sluice-")
            key_file = os.path.join(self._folder.name, "admin.key")
            with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as f:
                f.write(self._admin_key + "\n")
            given = ["--admin-key-file", key_file]
        command = [program(), "serve", os.fspath(model), *given, *_words({"port": 0, **options})]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, text=True, errors="replace")
        _running.add(self)
        self._reader = threading.Thread(target=self._read, name="sluice-log", daemon=True)
        self._reader.start()
        try:
            self._await(ready_within)
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            if self._echo:
                sys.stderr.write(line)
            found = None if self.url else _LISTENING.search(line)
            if found:
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    def _await(self, within: float) -> None:
        until = time.monotonic() + within
        while not self._listening.wait(min(0.2, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                raise ServerError(f"sluice serve: not ready within {within} s\n" + "\n".join(self.log))
        if not self.url:
            self.process.wait(5)
            raise ServerError(f"sluice serve: ended with {self.process.returncode}\n" + "\n".join(self.log))

    def client(self, *, timeout: float = 60.0, cacert: "Union[None, str, os.PathLike[str]]" = None) -> Client:
        """A client with this server's keys. `cacert` as of `Client`: of a server with `tls_cert` that the system does not trust."""
        return Client(self.url, api_key=self._api_key, admin_key=self._admin_key, timeout=timeout, cacert=cacert)

    def _end(self, how: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(self._stop_within)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self._reader.join(10)
        if self.process.stderr is not None and not self._reader.is_alive():
            self.process.stderr.close()
        if self._folder is not None:
            self._folder.cleanup()
        _running.discard(self)
        return self.process.returncode

    def stop(self) -> int:
        """Running requests are answered first (`drain_timeout`); after `stop_within` seconds it is killed. The exit status."""
        return self._end(signal.SIGTERM)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.stop()


@atexit.register
def _stop_all() -> None:
    for server in list(_running):
        server.stop()
