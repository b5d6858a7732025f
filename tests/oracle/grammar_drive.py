"""Talks to the driver of src/grammar for the tests beside it. The driver comes from SLUICE_GRAMMAR, default
build/tests/grammar_driver."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("SLUICE_GRAMMAR", ROOT / "build" / "tests" / "grammar_driver"))


class Refused(Exception):
    """The room's own words, and its status."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class Driver:
    """A vocabulary (texts of bytes; the last id ends an answer) and what it is asked."""

    def __init__(self, tokens):
        self.tokens = [*tokens, b""]
        self.end = len(tokens)
        self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ask(vocab=[t.hex() for t in self.tokens], ends=[self.end])

    def ask(self, **job):
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the driver ended at {job}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["status"])
        return answer

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0
