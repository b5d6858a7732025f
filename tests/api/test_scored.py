"""Log-probabilities of given ids beside those of the answer's tokens: `logprob_token_ids`."""
import pytest

from conftest import HTTP
from test_breadth import RAW, ids_of
from test_openai import QUESTION, case, complete

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
AS_IDS = {"return_tokens_as_token_ids": True}


def number(name):
    assert name.startswith("token_id:")
    return int(name.removeprefix("token_id:"))


def chat_entries(answer, stream):
    if not stream:
        return answer.choices[0].logprobs.content
    return [e for chunk in answer for c in chunk.choices if c.logprobs for e in c.logprobs.content]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [None, 0, 5])
def test_chats(server, client, stream, top):
    """The chosen token and the ids, in their order, whatever top_logprobs says; each once."""
    ask = lambda **o: chat_entries(client.chat.completions.create(
        model=server.model, messages=QUESTION, max_tokens=6, temperature=0, stream=stream, logprobs=True, top_logprobs=top,
        extra_body={"ignore_eos": True, **AS_IDS, **o}), stream)
    plain = ask()
    drawn = [number(e.token) for e in plain]
    ids = [700, 3, drawn[2], 41]
    got = ask(logprob_token_ids=ids)
    assert [(e.token, e.logprob) for e in got] == [(e.token, e.logprob) for e in plain]
    for entry, own in zip(got, drawn):
        assert [number(t.token) for t in entry.top_logprobs] == [own] + [i for i in ids if i != own]
        assert entry.top_logprobs[0].logprob == entry.logprob and all(t.logprob <= 0 for t in entry.top_logprobs)
    # the same ids have the same log-probabilities as where they are drawn, and twice is once
    forced = ask(logprob_token_ids=[700, 41, 700], allowed_token_ids=[41])
    assert [number(t.token) for t in forced[0].top_logprobs] == [41, 700]
    assert {number(t.token): t.logprob for t in got[0].top_logprobs}[41] == forced[0].logprob
    named = ask(logprob_token_ids=ids, return_tokens_as_token_ids=False)
    values = lambda entries: [[t.logprob for t in e.top_logprobs] for e in entries]
    assert values(named) == values(got) and not any(t.token.startswith("token_id:") for e in named for t in e.top_logprobs)


@pytest.mark.parametrize("stream", [False, True])
def test_completions(server, client, stream):
    golden = case(server, "line")

    def ask(n=1, **options):
        answer = complete(client, server, prompt=golden["prompt_ids"], max_tokens=5, logprobs=n, stream=stream, extra_body={**RAW, **AS_IDS, **options})
        parts = [c.logprobs for chunk in answer for c in chunk.choices if c.logprobs] if stream else [answer.choices[0].logprobs]
        return sum((p.tokens for p in parts), []), sum((p.token_logprobs for p in parts), []), sum((p.top_logprobs for p in parts), [])

    ids = list(range(200, 328))
    plain, scored = ask(), ask(logprob_token_ids=ids)
    assert scored[:2] == plain[:2] and ask(n=0, logprob_token_ids=ids) == ask(n=20, logprob_token_ids=ids) == scored
    for token, own, beside in zip(*scored):
        assert beside[token] == own and {number(t) for t in beside} == {number(token), *ids}
    many = ask(n=20)[2]
    for likely, beside in zip(many, scored[2]):
        assert all(beside[t] == likely[t] for t in likely if t in beside)


def test_beside_the_prompts(server, client):
    """Of the prompt's tokens are the likeliest, of the answer's the ids."""
    ids = case(server, "line")["prompt_ids"]
    more = {**AS_IDS, "ignore_eos": True}
    ask = lambda **o: complete(client, server, prompt=ids, max_tokens=4, logprobs=2, echo=True, extra_body={**more, "prompt_logprobs": 3, **o}).choices[0]
    plain, scored = ask(), ask(logprob_token_ids=[9, 10, 11])
    n = len(ids)
    assert scored.model_extra["prompt_logprobs"] == plain.model_extra["prompt_logprobs"]
    assert scored.logprobs.top_logprobs[:n] == plain.logprobs.top_logprobs[:n]
    for token, beside in zip(scored.logprobs.tokens[n:], scored.logprobs.top_logprobs[n:]):
        assert {number(t) for t in beside} == {number(token), 9, 10, 11}
    alone = complete(client, server, prompt=ids, max_tokens=4, logprobs=2, extra_body={**more, "logprob_token_ids": [9, 10, 11]}).choices[0]
    assert alone.logprobs.top_logprobs == scored.logprobs.top_logprobs[n:]


WRONG = [([], "0 ids, allowed are 1..128"), ([3] * 129, "129 ids"), ([1, 1 << 24], "[1]: not a token id below"), ([-1], "[0]"), (["a"], "[0]"), ({}, "array")]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_wrong_values(server, path):
    body = {"model": server.model, "max_tokens": 3, **({"messages": QUESTION, "logprobs": True} if path == CHAT else {"prompt": "x", "logprobs": 1})}
    refused = lambda **o: HTTP.post(server.url + path, timeout=60, json={**body, **o})
    for value, said in WRONG:
        answer = refused(logprob_token_ids=value)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "logprob_token_ids" and said in answer.json()["error"]["message"], answer.text
    answer = refused(logprobs=None, logprob_token_ids=[1])
    assert answer.status_code == 400 and "only with logprobs" in answer.json()["error"]["message"]
    if path == TEXT:
        answer = refused(max_tokens=0, echo=True, logprob_token_ids=[1])
        assert answer.status_code == 400 and "max_tokens 0" in answer.json()["error"]["message"]
    assert refused(logprob_token_ids=[1]).status_code == 200
