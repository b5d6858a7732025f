"""Anthropic's /v1/messages by their own client, unmodified: models say what their family writes (saying.py), and what goes back and
forth is typed and put together by the client's library."""
import json
import os
import uuid

import anthropic
import httpx
import pydantic
import pytest
import saying
from conftest import GOLDEN, KEY, start
from test_prefill import TALK, WORDS, chat, folder_with
from test_structured import PERSON, Order, judge
from test_tools import ANSWER, ARGUMENTS, FAMILIES, RESULT, SAID, THOUGHT

TOOL = {"name": "get_weather", "description": "The weather of a city.",
        "input_schema": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Its name."}, "days": {"type": "integer"}}}}
QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
ASK = {"model": "m", "max_tokens": 200, "messages": QUESTION, "extra_body": {"temperature": 0}}  # which the library has no more
OF = ["Qwen3", "Qwen2.5", "Kimi-K2", "gpt-oss", "ChatML"]  # thoughts by tags and in a channel, own ids, no tools in the template


def client_of(server, **options):
    options = {"api_key": KEY, "max_retries": 0, "timeout": 60, **options}
    return anthropic.Anthropic(base_url=server.url, **options)


class Model:
    def __init__(self, running, family):
        words = FAMILIES[family][2]
        self.running, self.client, self.family = running, client_of(running), family
        self.thought = THOUGHT if THOUGHT in words else None
        self.said = SAID if SAID in words else None

    def ask(self, **more):
        return self.client.messages.create(**{**ASK, "tools": [TOOL], **more})

    def kinds(self):
        return ["thinking"] * bool(self.thought) + ["text"] * bool(self.said) + ["tool_use"]


@pytest.fixture(scope="module", params=OF)
def model(request, tmp_path_factory):
    template, tails, call, answer, special = FAMILIES[request.param]
    path = GOLDEN / "chat" / "templates" / f"{template[:40]}.jinja"
    folder = tmp_path_factory.mktemp("saying")
    saying.make(folder, path.read_text() if path.exists() else template, tails, [call, ("#sunny", answer)], special)
    (folder / "golden.json").write_text("{}")
    running = start(tmp_path_factory, folder, ["--served-model-name", "m", "--responses", "8"])
    yield Model(running, request.param)
    running.stop()


def check_order(events):
    """The order that Anthropic documents, and what the client's library does not check; the message as the events say it."""
    assert events[0].type == "message_start" and events[0].message.content == [] and events[0].message.stop_reason is None
    assert [e.type for e in events[-2:]] == ["message_delta", "message_stop"]
    blocks, open_block = [], False
    for e in events[1:-2]:
        if e.type == "content_block_start":
            assert not open_block and e.index == len(blocks)
            blocks.append([e.content_block, []])
            open_block = True
        elif e.type == "content_block_stop":
            assert open_block and e.index == len(blocks) - 1
            open_block = False
        else:
            assert e.type == "content_block_delta" and open_block and e.index == len(blocks) - 1
            blocks[-1][1].append(e.delta)
    assert not open_block
    return blocks


def prompt_of(message):
    """Tokens of its prompt: those that were cached are counted apart."""
    return message.usage.input_tokens + message.usage.cache_read_input_tokens


def same(a, b):
    """Two messages but for their ids, those of calls that are made of these, and what the library adds."""
    fields = ("type", "text", "thinking", "signature", "name", "input")
    seen = [([[getattr(c, f, None) for f in fields] for c in m.content], m.stop_reason, m.stop_sequence, m.model, m.role,
             prompt_of(m), m.usage.output_tokens, m.usage.output_tokens_details.thinking_tokens) for m in (a, b)]
    return seen[0] == seen[1]


def test_whole(model):
    message = model.ask()
    assert [c.type for c in message.content] == model.kinds() and message.stop_reason == "tool_use"
    assert message.type == "message" and message.role == "assistant" and message.id.startswith("msg_")
    assert message.content[-1].name == "get_weather" and message.content[-1].input == ARGUMENTS and message.content[-1].id
    if model.thought:
        assert message.content[0].thinking == model.thought
    if model.said:
        assert message.content[-2].text == model.said
    assert prompt_of(message) > 0 and message.usage.output_tokens > 0
    assert (message.usage.output_tokens_details.thinking_tokens > 0) == bool(model.thought)
    assert model.client.messages.count_tokens(model="m", messages=QUESTION, tools=[TOOL]).input_tokens == prompt_of(message)


def test_streamed(model):
    """Events in order; put together by the library they are the whole message."""
    whole = model.ask()
    blocks = check_order(list(model.ask(stream=True)))
    assert [b.type for b, _ in blocks] == model.kinds()
    assert json.loads("".join(d.partial_json for d in blocks[-1][1])) == ARGUMENTS
    with model.client.messages.stream(**ASK, tools=[TOOL]) as stream:
        assert {e.type for e in stream} >= {"input_json", "message_stop"}
        assert same(stream.get_final_message(), whole)


def test_tools_in_a_loop(model):
    """What came goes back as the library writes it, with the result; the answer follows."""
    for is_error in (False, True):
        message = model.ask()
        result = {"type": "tool_result", "tool_use_id": message.content[-1].id, "content": RESULT, "is_error": is_error}
        said = [*QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        answer = model.ask(messages=said)
        assert answer.content[-1].text == ANSWER and answer.stop_reason == "end_turn"
        result["content"] = [{"type": "text", "text": RESULT, "cache_control": {"type": "ephemeral"}}]
        with model.client.messages.stream(**{**ASK, "tools": [TOOL], "messages": said}) as stream:
            assert "".join(stream.text_stream) == ANSWER


def test_ends(model):
    asked = {**ASK, "messages": [{"role": "user", "content": RESULT}]}
    stopped = model.client.messages.create(**asked, stop_sequences=["zzz", " in Oslo"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " in Oslo")
    assert stopped.content[-1].text == "It is sunny"
    with model.client.messages.stream(**asked, stop_sequences=["zzz", " in Oslo"]) as stream:
        assert same(stream.get_final_message(), stopped)
    short = model.client.messages.create(**{**asked, "max_tokens": 2})
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 2
    assert model.client.messages.create(**{**asked, "max_tokens": 10**6}).stop_reason == "end_turn"


def test_a_tool_by_name_and_none(model):
    named = model.ask(tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=200)
    assert [c.name for c in named.content if c.type == "tool_use"] == ["get_weather"]
    assert model.ask(tool_choice={"type": "any"}, max_tokens=200).content[-1].type == "tool_use"
    assert not any(c.type == "tool_use" for c in model.ask(tool_choice={"type": "none"}).content)
    # a call of which the end was cut: what is there of its arguments
    cut = model.ask(tool_choice={"type": "auto", "disable_parallel_tool_use": True}, max_tokens=200)
    assert cut.stop_reason == "tool_use"


def test_thinking(model):
    on = {"type": "enabled", "budget_tokens": 1024}
    has_switch, thinks = model.family == "Qwen3", bool(model.thought)
    if has_switch or thinks:
        assert model.ask(thinking=on).content[0].type == "thinking"
    else:
        with pytest.raises(anthropic.BadRequestError, match="thinking"):
            model.ask(thinking=on)
    if has_switch or not thinks:
        model.ask(thinking={"type": "disabled"}, max_tokens=3)
    else:
        with pytest.raises(anthropic.BadRequestError, match="thinking"):
            model.ask(thinking={"type": "disabled"})
    assert model.ask(thinking={"type": "adaptive"}).stop_reason == "tool_use"


def test_asked_again(model):
    key = {"Idempotency-Key": str(uuid.uuid4())}
    first = model.ask(extra_headers=key)
    assert model.ask(extra_headers=key) == first
    head = {"x-api-key": KEY}
    assert model.running.get(f"/v1/messages/{first.id}", headers=head).json() == first.to_dict()
    key = {"Idempotency-Key": str(uuid.uuid4())}
    asked = {**ASK, "messages": [{"role": "user", "content": RESULT}], "stop_sequences": [" in"], "extra_headers": key}
    stopped = model.client.messages.create(**asked)
    assert model.client.messages.create(**asked) == stopped and stopped.stop_reason == "stop_sequence"
    # the same caller, however the key is sent; nobody else
    assert model.running.get(f"/v1/messages/{first.id}", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
    assert model.running.get(f"/v1/messages/{first.id}", headers={"x-api-key": "other"}).status_code == 404
    assert model.running.get(f"/v1/chat/completions/{first.id}", headers=head).status_code == 404


REFUSED = [
    ({"max_tokens": anthropic.omit}, "max_tokens: missing"),
    ({"max_tokens": 0}, "max_tokens: 0 is outside"),
    ({"extra_body": {"temperature": 3}}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"messages": []}, "messages: empty"),
    ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].role: none of user, assistant, system"),
    ({"messages": [*QUESTION, {"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
     r"messages\[1\].content\[1\]: .* no answer goes on behind a tool_use"),
    ({"messages": [*QUESTION, {"role": "assistant", "content": "It"}], "tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"output_config": 3}, "output_config: not an object"), ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type: not"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: missing"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}, "name": "x"}}}, "output_config.format.name: not supported"),
    ({"extra_body": {"output_format": {"type": "json_schema", "schema": 3}}}, "output_format.schema: missing"),
    ({"extra_body": {"output_format": {"type": "json_schema", "schema": {}}, "output_config": {"format": {"type": "json_schema", "schema": {}}}}},
     "output_format: the answer has a shape by output_config.format already"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"unevaluatedProperties": {"minimum": 1}}}}}, "unevaluatedProperties: this"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}, "extra_body": {"ignore_eos": True}}, "ignore_eos: not with output_config.format"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/"}}]}]},
     r'messages\[0\].content\[0\]: blocks of type "image"'),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "x"}}]}]}, '"document"'),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "image", "source": {"type": "url", "url": "http://x/"}}]}]}]}, r"messages\[0\].content\[0\].content\[0\]: blocks"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, *QUESTION]}, '"redacted_thinking"'),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}, '"tool_use"'),
    ({"system": [{"type": "image"}]}, r'system\[0\]: blocks of type "image"'),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r'tools\[0\]: "web_search_20250305" is not supported'),
    ({"tools": [{"name": "f"}]}, r"tools\[0\]: not"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice: none of"),
    ({"tool_choice": {"type": "tool", "name": "other"}, "tools": [TOOL]}, 'tool_choice: tools has no function "other"'),
    ({"thinking": {"type": "enabled"}}, "budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}}, "thinking.display"),
    ({"container": {"id": "x"}}, "container: not supported"), ({"extra_body": {"thread": {}}}, "thread: not supported"),
    ({"extra_body": {"frequency": 1}}, 'unknown field "frequency"'),
    ({"model": "other"}, "model"),
]


def test_refusals(server):
    client = client_of(server)
    for changed, text in REFUSED:
        with pytest.raises(anthropic.APIStatusError, match=text) as caught:
            client.messages.create(**{**ASK, "model": server.model, **changed})
        e = caught.value
        wanted = (404, "not_found_error") if "model" in changed else (400, "invalid_request_error")
        assert (e.status_code, e.body["error"]["type"]) == wanted and e.body["type"] == "error" and e.request_id, (changed, e)
    with pytest.raises(anthropic.BadRequestError, match="output_config"):
        client.messages.create(**{**ASK, "model": server.model, "output_config": {"effort": "much"}})


@pytest.mark.parametrize("stream", [False, True])
def test_given_words(server, stream):
    """The answer goes on from the assistant's last message, as a chat's does; what is given is not repeated."""
    client, ask = client_of(server), {"model": server.model, "max_tokens": 12, "extra_body": {"temperature": 0}}
    said = chat(server)
    blocks = [*QUESTION, {"role": "assistant", "content": [{"type": "text", "text": WORDS, "cache_control": {"type": "ephemeral"}}]}]
    for talk in (TALK, [*TALK[:-1], {"role": "assistant", "content": WORDS}], [TALK[0], *blocks[1:]]):
        if stream:
            with client.messages.stream(**ask, messages=talk) as events:
                made = events.get_final_message()
        else:
            made = client.messages.create(**ask, messages=talk)
        assert made.content[0].text == said.choices[0].message.content and len(made.content) == 1
        assert prompt_of(made) == said.usage.prompt_tokens
        assert client.messages.count_tokens(model=server.model, messages=talk).input_tokens == prompt_of(made)
    # what was said is the beginning of what is said next
    further = client.messages.create(**ask, messages=[*TALK[:-1], {"role": "assistant", "content": WORDS + made.content[0].text}])
    assert prompt_of(further) > prompt_of(made)
    # a turn before it is the same turn
    parts = [*TALK[:-1], {"role": "assistant", "content": "Then"}, {"role": "assistant", "content": WORDS}]
    two = prompt_of(client.messages.create(**ask, messages=parts))
    assert two == chat(server, messages=[*TALK[:-1], {"role": "assistant", "content": "Then\n" + WORDS}]).usage.prompt_tokens


def test_given_words_that_a_template_does_not_show(make_server, tmp_path):
    server = make_server(folder_with(tmp_path, "qwen3moe-tiny", "{% for m in messages %}{{ m.role }}: {{ m.content[:9] }}\n{% endfor %}"))
    for ask in (client_of(server).messages.create, lambda max_tokens, **o: client_of(server).messages.count_tokens(**o)):
        with pytest.raises(anthropic.BadRequestError, match="messages: this model's chat template does not show"):
            ask(model="model", max_tokens=4, messages=TALK)


def test_the_parse_helper(server):
    """Pydantic's own schema, made strict by Anthropic's client; whole and streamed."""
    ask = {"model": server.model, "messages": [{"role": "user", "content": "Order."}], "output_format": Order, "max_tokens": 320}
    for seed in range(10):
        try:
            made = client_of(server).messages.parse(**ask, extra_body={"seed": seed, "temperature": 0.7})
            with client_of(server).messages.stream(**ask, extra_body={"seed": seed, "temperature": 0.7}) as stream:
                assert stream.get_final_message().parsed_output == made.parsed_output
        except pydantic.ValidationError:  # it was cut
            continue
        assert isinstance(made.parsed_output, Order) and made.stop_reason == "end_turn"
        return
    raise AssertionError("no answer came to its end")


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_shapes(server, field):
    """The form of today, and the one before it; also from given words."""
    shape, whole = {"type": "json_schema", "schema": PERSON}, 0
    for seed in range(10):
        extra = {"seed": seed, "temperature": 0.7, field: {"format": shape} if field == "output_config" else shape}
        made = client_of(server).messages.create(model=server.model, max_tokens=320, messages=QUESTION, extra_body=extra)
        whole += judge(made.content[0].text, "stop" if made.stop_reason == "end_turn" else "length", PERSON)
    assert whole > 0
    color = {"type": "json_schema", "schema": {"enum": ["red", "green"]}}
    extra = {field: {"format": color} if field == "output_config" else color}
    made = client_of(server).messages.create(model=server.model, max_tokens=60, messages=TALK, extra_body=extra)
    assert json.loads(made.content[0].text) in ("red", "green") and made.stop_reason == "end_turn"


def test_a_shape_behind_a_thought(model):
    color = {"format": {"type": "json_schema", "schema": {"enum": ["red", "green"]}}}
    made = model.client.messages.create(**{**ASK, "messages": [{"role": "user", "content": RESULT}]}, output_config=color)
    assert [c.type for c in made.content] == ["thinking"] * (model.family == "Qwen3") + ["text"]
    assert json.loads(made.content[-1].text) in ("red", "green")


def test_headers(locked_server):
    """x-api-key and Authorization, the version, errors before the body is read."""
    client = client_of(locked_server)
    asked = {**ASK, "model": "org/other name", "max_tokens": 3, "extra_body": {"ignore_eos": True}}
    assert client.messages.create(**asked).usage.output_tokens == 3
    assert client_of(locked_server, api_key=None, auth_token=KEY).messages.create(**asked).stop_reason == "max_tokens"
    with pytest.raises(anthropic.AuthenticationError) as caught:
        client_of(locked_server, api_key="wrong").messages.create(**asked)
    assert caught.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.BadRequestError, match="anthropic-version"):
        client.messages.create(**asked, extra_headers={"anthropic-version": "2023-01-01"})
    answer = httpx.get(locked_server.url + "/v1/messages", headers={"x-api-key": KEY})
    assert answer.status_code == 405 and answer.json()["type"] == "error" and answer.headers["request-id"]


