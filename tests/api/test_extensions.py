"""Fields that clients of vLLM send beyond OpenAI's, and what HTTP itself can get wrong."""
import json
import time

import httpx
import openai
import pytest

from conftest import GOLDEN, ROOT
from test_breadth import RAW, ids_of, joined
from test_openai import QUESTION, case, complete, stream_text


def chat(client, server, **options):
    options = {"max_completion_tokens": 12, "temperature": 0, **options}
    return client.chat.completions.create(**{"model": server.model, "messages": QUESTION, **options})


def extra(**fields):
    return {**RAW, **fields}


def test_min_tokens_puts_ends_off(server, client):
    golden = case(server, "line")
    end = golden["greedy_ids"][2]
    first = golden["greedy_ids"].index(end)
    ask = lambda least: complete(client, server, prompt=golden["prompt_ids"], max_tokens=20,
                                 extra_body=extra(stop_token_ids=[end], min_tokens=least)).choices[0]
    assert len(ids_of(ask(0))) == first + 1
    late = ask(12)
    assert len(ids_of(late)) >= 12 and end not in ids_of(late)[:12]
    assert ids_of(late)[:first] == golden["greedy_ids"][:first]
    text = golden["greedy_text"]
    stopped = complete(client, server, prompt=golden["prompt_ids"], max_tokens=20, stop=[text[4:6]],
                       extra_body=extra(min_tokens=10)).choices[0]
    assert len(ids_of(stopped)) >= 10
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, server, prompt="x", max_tokens=3, extra_body={"min_tokens": 4})
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_shown(server, client, stream):
    golden = case(server, "passage")
    text = golden["greedy_text"]
    stop = text[40:47]
    request = dict(prompt=golden["prompt_ids"], max_tokens=64, stop=[stop], stream=stream,
                   extra_body={"ignore_eos": True, "include_stop_str_in_output": True})
    answer = complete(client, server, **request)
    got = stream_text(answer)[0] if stream else answer.choices[0].text
    assert got == text[:text.index(stop)] + stop


def test_special_tokens_shown(server, client):
    """An id that stands for a special token, forced by a bias."""
    special = httpx.post(server.url + "/tokenize", timeout=30,
                         json={"prompt": server.golden["stop_case"]["prompt_text"][:12]}).json()["tokens"][0]
    name = httpx.post(server.url + "/detokenize", timeout=30, json={"tokens": [special]}).json()["prompt"]
    ask = lambda **o: complete(client, server, prompt="x", max_tokens=2, logit_bias={str(special): 100},
                               extra_body=extra(**o)).choices[0].text
    assert ask() == ask(skip_special_tokens=True) == ""
    assert ask(skip_special_tokens=False, spaces_between_special_tokens=False) == name + name


def test_special_tokens_of_prompts(server, client):
    text = case(server, "line")["prompt_text"]
    ask = lambda **o: complete(client, server, prompt=text, max_tokens=1,
                               extra_body=extra(**o)).choices[0].model_extra["prompt_token_ids"]
    tokens = lambda **o: httpx.post(server.url + "/tokenize", timeout=30,
                                    json={"prompt": text, **o}).json()["tokens"]
    for special in (True, False):
        assert ask(add_special_tokens=special) == tokens(add_special_tokens=special)
    assert ask() == ask(add_special_tokens=True)


def test_special_tokens_of_chats(server, client):
    """A template writes its own; what the tokenizer adds to texts comes beside them when it is asked for."""
    tokens = lambda **o: httpx.post(server.url + "/tokenize", timeout=30, json=o).json()["tokens"]
    ask = lambda **o: chat(client, server, extra_body=extra(**o)).model_extra["prompt_token_ids"]
    plain, added = tokens(messages=QUESTION), tokens(messages=QUESTION, add_special_tokens=True)
    text = {special: tokens(prompt="x", add_special_tokens=special) for special in (True, False)}
    assert len(added) - len(plain) == len(text[True]) - len(text[False])
    first = len(added) - len(plain)
    assert added[first:] == plain and added[:first] == text[True][:first]
    assert ask(add_special_tokens=True) == added and ask() == ask(add_special_tokens=False) == plain


