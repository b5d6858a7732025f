"""A client of `sluice serve` with nothing but the standard library: text, plain and streamed, and what the server says of itself.

Every call opens a connection of its own, so one Client may be used by many threads. `timeout` is how long the server may be silent, in
seconds: until it has answered, and between two pieces of a stream.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Dict, Generic, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union, cast

from ._errors import AnswerError, ConnectError, RefusedError, SluiceError, UntrustedError

Json = Dict[str, Any]
_LINE_MOST = 64 << 20  # bytes of one line of a stream, and of an error
_ANSWER_MOST = 256 << 20


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Choice:
    """One of the answers to a request."""

    index: int
    text: str
    finish_reason: Optional[str]  # "stop" or "length"
    token_ids: Optional[Tuple[int, ...]]  # with return_token_ids
    raw: Json = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """What a request that is not streamed came to."""

    id: str
    model: str
    choices: Tuple[Choice, ...]
    usage: Usage
    raw: Json = field(repr=False)

    @property
    def text(self) -> str:
        return self.choices[0].text


@dataclass(frozen=True)
class Delta:
    """A piece of a streamed answer."""

    text: str
    index: int  # of the choice
    finish_reason: Optional[str]  # in the last piece of its choice
    token_ids: Optional[Tuple[int, ...]]
    raw: Json = field(repr=False)


@dataclass(frozen=True)
class Model:
    id: str
    context: int  # tokens of prompt and answer
    raw: Json = field(repr=False)


@dataclass(frozen=True)
class Health:
    """`status` is "ok", "recovering" or why nothing is answered; `serving`: requests are taken."""

    status: str
    serving: bool
    raw: Json = field(repr=False)


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Operation:
    """What a worker was asked to do last: `error` says why it was given up, and all is as before."""

    number: int
    done: bool
    error: Optional[str]


@dataclass(frozen=True)
class Worker:
    id: int
    role: str  # "attention", "expert" or "both"
    state: str
    pid: int  # -1: a thread of the server, or on another machine
    requests: int
    kv_pages: int
    kv_pages_free: int
    operation: Optional[Operation]


@dataclass(frozen=True)
class LiveSample:
    """What went on, once a second (docs/api.md, "What goes on"); `raw` has all of it."""

    serving: bool
    recovering: bool
    running: int
    waiting: int
    workers: Tuple[Json, ...] = field(repr=False)
    raw: Json = field(repr=False)


def _object(value: object, what: str) -> Json:
    if not isinstance(value, dict):
        raise AnswerError(f"{what}: is no JSON object")
    return cast(Json, value)


def _parse(data: Union[str, bytes], what: str) -> Json:
    try:
        return _object(json.loads(data), what)
    except ValueError as e:
        raise AnswerError(f"{what}: is no JSON ({e})") from None


def _refusal(status: int, headers: http.client.HTTPMessage, data: bytes) -> RefusedError:
    message, code, param = data[:200].decode("utf-8", "replace") or http.client.responses.get(status, ""), None, None
    try:
        error = json.loads(data)["error"]
        message, code, param = str(error["message"]), error.get("code"), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    after = headers.get("Retry-After", "")
    return RefusedError(status, message, code, param, float(after) if after.isdigit() else None)


def _token_ids(choice: Json) -> Optional[Tuple[int, ...]]:
    ids = choice.get("token_ids")
    return None if ids is None else tuple(ids)


def _usage(raw: object) -> Optional[Usage]:
    return Usage(int(raw["prompt_tokens"]), int(raw["completion_tokens"])) if isinstance(raw, dict) else None


T = TypeVar("T")
Self = TypeVar("Self", bound="_Events[Any]")


class _Events(Generic[T]):
    """Server-sent events of one request. Used up, closed or dropped, it has closed its connection, which ends the request."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, what: str) -> None:
        self._connection = connection
        self._response = response
        self._what = what
        self._made: List[T] = []
        self._ended = False

    def _take(self, event: Json) -> List[T]:
        raise NotImplementedError

    def _read(self) -> Optional[Json]:
        """The next event; None: it was the last."""
        while True:
            try:
                line = self._response.readline(_LINE_MOST + 1)
            except (OSError, http.client.HTTPException) as e:
                raise ConnectError(f"{self._what}: {e or type(e).__name__}") from None
            if not line:
                raise ConnectError(f"{self._what}: the stream ended before its end")
            if len(line) > _LINE_MOST:
                raise AnswerError(f"{self._what}: a line of more than {_LINE_MOST} bytes")
            if not line.startswith(b"data:"):
                continue  # empty, or a comment that keeps the connection open
            data = line[5:].strip()
            if data == b"[DONE]":
                return None
            event = _parse(data, self._what)
            if "error" in event:  # the status was sent long ago
                raise _refusal(self._response.status, self._response.headers, data)
            return event

    def __iter__(self: Self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._made:
            if self._ended:
                raise StopIteration
            try:
                event = self._read()
                if event is not None:
                    self._made = self._take(event)
            except (KeyError, TypeError, ValueError, AttributeError) as e:
                self.close()
                raise AnswerError(f"{self._what}: an event of another shape ({e!r})") from None
            except BaseException:
                self.close()
                raise
            if event is None:
                self.close()
        return self._made.pop(0)

    def close(self) -> None:
        """Ends the request if it still runs. May be called again."""
        self._ended = True
        self._response.close()
        self._connection.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_response"):
            self.close()


class Deltas(_Events[Delta]):
    """The pieces of a streamed answer, as they come; `usage` is there after the last one."""

    usage: Optional[Usage] = None
    id: Optional[str] = None  # of the answer, from the first piece on

    def _take(self, event: Json) -> List[Delta]:
        self.id = event["id"]
        self.usage = _usage(event.get("usage")) or self.usage
        made = []
        for c in event["choices"]:
            text = c["text"] if "text" in c else c["delta"].get("content") or ""
            made.append(Delta(text, int(c["index"]), c["finish_reason"], _token_ids(c), c))
        return made


class LiveSamples(_Events[LiveSample]):
    """One sample a second, until it is closed."""

    def _take(self, event: Json) -> List[LiveSample]:
        return [LiveSample(event["serving"], event["recovering"], event["running"], event["waiting"], tuple(event["workers"]), event)]


_METRIC = re.compile(r'([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)')
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


def _metrics(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        found = None if line.startswith("#") else _METRIC.fullmatch(line.strip())
        if found:
            labels = {k: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], v) for k, v in _LABEL.findall(found[2] or "")}
            yield Sample(found[1], labels, float(found[3]))


