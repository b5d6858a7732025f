"""Sluice from Python: its server (`Server`), a client of what it answers (`Client`), and the engine in this process (`Engine`).

The program itself is in the package, too: `sluice` on the command line, or `python -m sluice_moe`.
"""

from importlib.metadata import version as _version

from ._client import Answer, Choice, Client, Delta, Deltas, Health, LiveSample, LiveSamples, Model, Operation, Sample, Usage, Worker
from ._engine import Engine, Generation, Piece, Stream
from ._errors import AnswerError, ConnectError, EngineError, RefusedError, ServerError, SluiceError, UntrustedError
from ._program import program
from ._server import Server

__version__ = _version("sluice-moe")

__all__ = [
    "Answer", "AnswerError", "Choice", "Client", "ConnectError", "Delta", "Deltas", "Engine", "EngineError", "Generation", "Health", "LiveSample",
    "LiveSamples", "Model", "Operation", "Piece", "RefusedError", "Sample", "Server", "ServerError", "SluiceError", "Stream", "UntrustedError",
    "Usage", "Worker", "program",
]
