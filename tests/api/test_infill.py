"""Answers that stand between two texts: `suffix` of completions, and /infill."""
import json
import shutil

import openai
import pytest

from conftest import GOLDEN, HTTP, start

MARKS = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
PREFIX, MIDDLE, SUFFIX, PAD, REPO, FILE = range(1024, 1030)  # ids that the fixture's vocabulary leaves


@pytest.fixture(scope="module")
def filler(tmp_path_factory):
    """A server of a model whose tokenizer has the tokens."""
    folder = tmp_path_factory.mktemp("model") / "fim"
    shutil.copytree(GOLDEN / "qwen3moe-tiny", folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    for at, name in enumerate(MARKS):
        tokenizer["added_tokens"].append({"id": PREFIX + at, "content": name, "special": True, "lstrip": False, "rstrip": False,
                                          "single_word": False, "normalized": False})
    file.write_text(json.dumps(tokenizer))
    running = start(tmp_path_factory, folder, ["--responses", "8"])
    yield running
    running.stop()


def tokens_of(server, text):
    return HTTP.post(server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"] if text else []


def ask(server, path="/v1/completions", **body):
    return HTTP.post(server.url + path, json={"temperature": 0, **body})


def around(server, before, behind):
    return [PREFIX, *tokens_of(server, before), SUFFIX, *tokens_of(server, behind), MIDDLE]


def test_suffix_is_a_prompt_in_the_models_format(filler):
    body = dict(prompt="def area(r):\n", suffix="    return x\n", max_tokens=8, return_token_ids=True)
    answer = ask(filler, **body).json()
    choice = answer["choices"][0]
    want = around(filler, body["prompt"], body["suffix"])
    assert choice["prompt_token_ids"] == want and answer["usage"]["prompt_tokens"] == len(want)
    same = ask(filler, prompt=want, max_tokens=8, return_token_ids=True).json()["choices"][0]
    assert same["token_ids"] == choice["token_ids"] and same["text"] == choice["text"]
    stream = ask(filler, **body, stream=True).text
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]


def test_prompts_ids_and_choices(filler):
    answer = ask(filler, prompt=["a", [7, 8]], suffix="b", n=2, max_tokens=2, return_token_ids=True, logprobs=1, prompt_logprobs=0)
    choices = answer.json()["choices"]
    tail = [SUFFIX, *tokens_of(filler, "b"), MIDDLE]
    assert [c["prompt_token_ids"] for c in choices] == 2 * [[PREFIX, *tokens_of(filler, "a"), *tail]] + 2 * [[PREFIX, 7, 8, *tail]]
    assert all(len(c["logprobs"]["tokens"]) == len(c["token_ids"]) for c in choices)
    assert len(choices[2]["prompt_logprobs"]) == 3 + len(tail)


def test_texts_stay_texts(filler):
    """What is around the gap is no prompt of its own: markers in it are words."""
    ids = ask(filler, prompt="a<|fim_middle|>", suffix="<|fim_pad|>", max_tokens=1, return_token_ids=True).json()["choices"][0]["prompt_token_ids"]
    assert ids.count(MIDDLE) == 1 and ids[-1] == MIDDLE and PAD not in ids


def test_an_empty_suffix_is_none(filler):
    plain = ask(filler, prompt="a", max_tokens=1, return_token_ids=True, suffix="").json()["choices"][0]
    assert plain["prompt_token_ids"] == tokens_of(filler, "a")


@pytest.mark.parametrize("end", [PAD, REPO, FILE])
def test_the_formats_ends_end_the_answer(filler, end):
    body = dict(prompt="a", suffix="b", max_tokens=4, logit_bias={str(end): 100}, return_token_ids=True)
    choice = ask(filler, **body).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"], choice["token_ids"]) == ("stop", None, "", [end])
    asked = ask(filler, **body, stop_token_ids=[end]).json()["choices"][0]
    assert asked["stop_reason"] == end
    goes_on = ask(filler, **body, ignore_eos=True).json()["choices"][0]
    assert goes_on["finish_reason"] == "length" and goes_on["token_ids"] == 4 * [end]
    late = ask(filler, **body, min_tokens=2).json()["choices"][0]
    assert len(late["token_ids"]) == 3 and end not in late["token_ids"][:2]
    body.pop("suffix")
    assert ask(filler, **body).json()["choices"][0]["finish_reason"] == "length"


def test_files_stand_in_front(filler):
    files = [{"filename": "a.h", "text": "int a;\n"}, {"text": "int b;\n"}]
    ids = ask(filler, prompt="x", suffix="y", input_extra=files, max_tokens=1, return_token_ids=True).json()["choices"][0]["prompt_token_ids"]
    parts = lambda text: tokens_of(filler, text)
    assert ids == [REPO, *parts("repository\n"), FILE, *parts("a.h\n"), *parts("int a;\n"), FILE, *parts("file\n"), *parts("int b;\n"),
                   FILE, *parts("filename\n"), *around(filler, "x", "y")]
    many = [{"filename": f"{i}.c", "text": "int some(int more);\n" * 20} for i in range(200)]
    answer = ask(filler, prompt="x", suffix="y", input_extra=many, max_tokens=9, return_token_ids=True).json()
    ids = answer["choices"][0]["prompt_token_ids"]
    context = HTTP.get(filler.url + "/v1/models").json()["data"][0]["max_model_len"]
    assert len(ids) == context - 9 and ids[-len(around(filler, "x", "y")):] == around(filler, "x", "y")


@pytest.mark.parametrize("field, more", [
    ("echo", {"echo": True}), ("truncate_prompt_tokens", {"truncate_prompt_tokens": 4}), ("suffix", {"suffix": 1}),
    ("input_extra", {"input_extra": {}}), ("input_extra", {"input_extra": [{}]}), ("input_extra", {"input_extra": [{"text": 1}]}),
    ("input_extra", {"input_extra": [{"text": "a", "filename": 1}]}), ("input_extra", {"input_extra": [{"text": "a", "name": "b"}]}),
    ("input_extra", {"input_extra": 257 * [{"text": "a"}]}), ("input_extra", {"input_extra": [{"text": "a"}], "suffix": None}),
    ("stop_token_ids", {"stop_token_ids": list(range(61))}),
])
def test_refused_by_name(filler, field, more):
    answer = ask(filler, **{"prompt": "a", "suffix": "b", "max_tokens": 1, **more})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, answer.text


def test_a_model_without_the_tokens(server):
    answer = ask(server, prompt="a", suffix="b", max_tokens=1)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "suffix" and server.fixture in error["message"]
    answer = ask(server, "/infill", input_prefix="a", input_suffix="b")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input_suffix"


def test_by_openais_client(filler):
    client = filler.client()
    answer = client.completions.create(model="fim", prompt="def f():", suffix="return 1", max_tokens=4)
    assert answer.usage.completion_tokens <= 4
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="fim", prompt="a", suffix="b", echo=True)
    assert caught.value.param == "echo"


