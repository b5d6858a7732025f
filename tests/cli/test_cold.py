"""A start from a cold disk: what it says of the weights that are not in memory, and that it reads them before it serves."""

import ctypes
import mmap
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ended  # noqa: E402
import launched  # noqa: E402
import served  # noqa: E402

MAKE = """
import sys
sys.path.insert(0, {folder!r})
import make_random_model as m
m.SHAPES["tiny"]["layers"], m.POOL = 24, 1 << 20
sys.argv = ["make_random_model.py", "tiny", {out!r}]
sys.exit(m.main())
"""
PAGE = mmap.PAGESIZE
DEPLOYMENTS = [("--transport", "loop"), ("--attention", "1", "--experts", "2", "--schedule", "dep")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """About 90 MB: less than 16 MB of a worker are not worth a word."""
    out = tmp_path_factory.mktemp("cold") / "random"
    subprocess.run([sys.executable, "-c", MAKE.format(folder=str(served.ROOT / "tools" / "py"), out=str(out))], check=True,
                   stdout=subprocess.DEVNULL)
    return out


@pytest.fixture(autouse=True)
def nobody_is_left():
    with ended.scope():
        yield


def weights(model):
    return next(model.glob("*.safetensors"))


def in_memory(path):
    """Pages of a file that mincore(2) finds there, and all."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size, fd = path.stat().st_size, os.open(path, os.O_RDONLY)
    at, there = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, fd, 0), (ctypes.c_ubyte * -(-size // PAGE))()
    os.close(fd)
    assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), there) == 0
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(page & 1 for page in there), len(there)


def drop(path):
    """Out of the file cache; what is not on the disk yet cannot be dropped."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if in_memory(path)[0] > 0:
        pytest.skip(f"the file system of {path} drops nothing from its cache")


@pytest.mark.parametrize("options", DEPLOYMENTS, ids=["loop", "shm"])
def test_a_cold_start_reads_and_says_so(model, options):
    path = weights(model)
    drop(path)
    server = served.Server(model, *options)
    said = "".join(server.log)
    size = path.stat().st_size
    found = re.search(rf"m: {size / 1e6:.1f} MB of weights, ([\d.]+) MB of them in memory; the rest is read now", said)
    assert found and float(found.group(1)) * 1e6 < size / 2, said  # reading a header brings some
    there, pages = in_memory(path)
    assert there >= 0.95 * pages and "after" not in said
    assert server.metrics("weights_bytes") == [size]
    assert 0.95 * size <= server.metrics("weights_cached_bytes")[0] <= size
    drop_is_seen(server, path, size)
    assert server.stop() == 0


def drop_is_seen(server, path, size):
    """Pages that a process has mapped cannot be dropped; the figure is the system's, whatever that keeps."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    there, pages = in_memory(path)
    assert abs(server.metrics("weights_cached_bytes")[0] / size - there / pages) < 0.1


def test_a_warm_start_says_nothing(model):
    weights(model).read_bytes()
    server = served.Server(model, *DEPLOYMENTS[0])
    assert "in memory" not in "".join(server.log)
    assert server.stop() == 0


def test_few_weights_and_emulated_ones_are_no_word_worth(model, tmp_path):
    drop(weights(model))
    (tmp_path / "device.json").write_text('{"attention": {"row": 50}, "expert": {"row": 50}}')
    fixture = served.ROOT / "tests" / "golden" / "qwen3moe-tiny"
    for folder, options in ((fixture, ()), (model, ("--device", f"emulated:{tmp_path / 'device.json'}"))):
        server = served.Server(folder, *options)
        assert "in memory" not in "".join(server.log)
        assert server.metrics("weights_bytes") == server.metrics("weights_cached_bytes") == [0]
        assert server.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_files_of_another_user(model, monkeypatch):
    """The system calls each of their pages present: nothing is said rather than that."""
    for folder in (model, *list(model.parents)[:-1]):
        if not os.stat(folder).st_mode & 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    weights(model).chmod(0o644)
    drop(weights(model))
    monkeypatch.setenv("SLUICE_KERNEL_CACHE", "off")
    start = ended.start
    monkeypatch.setattr(ended, "start", lambda command, **o: start(["setpriv", "--reuid", "65534", "--clear-groups", *command], **o))
    server = served.Server(model, *DEPLOYMENTS[0])
    assert "in memory" not in "".join(server.log)
    assert server.metrics("weights_bytes") == [0]
    server.stop()


SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

int madvise(void *at, size_t bytes, int advice) {
    static int (*real)(void *, size_t, int);
    if (!real) real = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
    if (advice == 22) usleep(bytes / 100); /* MADV_POPULATE_READ, at 100 MB/s */
    return real(at, bytes, advice);
}
"""
READ = r"weights in memory: [\d.]+ of [\d.]+ MB, \d+ %(, [\d.]+ [kMG]?B/s)?(, \d+ s left)?"


@pytest.fixture(scope="module")
def slow_disk(tmp_path_factory):
    """Variables with which a thread reads 100 MB of weights a second at most. UCX's hooks would go before what is preloaded."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "slow.so", folder / "slow.c"], check=True)
    return {"LD_PRELOAD": str(folder / "slow.so"), "UCX_MEM_EVENTS": "n"}


class Terminal:
    """What a program writes to a terminal that is its stderr."""

    def __init__(self, command, environment):
        self.ours, theirs = pty.openpty()
        self.process = ended.start(command, stderr=theirs, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
        os.close(theirs)
        self.seen = b""

    def until(self, word):
        late = threading.Timer(60, self.process.kill)
        late.start()
        while not re.search(word, self.seen):
            self.seen += os.read(self.ours, 65536)
        late.cancel()
        return re.search(word, self.seen)

    def rest(self):
        """All of it, with what has come since."""
        os.set_blocking(self.ours, False)
        try:
            self.seen += os.read(self.ours, 65536)
        except OSError:  # nothing, or nobody writes any more
            pass
        os.set_blocking(self.ours, True)
        return self.seen

    def drawn(self):
        """Lines that were drawn and erased again; what stays on the terminal is none of them."""
        return [part for part in self.seen.decode().split("\r\x1b[K") if part and not part.endswith("\n")]


def test_the_line_on_a_terminal(model, slow_disk):
    """Bytes that are in memory, then workers; both go before the server is there."""
    drop(weights(model))
    terminal = Terminal([served.SLUICE, "serve", model, "--port", "0", *DEPLOYMENTS[1]], slow_disk)
    terminal.until(rb"listening")
    drawn = terminal.drawn()
    assert all(re.fullmatch(READ + r"|workers ready: \d of 3, \d+ %", part) for part in drawn), drawn
    assert any(re.fullmatch(READ, part) for part in drawn), drawn
    os.close(terminal.ours)


@pytest.fixture
def coordinator(model, tmp_path):
    """A server that waits for a worker with everything: its process and the options of that worker."""
    subprocess.run([served.SLUICE, "secret", "-o", tmp_path / "secret"], check=True, stdout=subprocess.DEVNULL)
    port = str(launched.free_port())
    process = ended.start([served.SLUICE, "serve", model, "--port", "0", "--remote", "--attention", "1", "--transport", "tcp", "--fabric-port",
                           port, "--secret-file", tmp_path / "secret"], stderr=subprocess.PIPE, text=True)
    return process, ["worker", "--join", f"127.0.0.1:{port}", "--secret-file", tmp_path / "secret"]


def test_a_remote_worker_has_its_line(coordinator, slow_disk):
    """It speaks of its own weights, and of nothing when they are there."""
    server, command = coordinator
    terminal = Terminal([served.SLUICE, *command], slow_disk)
    assert any("listening" in line for line in server.stderr)
    found = terminal.until(rb"weights in memory: ([\d.]+) of ([\d.]+) MB")
    assert 0 < float(found[1]) < float(found[2]) < 100, terminal.seen
    drawn = terminal.drawn()
    assert all(re.fullmatch(READ, part) for part in drawn), drawn
    assert terminal.rest().endswith(b"\r\x1b[K"), terminal.seen
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == terminal.process.wait(60) == 0
    os.close(terminal.ours)


@pytest.mark.parametrize("quiet", ["a pipe", "--no-status", "--json"])
def test_and_none_where_nobody_wants_it(coordinator, slow_disk, quiet):
    server, command = coordinator
    if quiet == "a pipe":
        worker = ended.start([served.SLUICE, *command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, **slow_disk})
        assert any("listening" in line for line in server.stderr)
        server.send_signal(signal.SIGTERM)
        assert "in memory" not in worker.communicate(timeout=60)[1].decode()
        return
    terminal = Terminal([served.SLUICE, *command, quiet], slow_disk)
    assert any("listening" in line for line in server.stderr)
    server.send_signal(signal.SIGTERM)
    assert terminal.process.wait(60) == 0
    assert b"in memory" not in terminal.rest()
    os.close(terminal.ours)
