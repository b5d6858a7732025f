"""The official openai package against the server, on fixtures whose greedy answers are known."""
import concurrent.futures
import json
import re
import subprocess

import httpx
import openai
import pytest

from conftest import BINARY, GOLDEN

QUESTION = [{"role": "user", "content": "Who was Jonah, and where did he flee?"}]


def case(server, name):
    return next(c for c in server.golden["cases"] if c["name"] == name)


def complete(client, server, **options):
    options.setdefault("temperature", 0)
    return client.completions.create(model=server.model, **options)


def stream_text(chunks):
    """Joined text, finish reasons and usage of a stream of either kind."""
    text, reasons, usage = "", [], None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.text if hasattr(choice, "text") else choice.delta.content
            text += delta or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    return text, reasons, usage


@pytest.mark.parametrize("name", ["short", "line", "passage"])
def test_completion_equals_golden(server, client, name):
    golden = case(server, name)
    answer = complete(client, server, prompt=golden["prompt_ids"], max_tokens=64,
                      extra_body={"ignore_eos": True, "return_token_ids": True})
    choice = answer.choices[0]
    assert choice.model_extra["prompt_token_ids"] == golden["prompt_ids"]
    assert choice.model_extra["token_ids"] == golden["greedy_ids"]
    assert choice.text == golden["greedy_text"]
    assert choice.finish_reason == "length"
    assert answer.object == "text_completion" and answer.model == server.model
    assert answer.usage.prompt_tokens == len(golden["prompt_ids"])
    assert answer.usage.completion_tokens == 64
    assert answer.usage.total_tokens == len(golden["prompt_ids"]) + 64


def test_text_prompt_equals_ids(server, client):
    golden = case(server, "line")
    answer = complete(client, server, prompt=golden["prompt_text"], max_tokens=64,
                      extra_body={"ignore_eos": True, "return_token_ids": True})
    assert answer.choices[0].model_extra["prompt_token_ids"] == golden["prompt_ids"]
    assert answer.choices[0].text == golden["greedy_text"]


def test_completion_stream_equals_whole(server, client):
    golden = case(server, "passage")
    chunks = list(complete(client, server, prompt=golden["prompt_ids"], max_tokens=64, stream=True,
                           stream_options={"include_usage": True},
                           extra_body={"ignore_eos": True}))
    text, reasons, usage = stream_text(chunks)
    assert text == golden["greedy_text"]
    assert reasons == ["length"]
    assert usage.completion_tokens == 64
    assert len({chunk.id for chunk in chunks}) == 1


def test_continuous_usage_counts_up(server, client):
    chunks = list(complete(client, server, prompt="And", max_tokens=12, stream=True,
                           extra_body={"ignore_eos": True,
                                       "stream_options": {"include_usage": True,
                                                          "continuous_usage_stats": True}}))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 12


def test_completion_default_is_16_tokens(server, client):
    answer = complete(client, server, prompt="And", extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_chat_stops_by_itself(server, client):
    """The stop case of the goldens is a chat: one user message, rendered by the template."""
    golden = server.golden["stop_case"]
    content = re.search(r"user\n(.*)<\|im_end\|>\n<\|im_start\|>assistant", golden["prompt_text"],
                        re.S).group(1)
    answer = client.chat.completions.create(
        model=server.model, temperature=0, messages=[{"role": "user", "content": content}],
        extra_body={"return_token_ids": True})
    choice = answer.choices[0]
    assert answer.model_extra["prompt_token_ids"] == golden["prompt_ids"]
    assert choice.message.content == golden["greedy_text"]
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage.completion_tokens == len(golden["greedy_ids"])
    assert answer.object == "chat.completion"


def test_chat_stream_equals_whole(server, client):
    request = dict(model=server.model, messages=QUESTION, max_completion_tokens=40, seed=7)
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True,
                                                 stream_options={"include_usage": True}))
    text, reasons, usage = stream_text(chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason]
    assert usage == whole.usage


def test_parts_equal_string(server, client):
    ask = lambda content: client.chat.completions.create(
        model=server.model, temperature=0, max_tokens=20,
        messages=[{"role": "user", "content": content}]).choices[0].message.content
    assert ask([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]) == ask("one\ntwo")


def test_seeds_decide(server, client):
    ask = lambda seed: complete(client, server, prompt="Then", max_tokens=32, temperature=2, top_p=1,
                                seed=seed, extra_body={"top_k": 0, "ignore_eos": True}).choices[0].text
    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(2, 6)}) > 1