def test_load_counts_what_is_being_made(server, client):
    load = lambda: server.get("/load").json()
    assert server.wait_idle() and load() == {"server_load": 0}
    with complete(client, server, prompt="And", max_tokens=400, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        assert load() == {"server_load": 1}
    end = time.monotonic() + 30
    while load() != {"server_load": 0}:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_truncated_prompts(server, client):
    ids = case(server, "passage")["prompt_ids"]
    ask = lambda keep, **o: complete(client, server, max_tokens=4, extra_body=extra(
        truncate_prompt_tokens=keep), **{"prompt": ids, **o}).choices[0].model_extra["prompt_token_ids"]
    assert ask(5) == ids[-5:]
    assert ask(len(ids) + 1) == ask(None) == ids
    context = client.models.retrieve(server.model).model_extra["max_model_len"]
    many = (ids * (context // len(ids) + 2))[:context + 10]
    assert ask(-1, prompt=many) == many[-(context - 4):]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(0)
    assert caught.value.param == "truncate_prompt_tokens"


def test_seeds_may_be_negative(server, client):
    ask = lambda seed: complete(client, server, prompt="Then", max_tokens=16, temperature=1.5,
                                seed=seed, extra_body=RAW).choices[0].text
    assert ask(-7) == ask(-7) != ask(7)


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_at_all(server, client, stream):
    answer = complete(client, server, prompt=["And", "But"], max_tokens=0, stream=stream)
    if stream:
        text, reasons, _ = joined(answer, 2)
    else:
        text, reasons = [c.text for c in answer.choices], [c.finish_reason for c in answer.choices]
        assert answer.usage.completion_tokens == 0
    assert text == ["", ""] and reasons == ["length"] * 2


def test_developer_is_system(server, client):
    system = [{"role": "system", "content": "Be brief."}, *QUESTION]
    developer = [{"role": "developer", "content": "Be brief."}, *QUESTION]
    ask = lambda messages: chat(client, server, messages=messages, extra_body=RAW) \
        .model_extra["prompt_token_ids"]
    try:
        assert ask(system) == ask(developer)
    except openai.BadRequestError as error:  # a template without system messages
        assert "system" in error.body["message"]


def test_template_switches(server, client):
    ids = lambda **o: chat(client, server, extra_body=extra(**o)).model_extra["prompt_token_ids"]
    tokens = lambda **o: httpx.post(server.url + "/tokenize", timeout=30,
                                    json={"messages": QUESTION, **o}).json()["tokens"]
    assert ids() == ids(chat_template_kwargs={"enable_thinking": True}) == tokens()
    assert ids(add_generation_prompt=False) == tokens(add_generation_prompt=False,
                                                      add_special_tokens=False)
    off = {"enable_thinking": False}
    assert ids(chat_template_kwargs=off) == tokens(chat_template_kwargs=off)


def test_tools_reach_the_template(server):
    """Tools, calls of them and their results, as far as this model's template takes them."""
    post = lambda **body: httpx.post(server.url + "/tokenize", json=body, timeout=30)
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    assert post(messages=QUESTION, tools=[tool]).status_code == 200
    call = {"id": "abcdefghi", "type": "function",
            "function": {"name": "look_up", "arguments": "{\"a\": 1}"}}
    turns = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]},
             {"role": "tool", "tool_call_id": "abcdefghi", "content": "found"}]
    answer = post(messages=turns)
    assert answer.status_code == 200 or "line" in answer.json()["error"]["message"]
    call["function"]["arguments"] = "{"
    assert post(messages=turns).status_code in (200, 400)


def test_null_is_absent(server):
    names = ("max_tokens temperature top_p top_k min_p n seed stop stream stream_options logit_bias "
             "presence_penalty frequency_penalty repetition_penalty logprobs user stop_token_ids "
             "min_tokens truncate_prompt_tokens ignore_eos best_of echo suffix priority").split()
    body = {"model": server.model, "prompt": "x", **dict.fromkeys(names)}
    assert httpx.post(server.url + "/v1/completions", json=body, timeout=30).status_code == 200
    names = ("tools tool_choice response_format max_completion_tokens top_logprobs functions "
             "chat_template chat_template_kwargs documents audio reasoning_effort modalities").split()
    body = {"model": server.model, "messages": QUESTION, "max_tokens": 2, **dict.fromkeys(names)}
    assert httpx.post(server.url + "/v1/chat/completions", json=body, timeout=30).status_code == 200


def test_ignored_fields_change_nothing(server, client):
    plain = chat(client, server).choices[0].message.content
    fields = dict(user="u", metadata={"a": "b"}, store=True, service_tier="auto",
                  safety_identifier="s", prompt_cache_key="k", prompt_cache_retention="24h",
                  parallel_tool_calls=True, prediction={"type": "content", "content": "x"},
                  cache_salt="x", spaces_between_special_tokens=True)
    off = dict(length_penalty=1, min_tokens=0, priority=0, echo=False, use_beam_search=False,
               continue_final_message=False, tools=[], functions=[], bad_words=[], tool_choice="none",
               function_call="none", modalities=["text"], response_format={"type": "text"},
               add_special_tokens=False, add_generation_prompt=True, skip_special_tokens=True)
    for body in (fields, off):
        assert chat(client, server, extra_body=body).choices[0].message.content == plain


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def test_tools_nobody_may_call(server, client):
    """With "none" the model is shown no tools."""
    ids = lambda **o: chat(client, server, extra_body=extra(**o)).model_extra["prompt_token_ids"]
    assert ids(tools=TOOLS, tool_choice="none") == ids()


