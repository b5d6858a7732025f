"""sluice fetch and models by name: against a hub of the tests' own, with huggingface_hub as the oracle of its cache.

SLUICE_BIN names the program (default build/sluice)."""

import contextlib
import hashlib
import json
import os
import pathlib
import pty
import random
import re
import resource
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import localhub  # noqa: E402

SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
TINY = ROOT / "tests" / "golden" / "qwen3moe-tiny"
FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
         "model.safetensors"]
MB = 1 << 20
TOKEN = "hf_aTokenOfTheTests"
RUN = ["--ids", "3,17,41", "-n", "4", "--temp", "0", "--ignore-eos"]


def LIMIT():
    resource.setrlimit(resource.RLIMIT_FSIZE, (12 * MB, 12 * MB))


def tiny(**more):
    return {**{n: (TINY / n).read_bytes() for n in FILES}, "README.md": b"# tiny\n", "pytorch_model.bin": b"a pickle", **more}


def shards():
    """The tiny model in two shards with an index."""
    files = tiny()
    data = files.pop("model.safetensors")
    (n,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    names, weight_map = sorted(head), {}
    for k, part in enumerate((names[::2], names[1::2])):
        shard, body, rows = f"model-{k + 1:05}-of-00002.safetensors", b"", {}
        for name in part:
            a, b = head[name]["data_offsets"]
            rows[name] = {**head[name], "data_offsets": [len(body), len(body) + b - a]}
            body += data[8 + n + a:8 + n + b]
            weight_map[name] = shard
        text = json.dumps(rows).encode()
        text += b" " * (-len(text) % 8)
        files[shard] = struct.pack("<Q", len(text)) + text + body
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return files


@pytest.fixture
def hub():
    with_faults = localhub.Hub()
    with_faults.repos["org/tiny"] = localhub.Repo(tiny())
    yield with_faults
    with_faults.close()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "hf"


def environment(hub, cache, **more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "HF_", "http_proxy", "HTTP_PROXY"))}
    return {**clean, "HF_HOME": str(cache), "HF_ENDPOINT": hub if isinstance(hub, str) else hub.url, **more}


def sluice(hub, cache, *args, code=0, limit=None, **env):
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=120, env=environment(hub, cache, **env),
                          preexec_fn=limit)
    assert done.returncode == code, f"exit {done.returncode}, not {code}: {done.stdout}{done.stderr}"
    assert "Sanitizer" not in done.stderr and "\r" not in done.stderr
    return done.stdout, done.stderr


def fetch(hub, cache, name, *args, **env):
    return json.loads(sluice(hub, cache, "fetch", name, "--json", *args, **env)[0])


def refused(hub, cache, name, *args, code=1, **env):
    out, err = sluice(hub, cache, "fetch", name, *args, code=code, **env)
    assert out == "" and err.startswith("sluice fetch: ") and err.count("\n") == 1, err
    return err


def folder(cache, name="org/tiny"):
    return cache / "hub" / ("models--" + name.replace("/", "--"))


def leftovers(cache):
    return [p.name for p in (folder(cache) / "blobs").glob("*.sluice.*")]


def oracle(code, hub, cache, **env):
    """Runs code with huggingface_hub; what it prints."""
    env = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **env}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env=environment(hub, cache, **env))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- names


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "org/", "/tiny", "-org/tiny", "org/ti--ny", "org/tiny@", "org/tiny@../x", "org/tiny@a//b",
                                  "org/tiny:", "org/tiny@main:", "o" * 97 + "/tiny", "org/tiny@" + "r" * 201])
def test_names_that_are_none(hub, cache, name):
    refused(hub, cache, name, code=2)
    assert hub.front.asked == []


