"""Which tokens may be drawn: `allowed_token_ids` and `bad_words`, alone, together, and with what else decides on tokens."""
import json
import re

import pytest

from conftest import GOLDEN, HTTP
from test_breadth import RAW, ids_of, joined
from test_openai import QUESTION, case, complete

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def post(server, path, **body):
    return HTTP.post(server.url + path, timeout=60, json={"model": server.model, **body})


def tokens_of(server, text):
    return post(server, "/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]


def text_of(server, ids):
    return post(server, "/detokenize", tokens=ids).json()["prompt"]


def forms_of(server, word):
    """The sequences of a bad word, as vLLM makes them."""
    plain, spaced = tokens_of(server, word.lstrip()), tokens_of(server, " " + word.lstrip())
    return [plain] + [spaced] * (len(spaced) == len(plain) and spaced[0] != plain[0])


def ids_of_body(answer):
    return answer.json()["choices"][0]["token_ids"]


def has(ids, sequence):
    return any(ids[i:i + len(sequence)] == sequence for i in range(len(ids)))


@pytest.mark.parametrize("stream", [False, True])
def test_only_allowed_tokens_are_drawn(server, client, stream):
    golden = case(server, "line")
    allowed = sorted({5, 9, 40, *golden["greedy_ids"][:2]})

    def ask(n=1, ids=None, **options):
        answer = complete(client, server, prompt=golden["prompt_ids"], max_tokens=40, n=n, stream=stream,
                          extra_body={**RAW, "allowed_token_ids": ids or allowed}, **options)
        return joined(answer, n)[2] if stream else [ids_of(c) for c in answer.choices]

    greedy, = ask()
    assert set(greedy) <= set(allowed) and greedy[:2] == golden["greedy_ids"][:2]
    assert ask(ids=allowed[::-1] * 3) == [greedy]  # a set: order and how often do not count
    drawn = ask(n=4, temperature=1.5, seed=7)
    assert set(sum(drawn, [])) <= set(allowed) and len(set(map(tuple, drawn))) == 4
    assert ask(ids=[17], temperature=1) == [[17] * 40]
    away = ask(n=2, temperature=1, seed=1, logit_bias={"300": 100, "5": -100}, presence_penalty=1)
    assert set(sum(away, [])) <= set(allowed) - {5}
    every = ask(ids=list(range(server.config["vocab_size"])))
    assert every == [golden["greedy_ids"][:40]] or len(golden["greedy_ids"]) < 40 and every[0][:len(golden["greedy_ids"])] == golden["greedy_ids"]


def test_what_is_likely_is_the_models_own(server, client):
    """Log-probabilities do not know what may be drawn."""
    golden = case(server, "line")
    ask = lambda **o: complete(client, server, prompt=golden["prompt_ids"], max_tokens=1, logprobs=1, extra_body={**RAW, **o}).choices[0].logprobs
    free, held = ask(), ask(allowed_token_ids=[17], return_tokens_as_token_ids=True)
    assert held.tokens == ["token_id:17"] and max(held.top_logprobs[0].values()) == free.token_logprobs[0] > held.token_logprobs[0]


@pytest.mark.parametrize("stream", [False, True])
def test_bad_words_do_not_come(server, client, stream):
    golden = case(server, "passage")
    want = golden["greedy_ids"]
    # of one token, and of several
    words = [text_of(server, want[3:4]), text_of(server, want[9:12]), text_of(server, want[16:18])]
    words = [w for w in words if w.strip() and "\ufffd" not in w]
    banned = [f for w in words for f in forms_of(server, w)]

    def ask(**options):
        answer = complete(client, server, prompt=golden["prompt_ids"], max_tokens=60, stream=stream, **options)
        return joined(answer, 1)[2][0] if stream else ids_of(answer.choices[0])

    first = min((i + len(f) - 1 for f in banned for i in range(len(want)) if want[i:i + len(f)] == f), default=len(want))
    assert first < len(want)
    got = ask(extra_body={**RAW, "bad_words": words})
    assert got[:first] == want[:first] and got[first] != want[first]
    assert not any(has(got, f) for f in banned)
    for seed in range(3):
        drawn = ask(temperature=1, seed=seed, logit_bias={str(f[-1]): 5 for f in banned}, extra_body={**RAW, "bad_words": words})
        assert not any(has(drawn, f) for f in banned)
    plain = ask(extra_body=RAW)
    assert plain == ask(extra_body={**RAW, "bad_words": []}) == ask(extra_body={**RAW, "bad_words": ["\u2603\u2603"]}) == want[:60]


def test_both_forms_of_a_bad_word(server, client):
    """A word that is one token with and without a space before it is bad in both forms."""
    pair = next(p for p in (forms_of(server, w) for w in ("the", "and", "of", "a", "to", "in", "he", "I", "s")) if len(p) == 2 and len(p[0]) == 1)
    word = text_of(server, pair[0])
    bias = {str(f[0]): 100 for f in pair}
    ask = lambda **o: ids_of(complete(client, server, prompt="x", max_tokens=8, temperature=1, seed=1, logit_bias=bias, extra_body={**RAW, **o}).choices[0])
    assert set(ask()) <= {f[0] for f in pair}
    assert not {f[0] for f in pair} & set(ask(bad_words=[word])) and ask(bad_words=[word]) == ask(bad_words=[" " + word])


def test_what_is_bad_begins_in_the_answer(server, client):
    """The prompt's tokens are no beginning of a bad word; those of an answer are."""
    a, b = (tokens_of(server, c)[0] for c in "xq")
    assert tokens_of(server, "xq") == [a, b] and forms_of(server, "xq") == [[a, b]]
    ask = lambda prompt, bias: ids_of(complete(client, server, prompt=prompt, max_tokens=2, logit_bias=bias, extra_body={**RAW, "bad_words": ["xq"], "allowed_token_ids": [a, b]}).choices[0])
    assert ask([a], {str(b): 100})[0] == b
    assert ask([a], {str(a): 100}) == [a, a]
    assert ask([5], {str(a): 20, str(b): 10}) == [a, a]


def test_dialects_have_them(server):
    ids = tokens_of(server, "abc")
    only = {"allowed_token_ids": ids, "bad_words": ["c"], "ignore_eos": True, "temperature": 1, "seed": 3}
    for path, body, text in (
            ("/v1/responses", {"input": "x", "max_output_tokens": 9}, lambda a: a["output"][0]["content"][0]["text"]),
            ("/v1/messages", {"messages": QUESTION, "max_tokens": 9}, lambda a: a["content"][0]["text"]),
            (CHAT, {"messages": QUESTION, "max_tokens": 9}, lambda a: a["choices"][0]["message"]["content"])):
        answer = post(server, path, **body, **only)
        assert answer.status_code == 200, answer.text
        assert re.fullmatch("[ab]{9}", text(answer.json()))


def test_with_structured_output(server):
    """What both let through is drawn; an answer that may end does, one that may not is an error."""
    eos = json.loads((GOLDEN / server.fixture / "generation_config.json").read_text())["eos_token_id"]
    eos = eos if isinstance(eos, list) else [eos]
    letter = {c: tokens_of(server, c)[0] for c in "abc!"}
    banned = [f for w in ("b", "cc", "ca") for f in forms_of(server, w)]

    def ask(regex, allowed, **options):
        ids = {"allowed_token_ids": [letter[c] for c in allowed] + eos} if allowed else {}
        return post(server, TEXT, **{"prompt": "x", "max_tokens": 20, "temperature": 1, "seed": 2, "guided_regex": regex, **ids, **options})

    text = lambda answer: (answer.json()["choices"][0]["text"], answer.json()["choices"][0]["finish_reason"])
    for seed in range(4):
        got, finish = text(ask("[abc]{5,9}!", "ab!", seed=seed, bad_words=["b"]))
        assert re.fullmatch("a{5,9}!", got) and finish == "stop"
        answer = ask("[abc]{12}!", None, seed=seed, bad_words=["b", "cc", "ca"], return_token_ids=True)
        assert re.fullmatch("[abc]{12}!", text(answer)[0]), answer.text
        assert not any(has(ids_of_body(answer), f) for f in banned)
    assert text(ask("a{3}", "a")) == ("aaa", "stop")
    # no end of an answer is allowed, and it ends where nothing else is
    answer = post(server, TEXT, prompt="x", max_tokens=20, guided_regex="a{1,3}", allowed_token_ids=[letter["a"]])
    assert text(answer) == ("aaa", "stop")
    # the shape alone would decide, were its token not bad
    for stuck in (ask("[ab]{3}!", "ac!", bad_words=["a"]), ask("a{3}!", "ac!", bad_words=["a"]), ask("abc", "ac")):
        error = stuck.json()["error"]
        assert stuck.status_code == 400 and "allowed_token_ids, bad_words" in error["message"], stuck.text


def test_nothing_is_left(server):
    end = 7
    answer = post(server, TEXT, prompt="x", max_tokens=20, min_tokens=3, stop_token_ids=[end], allowed_token_ids=[end])
    assert answer.status_code == 400 and "no token is left to draw" in answer.json()["error"]["message"]
    answer = post(server, TEXT, prompt="x", max_tokens=20, stop_token_ids=[end], allowed_token_ids=[end])
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 1


WRONG = [
    ("allowed_token_ids", [], "empty"), ("allowed_token_ids", [-1], "[0]: not a token id below"),
    ("allowed_token_ids", [1, 1 << 24], "[1]: not a token id below"), ("allowed_token_ids", [1.5], "[0]"), ("allowed_token_ids", {"1": 1}, "array"),
    ("allowed_token_ids", "a", "array"), ("bad_words", "a", "array"), ("bad_words", ["a", ""], "[1]: 0 bytes, allowed are 1..1024"),
    ("bad_words", [3], "[0]: not a string"), ("bad_words", ["  "], "[0]: no tokens"), ("bad_words", ["a" * 1025], "1025 bytes"),
    ("bad_words", ["a"] * 1025, "1025 strings, limit 1024"), ("bad_words", [f"{i % 10} {i}" * 60 for i in range(1024)], "limits 1024 and 16384"),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("field,value,said", WRONG, ids=range(len(WRONG)))
def test_wrong_values(server, path, field, value, said):
    body = {"messages": QUESTION} if path == CHAT else {"prompt": "x"}
    answer = post(server, path, max_tokens=3, **body, **{field: value})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field and field in error["message"] and said in error["message"], error
