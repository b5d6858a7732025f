"""Work that takes long has a line on a terminal, and none where stderr is none."""

import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ended  # noqa: E402
import served  # noqa: E402

FIXTURE = served.ROOT / "tests" / "golden" / "qwen3moe-tiny"
VERBS = {
    "plan": ["plan", "deepseek-v3", "--cluster", "h20-8-l40s-16"],  # 0.7 s of the fastest cores that were tried; a line comes after 0.1 s
    "profile": ["profile", FIXTURE, "--threads", "1"],
    "bench": ["bench", FIXTURE, "--n-prompt", "64", "--n-gen", "64", "--batch", "16", "--reps", "40"],  # 0.4 s there
}
ERASE = rb"\r\x1b\[K"


class Terminal:
    """What a program writes to a terminal that is its stderr; with `whole` its stdout, too. A process that hangs is killed after five minutes."""

    def __init__(self, command, whole=False, **options):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 200, 0, 0))
        self.scope = contextlib.ExitStack()
        self.scope.enter_context(ended.scope())
        self.process = ended.start(command, stderr=theirs, stdout=theirs if whole else subprocess.DEVNULL, **options)
        os.close(theirs)
        self.seen = b""

    def __enter__(self):
        self.late = threading.Timer(300, self.process.kill)
        self.late.start()
        return self

    def __exit__(self, *_):
        self.late.cancel()
        self.scope.close()
        os.close(self.ours)

    def until(self, word):
        """Its end, without the word, raises."""
        while not (found := re.search(word, self.seen)):
            self.seen += os.read(self.ours, 65536)
        return found


@pytest.mark.parametrize("verb", VERBS)
def test_a_line_while_it_works(verb):
    """Killed when it has come: some of it takes a minute."""
    with Terminal([served.SLUICE, *VERBS[verb]]) as terminal:
        terminal.until(ERASE + verb.encode() + rb"\b[^\r\n]*: [^\r\n]*\d+ %")


@pytest.mark.parametrize("verb", [v for v in VERBS if v != "profile"])  # which takes a minute
def test_none_in_a_pipe(verb):
    done = subprocess.run([served.SLUICE, *VERBS[verb]], capture_output=True, check=True, timeout=300)
    assert b"\r" not in done.stderr and b" %" not in done.stderr


# ---- what a disk is slow for ----

SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void wait_so_long(const char *name) {
    const char *us = getenv(name);
    if (us) usleep((unsigned)atoi(us));
}

size_t fwrite(const void *data, size_t size, size_t n, FILE *to) {
    static size_t (*real)(const void *, size_t, size_t, FILE *);
    if (!real) real = (size_t (*)(const void *, size_t, size_t, FILE *))dlsym(RTLD_NEXT, "fwrite");
    wait_so_long("SLOW_WRITE_US");
    return real(data, size, n, to);
}

int mincore(void *at, size_t bytes, unsigned char *there) { /* of each piece of a file that is read */
    static int (*real)(void *, size_t, unsigned char *);
    if (!real) real = (int (*)(void *, size_t, unsigned char *))dlsym(RTLD_NEXT, "mincore");
    wait_so_long("SLOW_READ_US");
    return real(at, bytes, there);
}
"""
N_PIECES, PIECE = 5, 64 << 20  # that `warm` reads


@pytest.fixture(scope="module")
def slow_disk(tmp_path_factory):
    """What a program waits for at each piece: variables."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "slow.so", folder / "slow.c"], check=True)
    return lambda verb, us: {**os.environ, "LD_PRELOAD": str(folder / "slow.so"), {"warm": "SLOW_READ_US", "convert": "SLOW_WRITE_US"}[verb]: str(us)}


@pytest.fixture
def command(request, tmp_path):
    if request.param == "convert":
        return request.param, ["convert", FIXTURE, tmp_path / "out.gguf"]
    n = N_PIECES * PIECE // 4 - 64  # values of a file with holes
    head = json.dumps({"t": {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}}).encode().ljust(248)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    os.truncate(tmp_path / "model.safetensors", len(head) + 8 + 4 * n)
    return request.param, ["warm", tmp_path]


LINES = {"convert": rb"convert: [\d.]+ of [\d.]+( M)?, \d+ %, \d+ s left",
         "warm": rb"model\.safetensors: [\d.]+ of 335\.5 MB, \d+ %, [\d.]+ MB/s, \d+ s left"}


@pytest.mark.parametrize(("command", "us"), [("convert", 20_000), ("warm", 350_000)], indirect=["command"], ids=["convert", "warm"])
def test_files_have_their_line(slow_disk, command, us):
    """How much of it, and how long it will take still, which is known after a second. Bytes have a rate."""
    verb, words = command
    with Terminal([served.SLUICE, *words], env=slow_disk(verb, us)) as terminal:
        terminal.until(ERASE + LINES[verb])
        drawn = [part for part in re.split(ERASE, terminal.seen) if part]
        assert all(re.match(LINES[verb].split(rb"%")[0] + rb"%", part) for part in drawn), drawn


@pytest.mark.parametrize(("command", "us"), [("convert", 2_000), ("warm", 60_000)], indirect=["command"], ids=["convert", "warm"])
def test_files_in_a_pipe_or_as_json_have_none(slow_disk, command, us):
    """As slow as is needed for a line."""
    verb, words = command
    done = subprocess.run([served.SLUICE, *words], env=slow_disk(verb, us), capture_output=True, check=True, timeout=60)
    assert done.stderr == b"" and b"\r" not in done.stdout and done.stdout
    with Terminal([served.SLUICE, *words, *(["--force"] if verb == "convert" else []), "--json"], env=slow_disk(verb, us)) as terminal:
        assert terminal.process.wait(60) == 0
        os.set_blocking(terminal.ours, False)
        with pytest.raises(OSError):  # nothing is there
            os.read(terminal.ours, 1)


# ---- a long prompt ----


def rows_of_prompts(port):
    """Done and left, by the metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return [sum(float(n) for n in re.findall(rf'^sluice:worker_prompt_rows{{.*state="{state}".*}} (\S+)$', text, re.M)) for state in ("done", "left")]


def test_a_long_prompt_is_seen_under_way(tmp_path):
    """By the status line and the metrics, while it is computed 16 rows at a time; tests/page looks at the page."""
    (tmp_path / "device.json").write_text('{"attention": {"row": 3000}, "expert": {"row": 50}}')
    command = [served.SLUICE, "serve", FIXTURE, "--port", "0", "--max-num-batched-tokens", "16", "--device", f"emulated:{tmp_path / 'device.json'}"]
    with Terminal(command, whole=True) as terminal:
        port = int(terminal.until(rb"listening on http://127\.0\.0\.1:(\d+)")[1])
        assert rows_of_prompts(port) == [0, 0]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": list(range(3, 483)), "max_tokens": 1, "temperature": 0}))
        line = terminal.until(ERASE + rb"[^\r\n]*1 running[^\r\n]* \| prompts: (\d+) of (\d+), (\d+) %, \d+ s left \| busy")
        done, rows, percent = map(int, line.groups())
        assert 0 < done < rows == 480 and percent == 100 * done // rows
        done_now, left = rows_of_prompts(port)
        assert done <= done_now and left > 0 and done_now + left == 480
