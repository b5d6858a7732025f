"""What a client may learn of the tokens themselves: log-probabilities of a prompt, tokens named by their ids, and which of them a
prompt that is cut keeps."""
import openai
import pytest

from test_breadth import RAW, ids_of
from test_openai import QUESTION, case, complete


def scores(server, client, **more):
    options = {"max_tokens": 3, **more.pop("options", {})}
    return complete(client, server, **options, extra_body={**RAW, **more})


def chat(server, client, stream=False, **more):
    return client.chat.completions.create(model=server.model, messages=QUESTION, max_completion_tokens=4, temperature=0,
                                          logprobs=True, top_logprobs=2, stream=stream, extra_body={**RAW, **more})


@pytest.mark.parametrize("top, beside", [(0, 3), (3, 0), (2, 2), (3, None)])
def test_a_prompt_is_scored_as_its_echo_is(server, client, top, beside):
    """Whatever is asked of the answer beside it, and the answer is as without."""
    ids = case(server, "line")["prompt_ids"]
    prompt = {"prompt": [ids, ids[:1]]}
    echo = scores(server, client, options={**prompt, "echo": True, "logprobs": 20}).choices
    plain = scores(server, client, options={**prompt, "logprobs": beside}).choices
    asked = scores(server, client, prompt_logprobs=top, options={**prompt, "logprobs": beside}).choices
    for old, without, now, given in zip(echo, plain, asked, prompt["prompt"]):
        listed = now.model_extra["prompt_logprobs"]
        assert (now.text, now.logprobs, ids_of(now)) == (without.text, without.logprobs, ids_of(without))
        assert len(listed) == len(given) and listed[0] is None
        for at in range(1, len(given)):
            own, rest = str(given[at]), {int(k): v for k, v in listed[at].items()}
            assert listed[at][own]["logprob"] == pytest.approx(old.logprobs.token_logprobs[at], abs=1e-5)
            ranks = sorted(v["rank"] for v in rest.values() if v["rank"] is not None)
            assert ranks == list(range(1, top + 1)) and len(rest) - top in (0, 1)
            by_rank = [v["logprob"] for v in sorted((v for v in rest.values() if v["rank"]), key=lambda v: v["rank"])]
            assert by_rank == sorted(by_rank, reverse=True)
            likeliest = sorted(old.logprobs.top_logprobs[at].values(), reverse=True)
            assert by_rank == pytest.approx(likeliest[:top], abs=1e-5)
            assert all(isinstance(v["decoded_token"], str) for v in rest.values())


def test_a_prompt_is_scored_and_shown(server, client):
    """With echo, and where nothing is made."""
    ids = case(server, "line")["prompt_ids"]
    alone = scores(server, client, prompt_logprobs=1, options={"prompt": ids}).choices[0]
    shown = scores(server, client, prompt_logprobs=1, options={"prompt": ids, "echo": True}).choices[0]
    scored = scores(server, client, prompt_logprobs=1, options={"prompt": ids, "max_tokens": 0}).choices[0]
    assert shown.text.endswith(alone.text) and len(shown.text) > len(alone.text) and shown.logprobs is None
    lists = [c.model_extra["prompt_logprobs"] for c in (alone, shown, scored)]
    assert lists[0] == lists[1] == lists[2] and (scored.text, ids_of(scored)) == ("", [])


def test_a_chat_is_scored(server, client):
    """Its list stands beside the choices, and is that of the same tokens as a text."""
    answer = chat(server, client, prompt_logprobs=2, n=2)
    ids = answer.model_extra["prompt_token_ids"]
    text = scores(server, client, prompt_logprobs=2, options={"prompt": ids}).choices[0]
    assert answer.model_extra["prompt_logprobs"] == text.model_extra["prompt_logprobs"]
    assert len(answer.choices) == 2 and all(len(t.top_logprobs) == 2 for t in answer.choices[0].logprobs.content)