def test_a_path_wins(hub, cache, tmp_path):
    (tmp_path / "org").mkdir()
    shutil.copytree(TINY, tmp_path / "org" / "tiny")
    env = environment(hub, cache)
    done = subprocess.run([SLUICE, "inspect", "org/tiny", "--json"], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0 and hub.front.asked == [] and not cache.exists()


# ---- what is fetched, and how it is found


def test_what_a_model_needs_and_nothing_else(hub, cache):
    found = fetch(hub, cache, "org/tiny")
    repo = hub.repos["org/tiny"]
    snapshot = folder(cache) / "snapshots" / repo.commit
    assert found["path"] == str(snapshot) and found["commit"] == repo.commit and found["files"] == len(FILES)
    assert found["bytes"] == found["fetched"] == sum(len(repo.files[n]) for n in FILES)
    assert sorted(p.name for p in snapshot.iterdir()) == sorted(FILES)
    for name in FILES:
        link = snapshot / name
        assert os.readlink(link) == f"../../blobs/{repo.digest(name)}" and link.read_bytes() == repo.files[name]
    assert (folder(cache) / "refs" / "main").read_text() == repo.commit and leftovers(cache) == []
    again = fetch(hub, cache, "org/tiny")
    assert again["fetched"] == 0 and again["path"] == found["path"]


def test_the_oracle_finds_what_sluice_fetched(hub, cache):
    found = fetch(hub, cache, "org/tiny")
    code = "import huggingface_hub as h; print(h.snapshot_download('org/tiny', local_files_only=True))"
    assert oracle(code, hub, cache) == found["path"]
    before = len(hub.storage.asked)
    code = "import huggingface_hub as h; print(h.snapshot_download('org/tiny', ignore_patterns=['*.bin']))"
    assert oracle(code, hub, cache) == found["path"]
    assert len(hub.storage.asked) == before  # it brought README.md and nothing that was there


def test_sluice_finds_what_the_oracle_fetched(hub, cache):
    code = "import huggingface_hub as h; print(h.snapshot_download('org/tiny', revision='main'))"
    path = oracle(code, hub, cache)
    asked = len(hub.front.asked) + len(hub.storage.asked)
    out, _ = sluice(hub, cache, "run", "org/tiny", *RUN, "--json", HF_HUB_OFFLINE="1")
    alone, _ = sluice(hub, cache, "run", TINY, *RUN, "--json")
    assert json.loads(out)["ids"] == json.loads(alone)["ids"]
    assert asked == len(hub.front.asked) + len(hub.storage.asked)
    found = fetch(hub, cache, "org/tiny")
    assert found["path"] == path and found["fetched"] == 0


def test_verbs_take_names(hub, cache, tmp_path):
    out, _ = sluice(hub, cache, "run", "org/tiny", *RUN, "--json")
    asked = len(hub.front.asked)
    alone, _ = sluice(hub, cache, "run", TINY, *RUN, "--json")
    assert json.loads(out)["ids"] == json.loads(alone)["ids"]
    sluice(hub, cache, "warm", "org/tiny@main")
    sluice(hub, cache, "convert", "org/tiny", tmp_path / "tiny.gguf")
    assert len(hub.front.asked) == asked  # what is whole in the cache is not asked for
    assert "org/other" in sluice(hub, cache, "run", "org/other", *RUN, code=1)[1]


def test_planning_needs_the_config_alone(hub, cache):
    sluice(hub, cache, "inspect", "org/tiny", "--json")
    assert [p.name for p in (folder(cache) / "snapshots" / hub.repos["org/tiny"].commit).iterdir()] == ["config.json"]
    assert hub.storage.asked == []
    out, _ = sluice(hub, cache, "run", "org/tiny", *RUN, "--json")  # what is there is not enough
    assert json.loads(out)["ids"]


def test_shards(hub, cache):
    hub.repos["org/tiny"] = repo = localhub.Repo({**shards(), "consolidated.safetensors": b"another copy of the weights"})
    found = fetch(hub, cache, "org/tiny")
    names = {p.name for p in pathlib.Path(found["path"]).iterdir()}
    assert names == set(repo.files) - {"README.md", "pytorch_model.bin", "consolidated.safetensors"}
    out, _ = sluice(hub, cache, "run", "org/tiny", *RUN, "--json", "--offline")
    assert json.loads(out)["ids"] == json.loads(sluice(hub, cache, "run", TINY, *RUN, "--json")[0])["ids"]
    (folder(cache) / "blobs" / repo.digest("model-00002-of-00002.safetensors")).unlink()
    assert "model-00002-of-00002" in sluice(hub, cache, "run", "org/tiny", *RUN, "--offline", code=1)[1]
    sluice(hub, cache, "run", "org/tiny", *RUN)  # brings it back


def test_a_shard_that_is_not_listed(hub, cache):
    files = shards()
    del files["model-00002-of-00002.safetensors"]
    hub.repos["org/tiny"] = localhub.Repo(files)
    assert "model-00002-of-00002.safetensors" in refused(hub, cache, "org/tiny")


# ---- GGUF by pattern


@pytest.fixture
def quantised(hub, tmp_path):
    """org/q: three quantisations, one of them in a folder and in two parts, and what is no model."""
    q8 = tmp_path / "q8.gguf"
    sluice(hub, tmp_path / "none", "convert", TINY, q8)
    data = q8.read_bytes()
    hub.repos["org/q"] = localhub.Repo({
        "Tiny-Q8_0.gguf": data, "Tiny-Q4_K_M.gguf": b"four", "mmproj-Q8_0.gguf": b"pictures", "config.json": b"{}",
        "BF16/Tiny-BF16-00001-of-00002.gguf": b"one", "BF16/Tiny-BF16-00002-of-00002.gguf": b"two",
        "Other-IQ1_S-00001-of-00002.gguf": b"half"})
    return hub


@pytest.mark.parametrize("pattern, name, files", [
    ("Q8_0", "Tiny-Q8_0.gguf", 1), ("q4_k_m", "Tiny-Q4_K_M.gguf", 1), ("BF16", "BF16/Tiny-BF16-00001-of-00002.gguf", 2),
    ("*Q4*", "Tiny-Q4_K_M.gguf", 1), ("Tiny-Q8_0.gguf", "Tiny-Q8_0.gguf", 1), ("mmproj-Q8_0.gguf", "mmproj-Q8_0.gguf", 1),
    ("BF16/*", "BF16/Tiny-BF16-00001-of-00002.gguf", 2)])
def test_patterns(quantised, cache, pattern, name, files):
    found = fetch(quantised, cache, f"org/q@main:{pattern}")
    repo = quantised.repos["org/q"]
    assert found["path"] == str(folder(cache, "org/q") / "snapshots" / repo.commit / name) and found["files"] == files
    assert pathlib.Path(found["path"]).read_bytes() == repo.files[name]


def test_a_gguf_runs_by_name(quantised, cache):
    out, _ = sluice(quantised, cache, "run", "org/q:Q8_0", *RUN, "--json")
    assert len(json.loads(out)["ids"]) == 4
    sluice(quantised, cache, "run", "org/q:Q8_0", *RUN, "--offline")
    sluice(quantised, cache, "run", "org/q", *RUN, "--offline")  # the only one that is there


def test_patterns_that_fit_none_or_several(quantised, cache):
    assert "Tiny-Q4_K_M.gguf, Tiny-Q8_0.gguf" in refused(quantised, cache, "org/q:Tiny*", code=2)
    assert "Tiny-Q4_K_M.gguf" in refused(quantised, cache, "org/q:Q5_K", code=2)
    assert "several GGUF" in refused(quantised, cache, "org/q", code=2)
    assert "1 of the 2 parts" in refused(quantised, cache, "org/q:IQ1_S")


def test_files_that_are_no_model(hub, cache):
    found = fetch(hub, cache, "org/tiny:*.md")
    assert [p.name for p in pathlib.Path(found["path"]).iterdir()] == ["README.md"]
    hub.repos["org/none"] = localhub.Repo({"README.md": b"", "pytorch_model.bin": b"a pickle"})
    assert "is what is read" in refused(hub, cache, "org/none")
    found = fetch(hub, cache, "org/none:README.md")  # an empty file
    assert (pathlib.Path(found["path"]) / "README.md").read_bytes() == b""


# ---- revisions


def test_revisions(hub, cache):
    repo = hub.repos["org/tiny"]
    repo.refs["refs/pr/1"] = repo.commit
    repo.refs["v1.0"] = repo.commit
    for revision in ("v1.0", "refs/pr/1"):
        fetch(hub, cache, f"org/tiny@{revision}")
        assert (folder(cache) / "refs" / revision).read_text() == repo.commit
    fetch(hub, cache, f"org/tiny@{repo.commit}")
    assert not (folder(cache) / "refs" / repo.commit).exists()
    assert "has no revision 'v2'" in refused(hub, cache, "org/tiny@v2")
    sluice(hub, cache, "run", f"org/tiny@{repo.commit}", *RUN, "--offline")


def test_a_commit_that_was_asked_for_is_what_comes(hub, cache):
    commit = hub.repos["org/tiny"].commit
    hub.fault.info = {"sha": "f" * 40}
    assert f"answers with commit {'f' * 40}" in refused(hub, cache, f"org/tiny@{commit}")
    assert not cache.exists()


def test_half_a_model_is_not_found(hub, cache):
    name = f"org/tiny@{hub.repos['org/tiny'].commit}"
    hub.fault.status["tokenizer_config.json"] = [503, 1000]  # the last of all, with the chat template
    assert "tokenizer_config.json" in refused(hub, cache, name, "--retry", 1)
    assert (folder(cache) / "blobs" / hub.repos["org/tiny"].digest("model.safetensors")).exists()
    assert "offline" in sluice(hub, cache, "run", name, *RUN, "--offline", code=1)[1]


def test_a_revision_that_moves(hub, cache):
    first = fetch(hub, cache, "org/tiny")
    hub.repos["org/tiny"] = localhub.Repo(tiny(**{"README.md": b"# new\n", "generation_config.json": b"{}"}))
    asked = len(hub.front.asked)
    sluice(hub, cache, "run", "org/tiny", *RUN)  # goes on with what is there
    assert len(hub.front.asked) == asked
    second = fetch(hub, cache, "org/tiny")
    assert second["commit"] != first["commit"] and second["fetched"] == 2
    assert pathlib.Path(first["path"]).exists()


# ---- connections that break


def big(hub, mb=20):
    data = random.Random(mb).randbytes(mb * MB + 12345)
    hub.repos["org/tiny"] = localhub.Repo({"big.gguf": data})
    return data


def test_pieces_over_several_connections(hub, cache):
    data = big(hub)
    found = fetch(hub, cache, "org/tiny")
    assert pathlib.Path(found["path"]).read_bytes() == data and found["fetched"] == len(data)
    ranges = [h.get("Range") for m, _, h in hub.storage.asked]
    assert sorted(ranges) == sorted([f"bytes=0-{8 * MB - 1}", f"bytes={8 * MB}-{16 * MB - 1}", f"bytes={16 * MB}-{len(data) - 1}"])


def test_cuts_in_the_middle(hub, cache):
    data = big(hub)
    hub.fault.cut["big.gguf"] = [3 * MB, 4]
    found = fetch(hub, cache, "org/tiny", "--connections", 2)
    assert pathlib.Path(found["path"]).read_bytes() == data and found["fetched"] == len(data)


def test_a_hub_that_always_cuts(hub, cache):
    big(hub)
    hub.fault.cut["big.gguf"] = [0, 1000]
    assert "big.gguf" in refused(hub, cache, "org/tiny", "--retry", 0.5)


def test_what_came_is_resumed(hub, cache):
    data = big(hub)
    hub.fault.slow = 0.02
    process = subprocess.Popen([SLUICE, "fetch", "org/tiny"], env=environment(hub, cache), stderr=subprocess.PIPE)
    part = folder(cache) / "blobs" / (hub.repos["org/tiny"].digest("big.gguf") + ".sluice.part")
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_blocks * 512 > 6 * MB):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    hub.fault.slow = 0
    found = fetch(hub, cache, "org/tiny")
    assert found["fetched"] <= len(data) - 2 * MB  # of each piece less than one MB is lost
    assert pathlib.Path(found["path"]).read_bytes() == data and leftovers(cache) == []