def test_template_tokens_in_messages_stay_text(server, client):
    ask = lambda content: client.chat.completions.create(
        model=server.model, max_tokens=1, messages=[{"role": "user", "content": content}])
    plain, tricky = ask("ab").usage.prompt_tokens, ask("a<|im_end|>b").usage.prompt_tokens
    assert tricky > plain + 3


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(server, client, stream):
    golden = case(server, "passage")
    whole = golden["greedy_text"]
    stop = whole[40:47]
    request = dict(prompt=golden["prompt_ids"], max_tokens=64, extra_body={"ignore_eos": True},
                   stop=["never in the text", stop])
    expected = whole[:whole.index(stop)]
    if stream:
        text, reasons, _ = stream_text(complete(client, server, stream=True, **request))
    else:
        choice = complete(client, server, **request).choices[0]
        text, reasons = choice.text, [choice.finish_reason]
    assert text == expected
    assert reasons == ["stop"]
    assert server.wait_idle()


def test_stop_token_ids(server, client):
    golden = case(server, "line")
    stop = golden["greedy_ids"][10]
    first = golden["greedy_ids"].index(stop)
    answer = complete(client, server, prompt=golden["prompt_ids"], max_tokens=64,
                      extra_body={"stop_token_ids": [stop], "return_token_ids": True})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["token_ids"] == golden["greedy_ids"][:first + 1]


def test_sixteen_streams_at_once(server, client):
    golden = case(server, "line")

    def ask(i):
        return stream_text(complete(client, server, prompt=golden["prompt_ids"], max_tokens=64,
                                    stream=True, user=f"user {i}",
                                    extra_body={"ignore_eos": True}))

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    assert all(text == golden["greedy_text"] and reasons == ["length"] for text, reasons, _ in answers)


def test_models(server, client):
    assert [m.id for m in client.models.list()] == [server.model]
    model = client.models.retrieve(server.model)
    assert model.object == "model" and model.owned_by == "sluice"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


BAD = [
    (dict(model="another"), openai.NotFoundError, "model", "model_not_found"),
    (dict(suffix="!"), openai.BadRequestError, "suffix", "unsupported_value"),
    (dict(temperature=2.5), openai.BadRequestError, "temperature", None),
    (dict(stop=["a"] * 17), openai.BadRequestError, "stop", None),
    (dict(max_tokens=10**6), openai.BadRequestError, "max_tokens", "context_length_exceeded"),
    (dict(prompt=[10**6]), openai.BadRequestError, "prompt", None),
    (dict(prompt="word " * 20000), openai.BadRequestError, "prompt", "context_length_exceeded"),
    (dict(extra_body={"temprature": 1}), openai.BadRequestError, "temprature", "unknown_parameter"),
]


@pytest.mark.parametrize("change, error, param, code", BAD, ids=[b[2] + str(i) for i, b in enumerate(BAD)])
def test_bad_requests(server, client, change, error, param, code):
    with pytest.raises(error) as caught:
        client.completions.create(**{"model": server.model, "prompt": "x", "max_tokens": 4, **change})
    assert caught.value.param == param
    assert caught.value.code == code
    assert caught.value.type == "invalid_request_error"
    assert caught.value.body["message"]


def test_bad_chat_requests(server, client):
    tool = {"type": "function", "function": {"parameters": {}}}
    for change in (dict(tools=[tool]), dict(top_logprobs=2), dict(messages=[]),
                   dict(response_format={"type": "json_array"}),
                   dict(messages=[{"role": "wizard", "content": "x"}])):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": server.model, "messages": QUESTION, **change})
        assert caught.value.param in change


@pytest.mark.parametrize("body, status", [
    (b"{", 400), (b"", 400), (b"[]", 400), (b'{"model": "a", "model": "b"}', 400),
    (b"[" * 5000, 400), (b'{"model": "\xff"}', 400), (b" " * (17 << 20), 413)])
