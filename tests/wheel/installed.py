"""What only the installed wheel has: the engine in this process and the console script. Run by tests/wheel.sh."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import sysconfig
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from package import CASES, MODEL, sluice_moe  # noqa: E402

GREEDY = CASES[0]
SCRIPT = pathlib.Path(sysconfig.get_path("scripts")) / "sluice"


def said_by_run(*options):
    done = subprocess.run([SCRIPT, "run", MODEL, "--json", *options], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def engine():
    with sluice_moe.Engine(MODEL, exact=True) as e:
        yield e


def test_one_version(engine):
    with sluice_moe.Server(MODEL) as server:
        assert server.client().version() == engine.version == sluice_moe.__version__


def test_the_script_becomes_the_program():
    version = subprocess.run([SCRIPT, "--version"], check=True, capture_output=True, text=True).stdout
    assert version == f"sluice {sluice_moe.__version__}\n"
    assert subprocess.run([sys.executable, "-m", "sluice_moe", "--version"], check=True, capture_output=True, text=True).stdout == version
    assert subprocess.run([SCRIPT, "nonsense"], capture_output=True, check=False).returncode == 2
    process = subprocess.Popen([SCRIPT, "serve", MODEL, "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert "listening" in process.stderr.readline()
    assert os.readlink(f"/proc/{process.pid}/exe") == sluice_moe.program()
    process.terminate()
    assert process.wait(30) == 0
    process.stderr.close()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_greedy_ids_are_those_of_transformers(engine, case):
    ids = case["greedy_ids"]
    got = engine.generate(case["prompt_ids"], max_tokens=len(ids))
    assert list(got.ids) == ids and got.finish_reason == "length"


@pytest.mark.parametrize("deployment", [{}, {"attention": 1, "experts": 2}, {"attention": 2, "threads": 2}])
def test_bits_are_those_of_run_and_of_a_server(deployment):
    ids = [3, 17, 41]
    how = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 7}
    with sluice_moe.Engine(MODEL, exact=True, **deployment) as engine:
        got = engine.generate(ids, max_tokens=32, **how)
        run = said_by_run("--ids", "3,17,41", "-n", "32", "--exact", "--temp", "0.8", "--top-p", "0.9", "--top-k", "40", "--seed", "7")
        assert list(got.ids) == run["ids"] and got.text == run["text"]
        texts = [p.text for p in engine.stream("Now the word", max_tokens=24)]
    with sluice_moe.Server(MODEL, exact=True, attention=1, experts=2) as server:
        client = server.client()
        extra = {"top_k": 40, "return_token_ids": True}
        answer = client.complete(ids, max_tokens=32, temperature=0.8, top_p=0.9, seed=7, extra=extra)
        assert answer.choices[0].token_ids == got.ids
        assert client.complete("Now the word", max_tokens=24, temperature=0).text == "".join(texts)


def test_chat(engine):
    with sluice_moe.Server(MODEL, exact=True) as server:
        assert engine.generate("Now the word", chat=True, max_tokens=16).text == server.client().chat(
            "Now the word", max_tokens=16, temperature=0).text


def test_streams_at_once_and_from_many_threads(engine):
    ids = GREEDY["greedy_ids"][:24]
    streams = [engine.stream(GREEDY["prompt_ids"], max_tokens=24) for _ in range(8)]
    assert [[i for p in s for i in p.ids] for s in reversed(streams)] == [ids] * 8
    assert all(s.finish_reason == "length" for s in streams)
    got = []
    threads = [threading.Thread(target=lambda: got.append(engine.generate(GREEDY["prompt_ids"], max_tokens=24).ids)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got == [tuple(ids)] * 8


def test_others_run_while_one_waits(engine):
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    engine.generate("Now", max_tokens=200)
    during = counted[0] - before
    stop.set()
    thread.join(10)
    assert during > 0


def test_requests_are_cancelled_closed_and_dropped(engine):
    stream = engine.stream("Now", max_tokens=480)
    next(stream)
    stream.cancel()
    assert stream.read().finish_reason in ("cancelled", "stop")
    with engine.stream("Now", max_tokens=480) as stream:
        next(stream)
    assert list(stream) == [] and not engine._native.streams
    for piece in engine.stream("Now", max_tokens=480):
        assert piece.ids
        break
    del piece
    assert not engine._native.streams  # it was dropped
    assert engine.generate("Now", max_tokens=480, timeout=0).finish_reason in ("cancelled", "stop")
    stream = engine.stream("Now", max_tokens=480)
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    stream.close()
    reader.join(30)
    assert not reader.is_alive()


def test_what_is_open_is_freed_in_any_order():
    engine = sluice_moe.Engine(MODEL)
    streams = [engine.stream("Now", max_tokens=480) for _ in range(3)]
    next(streams[0])
    native = engine._native
    del engine
    assert native.handle is not None and next(streams[0]).ids  # a stream holds its engine
    del streams
    assert native.handle is None and not native.streams
    engine = sluice_moe.Engine(MODEL)
    stream = engine.stream("Now", max_tokens=480)
    engine.close()
    engine.close()
    assert list(stream) == []
    with pytest.raises(sluice_moe.EngineError, match="closed"):
        engine.generate("a")


def test_errors_say_what(engine, tmp_path):
    with pytest.raises(sluice_moe.EngineError, match="nowhere"):
        sluice_moe.Engine(tmp_path / "nowhere")
    with pytest.raises(sluice_moe.EngineError, match="context"):
        engine.generate("a", max_tokens=100000)
    with pytest.raises(sluice_moe.EngineError):
        engine.generate([])
    with pytest.raises(sluice_moe.EngineError):
        engine.generate([2**32 - 1])
    with pytest.raises(sluice_moe.EngineError, match="top_p"):
        engine.generate("a", top_p=7)
    for bad in ({"max_tokens": -1}, {"max_tokens": 0}, {"top_k": 2**32}, {"seed": -1}, {"top_p": 0}, {"max_tokens": 1.5}):
        with pytest.raises(ValueError):
            engine.generate("a", **bad)
    with pytest.raises(ValueError, match="NUL"):
        engine.generate("a\0b")


def test_a_child_after_a_fork_is_told(engine):
    stream = engine.stream("Now", max_tokens=8)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                engine.generate("a")
            except sluice_moe.EngineError as e:
                status = 0 if "fork" in str(e) else 2
            stream.close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(stream.read().ids) == 8


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "stream.close()", "del stream", "engine.close()"])
def test_the_interpreter_ends_in_the_middle_of_a_stream(ending):
    script = f"""
import sluice_moe, threading
engine = sluice_moe.Engine({str(MODEL)!r}, attention=1, experts=2)
stream = engine.stream("Now", max_tokens=480)
threading.Thread(target=lambda: list(engine.stream("Now", max_tokens=480)), daemon=True).start()
next(stream)
{ending}
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr


def test_ctrl_c_ends_a_generation():
    script = f"""
import signal
import sluice_moe
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
engine = sluice_moe.Engine({str(MODEL)!r})
print("up", flush=True)
while True:
    engine.generate("Now", max_tokens=480)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err and process.returncode in (1, 130, -signal.SIGINT)