def test_answers_come_back_as_clients_dump_them(server, client):
    """Every field of a message of ours, as the client's library writes it, changes no prompt."""
    ids = lambda *messages: chat(client, server, messages=[*QUESTION, *messages, *QUESTION],
                                 extra_body=RAW).model_extra["prompt_token_ids"]
    message = chat(client, server).choices[0].message
    plain = {"role": "assistant", "content": message.content}
    try:
        want = ids(plain)
    except openai.BadRequestError as error:  # a template for one turn
        pytest.skip(error.body["message"])
    assert ids(message.model_dump()) == ids(message.model_dump(exclude_none=True)) == want
    assert ids({**plain, "tool_calls": [], "function_call": None, "audio": None, "id": "msg_1",
                "annotations": [{"type": "url_citation"}], "cache_control": {"type": "ephemeral"}}) == want


UNSUPPORTED = dict(
    tool_choice="required", priority=1, enable_thinking="no", max_reasoning_tokens=9,
    response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"nullable": True}}},
    reasoning_effort="much", verbosity="low", web_search_options={}, modalities=["audio"],
    structured_outputs={"regex": "(a"}, guided_json={"unevaluatedItems": False}, grammar="a", prompt_logprobs=21, logprob_token_ids=[1],
    continue_final_message=True, chat_template="{{ 1 }}", documents=[],
    messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_unsupported_is_refused_by_name(server, client, field):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, server, extra_body={field: UNSUPPORTED[field]})
    assert caught.value.param == field and caught.value.type == "invalid_request_error"


def test_characters_come_whole(server, client):
    """Bytes of one character are tokens of their own in small vocabularies; chunks are still text."""
    ids = httpx.post(server.url + "/tokenize", timeout=30,
                     json={"prompt": "\N{EARTH GLOBE EUROPE-AFRICA}", "add_special_tokens": False}).json()["tokens"]
    ids = ids[-4:]
    with httpx.stream("POST", server.url + "/v1/completions", timeout=30,
                      json={"model": server.model, "prompt": ids * 2, "echo": True, "logprobs": 0,
                            "max_tokens": 8, "temperature": 2, "seed": 1, "stream": True,
                            "ignore_eos": True}) as answer:
        text = ""
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
    assert text.startswith("\N{EARTH GLOBE EUROPE-AFRICA}" * 2)


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/json; charset=utf-8"])
def test_any_content_type_is_json(server, content_type):
    headers = {"Content-Type": content_type} if content_type else {}
    body = json.dumps({"model": server.model, "prompt": "x", "max_tokens": 1}).encode()
    assert httpx.post(server.url + "/v1/completions", content=body, headers=headers,
                      timeout=30).status_code == 200