def test_bad_bodies(server, body, status):
    answer = httpx.post(server.url + "/v1/completions", content=body, timeout=30)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_tokenize_and_back(server):
    post = lambda path, **body: httpx.post(server.url + path, json={"model": server.model, **body},
                                           timeout=30)
    golden, chat = case(server, "passage"), server.golden["stop_case"]
    ids = post("/tokenize", prompt=golden["prompt_text"]).json()
    assert ids["tokens"] == golden["prompt_ids"] and ids["count"] == len(golden["prompt_ids"])
    assert post("/detokenize", tokens=chat["prompt_ids"]).json() == {"prompt": chat["prompt_text"]}
    whole = post("/tokenize", messages=QUESTION).json()["tokens"]
    part = post("/tokenize", messages=QUESTION, add_generation_prompt=False).json()["tokens"]
    assert len(part) < len(whole) and whole[:len(part)] == part
    assert ids["token_strs"] is None
    named = httpx.post(server.url + "/tokenize", timeout=30,
                       json={"prompt": "and then", "return_token_strs": True}).json()
    assert len(named["token_strs"]) == named["count"]
    written = json.loads((GOLDEN / server.fixture / "tokenizer.json").read_text())["model"]["vocab"]
    assert named["token_strs"] == [text for i in named["tokens"] for text, at in written.items() if at == i]
    assert "then" in "".join(named["token_strs"])
    assert httpx.post(server.url + "/detokenize", timeout=30,
                      json={"tokens": named["tokens"]}).json()["prompt"].endswith("and then")
    assert httpx.post(server.url + "/tokenize", timeout=30,
                      json={"model": "another", "prompt": "x"}).status_code == 404
    assert post("/tokenize", prompt="x", temperature=1).status_code == 400
    assert post("/detokenize", tokens=[10**6]).json()["error"]["param"] == "tokens"


def test_paths_and_methods(server):
    assert server.get("/v1/nothing").status_code == 404
    wrong = server.get("/v1/completions")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert server.get("/health").status_code == 200
    said = subprocess.run([BINARY, "--version"], check=True, capture_output=True, text=True).stdout
    assert said == f"sluice {server.get('/version').json()['version']}\n"
    assert httpx.head(server.url + "/health").status_code == 200


def test_request_ids(server, client):
    raw = client.completions.with_raw_response.create(model=server.model, prompt="x", max_tokens=1)
    assert raw.headers["x-request-id"].startswith("req-")
    mine = server.get("/health", headers={"X-Request-Id": "my-id.1"})
    assert mine.headers["x-request-id"] == "my-id.1"


def test_keys(locked_server):
    model = "org/other name"
    good = locked_server.client()
    assert [m.id for m in good.models.list()] == [model]
    assert good.completions.create(model=model, prompt="x", max_tokens=1).model == model
    for key in ("wrong", "test-ke", "test-key2"):
        with pytest.raises(openai.AuthenticationError) as caught:
            locked_server.client(api_key=key).models.list()
        assert caught.value.code == "invalid_api_key"
    assert locked_server.get("/v1/models").status_code == 401
    assert locked_server.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_client_who_leaves_stops_its_request(server, stream):
    before = server.metric("request_success_total", finished_reason="abort")
    limit = server.config["max_position_embeddings"] - 20
    body = json.dumps({"model": server.model, "prompt": "And", "stream": stream,
                       "max_tokens": min(limit, 4000), "ignore_eos": True}).encode()
    with server.connect(timeout=10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
                  + body)
        if stream:
            s.recv(1)
    assert server.wait_idle()
    assert server.metric("request_success_total", finished_reason="abort") == before + 1


def test_metrics(server, client):
    before = {name: server.metric(name) for name in ("prompt_tokens_total", "generation_tokens_total")}
    count = server.metric("time_to_first_token_seconds_count")
    complete(client, server, prompt=[5, 6, 7], max_tokens=8, extra_body={"ignore_eos": True})
    assert server.metric("prompt_tokens_total") == before["prompt_tokens_total"] + 3
    assert server.metric("generation_tokens_total") == before["generation_tokens_total"] + 8
    assert server.metric("time_to_first_token_seconds_count") == count + 1
    assert server.metric("request_success_total", finished_reason="length") >= 1
    assert 0 <= server.metric("kv_cache_usage_perc") <= 1
    assert server.metric("worker_up") >= 1
    text = server.get("/metrics").text
    line = re.compile(r"# (HELP|TYPE) sluice:\w+ .+|sluice:\w+(\{[^}]*\})? \S+")
    assert all(line.fullmatch(x) for x in text.splitlines())
    names = re.findall(r"# TYPE (\S+)", text)
    assert len(names) == len(set(names))
