"""The prefix cache outlives a server: what was cached at its orderly end is there after the next start, with the same answers bit for
bit, and what is wrong with a file costs what was cached, never a request."""
import subprocess
import time

import pytest
from conftest import BINARY, GOLDEN
from test_kept_kv import Deployment
from test_prefix_cache import FIRST, MODEL, SECOND, TEXT, ask, cached, keys_of

OTHER = [(11 * i) % 900 + 3 for i in range(200)]
FULL = 192  # tokens of TEXT in full pages


def pages(server, what):
    return server.metric("worker_kv_disk_pages_total", what=what)


def disk(folder, *args):
    return ["--exact", "--log", "info", "--kv-disk", str(folder), *args]


@pytest.mark.parametrize("how", [[], ["--attention", "2", "--experts", "1", "--kv-type", "q8_0"],
                                 ["--attention", "2", "--experts", "2", "--schedule", "aep"], ["--tp", "2", "--transport", "loop"], ["--pp", "2"]],
                         ids=["one", "2+1 q8_0", "aep", "gang", "pipeline"])
def test_a_conversation_goes_on_after_a_restart(make_server, tmp_path, how):
    first = make_server(MODEL, *disk(tmp_path / "kv", *how))
    (cold, none), _ = ask(first, logprobs=3), ask(first, OTHER)
    assert none == 0 and pages(first, "loaded") == 0
    first.stop()
    files = {f.name: f for f in (tmp_path / "kv").iterdir()}
    assert "salt" in files and {f.stat().st_mode & 0o777 for f in files.values()} == {0o600}
    second = make_server(MODEL, *disk(tmp_path / "kv", *how))
    assert second.metric("kv_pages_cached") >= 12
    warm, found = ask(second, logprobs=3)
    assert found == FULL and warm["choices"] == cold["choices"]
    # who goes on goes on: with what was answered, and what others have begun
    turn = TEXT + cold["choices"][0]["token_ids"] + [9] * 60
    longer, found = ask(second, turn, logprobs=3)
    assert found >= FULL and longer["choices"] == ask(second, turn, logprobs=3, cache=False)[0]["choices"]
    assert cached(second, OTHER) == FULL
    second.stop()
    third = make_server(MODEL, *disk(tmp_path / "kv", *how))  # what came from there goes there again
    assert cached(third, turn) > FULL
    third.wait_idle()


def test_only_for_whom_it_was(make_server, tmp_path):
    how = disk(tmp_path / "kv", "--api-key", FIRST, "--api-key-file", keys_of(tmp_path, SECOND))
    first = make_server(MODEL, *how)
    assert [cached(first, key=k, cache_salt=s) for k, s in ((FIRST, None), (SECOND, "a"))] == [0, 0]
    first.stop()
    second = make_server(MODEL, *how)
    assert [cached(second, key=k, cache_salt=s) for k, s in ((SECOND, None), (FIRST, "a"), (FIRST, None), (SECOND, "a"))] == [0, 0, FULL, FULL]
    second.stop()
    (tmp_path / "kv" / "salt").unlink()  # other keys from now on
    assert cached(make_server(MODEL, *how), key=FIRST) == 0


class Remote(Deployment):
    """Whose workers have a folder for their KV."""

    def start(self, i):
        self.env["SLUICE_KV_DISK"] = str(self.folder / "kv")
        return super().start(i)


def test_remote_workers_have_their_own(make_server, tmp_path):
    """And the coordinator only says which pages: where it has a journal, keys are those of that."""
    got = []
    for _ in range(2):
        made = Remote(make_server, tmp_path)
        server = made.serve(MODEL, *disk(tmp_path / "keys"))
        got.append(ask(server, logprobs=3))
        made.end(server)
    assert [g[1] for g in got] == [0, FULL] and got[0][0]["choices"] == got[1][0]["choices"]
    assert {f.name for f in (tmp_path / "keys").iterdir()} == {"salt"}
    assert {f.name for f in (tmp_path / "kv").glob("*.kv")} in ({"worker-0.kv"}, {"worker-1.kv"})


