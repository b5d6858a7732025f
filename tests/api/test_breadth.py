"""Choices, several prompts, log-probabilities, penalties, biases, echo, model names: with the official
openai package against the real server."""
import math

import httpx
import openai
import pytest

from test_openai import QUESTION, case, complete

RAW = {"ignore_eos": True, "return_token_ids": True}


def ids_of(choice):
    return choice.model_extra["token_ids"]


def joined(chunks, n):
    """Texts, finish reasons and ids of n streamed choices."""
    text, reasons, ids = [""] * n, [None] * n, [[] for _ in range(n)]
    for chunk in chunks:
        for choice in chunk.choices:
            i = choice.index
            delta = choice.text if hasattr(choice, "text") else choice.delta.content
            assert reasons[i] is None, "a choice goes on after its end"
            text[i] += delta or ""
            ids[i] += choice.model_extra.get("token_ids") or []
            reasons[i] = choice.finish_reason
    return text, reasons, ids


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_one_prompt(server, client, stream):
    request = dict(prompt="Then", max_tokens=12, temperature=1.5, seed=5, extra_body=RAW)
    alone = complete(client, server, **request).choices[0]
    if stream:
        chunks = complete(client, server, n=4, stream=True, **request,
                          stream_options={"include_usage": True})
        chunks = list(chunks)
        text, reasons, ids = joined(chunks, 4)
        usage = chunks[-1].usage
    else:
        answer = complete(client, server, n=4, **request)
        assert [c.index for c in answer.choices] == [0, 1, 2, 3]
        text = [c.text for c in answer.choices]
        ids = [ids_of(c) for c in answer.choices]
        reasons = [c.finish_reason for c in answer.choices]
        usage = answer.usage
    assert text[0] == alone.text and ids[0] == ids_of(alone)
    assert len({tuple(i) for i in ids}) > 1
    assert reasons == ["length"] * 4
    assert usage.completion_tokens == 48 and usage.prompt_tokens < 10


@pytest.mark.parametrize("stream", [False, True])
def test_chat_choices(server, client, stream):
    request = dict(model=server.model, messages=QUESTION, max_completion_tokens=8, seed=3, n=3,
                   temperature=1.2)
    whole = client.chat.completions.create(**request)
    text = [c.message.content for c in whole.choices]
    if stream:
        chunks = list(client.chat.completions.create(**request, stream=True))
        assert sum(c.choices[0].delta.role == "assistant" for c in chunks) == 3
        assert joined(chunks, 3)[0] == text
    assert len(text) == 3


def test_stop_ends_each_choice_by_itself(server, client):
    request = dict(prompt="Then", max_tokens=40, temperature=1.5, seed=11, n=4,
                   extra_body={"ignore_eos": True})
    plain = [c.text for c in complete(client, server, **request).choices]
    stopped = complete(client, server, stop=["e"], **request).choices
    for before, after in zip(plain, stopped):
        assert after.text == before.split("e")[0]
        assert after.finish_reason == ("stop" if "e" in before else "length")
    assert server.wait_idle()


@pytest.mark.parametrize("form", ["ids", "texts"])
def test_several_prompts(server, client, form):
    goldens = [case(server, name) for name in ("short", "line", "passage")]
    prompts = [g["prompt_ids"] if form == "ids" else g["prompt_text"] for g in goldens]
    answer = complete(client, server, prompt=prompts, max_tokens=20, extra_body=RAW)
    assert [ids_of(c) for c in answer.choices] == [g["greedy_ids"][:20] for g in goldens]
    assert [c.model_extra["prompt_token_ids"] for c in answer.choices] == \
        [g["prompt_ids"] for g in goldens]
    assert answer.usage.prompt_tokens == sum(len(g["prompt_ids"]) for g in goldens)
    two = complete(client, server, prompt=prompts, n=2, max_tokens=4, extra_body=RAW)
    assert [ids_of(c) for c in two.choices] == \
        [g["greedy_ids"][:4] for g in goldens for _ in range(2)]


