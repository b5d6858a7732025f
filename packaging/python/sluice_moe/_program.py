"""Owns where the native files of the package lie, and the command `sluice`, which becomes the program (exec)."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Dict, NoReturn

_HERE = pathlib.Path(__file__).resolve().parent

# The bundled libcurl looks for certificates to trust where Debian has them; others have them here.
_DEBIAN = "/etc/ssl/certs/ca-certificates.crt"
_OTHERS = ("/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem")


def program() -> str:
    """The path of the program `sluice` in this package."""
    return str(_HERE / "bin" / "sluice")


def library() -> str:
    """The path of the library behind `Engine`."""
    return str(_HERE / "lib" / "libsluice.so")


def environment() -> Dict[str, str]:
    """This process's variables, and those that the program needs on this system."""
    env = dict(os.environ)
    if "SSL_CERT_FILE" not in env and not os.path.exists(_DEBIAN):
        for bundle in _OTHERS:
            if os.path.exists(bundle):
                env["SSL_CERT_FILE"] = bundle
                break
    return env


def main() -> NoReturn:
    """The console script: this process becomes the program, with the same arguments."""
    try:
        os.execve(program(), ["sluice", *sys.argv[1:]], environment())
    except OSError as e:
        sys.exit(f"sluice: {program()}: {e.strerror}")