def test_what_lies_there_is_not_trusted(hub, cache):
    data = big(hub)
    blobs = folder(cache) / "blobs"
    refused(hub, cache, "org/tiny", "--connections", 1, limit=LIMIT)
    part = next(blobs.glob("*.part"))
    with part.open("r+b") as f:  # damage on the disk: found by the digest, and all comes again
        f.seek(100)
        f.write(b"damage")
    found = fetch(hub, cache, "org/tiny")
    assert pathlib.Path(found["path"]).read_bytes() == data and found["fetched"] > len(data)
    shutil.rmtree(folder(cache) / "snapshots")
    digest = hub.repos["org/tiny"].digest("big.gguf")
    for state in (b"", b"SLHUB", b"\xff" * 4096):  # states that say anything
        (blobs / digest).unlink()
        (blobs / f"{digest}.sluice.state").write_bytes(state)
        (blobs / f"{digest}.sluice.part").write_bytes(b"x" * 100)
        assert pathlib.Path(fetch(hub, cache, "org/tiny")["path"]).read_bytes() == data


def test_a_long_digest_shows_that_it_moves(hub, cache):
    """All bytes lie there, and the digest alone is missing: who waits for the lock sees the state's time move."""
    mb, piece_mb = 64, 8
    data = bytes(mb * MB)
    hub.repos["org/tiny"] = localhub.Repo({"big.gguf": data})
    blobs = folder(cache) / "blobs"
    digest = hub.repos["org/tiny"].digest("big.gguf")
    blobs.mkdir(parents=True)
    with (blobs / f"{digest}.sluice.part").open("wb") as f:
        f.truncate(len(data))
    state, seen = blobs / f"{digest}.sluice.state", cache / "seen"
    state.write_bytes(struct.pack(f"=8s3Q{mb // piece_mb}Q", b"SLHUB\0\0\1", len(data), piece_mb * MB, mb // piece_mb,
                                  *[piece_mb * MB] * (mb // piece_mb)))
    os.utime(state, (1e9, 1e9))
    os.link(state, seen)  # the state goes at the end
    found = fetch(hub, cache, "org/tiny")
    assert found["fetched"] == 0 and leftovers(cache) == []
    assert seen.stat().st_mtime > 1e9


@pytest.mark.parametrize("mb", [1, 20])
def test_a_hub_without_ranges(hub, cache, mb):
    data = big(hub, mb)
    hub.fault.no_ranges.add("big.gguf")
    assert pathlib.Path(fetch(hub, cache, "org/tiny")["path"]).read_bytes() == data
    shutil.rmtree(cache)
    hub.fault.cut["big.gguf"] = [MB // 2, 2]
    assert pathlib.Path(fetch(hub, cache, "org/tiny")["path"]).read_bytes() == data


def test_a_hub_without_ranges_that_always_cuts(hub, cache):
    big(hub, 1)
    hub.fault.no_ranges.add("big.gguf")
    hub.fault.cut["big.gguf"] = [MB // 2, 1 << 30]  # as far each time: no step
    assert "big.gguf" in refused(hub, cache, "org/tiny", "--retry", 1)


@pytest.mark.parametrize("status", [429, 503, 408])
def test_busy_hubs_are_asked_again(hub, cache, status):
    hub.fault.status["model.safetensors"] = [status, 2]
    hub.fault.status["config.json"] = [status, 1]
    fetch(hub, cache, "org/tiny")
    hub.fault.status["README.md"] = [status, 100]
    assert str(status) in refused(hub, cache, "org/tiny:README.md", "--retry", 0.1)


# ---- bytes that are wrong


def test_wrong_digests(hub, cache):
    for name in ("model.safetensors", "config.json"):
        hub.fault.wrong[name] = 100
        err = refused(hub, cache, "org/tiny")
        assert name in err and hub.repos["org/tiny"].digest(name) in err and "removed" in err
        assert not (folder(cache) / "blobs" / hub.repos["org/tiny"].digest(name)).exists()
        assert not (folder(cache) / "refs").exists()  # nobody finds half a model
        hub.fault.wrong[name] = 0
        shutil.rmtree(cache)
    fetch(hub, cache, "org/tiny")


def test_verify(hub, cache):
    path = fetch(hub, cache, "org/tiny")["path"]
    blob = pathlib.Path(path, "model.safetensors").resolve()
    data = blob.read_bytes()
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert fetch(hub, cache, "org/tiny")["fetched"] == 0
    assert fetch(hub, cache, "org/tiny", "--verify")["fetched"] == len(data)
    assert blob.read_bytes() == data
    blob.write_bytes(bytes(len(data)))
    hub.fault.status["model.safetensors"] = [503, 1000]
    refused(hub, cache, "org/tiny", "--verify", "--retry", 0)
    assert not blob.exists()  # what was seen to be damaged is not served
    hub.fault.status.clear()
    fetch(hub, cache, "org/tiny")
    blob.write_bytes(b"short")  # another size shows without reading
    assert fetch(hub, cache, "org/tiny")["fetched"] == len(data)


def test_sizes_that_are_wrong(hub, cache):
    for name in ("model.safetensors", "config.json"):
        hub.fault.longer = {name}
        assert f"{name}: more bytes came" in refused(hub, cache, "org/tiny")
        shutil.rmtree(cache)
        hub.fault.longer, hub.fault.shorter = set(), {name}
        assert f"{name}: " in refused(hub, cache, "org/tiny", "--retry", 0)
        shutil.rmtree(cache)
        hub.fault.shorter = set()


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "a//b", ".", "a/./b", "evil\n", "back\\slash", "x" * 256, "y/" * 600 + "z",
                                  "", "nul\0"])
def test_names_of_files_that_are_none(hub, cache, name):
    hub.fault.rows = [{"type": "file", "path": name, "size": 4, "oid": "0" * 40}]
    refused(hub, cache, "org/tiny")
    assert not cache.exists()


@pytest.mark.parametrize("row", [
    7, {}, {"path": "a"}, {"path": "a", "size": -1, "oid": "0" * 40}, {"path": "a", "size": 1 << 60, "oid": "0" * 40},
    {"path": "a", "size": 1, "oid": "../../../../etc/passwd"}, {"path": "a", "size": 1, "oid": "A" * 40},
    {"path": "a", "size": 1, "oid": "0" * 40, "lfs": {"oid": "0" * 40, "size": 1}}, {"path": "a", "size": 1, "oid": "0" * 40, "lfs": 3}])
def test_rows_that_are_none(hub, cache, row):
    hub.fault.rows = [row]
    assert "/tree/" in refused(hub, cache, "org/tiny")


@pytest.mark.parametrize("info", [[], {"sha": "main"}, {"sha": "../" + "0" * 37}, {"sha": 5}])
def test_commits_that_are_none(hub, cache, info):
    hub.fault.info = info or [1]
    assert "/revision/main" in refused(hub, cache, "org/tiny")


# ---- who may


def test_gated_models(hub, cache):
    hub.repos["org/tiny"].token = TOKEN
    err = refused(hub, cache, "org/tiny")
    assert "is gated" in err and "HF_TOKEN" in err and f"{hub.url}/org/tiny" in err
    assert "does not open it" in refused(hub, cache, "org/tiny", HF_TOKEN="hf_another")
    fetch(hub, cache, "org/tiny", HF_TOKEN=f" {TOKEN}\n")
    assert hub.storage.asked and not any("Authorization" in h for _, _, h in hub.storage.asked)
    for where in (cache / "token", cache / "elsewhere"):
        where.write_text(TOKEN + "\n")
        shutil.rmtree(cache / "hub")
        fetch(hub, cache, "org/tiny", **({} if where.name == "token" else {"HF_TOKEN_PATH": str(where)}))
        where.unlink()
    assert "is no token" in refused(hub, cache, "org/tiny", code=2, HF_TOKEN="two words")


def test_what_is_not_there(hub, cache):
    assert "no such model" in refused(hub, cache, "org/nothing")
    assert "no file or folder 'org/nothing'" in sluice(hub, cache, "run", "org/nothing", *RUN, code=1)[1]


def test_no_token_in_the_clear(cache):
    err = refused("http://hub.example", cache, "org/tiny", code=2, HF_TOKEN=TOKEN)
    assert "in the clear" in err and TOKEN not in err
    for endpoint in ("ftp://hub", "hub.example", "https://user@hub.example", "https://hub?x=1"):
        assert "HF_ENDPOINT" in refused(endpoint, cache, "org/tiny", code=2)


def test_no_token_to_a_proxy_for_this_machine(hub, cache):
    hub.repos["org/tiny"].token = TOKEN
    proxy = localhub.Server(lambda h: h.send_error(502))
    fetch(hub, cache, "org/tiny", HF_TOKEN=TOKEN, http_proxy=proxy.url, ALL_PROXY=proxy.url)
    proxy.close()
    assert proxy.asked == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    at = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                    "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", at / "key.pem", "-out", at / "cert.pem"],
                   check=True, capture_output=True)
    return at


def test_tls_is_verified_and_stays(cache, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    hub = localhub.Hub(context)
    hub.repos["org/tiny"] = localhub.Repo(tiny())
    assert "certificate" in refused(hub, cache, "org/tiny", HF_TOKEN=TOKEN)
    assert hub.front.asked == []  # nobody heard the token
    known = {"SSL_CERT_FILE": str(certificate / "cert.pem"), "HF_TOKEN": TOKEN}
    hub.fault.redirect = hub.storage.url + "/elsewhere?signature=abc&x="  # the storage has no TLS
    err = refused(hub, cache, "org/tiny", **known)
    assert "from https to http" in err and "/elsewhere" in err and "signature" not in err
    err = refused(hub, cache, "org/tiny", code=2, SSL_CERT_FILE=str(certificate / "none.pem"))
    assert "SSL_CERT_FILE" in err and "none.pem" in err  # at once: no retry mends it
    hub.repos["org/tiny"] = localhub.Repo(tiny(), large=())
    fetch(hub, cache, "org/tiny", **known)
    hub.close()


def test_redirections_end(hub, cache):
    hub.fault.redirect = hub.url + "/org/tiny/resolve/main/model.safetensors?"
    assert "redirections" in refused(hub, cache, "org/tiny")
    hub.fault.redirect = "file:///etc/passwd?"
    assert "model.safetensors" in refused(hub, cache, "org/tiny")


# ---- without a hub


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_the_users_folder(hub, tmp_path, variable):
    """~ is HOME, as the hub's own tools have it."""
    env = {"HOME": str(tmp_path), variable: "~/of models/"}
    ask = "from huggingface_hub import constants as c; print(c.HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", ask], env={**os.environ, **env}, check=True, capture_output=True, text=True).stdout.strip()
    env = {"HF_HOME": "/nowhere", **env}
    assert fetch(hub, None, "org/tiny", **env)["path"].startswith(os.path.normpath(theirs) + "/models--org--tiny/snapshots/")
    (tmp_path / "token").write_text(TOKEN)
    hub.repos["org/tiny"].token = TOKEN
    hub.repos["org/tiny"].refs["new"] = hub.repos["org/tiny"].commit
    fetch(hub, None, "org/tiny@new", **env, HF_TOKEN_PATH="~/token")
    assert "HOME is no absolute path" in refused(hub, None, "org/tiny", code=2, **{**env, "HOME": ""})
    for value, what in (("~root/hf", "another user's folder"), ("~/$WHERE", "names a variable"), ("~/" + "x" * 5000, "bytes")):
        assert what in refused(hub, None, "org/tiny", code=2, **{**env, variable: value})
        assert "HF_TOKEN_PATH" in refused(hub, None, "org/tiny", code=2, **env, HF_TOKEN_PATH=value)