@pytest.mark.parametrize("more", [{"prompt_logprobs": -1}, {"prompt_logprobs": 21}, {"prompt_logprobs": 0, "stream": True}])
def test_prompts_that_cannot_be_scored(server, client, more):
    for ask in (lambda: chat(server, client, **more), lambda: scores(server, client, options={"prompt": "x"}, **more)):
        with pytest.raises(openai.BadRequestError) as caught:
            ask()
        assert caught.value.param == "prompt_logprobs"


def test_what_nobody_asked_for_is_null(server, client):
    """In whole answers; chunks leave it out."""
    whole = complete(client, server, prompt="And", max_tokens=2).choices[0].model_extra
    assert [whole[k] for k in ("prompt_token_ids", "prompt_logprobs", "token_ids")] == [None] * 3
    ask = lambda stream: client.chat.completions.create(model=server.model, messages=QUESTION, max_completion_tokens=2, stream=stream)
    answer = ask(False)
    assert answer.model_extra["prompt_token_ids"] is answer.model_extra["prompt_logprobs"] is None
    assert answer.choices[0].model_extra["token_ids"] is None and "prompt_token_ids" not in answer.choices[0].model_extra
    for chunk in ask(True):
        assert not {"prompt_token_ids", "prompt_logprobs"} & set(chunk.model_extra)
        assert "token_ids" not in chunk.choices[0].model_extra


def test_tokens_named_by_their_ids(server, client):
    name = "token_id:{}".format
    text = scores(server, client, options={"prompt": "And", "logprobs": 3, "echo": True}, return_tokens_as_token_ids=True).choices[0]
    ids = text.model_extra["prompt_token_ids"] + ids_of(text)
    assert text.logprobs.tokens == [name(i) for i in ids]
    assert all(name(i) in top and all(k.startswith("token_id:") for k in top) for i, top in zip(ids[1:], text.logprobs.top_logprobs[1:]))
    whole, plain = chat(server, client, return_tokens_as_token_ids=True).choices[0], chat(server, client).choices[0]
    streamed = [t for c in chat(server, client, stream=True, return_tokens_as_token_ids=True)
                for t in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert [t.token for t in whole.logprobs.content] == [t.token for t in streamed] == [name(i) for i in ids_of(whole)]
    for named, said in zip(whole.logprobs.content, plain.logprobs.content):
        assert (named.logprob, named.bytes) == (said.logprob, said.bytes)
        assert [(t.logprob, t.bytes) for t in named.top_logprobs] == [(t.logprob, t.bytes) for t in said.top_logprobs]
        assert all(t.token.startswith("token_id:") for t in named.top_logprobs)


@pytest.mark.parametrize("most", [0, 5])
def test_every_chunk_has_its_ids(server, client, most):
    """The last one, too, whose list is empty; the first has the prompt's."""
    ids = case(server, "line")["prompt_ids"]
    chunks = [c.choices[0].model_extra for c in scores(server, client, options={"prompt": ids, "max_tokens": most, "stream": True})]
    whole = scores(server, client, options={"prompt": ids, "max_tokens": most}).choices[0]
    assert [i for c in chunks for i in c["token_ids"]] == ids_of(whole) and chunks[-1]["token_ids"] == []
    assert [c.get("prompt_token_ids") for c in chunks] == [ids] + [None] * (len(chunks) - 1)
    answer = list(chat(server, client, stream=True))
    assert all(c.choices[0].model_extra["token_ids"] for c in answer[1:-1]) and answer[-1].choices[0].model_extra["token_ids"] == []


def test_which_tokens_a_cut_prompt_keeps(server, client):
    ids = case(server, "line")["prompt_ids"]
    ask = lambda **more: scores(server, client, options={"prompt": ids}, truncate_prompt_tokens=5, **more) \
        .choices[0].model_extra["prompt_token_ids"]
    assert ask(truncation_side="right") == ids[:5]
    assert ask(truncation_side="left") == ask() == ids[-5:]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(truncation_side="middle")
    assert caught.value.param == "truncation_side"
