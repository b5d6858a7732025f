"""Certificates that sign themselves, for tests of HTTPS (by openssl)."""

import pathlib
import subprocess


def certificate(folder, *more, days=90, name="127.0.0.1", sans="IP:127.0.0.1,DNS:localhost", kind=("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")):
    """Files of a certificate that signs itself and of its key; `more` goes to openssl req."""
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    subprocess.run(["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", str(days), "-subj", f"/CN={name}", "-addext", f"subjectAltName={sans}",
                    "-keyout", folder / "key.pem", "-out", folder / "cert.pem", *more], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"