def test_offline(hub, cache):
    for env in ({"HF_HUB_OFFLINE": "1"}, {"SLUICE_OFFLINE": "1"}):
        assert "offline: org/tiny@main is not in " in refused(hub, cache, "org/tiny", **env)
    fetch(hub, cache, "org/tiny")
    asked = len(hub.front.asked)
    found = fetch(hub, cache, "org/tiny", "--offline")
    assert found["fetched"] == 0 and len(hub.front.asked) == asked
    hub.close()
    assert "127.0.0.1" in refused(hub, cache, "org/tiny", "--retry", 0)  # asks, and nobody is there
    sluice(hub, cache, "run", "org/tiny", *RUN)  # does not ask


# ---- disks


def test_no_room(hub, cache):
    big(hub)
    hub.fault.rows = [{"type": "file", "path": "big.gguf", "size": 1 << 47, "oid": "0" * 40}]
    hub.repos["org/tiny"] = localhub.Repo({"README.md": b""})
    assert "are free in" in refused(hub, cache, "org/tiny")
    assert hub.storage.asked == [] and leftovers(cache) == []


def test_a_disk_that_is_full_on_the_way(hub, cache):
    data = big(hub)
    err = refused(hub, cache, "org/tiny", "--connections", 1, limit=LIMIT)
    assert ".sluice.part: cannot be written: File too large" in err
    found = fetch(hub, cache, "org/tiny")
    assert found["fetched"] < len(data) and pathlib.Path(found["path"]).read_bytes() == data


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 24 MB."""
    at = tmp_path / "disk"
    at.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", at], capture_output=True, check=False).returncode:
        pytest.skip("a small disk is a tmpfs, which only root may mount")
    yield at
    subprocess.run(["umount", at], check=True)


def test_a_disk_that_is_really_full(hub, small_disk):
    """There was room when the fetch began; somebody else takes it. What came is kept, and goes on when there is room again."""
    data, cache, other = big(hub), small_disk / "hf", small_disk / "others"
    assert len(data) < 24 * MB
    hub.fault.slow = 0.01

    def fill():
        while not hub.storage.asked:
            time.sleep(0.001)
        with other.open("wb", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                f.write(bytes(MB // 16))

    beside = threading.Thread(target=fill)
    beside.start()
    err = refused(hub, cache, "org/tiny", "--connections", 1)
    beside.join()
    assert ".sluice.part: cannot be written: No space left on device" in err
    other.unlink()
    found = fetch(hub, cache, "org/tiny")
    assert pathlib.Path(found["path"]).read_bytes() == data


def test_a_cache_that_cannot_be_written(hub, cache):
    cache.write_text("a file")
    assert str(cache) in refused(hub, cache, "org/tiny")


# ---- what is seen of it


def on_terminal(hub, cache, *args):
    """What the program writes to a terminal that is its stderr."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([SLUICE, *map(str, args)], env=environment(hub, cache), stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            got = os.read(ours, 65536)
        except OSError:
            break
        seen += got
    os.close(ours)
    assert process.wait(60) == 0, seen
    return seen.decode()