def _trusting(cacert: "Union[None, str, os.PathLike[str]]") -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cacert)
    except (OSError, ssl.SSLError) as e:
        raise ValueError(f"cacert: {cacert}: {e.strerror or e}") from None


class Client:
    """Speaks to the server at `url`. `api_key` opens what it serves, `admin_key` the workers' verbs (`--admin-key-file`). `cacert` is a file
    of certificates (PEM) of which one has to have signed that of an https address, instead of the system's."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, api_key: Optional[str] = None, admin_key: Optional[str] = None,
                 timeout: float = 60.0, cacert: "Union[None, str, os.PathLike[str]]" = None) -> None:
        at = urllib.parse.urlsplit(url)
        if at.scheme not in ("http", "https") or not at.hostname or at.query or at.fragment:
            raise ValueError(f"url: {url!r} is no address of http or https")
        if not timeout > 0:
            raise ValueError(f"timeout: {timeout}, more than 0 seconds are needed")
        if cacert is not None and at.scheme != "https":
            raise ValueError(f"cacert: {url!r} has no certificate")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._tls = _trusting(cacert) if at.scheme == "https" else None
        self._at = at
        self._path = at.path.rstrip("/")
        self._api_key = api_key
        self._admin_key = admin_key
        self._model: Optional[str] = None
        self._lock = threading.Lock()

    # ---- requests ----

    def _ask(self, method: str, path: str, body: Optional[Json], timeout: Optional[float], headers: Optional[Mapping[str, str]] = None,
             admin: bool = False) -> Tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        head = {"Accept": "application/json, text/event-stream", "User-Agent": "sluice-moe", **(headers or {})}
        key = self._admin_key if admin else self._api_key
        if admin and key is None:
            raise ValueError("admin_key: is needed to ask workers")
        if key is not None:
            head["Authorization"] = f"Bearer {key}"
        data = None
        if body is not None:
            data = json.dumps(body, allow_nan=False).encode()
            head["Content-Type"] = "application/json"
        host, patience = cast(str, self._at.hostname), self.timeout if timeout is None else timeout
        connection = (http.client.HTTPSConnection(host, self._at.port, timeout=patience, context=self._tls) if self._tls
                      else http.client.HTTPConnection(host, self._at.port, timeout=patience))
        try:
            connection.request(method, self._path + path, data, head)
            return connection, connection.getresponse()
        except (socket.timeout, TimeoutError):
            connection.close()
            raise ConnectError(f"{self.url}{path}: no answer within {connection.timeout} s") from None
        except ssl.SSLCertVerificationError as e:
            connection.close()
            raise UntrustedError(f"{self.url}{path}: {e}") from None
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            raise ConnectError(f"{self.url}{path}: {e or type(e).__name__}") from None

    def _bytes(self, method: str, path: str, body: Optional[Json] = None, timeout: Optional[float] = None,
               headers: Optional[Mapping[str, str]] = None, admin: bool = False) -> Tuple[int, http.client.HTTPMessage, bytes]:
        connection, response = self._ask(method, path, body, timeout, headers, admin)
        try:
            data = response.read(_ANSWER_MOST + 1)
        except (OSError, http.client.HTTPException) as e:
            raise ConnectError(f"{self.url}{path}: {e or type(e).__name__}") from None
        finally:
            response.close()
            connection.close()
        if len(data) > _ANSWER_MOST:
            raise AnswerError(f"{self.url}{path}: an answer of more than {_ANSWER_MOST} bytes")
        return response.status, response.headers, data

    def _json(self, method: str, path: str, body: Optional[Json] = None, timeout: Optional[float] = None,
              headers: Optional[Mapping[str, str]] = None, admin: bool = False) -> Json:
        status, head, data = self._bytes(method, path, body, timeout, headers, admin)
        if status >= 300:
            raise _refusal(status, head, data)
        return _parse(data, f"{self.url}{path}")

    def _events(self, method: str, path: str, body: Optional[Json], timeout: Optional[float],
                headers: Optional[Mapping[str, str]] = None) -> Tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection, response = self._ask(method, path, body, timeout, headers)
        if response.status == 200:
            return connection, response
        try:
            data = response.read(_LINE_MOST)
        except (OSError, http.client.HTTPException):
            data = b""
        finally:
            response.close()
            connection.close()
        raise _refusal(response.status, response.headers, data)

    # ---- text ----

    def _body(self, model: Optional[str], given: Mapping[str, Any], extra: Optional[Mapping[str, Any]]) -> Json:
        body = {"model": model or self._served(), **{k: v for k, v in given.items() if v is not None}}
        for name, value in (extra or {}).items():
            if name in body:
                raise ValueError(f"extra: {name!r} is given twice")
            body[name] = value
        return body

    def _served(self) -> str:
        """The name under which the server has its model; asked for once."""
        with self._lock:
            if self._model is None:
                self._model = self.models()[0].id
            return self._model

    def _answer(self, path: str, body: Json, timeout: Optional[float], key: Optional[str]) -> Answer:
        raw = self._json("POST", path, body, timeout, None if key is None else {"Idempotency-Key": key})
        try:
            choices = tuple(Choice(int(c["index"]), c["text"] if "text" in c else c["message"].get("content") or "", c["finish_reason"],
                                   _token_ids(c), c) for c in raw["choices"])
            usage = _usage(raw["usage"])
            if not choices or usage is None:
                raise KeyError("choices, usage")
            return Answer(raw["id"], raw["model"], choices, usage, raw)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise AnswerError(f"{self.url}{path}: an answer of another shape ({e!r})") from None

    def _deltas(self, path: str, body: Json, timeout: Optional[float], key: Optional[str]) -> Deltas:
        body = {**body, "stream": True}
        body.setdefault("stream_options", {"include_usage": True})
        connection, response = self._events("POST", path, body, timeout, None if key is None else {"Idempotency-Key": key})
        return Deltas(connection, response, self.url + path)

    def chat(self, messages: Union[str, Sequence[Mapping[str, Any]]], *, model: Optional[str] = None, max_tokens: Optional[int] = None,
             temperature: Optional[float] = None, top_p: Optional[float] = None, seed: Optional[int] = None,
             stop: Union[None, str, Sequence[str]] = None, extra: Optional[Mapping[str, Any]] = None, timeout: Optional[float] = None,
             idempotency_key: Optional[str] = None) -> Answer:
        """A chat's next message. A string is a user's single message; `extra` are further fields (docs/api.md)."""
        return self._answer("/v1/chat/completions", self._chat(messages, model, max_tokens, temperature, top_p, seed, stop, extra), timeout,
                            idempotency_key)

    def stream_chat(self, messages: Union[str, Sequence[Mapping[str, Any]]], *, model: Optional[str] = None, max_tokens: Optional[int] = None,
                    temperature: Optional[float] = None, top_p: Optional[float] = None, seed: Optional[int] = None,
                    stop: Union[None, str, Sequence[str]] = None, extra: Optional[Mapping[str, Any]] = None,
                    timeout: Optional[float] = None, idempotency_key: Optional[str] = None) -> Deltas:
        """The same as it comes. Close what is not read to its end, or use it in a `with`."""
        return self._deltas("/v1/chat/completions", self._chat(messages, model, max_tokens, temperature, top_p, seed, stop, extra), timeout,
                            idempotency_key)

    def _chat(self, messages: Union[str, Sequence[Mapping[str, Any]]], model: Optional[str], max_tokens: Optional[int],
              temperature: Optional[float], top_p: Optional[float], seed: Optional[int], stop: Union[None, str, Sequence[str]],
              extra: Optional[Mapping[str, Any]]) -> Json:
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(m) for m in messages]
        return self._body(model, {"messages": said, "max_completion_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
                                  "seed": seed, "stop": stop}, extra)

    def complete(self, prompt: Union[str, Sequence[int]], *, model: Optional[str] = None, max_tokens: Optional[int] = None,
                 temperature: Optional[float] = None, top_p: Optional[float] = None, seed: Optional[int] = None,
                 stop: Union[None, str, Sequence[str]] = None, extra: Optional[Mapping[str, Any]] = None, timeout: Optional[float] = None,
                 idempotency_key: Optional[str] = None) -> Answer:
        """What follows a text, or token ids."""
        return self._answer("/v1/completions", self._completion(prompt, model, max_tokens, temperature, top_p, seed, stop, extra), timeout,
                            idempotency_key)

    def stream_complete(self, prompt: Union[str, Sequence[int]], *, model: Optional[str] = None, max_tokens: Optional[int] = None,
                        temperature: Optional[float] = None, top_p: Optional[float] = None, seed: Optional[int] = None,
                        stop: Union[None, str, Sequence[str]] = None, extra: Optional[Mapping[str, Any]] = None,
                        timeout: Optional[float] = None, idempotency_key: Optional[str] = None) -> Deltas:
        """The same as it comes. Close what is not read to its end, or use it in a `with`."""
        return self._deltas("/v1/completions", self._completion(prompt, model, max_tokens, temperature, top_p, seed, stop, extra), timeout,
                            idempotency_key)

    def _completion(self, prompt: Union[str, Sequence[int]], model: Optional[str], max_tokens: Optional[int], temperature: Optional[float],
                    top_p: Optional[float], seed: Optional[int], stop: Union[None, str, Sequence[str]],
                    extra: Optional[Mapping[str, Any]]) -> Json:
        return self._body(model, {"prompt": prompt if isinstance(prompt, str) else list(prompt), "max_tokens": max_tokens,
                                  "temperature": temperature, "top_p": top_p, "seed": seed, "stop": stop}, extra)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> List[int]:
        answer = self._json("POST", "/tokenize", {"prompt": text, "add_special_tokens": add_special_tokens})
        return [int(i) for i in answer["tokens"]]

    def detokenize(self, ids: Sequence[int]) -> str:
        return str(self._json("POST", "/detokenize", {"tokens": list(ids)})["prompt"])

    # ---- what the server says of itself ----

    def models(self) -> List[Model]:
        """The served model under each of its names."""
        raw = self._json("GET", "/v1/models")
        try:
            found = [Model(m["id"], int(m["max_model_len"]), m) for m in raw["data"]]
        except (KeyError, TypeError, ValueError) as e:
            raise AnswerError(f"{self.url}/v1/models: an answer of another shape ({e!r})") from None
        if not found:
            raise AnswerError(f"{self.url}/v1/models: no model")
        return found

    def health(self) -> Health:
        """Never a RefusedError for a server that answers 503: that is its health."""
        status, head, data = self._bytes("GET", "/health")
        if status not in (200, 503):
            raise _refusal(status, head, data)
        raw = _parse(data, f"{self.url}/health")
        said = raw.get("status")
        if said is None:
            said = _refusal(status, head, data).message
        return Health(str(said), status == 200, raw)

    def wait_ready(self, within: float = 60.0) -> None:
        """Returns when requests are answered and nothing is being recovered; ConnectError when that takes longer."""
        until = time.monotonic() + within
        last: object = "nothing yet"
        while True:
            try:
                status, _, data = self._bytes("GET", "/readyz", timeout=max(0.1, min(self.timeout, until - time.monotonic())))
                if status == 200:
                    return
                last = data[:200].decode("utf-8", "replace")
            except UntrustedError:
                raise
            except SluiceError as e:
                last = e
            if time.monotonic() >= until:
                raise ConnectError(f"{self.url}: not ready within {within} s: {last}")
            time.sleep(0.05)

    def version(self) -> str:
        return str(self._json("GET", "/version")["version"])

    def metrics(self) -> List[Sample]:
        """All values of /metrics."""
        status, head, data = self._bytes("GET", "/metrics")
        if status != 200:
            raise _refusal(status, head, data)
        try:
            return list(_metrics(data.decode()))
        except ValueError as e:
            raise AnswerError(f"{self.url}/metrics: {e}") from None

    def live(self, *, timeout: Optional[float] = None) -> LiveSamples:
        """What goes on, once a second, until it is closed."""
        connection, response = self._events("GET", "/live", None, timeout)
        return LiveSamples(connection, response, self.url + "/live")

    # ---- workers; with admin_key ----

    def workers(self) -> List[Worker]:
        raw = self._json("GET", "/admin/workers", admin=True)
        try:
            return [Worker(w["id"], w["role"], w["state"], w["pid"], w["requests"], w["kv_pages"], w["kv_pages_free"],
                           Operation(w["operation"]["number"], w["operation"]["done"], w["operation"]["error"]) if w["operation"] else None)
                    for w in raw["workers"]]
        except (KeyError, TypeError) as e:
            raise AnswerError(f"{self.url}/admin/workers: an answer of another shape ({e!r})") from None

    def _operate(self, worker: int, verb: str, body: Optional[Json]) -> int:
        raw = self._json("POST", f"/admin/workers/{int(worker)}/{verb}", {} if body is None else body, admin=True)
        return int(raw.get("operation") or 0)

    def drain(self, worker: int, *, timeout: Optional[float] = None) -> int:
        """Others take over what the worker does; requests may end there for `timeout` seconds. The operation's number: see `wait`."""
        return self._operate(worker, "drain", None if timeout is None else {"timeout": timeout})

    def restart(self, worker: int, *, timeout: Optional[float] = None) -> int:
        """The same, and another process comes in its place."""
        return self._operate(worker, "restart", None if timeout is None else {"timeout": timeout})

    def join(self, worker: int) -> int:
        """Somebody is wanted again where a worker was drained, or a place is free."""
        return self._operate(worker, "join", None)

    def kill(self, worker: int) -> None:
        """Ends a worker's process at once, as by a fault; only of processes that the server started."""
        self._operate(worker, "kill", None)

    def wait(self, worker: int, operation: int, within: float = 60.0) -> Worker:
        """The worker when that operation is done. SluiceError: it was given up, says why, and all is as before; or it takes longer."""
        until = time.monotonic() + within
        while True:
            at = next((w for w in self.workers() if w.id == worker), None)
            if at is None:
                raise SluiceError(f"worker {worker}: is not there")
            done = at.operation
            if done is not None and (done.number > operation or (done.number == operation and done.done)):
                if done.number == operation and done.error is not None:
                    raise SluiceError(f"worker {worker}: {done.error}")
                return at
            if time.monotonic() >= until:
                raise SluiceError(f"worker {worker}: operation {operation} is not done within {within} s")
            time.sleep(0.05)