def test_conversations_as_clients_send_them(server):
    """System in blocks, turns of one party in a row, empty texts, results and words together."""
    client, tool = client_of(server), {"name": "f", "input_schema": {"type": "object"}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1, None, "\n"]}}
    talk = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "c"}, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}, {"type": "text", "text": "go on"}]}]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Be kind."}]
    more = {"system": system, "metadata": {"user_id": "u"}, "service_tier": "auto"}
    made = client.messages.create(model=server.model, max_tokens=4, messages=talk, tools=[tool], **more,
                                  extra_body={"ignore_eos": True, "top_k": 5, "top_p": 0.9, "temperature": 0.5})
    assert made.usage.output_tokens == 4 and made.stop_reason == "max_tokens"
    counted = client.messages.count_tokens(model=server.model, messages=talk, tools=[tool], system=system)
    assert counted.input_tokens == prompt_of(made)
    assert client.messages.count_tokens(model=server.model, messages=talk).input_tokens < counted.input_tokens


def test_hostile_bodies(named_server):
    """Bounded, a clear error, and others are served meanwhile."""
    other = named_server.client()
    big = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": "y" * 10_000_000}}
    for body in ({"messages": [*QUESTION, {"role": "assistant", "content": [big]}, *QUESTION]},
                 {"tools": [{**TOOL, "name": f"f{i}"} for i in range(10_000)]},
                 {"system": [{"type": "text", "text": "z" * 100}] * 20_000},
                 {"messages": QUESTION * 5000},
                 {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 50_000}]}):
        asked = {"model": "first", "max_tokens": 1, "messages": QUESTION, **body}
        answer = httpx.post(named_server.url + "/v1/messages", json=asked, timeout=60)
        assert answer.status_code in (400, 413) and answer.json()["error"]["type"] == "invalid_request_error", answer.text[:300]
    nested = "[" * 100 + "]" * 100
    raw = httpx.post(named_server.url + "/v1/messages", content=f'{{"model":"first","max_tokens":1,"messages":{nested}}}')
    assert raw.status_code == 400 and raw.json()["error"]["type"] == "invalid_request_error"
    assert httpx.post(named_server.url + "/v1/messages", content=b"[1]").status_code == 400
    assert httpx.post(named_server.url + "/v1/messages", content=os.urandom(100)).status_code == 400
    assert other.chat.completions.create(model="first", max_tokens=1, messages=QUESTION).usage.completion_tokens == 1


def test_a_client_that_leaves_ends_it(server):
    client = client_of(server)
    asked = {**ASK, "model": server.model, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
    with client.messages.create(**asked, stream=True) as stream:
        assert next(iter(stream)).type == "message_start"
    assert server.wait_idle()
