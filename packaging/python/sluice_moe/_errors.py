"""What goes wrong, by who said so."""

from __future__ import annotations

from typing import Optional


class SluiceError(Exception):
    """Any error of this package."""


class ConnectError(SluiceError):
    """Nobody answered: no connection, none within the timeout, or it broke."""


class UntrustedError(ConnectError):
    """Who answered there has a certificate that is not to be trusted: waiting does not help."""


class AnswerError(SluiceError):
    """Somebody answered who does not speak this API."""


class RefusedError(SluiceError):
    """The server answered with an error, which docs/api.md lists by `code`."""

    def __init__(self, status: int, message: str, code: Optional[str], param: Optional[str], retry_after: Optional[float]) -> None:
        super().__init__(f"{message} (HTTP {status}{', ' + code if code else ''})")
        self.status = status
        self.message = message
        self.code = code
        self.param = param  # the field at fault
        self.retry_after = retry_after  # seconds after which another try makes sense


class ServerError(SluiceError):
    """A server that this process started did not start, or not in time."""


class EngineError(SluiceError):
    """The engine in this process refused or failed."""
