"""Streams of which nothing comes for a while: comments keep proxies from closing them, and clients skip those."""
import contextlib
import os
import pathlib
import signal
import threading
import time

import httpx

# long enough to be stopped in the middle
BODY = {"prompt": [3, 17, 41], "max_tokens": 480, "n": 8, "temperature": 0}


@contextlib.contextmanager
def stopped_workers(server):
    """The workers stand still."""
    task = pathlib.Path(f"/proc/{server.process.pid}/task")
    pids = [int(p) for t in task.iterdir() for p in (t / "children").read_text().split()]
    assert pids, "no worker is a process of its own"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def read(server, lines, begun):
    """A stream's lines as they are sent."""
    body = {"model": server.model, "stream": True, "ignore_eos": True, **BODY}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            begun.set()


def test_comments_are_skipped_by_clients(make_server):
    server = make_server("qwen3moe-tiny", "--attention", "1", "--experts", "1", "--keepalive", "1")
    ask = lambda **o: server.client().completions.create(model=server.model, extra_body={"ignore_eos": True}, **BODY, **o)
    undisturbed = [c.text for c in ask().choices]
    lines, begun = [], threading.Event()
    raw = threading.Thread(target=read, args=(server, lines, begun))
    raw.start()
    assert begun.wait(30)
    stream = ask(stream=True)
    chunks = [next(stream)]
    with stopped_workers(server):
        end = time.monotonic() + 8  # less than --silence-limit
        while not any(line.startswith(":") for line in list(lines)) and time.monotonic() < end:
            time.sleep(0.1)
    chunks += list(stream)
    raw.join(60)
    for i, text in enumerate(undisturbed):
        assert "".join(c.choices[0].text for c in chunks if c.choices[0].index == i) == text
    comments = [i for i, line in enumerate(lines) if line.startswith(":")]
    assert 1 <= len(comments) <= 9
    # an empty line behind one would end an event for clients that have seen an id
    assert all(lines[i] == ": keep-alive" and lines[i + 1] != "" for i in comments)
    assert lines[comments[0] - 1] == ""
    assert lines[-2] == "data: [DONE]"


def test_silence_can_be_had(make_server):
    server = make_server("qwen3moe-tiny", "--attention", "1", "--experts", "1", "--keepalive", "0")
    lines, begun = [], threading.Event()
    raw = threading.Thread(target=read, args=(server, lines, begun))
    raw.start()
    assert begun.wait(30)
    with stopped_workers(server):
        time.sleep(2.2)
    raw.join(60)
    assert not raw.is_alive() and not any(line.startswith(":") for line in lines)
