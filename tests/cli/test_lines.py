"""Work that takes long has a line on a terminal, and none where stderr is none."""

import os
import pathlib
import pty
import re
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ended  # noqa: E402
import served  # noqa: E402

FIXTURE = served.ROOT / "tests" / "golden" / "qwen3moe-tiny"
VERBS = {
    "plan": ["plan", "dbrx", "--cluster", "h20-8-l40s-16"],
    "profile": ["profile", FIXTURE, "--threads", "1"],
    "bench": ["bench", FIXTURE, "--n-prompt", "64", "--n-gen", "64", "--reps", "20"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_line_while_it_works(verb):
    """Killed when it has come: some of it takes a minute."""
    ours, theirs = pty.openpty()
    before = len(ended.running)
    process = ended.start([served.SLUICE, *VERBS[verb]], stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    late = threading.Timer(60, process.kill)
    late.start()
    seen = b""
    while not re.search(rb"\r\x1b\[K" + verb.encode() + rb"\b[^\r\n]*: [^\r\n]*\d+ %", seen):
        seen += os.read(ours, 65536)  # its end, without a line, raises
    late.cancel()
    ended.end_all(before)
    os.close(ours)


@pytest.mark.parametrize("verb", [v for v in VERBS if v != "profile"])  # which takes a minute
def test_none_in_a_pipe(verb):
    done = subprocess.run([served.SLUICE, *VERBS[verb]], capture_output=True, check=True, timeout=60)
    assert b"\r" not in done.stderr and b" %" not in done.stderr
