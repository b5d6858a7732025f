"""Idempotency-Key with real clients: one generation however often it is asked for, whole for who comes back, and only its own."""
import json
import os

import httpx
import openai
import pytest

LONG = {"prompt": [3, 17, 41], "max_tokens": 400, "temperature": 0, "extra_body": {"ignore_eos": True}}
CHAT = {"messages": [{"role": "user", "content": "Then"}], "max_tokens": 12, "logprobs": True, "top_logprobs": 3,
        "n": 2, "temperature": 1}


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    from conftest import start
    running = start(tmp_path_factory, "qwen3moe-tiny", ["--attention", "1", "--experts", "1", "--responses", "16",
                                                        "--responses-grace", "60"])
    yield running
    running.stop()


def key(name=None):
    return {"Idempotency-Key": name or os.urandom(8).hex()}


def generations(server):
    return server.metric("request_params_n_count")


def text(chunks):
    return "".join(c.choices[0].text for c in chunks if c.choices)


def test_who_reconnects_hears_all_of_it(keeping):
    client, headers = keeping.client(), key()
    ask = lambda h: client.completions.create(model=keeping.model, stream=True, extra_headers=h, **LONG)
    undisturbed = text(ask({}))
    before = generations(keeping)
    for chunks in (1, 4, 2):
        stream = ask(headers)
        for _ in range(chunks):
            next(stream)
        stream.close()
    again = list(ask(headers))
    assert text(again) == undisturbed
    assert again[-1].choices[0].finish_reason == "length"
    assert len({c.id for c in again}) == 1
    assert generations(keeping) == before + 1
    assert keeping.wait_idle()
    assert keeping.metric("request_success_total", finished_reason="abort") == 0


def test_an_answer_can_be_fetched_by_its_id(keeping):
    client = keeping.client()
    made = client.chat.completions.create(model=keeping.model, extra_headers=key("fetched"), **CHAT)
    assert client.chat.completions.retrieve(made.id) == made
    assert client.chat.completions.create(model=keeping.model, extra_headers=key("fetched"), **CHAT) == made
    scored = client.completions.create(model=keeping.model, prompt="And then", echo=True, logprobs=2, max_tokens=3,
                                       extra_headers=key(), extra_body={"return_token_ids": True})
    path = f"/v1/completions/{scored.id}"
    headers = {"Authorization": f"Bearer {client.api_key}"}
    assert keeping.get(path, headers=headers).json() == json.loads(scored.model_dump_json(exclude_unset=True))
    events = keeping.get(path + "?stream=true", headers=headers).text
    assert events.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in events
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.retrieve(scored.id)  # no chat
    assert caught.value.code == "response_not_found"


def test_one_that_was_streamed_can_be_fetched_whole(keeping):
    client, before = keeping.client(), generations(keeping)
    chunks = list(client.chat.completions.create(model=keeping.model, stream=True, seed=7, extra_headers=key(), **CHAT))
    whole = client.chat.completions.retrieve(chunks[0].id)
    for i, choice in enumerate(whole.choices):
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == i]
        assert "".join(c.delta.content or "" for c in own) == choice.message.content
        assert [t for c in own if c.logprobs for t in c.logprobs.content] == choice.logprobs.content
        assert own[-1].finish_reason == choice.finish_reason
    assert generations(keeping) == before + 1


def test_a_key_belongs_to_one_body(keeping):
    client, headers = keeping.client(), key()
    ask = lambda **o: client.completions.create(model=keeping.model, prompt="And", extra_headers=headers, **o)
    made = ask(max_tokens=3)
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        ask(max_tokens=4)
    assert caught.value.code == "idempotency_key_reused"
    assert ask(max_tokens=3) == made


def test_answers_are_their_callers_alone(keeping):
    mine, yours = keeping.client(api_key="mine"), keeping.client(api_key="yours")
    ask = lambda c: c.chat.completions.create(model=keeping.model, extra_headers=key("shared"), **CHAT)
    made, other = ask(mine), ask(yours)
    assert made.id != other.id
    with pytest.raises(openai.NotFoundError):
        yours.chat.completions.retrieve(made.id)
    assert mine.chat.completions.retrieve(made.id) == made and ask(mine) == made and ask(yours) == other


def test_raw_keys_of_any_kind(keeping):
    def status(value):
        return httpx.post(keeping.url + "/v1/completions", headers=[(b"Idempotency-Key", v) for v in value],
                          json={"model": keeping.model, "prompt": "And", "max_tokens": 1}, timeout=30).status_code
    assert [status([v]) for v in (b"a", b'"quoted"', b"k" * 255, b"a b;c=%00/../")] == [200] * 4
    assert [status([v]) for v in (b"", b"k" * 256, b"\xff", "é".encode())] == [400] * 4
    assert status([b"one", b"two"]) == 400


def test_memory_is_bounded(make_server):
    server = make_server("qwen3moe-tiny", "--responses", "1000", "--responses-bytes", "65536")
    client = server.client()
    for i in range(60):
        client.completions.create(model=server.model, prompt="x" * 400, max_tokens=2, extra_headers=key())
        assert server.metric("responses_kept_bytes") <= 65536
    assert 10 < server.metric("responses_kept") < 60
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=server.model, prompt="x", n=100, max_tokens=400, extra_headers=key())
    assert caught.value.code == "answer_too_large"
