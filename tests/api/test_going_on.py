"""Streams that go on behind the last event that a client has: by header, by query, by OpenAI's `starting_after`. What comes is
byte for byte what would have come."""
import os

import httpx
import pytest

MODEL = "qwen3moe-tiny"
TALK = [{"role": "user", "content": "Then he said to them"}]
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
ONE = {
    "text": (TEXT, {"prompt": [3, 17, 41], "max_tokens": 60, "ignore_eos": True, "seed": 1, "return_token_ids": True}),
    "stop strings": (TEXT, {"prompt": "And", "max_tokens": 60, "ignore_eos": True, "seed": 2, "stop": ["the", " and", "zzzz"]}),
    "echo": (TEXT, {"prompt": "And then he", "max_tokens": 9, "echo": True, "logprobs": 2, "seed": 3}),
    "chat": (CHAT, {"messages": TALK, "max_tokens": 40, "logprobs": True, "top_logprobs": 2, "seed": 4,
                    "stream_options": {"include_usage": True}}),
    "usage": (CHAT, {"messages": TALK, "max_tokens": 20, "seed": 5, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "response": (RESPONSES, {"input": "Then", "max_output_tokens": 40, "seed": 6, "ignore_eos": True}),
    "message": (MESSAGES, {"messages": TALK, "max_tokens": 40}),
}
MANY = (TEXT, {"prompt": ["And then", "Now"], "n": 2, "max_tokens": 30, "seed": 7, "ignore_eos": True, "logprobs": 1})
AUTH = {"Authorization": "Bearer me"}
HTTP = httpx.Client(timeout=60)


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    from conftest import start
    running = start(tmp_path_factory, MODEL, ["--attention", "1", "--experts", "1", "--responses", "64"])
    yield running
    running.stop()


def events(raw):
    """Those of a stream, each with its bytes."""
    assert raw.endswith(b"\n\n")
    return [e + b"\n\n" for e in raw[:-2].split(b"\n\n")]


def id_of(event):
    lines = [line for line in event.split(b"\n") if line.startswith(b"id: ")]
    assert len(lines) == 1 and event.startswith(lines[0])
    return lines[0][4:].decode()


def post(server, path, body, key, **headers):
    return HTTP.post(server.url + path, json={"model": MODEL, "stream": True, **body},
                     headers={"Idempotency-Key": key, **AUTH, **headers})


def made(server, path, body):
    key = os.urandom(8).hex()
    answer = post(server, path, body, key)
    assert answer.status_code == 200, answer.text
    return key, answer.content


def answer_id(raw):
    """Of the answer that the stream tells."""
    return next(part for part in raw.decode().split('"id":"')[1:])[:64].split('"')[0]


@pytest.mark.parametrize("kind", ONE)
def test_who_has_a_part_hears_the_rest(keeping, kind):
    path, body = ONE[kind]
    key, whole = made(keeping, path, body)
    parts = events(whole)
    assert [id_of(e) for e in parts] == [str(i) for i in range(len(parts))]
    if kind == "response":
        assert all(f'"sequence_number":{i}'.encode() in e for i, e in enumerate(parts))
    own = f"{keeping.url}{path}/{answer_id(whole)}?stream=true"
    assert HTTP.get(own, headers=AUTH).content == whole
    for at in sorted({0, 1, len(parts) // 2, len(parts) - 3, len(parts) - 2, len(parts) - 1}):
        rest = b"".join(parts[at + 1:])
        again = post(keeping, path, body, key, **{"Last-Event-ID": str(at)})
        assert again.content == rest and again.headers["Idempotent-Replayed"] == "true"
        assert HTTP.get(own, headers={**AUTH, "Last-Event-ID": str(at)}).content == rest
        for query in ("after", "starting_after"):
            assert HTTP.get(f"{own}&{query}={at}", headers=AUTH).content == rest
        # a browser that reconnects adds the header to the address that it was given
        assert HTTP.get(f"{own}&after=0", headers={**AUTH, "Last-Event-ID": str(at)}).content == rest


def test_several_choices(keeping):
    path, body = MANY
    key, whole = made(keeping, path, body)
    parts = events(whole)
    own = lambda some, i: [e.split(b"\n", 1)[1] for e in some if f'"index":{i},'.encode() in e]
    assert id_of(parts[0]).count(",") == 3 and len({id_of(e) for e in parts}) == len(parts)
    for at in (0, 5, len(parts) // 2, len(parts) - 2):
        rest = events(post(keeping, path, body, key, **{"Last-Event-ID": id_of(parts[at])}).content)
        for i in range(4):
            assert own(parts[:at + 1], i) + own(rest, i) == own(parts, i)
        assert len(parts[:at + 1] + rest) == len(parts) and id_of(rest[-1]) == id_of(parts[-1])
    assert post(keeping, path, body, key, **{"Last-Event-ID": "-,-,-,-"}).content.count(b"\n\n") == len(parts)


def test_while_it_is_made(keeping):
    """Cut off again and again, together it is the whole."""
    path, body = TEXT, {"prompt": [3, 17, 41], "max_tokens": 400, "ignore_eos": True, "seed": 11}
    key, heard = os.urandom(8).hex(), []
    for turn in range(8):
        head = {"Idempotency-Key": key, **AUTH, **({"Last-Event-ID": id_of(heard[-1])} if heard else {})}
        with HTTP.stream("POST", keeping.url + path, json={"model": MODEL, "stream": True, **body}, headers=head) as r:
            raw = b""
            for chunk in r.iter_raw():
                raw += chunk
                if raw.count(b"\n\n") > 3 + turn and turn < 7:
                    break
        heard += events(raw[:raw.rindex(b"\n\n") + 2]) if b"\n\n" in raw else []
    assert b"".join(heard) == post(keeping, path, body, key).content
    assert [id_of(e) for e in heard] == [str(i) for i in range(len(heard))] and b"[DONE]" in heard[-1]


def test_with_the_official_client(keeping):
    client = keeping.client(api_key="me")
    all_of = list(client.responses.create(model=MODEL, input="Then", max_output_tokens=30, stream=True, extra_body={"seed": 3}))
    id = all_of[0].response.id
    for n in (0, 4, len(all_of) - 2, len(all_of) - 1):
        rest = list(client.responses.retrieve(id, stream=True, starting_after=n))
        assert rest == all_of[n + 1:] and [e.sequence_number for e in rest] == list(range(n + 1, len(all_of)))
    key = os.urandom(8).hex()
    ask = lambda h: client.chat.completions.create(model=MODEL, messages=TALK, max_tokens=30, seed=3, stream=True,
                                                   extra_headers={"Idempotency-Key": key, **h})
    chunks = list(ask({}))
    assert list(ask({"Last-Event-ID": "6"})) == chunks[7:]


@pytest.mark.parametrize("bad", ["", "x", "1x", "-1", "1,2", "1,", "99999999999999999999", "1 2", "0x1", "1.5"])
def test_ids_that_are_none(keeping, bad):
    path, body = ONE["text"]
    key, whole = made(keeping, path, body)
    answer = post(keeping, path, body, key, **{"Last-Event-ID": bad})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "Last-Event-ID" and "no id of an event" in error["message"]
    assert HTTP.get(f"{keeping.url}{path}/{answer_id(whole)}?stream=true", params={"after": bad}, headers=AUTH).status_code in (200, 400)


def test_what_cannot_go_on(keeping, make_server):
    path, body = ONE["text"]
    key, whole = made(keeping, path, body)
    own = f"{keeping.url}{path}/{answer_id(whole)}"
    n = len(events(whole))
    beyond = post(keeping, path, body, key, **{"Last-Event-ID": str(n)})
    assert beyond.status_code == 400 and "has ended before it" in beyond.json()["error"]["message"]
    assert post(keeping, path, body, key, **{"Last-Event-ID": "3,3"}).status_code == 400
    assert HTTP.get(own + "?after=1", headers=AUTH).status_code == 400  # no stream
    assert HTTP.get(own + "?starting_after=1", headers=AUTH).json()["error"]["param"] == "starting_after"
    unknown = post(keeping, path, body, "of nobody", **{"Last-Event-ID": "1"})
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "response_not_found"
    keyless = HTTP.post(keeping.url + path, json={"model": MODEL, "stream": True, **body}, headers={**AUTH, "Last-Event-ID": "1"})
    assert keyless.status_code == 400 and "Idempotency-Key" in keyless.json()["error"]["message"]
    # what is not kept has no ids
    assert b"id: " not in HTTP.post(keeping.url + path, json={"model": MODEL, "stream": True, **body}, headers=AUTH).content
    plain = make_server(MODEL)
    assert "--responses" in post(plain, path, body, "k", **{"Last-Event-ID": "1"}).json()["error"]["message"]