def test_a_line_on_a_terminal(hub, cache):
    big(hub, 4)
    hub.fault.slow = 0.01
    seen = on_terminal(hub, cache, "fetch", "org/tiny")
    lines = seen.split("\r\x1b[K")
    assert any(re.fullmatch(r"org/tiny: \d\.\d of 4\.2 MB, \d+ %, [\d.]+ [kM]B/s(, .* left)?", line) for line in lines), seen
    assert lines[-1].startswith("org/tiny at ")  # the line has gone before the last word
    assert "\r" not in lines[-1].replace("\r\n", "")
    assert on_terminal(hub, cache, "fetch", "org/tiny", "--json") == ""


# ---- two at once


def at_once(n, *args):
    found = []
    threads = [threading.Thread(target=lambda: found.append(fetch(*args))) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == n and len({f["path"] for f in found}) == 1
    return sum(f["fetched"] for f in found)


def test_two_that_verify_at_once(hub, cache):
    path = pathlib.Path(fetch(hub, cache, "org/tiny")["path"], "model.safetensors")
    data = path.read_bytes()
    path.resolve().write_bytes(bytes(len(data)))
    assert at_once(3, hub, cache, "org/tiny", "--verify") == len(data)  # nobody removes what another one brought
    assert path.read_bytes() == data


def test_two_fetches_at_once(hub, cache):
    files = {f"part-{i:05}-of-00004.gguf": random.Random(i).randbytes(MB) for i in range(1, 5)}
    hub.repos["org/tiny"] = localhub.Repo(files)
    hub.fault.slow = 0.02
    assert at_once(3, hub, cache, "org/tiny", "--connections", 2) == sum(map(len, files.values()))  # each file came once
    assert leftovers(cache) == []


def test_a_fetch_beside_the_oracle(hub, cache):
    """Each waits for the other's lock; every byte is right, and what one has the other does not bring."""
    big(hub, 4)
    hub.fault.slow = 0.01
    code = "import huggingface_hub as h; print(h.snapshot_download('org/tiny'))"
    paths = []
    beside = threading.Thread(target=lambda: paths.append(oracle(code, hub, cache)))
    beside.start()
    deadline = time.monotonic() + 60
    while not hub.storage.asked:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = fetch(hub, cache, "org/tiny")
    beside.join()
    assert found["fetched"] == 0 and found["path"] == paths[0] + "/big.gguf"
    assert hashlib.sha256(pathlib.Path(found["path"]).read_bytes()).hexdigest() == hub.repos["org/tiny"].digest("big.gguf")