def test_completion_logprobs(server, client):
    golden = case(server, "line")
    choice = complete(client, server, prompt=golden["prompt_ids"], max_tokens=24, logprobs=5,
                      extra_body=RAW).choices[0]
    got = choice.logprobs
    assert len(got.tokens) == len(got.token_logprobs) == len(got.top_logprobs) == 24
    for token, value, top, at in zip(got.tokens, got.token_logprobs, got.top_logprobs,
                                     got.text_offset):
        assert value <= 0 and top[token] == value == max(top.values())  # greedy
        assert len(top) == 5 and sum(map(math.exp, top.values())) < 1.0001
        if not token.startswith("bytes:") and token in choice.text:
            assert choice.text[at:].startswith(token.lstrip()) or choice.text[at:].startswith(token)
    sampled = complete(client, server, prompt=golden["prompt_ids"], max_tokens=24, logprobs=0,
                       temperature=2, extra_body=RAW).choices[0].logprobs
    assert all(top == {token: value} for token, value, top
               in zip(sampled.tokens, sampled.token_logprobs, sampled.top_logprobs))


def test_penalties_do_not_change_reported_logprobs(server, client):
    """They are of the model's own distribution, as the first token shows."""
    golden = case(server, "line")
    ask = lambda **o: complete(client, server, prompt=golden["prompt_ids"], max_tokens=1, logprobs=3,
                               **o).choices[0].logprobs.top_logprobs[0]
    plain = ask()
    biased = ask(logit_bias={str(golden["greedy_ids"][0]): -100})
    assert all(abs(biased[k] - v) < 1e-4 for k, v in plain.items())


def test_a_prompt_of_exactly_the_context_is_scored(server, client):
    """It needs no position more; an answer of one token would, as the API counts."""
    context = client.models.list().data[0].max_model_len
    whole = (case(server, "line")["prompt_ids"] * context)[:context]
    answer = complete(client, server, prompt=whole, max_tokens=0, echo=True, logprobs=0)
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.prompt_tokens == context
    for prompt, n in (whole, 1), (whole + whole[:1], 0):
        with pytest.raises(openai.BadRequestError) as e:
            complete(client, server, prompt=prompt, max_tokens=n, echo=True, logprobs=0)
        assert e.value.code == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_what_was_generated(server, client, stream):
    golden = case(server, "line")
    made = complete(client, server, prompt=golden["prompt_ids"], max_tokens=10, logprobs=2,
                    extra_body=RAW).choices[0]
    both = golden["prompt_ids"] + ids_of(made)
    if stream:
        tokens, values, tops, offsets, text = [], [], [], [], ""
        for chunk in complete(client, server, prompt=both, max_tokens=0, echo=True, logprobs=2,
                              stream=True):
            text += chunk.choices[0].text
            if chunk.choices[0].logprobs:
                part = chunk.choices[0].logprobs
                tokens += part.tokens
                values += part.token_logprobs
                tops += part.top_logprobs
                offsets += part.text_offset
    else:
        answer = complete(client, server, prompt=both, max_tokens=0, echo=True, logprobs=2)
        scored = answer.choices[0]
        assert answer.usage.completion_tokens == 0 and scored.finish_reason == "length"
        text, tokens, values = scored.text, scored.logprobs.tokens, scored.logprobs.token_logprobs
        tops, offsets = scored.logprobs.top_logprobs, scored.logprobs.text_offset
    assert len(tokens) == len(both) and values[0] is None and tops[0] is None
    assert text.endswith(made.text) or made.text.endswith("\ufffd")
    assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= len(text)
    for a, b in zip(values[-10:], made.logprobs.token_logprobs):
        assert abs(a - b) < 2e-3
    assert all(v <= 0 for v in values[1:]) and all(2 <= len(t) <= 3 for t in tops[1:])