def test_a_worker_that_is_started_again_finds_it(make_server, tmp_path):
    """A rolling restart, and one after a crash, in which pages of its place are some request's still."""
    key = tmp_path / "admin"
    key.write_text("k" * 40)
    key.chmod(0o600)
    server = make_server(MODEL, *disk(tmp_path / "kv", "--attention", "2", "--experts", "1", "--admin-key-file", str(key)))
    cold, _ = ask(server, logprobs=3)
    for worker in ("0", "1"):
        done = subprocess.run([BINARY, "restart", worker, "--url", server.url, "--admin-key-file", str(key), "--grace", "1"],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    warm, found = ask(server, logprobs=3)
    assert found == FULL and warm["choices"] == cold["choices"]
    end = time.monotonic() + 10  # workers report twice a second
    while pages(server, "loaded") < 6 and time.monotonic() < end:
        time.sleep(0.05)
    assert pages(server, "loaded") >= 6
    assert not list((tmp_path / "kv").glob("*.part"))


def damage(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damaged_pages_are_never_used(make_server, tmp_path):
    file = tmp_path / "kv" / "worker-0.kv"
    first = make_server(MODEL, *disk(tmp_path / "kv"))
    cold, _ = ask(first, logprobs=3)
    first.stop()
    whole, n = file.read_bytes(), 6
    record = (len(whole) - 96) // n
    damage(file, 96 + (n - 1) * record + record // 2)  # the last one in the file is the text's first page
    second = make_server(MODEL, *disk(tmp_path / "kv"))
    got, found = ask(second, logprobs=3)
    assert found == 0 and got["choices"] == cold["choices"]
    assert "1 KV pages are damaged" in second.log.read_text()
    second.wait_idle()
    second.process.kill()  # what it had is as it was
    second.process.wait()
    for spoil, word in ((lambda: file.write_bytes(whole[:-1]), "are not those of"), (lambda: damage(file, 3), "no file of KV pages"),
                        (lambda: damage(file, 20), "its head is damaged"), (lambda: file.chmod(0o644), "others may read"),
                        (lambda: (file.unlink(), file.symlink_to(tmp_path / "elsewhere")), "it is a link")):
        if not file.is_symlink():
            file.write_bytes(whole)
            file.chmod(0o600)
        spoil()
        server = make_server(MODEL, *disk(tmp_path / "kv"))
        got, found = ask(server, logprobs=3)
        assert found == 0 and got["choices"] == cold["choices"]
        assert word in server.log.read_text()
        server.process.kill()
        server.process.wait()
    assert not (tmp_path / "elsewhere").exists()


def test_of_another_model_or_numerics_it_is_replaced(make_server, tmp_path):
    first = make_server(MODEL, *disk(tmp_path / "kv"))
    ask(first)
    first.stop()
    second = make_server(MODEL, *disk(tmp_path / "kv", "--kv-type", "bf16"))
    assert pages(second, "loaded") == 0 and cached(second) == 0
    assert "it is not used, and replaced" in second.log.read_text()
    second.stop()
    assert cached(make_server(MODEL, *disk(tmp_path / "kv", "--kv-type", "bf16"))) == FULL


def test_two_servers_and_one_folder(make_server, tmp_path):
    first = make_server(MODEL, *disk(tmp_path / "kv"))
    second = make_server(MODEL, *disk(tmp_path / "kv"))
    assert "another process has it; KV is not saved" in second.log.read_text()
    assert [cached(second), cached(second), cached(first)] == [0, FULL, 0]
    second.stop()
    assert not (tmp_path / "kv" / "worker-0.kv").exists()
    first.stop()
    assert (tmp_path / "kv" / "worker-0.kv").exists()


def test_so_many_bytes_and_the_pages_used_last(make_server, tmp_path):
    first = make_server(MODEL, *disk(tmp_path / "kv"))
    for text in (OTHER, TEXT):
        ask(first, text)
    first.stop()
    file = tmp_path / "kv" / "worker-0.kv"
    record = (file.stat().st_size - 96) // 12
    second = make_server(MODEL, *disk(tmp_path / "kv", "--kv-disk-size", str(96 + 6 * record + 1)))
    second.stop()
    assert file.stat().st_size == 96 + 6 * record
    third = make_server(MODEL, *disk(tmp_path / "kv", "--ctx", "256", "--kv-pages", "10", "--max-num-seqs", "1"))
    assert [cached(third, OTHER[:100]), cached(third)] == [0, FULL]


def test_a_disk_that_is_full(make_server, tmp_path):
    """Files may not grow beyond some bytes: what is there stays, and the server ends in good order."""
    first = make_server(MODEL, *disk(tmp_path / "kv"))
    ask(first)
    first.stop()
    file = tmp_path / "kv" / "worker-0.kv"
    before = file.read_bytes()
    second = make_server(MODEL, *disk(tmp_path / "kv"))
    assert cached(second) == FULL and cached(second, OTHER) == 0
    subprocess.run(["prlimit", f"--pid={second.process.pid}", f"--fsize={len(before)}"], check=True)
    second.stop()
    assert "KV is not saved" in second.log.read_text()
    assert file.read_bytes() == before and not list(file.parent.glob("*.part"))


@pytest.mark.parametrize("args, word", [
    (["--kv-disk", "{}/none/below"], "it cannot be made"), (["--kv-disk", "{}/file"], "it is no folder"),
    (["--kv-disk", "{}/open"], "others may write in it"), (["--kv-disk-size", "1GB"], "--kv-disk has to say where"),
    (["--kv-disk", "{}", "--kv-disk-size", "0"], "between 1 and"), (["--kv-disk", "{}", "--kv-disk-size", "x"], "is not"),
    (["--kv-disk", "{}", "--kv-disk-size", "1000"], "KV pages of"), (["--kv-disk", "{}", "--prefix-cache", "off"], "--prefix-cache off"),
    (["--kv-disk", "{}", "--device", "emulated:H100"], "emulated devices have no KV")])
def test_what_is_refused(tmp_path, args, word):
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    done = subprocess.run([BINARY, "serve", GOLDEN / MODEL, "--port", "0", *(a.format(tmp_path) for a in args)], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode in (1, 2) and word in done.stderr, done.stderr
