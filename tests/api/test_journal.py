"""The coordinator is killed in the middle of answers and started again with its journal: what comes then is what would have
come, and no client has ever heard of a token that the journal did not have."""
import json
import os
import random
import re
import socket
import subprocess
import threading
import time

import httpx
import openai
import pytest

import journal_file

FIXTURE = "qwen3moe-tiny"
KILLS, SEED = int(os.environ.get("SLUICE_KILLS", 3)), int(os.environ.get("SLUICE_SEED", 7))
ARGS = ["--attention", "1", "--experts", "1", "--exact", "--schedule", "dep", "--responses", "64"]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": [3, 17, 41], "max_tokens": 480, "ignore_eos": True, "return_token_ids": True}
TALK = {"messages": [{"role": "user", "content": "Then he said to them"}], "ignore_eos": True, "max_tokens": 420,
        "return_token_ids": True}
MIXED = [
    (TEXT, {**LONG, "stream": True, "seed": 1}),
    (TEXT, {**LONG, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}),
    (TEXT, {**LONG, "seed": 2, "logprobs": 3, "logprob_token_ids": [5, 900], "echo": True, "max_tokens": 300}),
    (TEXT, {**LONG, "seed": 3, "n": 2, "stream": True, "logprobs": 1, "presence_penalty": 1.5, "frequency_penalty": 0.5}),
    (CHAT, {**TALK, "seed": 4, "stream": True, "logprobs": True, "top_logprobs": 2, "repetition_penalty": 1.3}),
    (CHAT, {**TALK, "seed": 5, "n": 2, "logit_bias": {"5": -100, "9": 2}, "min_tokens": 60, "ignore_eos": False}),
    (TEXT, {**LONG, "seed": 10, "n": 2, "stream": True, "allowed_token_ids": list(range(3, 1040, 20)), "bad_words": ["he", " and I"],
            "logit_bias": {str(i): 2 for i in range(3, 200, 20)}}),
    (TEXT, {**LONG, "prompt": ["And then", "Now"], "seed": 6, "top_k": 40, "stop": ["zzzz", "qqqq"]}),
    (CHAT, {**TALK, "seed": 7, "stream": True, "stop": ["the"], "min_tokens": 100}),
    (TEXT, {**LONG, "ignore_eos": False, "seed": 8, "stream": True, "structured_outputs": {"regex": "([a-z]{2,9} ){150}"}}),
    (CHAT, {**TALK, "ignore_eos": False, "seed": 9, "n": 2, "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "array", "minItems": 60, "items": {"enum": [1, "two", None]}}}}}),
]


@pytest.fixture
def serve(make_server, tmp_path):
    return lambda *args: make_server(FIXTURE, *ARGS, "--journal", str(tmp_path / "journal"), *args)


def headers(key, caller="me"):
    return {"Idempotency-Key": key, "Authorization": f"Bearer {caller}"}


class Client(threading.Thread):
    """One request; what came of it, until it ended or the connection broke."""

    def __init__(self, server, path, body, head):
        super().__init__()
        self.url, self.body, self.head = server.url + path, {"model": FIXTURE, **body}, head
        self.events, self.whole, self.done, self.id = [], None, False, None
        self.start()

    def run(self):
        try:
            with httpx.stream("POST", self.url, json=self.body, headers=self.head, timeout=60) as r:
                assert r.status_code == 200, r.read()
                if not self.body.get("stream"):
                    self.whole = json.loads(r.read())
                    self.done = True
                for line in r.iter_lines() if self.body.get("stream") else ():
                    self.done = self.done or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        self.events.append(json.loads(line[6:]))
        except httpx.TransportError:
            pass

    def heard(self):
        """choice -> tokens that came"""
        out = {}
        for event in self.events:
            for c in event["choices"]:
                out.setdefault(c["index"], []).extend(c.get("token_ids") or [])
        return out


def joined(values):
    """Lists and texts one behind the other, objects by field, the last of anything else."""
    values = [v for v in values if v is not None]
    if not values:
        return None
    if isinstance(values[0], dict):
        return {k: joined([v.get(k) for v in values]) for k in sorted({k for v in values for k in v})}
    if isinstance(values[0], str):
        return "".join(values)
    return sum(values, []) if isinstance(values[0], list) else values[-1]


def answer(client):
    """What does not depend on where a stream is cut, nor on ids and times."""
    assert client.done
    if client.whole:
        return {"choices": client.whole["choices"], "usage": client.whole["usage"]}
    by_index = {}
    for event in client.events:
        for c in event["choices"]:
            by_index.setdefault(c["index"], []).append({k: v for k, v in c.items() if k not in ("index", "finish_reason")})
            if c["finish_reason"]:
                by_index[c["index"]].append({"finish": [c["finish_reason"]]})
    usage = [e["usage"] for e in client.events if e.get("usage")]
    return {"choices": {i: joined(parts) for i, parts in by_index.items()}, "usage": usage}


def ask_all(server, requests, keyed=lambda i: True):
    return [Client(server, path, body, headers(f"key {i}") if keyed(i) else headers("", "me") | {"Idempotency-Key": f"k{i}"})
            for i, (path, body) in enumerate(requests)]


def finish(clients, seconds=300):
    """A step of few rows waits its turn on a busy machine: 1,500 tokens may take minutes there."""
    for c in clients:
        c.join(seconds)
    return [answer(c) for c in clients]


def kill_after(server, clients, tokens):
    """As soon as the streams have so many tokens."""
    end = time.monotonic() + 30
    while sum(len(ids) for c in clients for ids in c.heard().values()) < tokens and time.monotonic() < end:
        time.sleep(0.001)
    server.process.kill()
    server.process.wait()
    for c in clients:
        c.join(10)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    from conftest import start
    server = start(tmp_path_factory, FIXTURE, ARGS)
    answers = finish([Client(server, path, body, headers(f"u{i}")) for i, (path, body) in enumerate(MIXED)])
    server.stop()
    return answers


@pytest.mark.parametrize("n", [1, 8])
def test_answers_go_on_where_a_killed_coordinator_left_them(serve, undisturbed, tmp_path, n):
    first = serve()
    clients = ask_all(first, MIXED[:n])
    kill_after(first, clients, 30 * n)
    cut = journal_file.unfinished(tmp_path / "journal")
    second = serve()
    again = ask_all(second, MIXED[:n])
    assert finish(again) == undisturbed[:n]
    for old, new in zip(clients, again):
        for choice, ids in old.heard().items():
            assert new.heard()[choice][:len(ids)] == ids
    assert second.metric("responses_resumed_total") == cut
    assert second.metric("responses_replayed_total") >= sum(bool(c.events) for c in clients)
    second.stop()


@pytest.mark.parametrize("how", ["header", "by id"])
def test_streams_go_on_behind_the_last_event_across_a_kill(serve, how):
    """Ten streams of all kinds; what each had before and what it gets after is, event for event, the stream as a whole."""
    requests = [(path, {**body, "stream": True}) for path, body in MIXED]
    first, heard = serve(), [b""] * len(requests)

    def listen(server, i, more, method="POST"):
        path, body = requests[i]
        try:
            with httpx.stream("POST", server.url + path, json={"model": FIXTURE, **body}, headers={**headers(f"e{i}"), **more},
                              timeout=60) as r:
                assert r.status_code == 200, r.read()
                for chunk in r.iter_raw():
                    heard[i] += chunk
        except httpx.TransportError:
            pass

    def all_listen(server, more):
        threads = [threading.Thread(target=listen, args=(server, i, more[i])) for i in range(len(requests))]
        for t in threads:
            t.start()
        return threads

    threads = all_listen(first, [{}] * len(requests))
    end = time.monotonic() + 30
    while min(h.count(b"\n\n") for h in heard) < 12 and time.monotonic() < end:
        time.sleep(0.001)
    first.process.kill()
    first.process.wait()
    for t in threads:
        t.join(10)
    heard[:] = [h[:h.rindex(b"\n\n") + 2] for h in heard]  # whole events
    assert not all(b"[DONE]" in h for h in heard)
    last = [re.findall(rb"^id: (.*)$", h, re.M)[-1].decode() for h in heard]
    ids = [re.search(rb'"id":"([^"]*)"', h)[1].decode() for h in heard]
    second = serve()
    if how == "header":
        for t in all_listen(second, [{"Last-Event-ID": i} for i in last]):
            t.join(60)
    for i, (path, _) in enumerate(requests):
        own = f"{path}/{ids[i]}?stream=true"
        if how == "by id":
            heard[i] += second.get(f"{own}&after={last[i]}", headers=headers("")).content
        whole = second.get(own, headers=headers("")).content
        cut = lambda raw: [re.sub(rb"^id: .*\n", b"", e) for e in re.sub(rb"^: .*\n", b"", raw, flags=re.M).split(b"\n\n")]
        index = lambda e: re.search(rb'"index":(\d+)', e + b'"index":999')[1]
        assert sorted(cut(heard[i]), key=index) == sorted(cut(whole), key=index)
        if '"n"' not in json.dumps(requests[i][1]) and not isinstance(requests[i][1].get("prompt", [0])[0], str):
            assert cut(heard[i]) == cut(whole) and heard[i].endswith(b"data: [DONE]\n\n")
    second.stop()


def test_what_is_whose_survives(serve):
    first = serve()
    chat = {**TALK, "max_tokens": 9, "seed": 3}
    made = first.client(api_key="me").chat.completions.create(model=FIXTURE, extra_headers=headers("one"),
                                                              **{k: v for k, v in chat.items() if k not in ("ignore_eos", "return_token_ids")})
    keyless = Client(first, TEXT, {**LONG, "stream": True, "seed": 9}, {"Authorization": "Bearer me"})
    kill_after(first, [keyless], 10)
    second = serve()
    mine, other = second.client(api_key="me"), second.client(api_key="other")
    assert mine.chat.completions.retrieve(made.id) == made
    with pytest.raises(openai.NotFoundError):
        other.chat.completions.retrieve(made.id)
    with pytest.raises(openai.UnprocessableEntityError):
        mine.chat.completions.create(model=FIXTURE, messages=[{"role": "user", "content": "other"}], extra_headers=headers("one"))
    # without a key it is made to its end, and is there by its id
    assert second.wait_idle()
    whole = second.get(f"{TEXT}/{keyless.events[0]['id']}", headers={"Authorization": "Bearer me"}).json()
    heard = keyless.heard()[0]
    assert len(whole["choices"][0]["token_ids"]) == 480 and whole["choices"][0]["token_ids"][:len(heard)] == heard
    assert second.get(f"{TEXT}/{keyless.events[0]['id']}", headers={"Authorization": "Bearer other"}).status_code == 404
    second.stop()


def test_workers_of_nobody_join_the_next_coordinator(make_server, tmp_path):
    from conftest import BINARY
    plan, secret, log = tmp_path / "plan.json", "of these processes", tmp_path / "workers"
    plan.write_text(json.dumps({"version": 1, "schedule": "dep", "workers": [{"roles": ["attention"]}, {"roles": ["expert"]}]}))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "SLUICE_SECRET": secret}
    join = [BINARY, "worker", "--join", f"127.0.0.1:{port}", "--transport", "tcp", "--worker-id"]
    workers = [subprocess.Popen([*join, str(i)], env=env, stderr=log.open("a")) for i in range(2)]

    def serve():
        return make_server(FIXTURE, "--exact", "--responses", "64", "--journal", str(tmp_path / "journal"), "--remote",
                           "--plan", str(plan), "--fabric-port", str(port), "--transport", "tcp")
    os.environ["SLUICE_SECRET"] = secret
    try:
        first = serve()
        whole = Client(first, TEXT, {**LONG, "seed": 1}, headers("whole"))
        whole.join()
        clients = ask_all(first, MIXED[:1])
        kill_after(first, clients, 20)
        second = serve()
        assert finish(ask_all(second, MIXED[:1]))[0]["choices"][0]["text"] == whole.whole["choices"][0]["text"]
        assert [w.poll() for w in workers] == [None, None]
        second.stop()
        assert [w.wait(20) for w in workers] == [0, 0], log.read_text()
    finally:
        del os.environ["SLUICE_SECRET"]
        for w in workers:
            w.kill()
            w.wait()


def test_killed_again_and_again(serve, undisturbed, tmp_path):
    """At moments nobody chose, also while it takes up what the last one left."""
    rng = random.Random(SEED)
    server = serve()
    for turn in range(KILLS):
        clients = ask_all(server, MIXED)
        time.sleep(rng.uniform(0, 0.3))
        kill_after(server, clients, rng.randrange(200))
        written = journal_file.tokens(tmp_path / "journal")
        for c in clients:
            for choice, ids in c.heard().items():  # the journal had it before
                assert ids == written[c.events[0]["id"]].get(choice, [])[:len(ids)], (turn, c.body)
        if turn % 4 == 3:  # the next ones begin anew
            (tmp_path / "journal").unlink()
        server = serve()
    assert finish(ask_all(server, MIXED)) == undisturbed
    server.stop()


def test_what_does_not_fit_is_refused_by_name(serve, make_server, tmp_path):
    journal = tmp_path / "journal"
    running = serve()
    with pytest.raises(RuntimeError, match="another process has it"):
        serve()
    running.stop()
    with pytest.raises(RuntimeError, match="--responses N"):
        make_server(FIXTURE, "--journal", str(journal))
    with pytest.raises(RuntimeError, match="another model"):
        make_server("mixtral-tiny", "--responses", "8", "--journal", str(journal))
    with pytest.raises(RuntimeError, match="none of never, second, each"):
        serve("--journal-sync", "now")
    assert journal.stat().st_mode & 0o777 == 0o600
    journal.chmod(0o644)
    with pytest.raises(RuntimeError, match="chmod 600"):
        serve()
    journal.chmod(0o600)
    journal.write_text("something else")
    with pytest.raises(RuntimeError, match=re.escape(f"journal {journal}: the file is something else")):
        serve()
