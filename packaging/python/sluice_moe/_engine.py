"""The engine in this process, over sluice.h (ctypes).

Workers are threads of this process that run no Python: nothing of the engine waits for the interpreter's lock, and every call that waits
releases it. An Engine may be used by any number of threads at once; a Stream by one at a time, but for `cancel` and `close`. What an
engine or a stream holds is freed by `close`, at the end of a `with`, when nobody has it any more, and at the interpreter's end. After a
fork the child cannot use them (EngineError), and leaves them to the parent.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Type, Union

from ._errors import EngineError
from ._program import library

_WHY = 512
_TURN_MS = 100  # a wait for tokens in C; between two of them Python's signals are handled
_FINISH = {1: "stop", 2: "length", 3: "cancelled"}


class _Options(ctypes.Structure):
    _fields_ = [("model", ctypes.c_char_p), ("attention", ctypes.c_uint32), ("experts", ctypes.c_uint32), ("threads", ctypes.c_uint32),
                ("context", ctypes.c_uint32), ("exact", ctypes.c_int)]


class _Request(ctypes.Structure):
    _fields_ = [("prompt", ctypes.c_char_p), ("ids", ctypes.POINTER(ctypes.c_uint32)), ("n_ids", ctypes.c_size_t), ("chat", ctypes.c_int),
                ("max_tokens", ctypes.c_uint32), ("temperature", ctypes.c_float), ("top_p", ctypes.c_float), ("top_k", ctypes.c_uint32),
                ("seed", ctypes.c_uint64), ("on_text", ctypes.c_void_p), ("ctx", ctypes.c_void_p)]


class _Piece(ctypes.Structure):
    _fields_ = [("text", ctypes.c_void_p), ("len", ctypes.c_size_t), ("ids", ctypes.POINTER(ctypes.c_uint32)), ("n_ids", ctypes.c_size_t),
                ("finish", ctypes.c_int)]


def _load() -> ctypes.CDLL:
    lib = ctypes.CDLL(library())
    for name, result, arguments in (
            ("sluice_open", ctypes.c_void_p, [ctypes.POINTER(_Options), ctypes.c_char_p, ctypes.c_size_t]),
            ("sluice_start", ctypes.c_void_p, [ctypes.c_void_p, ctypes.POINTER(_Request), ctypes.c_char_p, ctypes.c_size_t]),
            ("sluice_next", ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(_Piece), ctypes.c_char_p, ctypes.c_size_t]),
            ("sluice_cancel", None, [ctypes.c_void_p]), ("sluice_stream_close", None, [ctypes.c_void_p]),
            ("sluice_close", None, [ctypes.c_void_p]), ("sluice_version", ctypes.c_char_p, [])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


_lib: Optional[ctypes.CDLL] = None
_loading = threading.Lock()


def _library() -> ctypes.CDLL:
    """Loaded by the first engine: whoever only wants the client needs none of it."""
    global _lib
    with _loading:
        if _lib is None:
            _lib = _load()
        return _lib


def _reason(why: "ctypes.Array[ctypes.c_char]") -> EngineError:
    return EngineError(why.value.decode("utf-8", "replace"))


def _u32(name: str, value: int, most: int = 0xFFFFFFFF) -> int:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name}: {value!r}, a number of 0 to {most} is needed")
    return value


def _text(name: str, value: str) -> bytes:
    data = value.encode()
    if b"\0" in data:
        raise ValueError(f"{name}: has a NUL")
    return data


class _Native:
    """An open engine and the streams that are open on it. Freed once, whoever comes first; streams before their engine."""

    def __init__(self, lib: ctypes.CDLL, handle: int) -> None:
        self.lib = lib
        self.handle: Optional[int] = handle
        self.pid = os.getpid()
        self.lock = threading.RLock()  # a finalizer may run in the middle of what holds it
        self.streams: Set[_NativeStream] = set()

    def check(self) -> int:
        if os.getpid() != self.pid:
            raise EngineError("the engine was opened by another process: it does not go on in a child after a fork")
        if self.handle is None:
            raise EngineError("the engine is closed")
        return self.handle

    def close(self) -> None:
        if os.getpid() != self.pid:
            return
        with self.lock:
            for stream in list(self.streams):
                stream.close()
            handle, self.handle = self.handle, None
            if handle is not None:
                self.lib.sluice_close(handle)


class _NativeStream:
    def __init__(self, engine: _Native, handle: int) -> None:
        self.engine = engine
        self.handle: Optional[int] = handle
        self.using = threading.RLock()  # held by who is in sluice_next
        self.closing = threading.Lock()  # held for a moment by who cancels or frees

    def cancel(self) -> None:
        if os.getpid() != self.engine.pid:
            return
        with self.closing:
            if self.handle is not None:
                self.engine.lib.sluice_cancel(self.handle)

    def close(self) -> None:
        if os.getpid() != self.engine.pid:
            return
        self.cancel()  # whoever waits in sluice_next hears of it
        with self.using, self.closing:
            handle, self.handle = self.handle, None
            if handle is not None:
                self.engine.lib.sluice_stream_close(handle)
        self.engine.streams.discard(self)


@dataclass(frozen=True)
class Piece:
    """New text, and the tokens that it is of; tokens may have no text yet, as characters are handed out whole."""

    text: str
    ids: Tuple[int, ...]


@dataclass(frozen=True)
class Generation:
    text: str
    ids: Tuple[int, ...]
    finish_reason: str  # "stop", "length" or "cancelled"


class Stream:
    """The pieces of an answer, as they come. `finish_reason` is there after the last one."""

    finish_reason: Optional[str] = None

    def __init__(self, native: _NativeStream, engine: "Engine") -> None:
        self._native = native
        self._engine = engine  # which is not closed while somebody reads
        self._free = weakref.finalize(self, native.close)

    def _next(self, wait_ms: int) -> Optional[Piece]:
        """What came; None: nothing yet. StopIteration after the end."""
        native = self._native
        piece, why = _Piece(), ctypes.create_string_buffer(_WHY)
        with native.using:
            if native.handle is None:
                raise StopIteration
            native.engine.check()
            news = native.engine.lib.sluice_next(native.handle, wait_ms, ctypes.byref(piece), why, _WHY)
            got = Piece(ctypes.string_at(piece.text, piece.len).decode(), tuple(piece.ids[:piece.n_ids])) if news > 0 else None
        if news < 0:
            self.close()
            raise _reason(why)
        if news > 0 and piece.finish:
            self.finish_reason = _FINISH[piece.finish]
            self.close()
        return got

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Piece:
        while True:
            got = self._next(_TURN_MS)
            if got is not None and (got.ids or got.text):
                return got

    def read(self, timeout: Optional[float] = None) -> Generation:
        """The rest of it as one. After `timeout` seconds the request is cancelled, and what came is returned."""
        until = None if timeout is None else time.monotonic() + timeout
        texts: List[str] = []
        ids: List[int] = []
        try:
            while True:
                got = self._next(_TURN_MS)
                if got is not None:
                    texts.append(got.text)
                    ids += got.ids
                if until is not None and time.monotonic() >= until:
                    self.cancel()
                    until = None
        except StopIteration:
            return Generation("".join(texts), tuple(ids), self.finish_reason or "cancelled")

    def cancel(self) -> None:
        """The request ends soon; what came before is still read. Any thread."""
        self._native.cancel()

    def close(self) -> None:
        """Ends the request if it runs, and frees it. Any thread; may be called again."""
        self._free()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()


class Engine:
    """A model open in this process.

        with sluice_moe.Engine("models/demo", threads=4) as engine:
            for piece in engine.stream("Once upon a time", max_tokens=64):
                print(piece.text, end="", flush=True)

    `attention` and `experts` are numbers of workers, 0 and 0 one that does all; `threads` those of one worker; `context` the positions of
    a request (0: the model's, at most 4096); `exact` the same bits whatever the workers.
    """

    def __init__(self, model: Union[str, "os.PathLike[str]"], *, attention: int = 0, experts: int = 0, threads: int = 1, context: int = 0,
                 exact: bool = False) -> None:
        lib = _library()
        options = _Options(_text("model", os.fspath(model)), _u32("attention", attention), _u32("experts", experts), _u32("threads", threads),
                           _u32("context", context), int(exact))
        why = ctypes.create_string_buffer(_WHY)
        handle = lib.sluice_open(ctypes.byref(options), why, _WHY)
        if not handle:
            raise _reason(why)
        self._native = _Native(lib, handle)
        self._free = weakref.finalize(self, self._native.close)

    def stream(self, prompt: Union[str, Sequence[int]], *, chat: bool = False, max_tokens: int = 128, temperature: float = 0.0,
               top_p: float = 1.0, top_k: int = 0, seed: int = 0) -> Stream:
        """Starts a request. The prompt is text or token ids; with `chat` a user's message for the model's template. Greedy by default."""
        request = _Request(chat=int(chat), max_tokens=_u32("max_tokens", max_tokens), temperature=temperature, top_p=top_p,
                           top_k=_u32("top_k", top_k), seed=_u32("seed", seed, (1 << 64) - 1))
        if max_tokens == 0 or not top_p > 0:
            raise ValueError("max_tokens, top_p: more than 0 is needed")
        keep: Dict[str, Any] = {}  # until sluice_start has copied it
        if isinstance(prompt, str):
            request.prompt = keep["text"] = _text("prompt", prompt)
        else:
            ids = [_u32("prompt", i) for i in prompt]
            keep["ids"] = (ctypes.c_uint32 * max(1, len(ids)))(*ids)
            request.ids, request.n_ids = ctypes.cast(keep["ids"], ctypes.POINTER(ctypes.c_uint32)), len(ids)
        why = ctypes.create_string_buffer(_WHY)
        native = self._native
        with native.lock:
            handle = native.lib.sluice_start(native.check(), ctypes.byref(request), why, _WHY)
            if not handle:
                raise _reason(why)
            stream = _NativeStream(native, handle)
            native.streams.add(stream)
        return Stream(stream, self)

    def generate(self, prompt: Union[str, Sequence[int]], *, chat: bool = False, max_tokens: int = 128, temperature: float = 0.0,
                 top_p: float = 1.0, top_k: int = 0, seed: int = 0, timeout: Optional[float] = None) -> Generation:
        """The whole answer. After `timeout` seconds the request is cancelled, and what came is returned."""
        with self.stream(prompt, chat=chat, max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed) as stream:
            return stream.read(timeout)

    @property
    def version(self) -> str:
        return bytes(self._native.lib.sluice_version()).decode()

    def close(self) -> None:
        """Ends all requests, frees everything. Any thread; may be called again."""
        self._free()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()