def test_echo_of_text(server, client):
    golden = case(server, "line")
    answer = complete(client, server, prompt=golden["prompt_text"], max_tokens=8, echo=True,
                      extra_body=RAW).choices[0]
    assert answer.text.startswith(golden["prompt_text"])
    assert ids_of(answer) == golden["greedy_ids"][:8]
    twice = complete(client, server, prompt=[golden["prompt_text"], "And"], max_tokens=2, echo=True,
                     n=2, logprobs=1, extra_body=RAW).choices
    assert [c.text.startswith(p) for c, p in zip(twice, [golden["prompt_text"]] * 2 + ["And"] * 2)] \
        == [True] * 4
    assert len(twice[0].logprobs.tokens) == len(golden["prompt_ids"]) + 2


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(server, client, stream):
    request = dict(model=server.model, messages=QUESTION, max_completion_tokens=10, temperature=0,
                   logprobs=True, top_logprobs=4)
    whole = client.chat.completions.create(**request).choices[0].logprobs.content
    if stream:
        parts = []
        for chunk in client.chat.completions.create(**request, stream=True):
            if chunk.choices[0].logprobs:
                parts += chunk.choices[0].logprobs.content
        assert [(p.token, p.logprob) for p in parts] == [(p.token, p.logprob) for p in whole]
    for entry in whole:
        assert len(entry.top_logprobs) == 4
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
        values = [t.logprob for t in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
    none = client.chat.completions.create(**{**request, "logprobs": True, "top_logprobs": None})
    assert none.choices[0].logprobs.content[0].top_logprobs == []


def test_logit_bias_decides(server, client):
    golden = case(server, "line")
    forced = golden["greedy_ids"][5]
    ask = lambda bias: ids_of(complete(client, server, prompt=golden["prompt_ids"], max_tokens=6,
                                       logit_bias=bias, extra_body=RAW).choices[0])
    assert ask({str(forced): 100}) == [forced] * 6
    assert forced not in ask({str(forced): -100})
    assert ask({}) == golden["greedy_ids"][:6]


def test_penalties(server, client):
    golden = case(server, "passage")

    def ask(**options):
        extra = {**RAW, **options.pop("extra", {})}
        return ids_of(complete(client, server, prompt=golden["prompt_ids"], max_tokens=64,
                               extra_body=extra, **options).choices[0])

    plain = ask()
    assert plain == golden["greedy_ids"]
    assert ask(presence_penalty=0, frequency_penalty=0, extra={"repetition_penalty": 1}) == plain
    for change in (dict(presence_penalty=2, frequency_penalty=2),
                   dict(extra={"repetition_penalty": 2.0})):
        assert len(set(ask(**change))) >= len(set(plain))
    assert ask(extra={"repetition_penalty": 2.0}) != plain
    assert len(set(ask(frequency_penalty=-2))) <= len(set(plain))
    assert ask(temperature=2, seed=1, extra={"min_p": 1.0}) == plain


def test_max_completion_tokens_wins(server, client):
    answer = client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0,
                                            max_tokens=30, max_completion_tokens=5,
                                            extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 5


def test_client_leaves_with_choices_open(server, client):
    stream = complete(client, server, prompt="Then", n=8, max_tokens=400, stream=True,
                      extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert server.wait_idle()


def test_model_names(named_server):
    client = named_server.client()
    names = ["first", "other/name"]
    assert [m.id for m in client.models.list()] == names
    for name in names:
        assert client.models.retrieve(name).id == name
        answer = client.completions.create(model=name, prompt="x", max_tokens=1)
        assert answer.model == "first"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="first,other/name", prompt="x", max_tokens=1)


BAD = [
    (dict(n=0), "n"), (dict(n=129), "n"), (dict(prompt=["a"] * 65, n=2), "n"),
    (dict(prompt=["a"] * 129), "prompt"), (dict(prompt=["a", []], n=1), "prompt"),
    (dict(prompt=[[1], "a", 7]), "prompt"),
    (dict(logprobs=21), "logprobs"), (dict(presence_penalty=2.5), "presence_penalty"),
    (dict(frequency_penalty=-3), "frequency_penalty"), (dict(logit_bias={"x": 1}), "logit_bias"),
    (dict(logit_bias={"1": 200}), "logit_bias"), (dict(logit_bias={"9999999": 1}), "logit_bias"),
    (dict(extra_body={"min_p": -1}), "min_p"), (dict(max_tokens=-1), "max_tokens"), (dict(best_of=2), "best_of"),
    (dict(extra_body={"repetition_penalty": 0}), "repetition_penalty"),
]


@pytest.mark.parametrize("change, param", BAD, ids=[f"{b[1]}{i}" for i, b in enumerate(BAD)])
def test_bad_requests(server, client, change, param):
    request = {"model": server.model, "prompt": "x", "max_tokens": 4, **change}
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**request)
    assert caught.value.param == param and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=server.model, messages=QUESTION, top_logprobs=3)
    assert httpx.get(server.url + "/health").status_code == 200