def test_encoded_bodies_are_refused(server):
    answer = httpx.post(server.url + "/v1/completions", content=b"\x1f\x8b", timeout=30,
                        headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_encoding"


def test_tokenize_names_what_it_does_not_know(server):
    post = lambda **body: httpx.post(server.url + "/tokenize", json=body, timeout=30)
    assert post(prompt="x", temperature=1).json()["error"]["param"] == "temperature"
    assert post(messages=QUESTION, add_special_tokens="yes").json()["error"]["param"] == "add_special_tokens"
    assert post(messages=QUESTION, prompt=None, tools=None, continue_final_message=False,
                add_special_tokens=False).status_code == 200
    assert post(prompt="x", messages=None).status_code == 200


def test_one_path_for_chats_and_continuations(server, locked_server):
    """As SageMaker asks: what the body is of decides, and it is answered as at its own path."""
    ask = lambda path, to=server, **body: httpx.post(to.url + path, json={"max_tokens": 5, "temperature": 0, **body})
    for path, body in (("/v1/chat/completions", {"messages": QUESTION}), ("/v1/completions", {"prompt": "And"})):
        assert ask("/invocations", **body).json()["choices"] == ask(path, **body).json()["choices"]
        for answer in (ask(p, stream=True, **body) for p in ("/invocations", path)):
            assert answer.text.endswith("data: [DONE]\n\n")
    for body, named in (({}, "messages"), ({"prompt": None}, "messages"), ({"prompt": "And", "messages": QUESTION}, "prompt")):
        refused = ask("/invocations", **body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == named
    assert httpx.post(server.url + "/invocations", content=b"{").status_code == 400
    assert ask("/invocations", messages=QUESTION, top_kk=1).json()["error"]["param"] == "top_kk"
    assert ask("/invocations", locked_server, prompt="And").status_code == 401


def test_no_embeddings_are_none(server):
    ask = lambda **body: httpx.post(server.url + "/v1/completions", json={"max_tokens": 1, **body})
    assert ask(prompt="And", prompt_embeds=[]).status_code == 200
    assert [ask(**body).json()["error"]["param"] for body in
            ({"prompt": None, "prompt_embeds": []}, {"prompt": "And", "prompt_embeds": ["AAAA"]})] == ["prompt", "prompt_embeds"]


def test_models_name_their_root(named_server):
    for model in named_server.client().models.list():
        assert model.model_extra["root"] == "first" and model.model_extra["parent"] is None


def test_the_tokenizer_in_its_own_words(server, locked_server):
    info = server.get("/tokenizer_info").json()
    file = json.loads((GOLDEN / server.fixture / "tokenizer.json").read_text())
    config = json.loads((GOLDEN / server.fixture / "tokenizer_config.json").read_text())
    assert info["tokenizer_class"] == "ByteLevelBPE" and info["add_bos_token"] is False and info["bos_token"] is None
    assert info["eos_token"] == config["eos_token"] and info["fim_format"] is None
    assert info["vocab_size"] == 1 + max([*file["model"]["vocab"].values(), *(a["id"] for a in file["added_tokens"])])
    assert {int(k): v["content"] for k, v in info["added_tokens_decoder"].items()} == {a["id"]: a["content"] for a in file["added_tokens"]}
    assert info["additional_special_tokens"] == [a["content"] for a in file["added_tokens"] if a["special"]]
    assert info["chat_template"] == server.get("/props").json()["chat_template"]
    assert info["model_max_length"] == server.get("/v1/models").json()["data"][0]["max_model_len"]
    assert str(ROOT) not in json.dumps(info)
    assert locked_server.get("/tokenizer_info").status_code == 401


def test_every_bad_key_of_a_bias_is_named(server, client):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, server, prompt="x", logit_bias={"bad1": 1, "5": 1, "bad2": 2, "99999999": 3})
    assert caught.value.param == "logit_bias" and all(f'"{k}"' in caught.value.message for k in ("bad1", "bad2", "99999999"))
    assert '"5"' not in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, server, prompt="x", logit_bias={f"a key that is long {i}": 1 for i in range(99)})
    assert "more are not token ids" in caught.value.message


def tokens_of(server, text):
    return httpx.post(server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]


def test_texts_and_ids_in_one_prompt(server):
    ask = lambda prompt, **more: httpx.post(server.url + "/v1/completions", timeout=60,
                                            json={"prompt": prompt, "max_tokens": 2, "temperature": 0, "return_token_ids": True, **more})
    ids = lambda *parts: [t for p in parts for t in (tokens_of(server, p) if isinstance(p, str) else [p])]
    mixed = [7, 8, "Who was", 9, " Jonah<|im_end|>"]
    choice = ask(mixed).json()["choices"][0]
    assert choice["prompt_token_ids"] == ids(*mixed) and choice["text"] == ask(ids(*mixed)).json()["choices"][0]["text"]
    several = ask([["a", 7], "b", [8]], echo=True).json()["choices"]
    assert [c["prompt_token_ids"] for c in several] == [ids("a", 7), ids("b"), [8]] and several[0]["text"].startswith("a")
    for bad in (["a", 1 << 30], ["a", -1], ["a", 0.5], ["a", 1, None], ["a", 1, ["b"]]):
        answer = ask(bad)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt", (bad, answer.text)


def test_biases_of_texts(server, client):
    """A list of pairs, as llama.cpp has it: each token of a text gets the bias."""
    golden = case(server, "line")
    ask = lambda bias: ids_of(complete(client, server, prompt=golden["prompt_ids"], max_tokens=8,
                                       extra_body=extra(logit_bias=bias)).choices[0])
    plain = ask({})
    text = httpx.post(server.url + "/detokenize", json={"tokens": plain[2:4]}).json()["prompt"]
    banned = tokens_of(server, text)
    assert ask([[text, -100]]) == ask([[i, -100] for i in banned]) == ask({str(i): -100 for i in banned}) != plain
    assert ask([[text, -100], [banned[0], -100]]) == ask([[text, -100]])
    for bad in ([["a"]], [["a", 1, 2]], [["", 1]], [["a", 101]], [["a", False]], [[1 << 30, 1]], [[None, 1]], ["a"], "a", [[text, 1], [text, 2]],
                [["abcdefgh " * 400, 1]] * 2 + [[i, 2] for i in range(900)]):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(bad)
        assert caught.value.param == "logit_bias", bad