# ---- /infill ----

BODY = {"input_prefix": "#include <stdio.h>\n", "prompt": "int n = ", "input_suffix": "}\n", "n_predict": 6}


def test_infill_is_the_same_completion(filler):
    answer = ask(filler, "/infill", **BODY, return_tokens=True).json()
    same = ask(filler, prompt=BODY["input_prefix"] + BODY["prompt"], suffix=BODY["input_suffix"], max_tokens=6, return_token_ids=True).json()
    assert answer["content"] == same["choices"][0]["text"] and answer["tokens"] == same["choices"][0]["token_ids"]
    assert answer["tokens_evaluated"] == same["usage"]["prompt_tokens"] and answer["tokens_predicted"] == 6
    assert answer["stop"] is True and answer["stop_type"] == "limit" and answer["truncated"] is False and answer["model"] == "fim"
    plain = ask(filler, "/infill", **BODY, input_extra=[{"filename": "a.h", "text": "int a;"}]).json()
    assert plain["tokens_evaluated"] > answer["tokens_evaluated"] and plain["tokens"] == []


def test_infill_streams(filler):
    whole = ask(filler, "/infill", **BODY, return_tokens=True).json()
    stream = ask(filler, "/infill", **BODY, return_tokens=True, stream=True).text
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    assert "".join(e["content"] for e in events) == whole["content"] and sum((e["tokens"] for e in events), []) == whole["tokens"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["stop_type"] == "limit" and events[-1]["tokens_predicted"] == 6


def test_infill_ends(filler):
    text = ask(filler, "/infill", **BODY).json()["content"]
    stopped = ask(filler, "/infill", **BODY, stop=[text[3:5]]).json()
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", text[3:5])
    ended = ask(filler, "/infill", **BODY, logit_bias={str(PAD): 100}).json()
    assert (ended["stop_type"], ended["content"], ended["stopping_word"]) == ("eos", "", "")
    # an empty suffix is a gap at the end, and without a number the context bounds the answer
    last = ask(filler, "/infill", input_prefix="a", input_suffix="", n_predict=-1, ignore_eos=True, return_tokens=True).json()
    context = HTTP.get(filler.url + "/v1/models").json()["data"][0]["max_model_len"]
    assert last["tokens_evaluated"] == 3 + len(tokens_of(filler, "a")) and last["tokens_evaluated"] + last["tokens_predicted"] == context


def test_infill_asked_again(filler):
    headers = {"Idempotency-Key": "gap"}
    first, again = (HTTP.post(filler.url + "/infill", json=BODY, headers=headers) for _ in range(2))
    assert first.json() == again.json() and again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("field, more", [
    ("input_prefix", {"input_prefix": None}), ("input_prefix", {"input_prefix": [1]}), ("input_suffix", {"input_suffix": None}),
    ("prompt", {"prompt": [1, 2]}), ("n_predict", {"n_predict": -2}), ("max_tokens", {"max_tokens": 3}), ("samplers", {"samplers": ["top_k"]}),
    ("mirostat", {"mirostat": 1}), ("n_probs", {"n_probs": 2}), ("input_extra", {"input_extra": [{"filename": 123, "text": "abc"}]}),
    ("repeat_penalty", {"repeat_penalty": -1}), ("nobody_knows", {"nobody_knows": 1}), ("echo", {"echo": True}),
])
def test_infill_refuses_by_name(filler, field, more):
    answer = ask(filler, "/infill", **{**BODY, **more})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, answer.text


@pytest.mark.parametrize("more", [{"seed": -1}, {"typical_p": 1.0, "mirostat": 0, "dry_multiplier": 0.0, "n_probs": 0}, {"id_slot": -1},
                                  {"cache_prompt": False}, {"repeat_penalty": 1.1}, {"top_k": 40, "min_p": 0.1}])
def test_infill_takes_what_its_clients_send(filler, more):
    assert ask(filler, "/infill", **{**BODY, **more}).status_code == 200


def test_infill_timings(filler):
    answer = ask(filler, "/infill", **BODY, timings_per_token=True).json()
    assert answer["timings"]["predicted_n"] == 6
    assert answer["timings"]["prompt_n"] + answer["timings"]["cache_n"] == answer["tokens_evaluated"]
