"""OpenAI's /v1/responses by their own client, unmodified: models say what their family writes (saying.py), events are typed and put
together by the client's library, conversations go on from what the server keeps."""
import json
import threading
import typing
import uuid

import httpx
import openai
import pydantic
import pytest
import saying
from conftest import GOLDEN, KEY, start
from test_structured import PERSON, Order, judge
from test_tools import ANSWER, ARGUMENTS, FAMILIES, RESULT, SAID, THOUGHT

TOOL = {"type": "function", "name": "get_weather", "description": "The weather of a city.", "strict": False,
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Its name."}, "days": {"type": "integer"}}}}
QUESTION = "What is the weather in Oslo?"
OF = ["Qwen3", "Qwen2.5", "Kimi-K2", "gpt-oss", "ChatML"]


class Model:
    def __init__(self, running, family):
        words = FAMILIES[family][2]
        self.running, self.client, self.family = running, running.client(), family
        self.thought = THOUGHT if THOUGHT in words else None
        self.said = SAID if SAID in words else None

    def ask(self, input=QUESTION, **more):
        return self.client.responses.create(**{"model": "m", "input": input, "tools": [TOOL], "temperature": 0, **more})

    def kinds(self):
        return ["reasoning"] * bool(self.thought) + ["message"] * bool(self.said) + ["function_call"]


@pytest.fixture(scope="module", params=OF)
def model(request, tmp_path_factory):
    template, tails, call, answer, special = FAMILIES[request.param]
    path = GOLDEN / "chat" / "templates" / f"{template[:40]}.jinja"
    folder = tmp_path_factory.mktemp("saying")
    saying.make(folder, path.read_text() if path.exists() else template, tails, [call, ("#sunny", answer)], special)
    (folder / "golden.json").write_text("{}")
    running = start(tmp_path_factory, folder, ["--served-model-name", "m", "--responses", "64"])
    yield Model(running, request.param)
    running.stop()


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    running = start(tmp_path_factory, "qwen3moe-tiny", ["--attention", "1", "--experts", "1", "--responses", "16"])
    yield running
    running.stop()


DONE = {"response.output_text.done": "text", "response.reasoning_text.done": "text",
        "response.function_call_arguments.done": "arguments"}


def check_order(events):
    """The order that OpenAI documents, and what its library does not check; the last response."""
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    assert all(e.response.status == "in_progress" and e.response.output == [] for e in events[:2])
    assert events[-1].type in ("response.completed", "response.incomplete")
    items, part, text = [], None, ""
    for e in events[2:-1]:
        if e.type == "response.output_item.added":
            assert e.output_index == len(items) and e.item.status == "in_progress"
            items.append([e.item, None])
            text = ""
        elif e.type == "response.output_item.done":
            assert e.output_index == len(items) - 1 and e.item.id == items[-1][0].id and part is None
            items[-1][1] = e.item
        elif e.type == "response.content_part.added":
            assert part is None and e.content_index == 0 and e.item_id == items[-1][0].id
            part = e.part
        elif e.type == "response.content_part.done":
            assert part is not None and e.part.type == part.type and e.part.text == text
            part = None
        elif e.type in DONE:
            assert e.item_id == items[-1][0].id and getattr(e, DONE[e.type]) == text
        else:
            assert e.type.endswith(".delta") and e.item_id == items[-1][0].id and e.output_index == len(items) - 1
            text += e.delta
    assert [done for _, done in items] == events[-1].response.output
    return events[-1].response


def usage_of(r):
    """But for what was cached, which a first one finds less of."""
    return {**r.usage.to_dict(), "input_tokens_details": 0}


def same(a, b):
    """Two responses but for their ids, those of their items, times, and what was cached."""
    def drop(r):
        return {**r.to_dict(), "usage": usage_of(r), "id": 0, "created_at": 0, "output": [{**i.to_dict(), "id": 0, "call_id": 0} for i in r.output]}
    return drop(a) == drop(b)


def test_whole_and_streamed(model):
    whole = model.ask()
    assert [i.type for i in whole.output] == model.kinds() and whole.status == "completed" and whole.id.startswith("resp_")
    call = whole.output[-1]
    assert call.name == "get_weather" and json.loads(call.arguments) == ARGUMENTS and call.call_id
    assert whole.output_text == (model.said or "")
    if model.thought:
        assert whole.output[0].content[0].text == model.thought and whole.output[0].summary == []
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens > 0
    assert (whole.usage.output_tokens_details.reasoning_tokens > 0) == bool(model.thought)
    assert whole.tools[0].name == "get_weather" and whole.temperature == 0 and whole.store
    assert same(check_order(list(model.ask(stream=True))), whole)
    with model.client.responses.stream(model="m", input=QUESTION, tools=[TOOL], temperature=0) as stream:
        assert "response.completed" in [e.type for e in stream]
        final = stream.get_final_response()
    assert [i.type for i in final.output] == model.kinds() and json.loads(final.output[-1].arguments) == ARGUMENTS


def test_tools_in_a_loop(model):
    """What came goes back as items, or stays with the server; whole and streamed."""
    first = model.ask()
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": RESULT}
    mine = model.ask([{"role": "user", "content": QUESTION}, *first.output, result], store=False)
    theirs = model.ask([result], previous_response_id=first.id)
    streamed = check_order(list(model.ask([{**result, "output": [{"type": "input_text", "text": RESULT}]}],
                                          previous_response_id=first.id, stream=True)))
    assert [r.output_text for r in (mine, theirs, streamed)] == [ANSWER] * 3
    assert usage_of(mine) == usage_of(theirs) == usage_of(streamed) and not mine.store
    assert theirs.previous_response_id == streamed.previous_response_id == first.id
    # and on: all that was said is there
    further = model.ask("Thanks " + RESULT, previous_response_id=theirs.id)
    assert further.usage.input_tokens > theirs.usage.input_tokens
    kinds = [i.type for i in model.client.responses.input_items.list(further.id, order="asc", limit=100)]
    assert kinds == ["message", *model.kinds(), "function_call_output",
                     *(["reasoning"] if model.family == "Qwen3" else []), "message", "message"]


def test_a_function_by_name_and_none(model):
    named = model.ask(tool_choice={"type": "function", "name": "get_weather"}, max_output_tokens=200)
    assert [i.name for i in named.output if i.type == "function_call"] == ["get_weather"]
    assert model.ask(tool_choice="required", max_output_tokens=200).output[-1].type == "function_call"
    assert not any(i.type == "function_call" for i in model.ask(tool_choice="none").output)
    # a format is of texts, of which such an answer has none; instructor sends both
    format = {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": TOOL["parameters"]}}
    both = model.ask(tool_choice={"type": "function", "name": "get_weather"}, text=format, max_output_tokens=200)
    said = [[(i.name, i.arguments) for i in r.output if i.type == "function_call"] for r in (both, named)]
    assert said[0] == said[1] and both.text.format.name == "a"
    one = model.ask(parallel_tool_calls=False)  # it ends with the call, whatever the model goes on to say
    assert model.client.responses.retrieve(one.id) == one and one.output[-1].name == "get_weather"


class Verdict(pydantic.BaseModel):
    city: typing.Literal["Oslo", "Rome"]
    sunny: bool


def test_a_shape_beside_thoughts_and_tools(model):
    """The answer alone is held to it; calls stay calls."""
    ask = {"model": "m", "input": RESULT, "text_format": Verdict, "temperature": 0, "max_output_tokens": 2000}  # it likes white space
    whole = model.client.responses.parse(**ask)
    assert [i.type for i in whole.output] == ["reasoning"] * (model.family == "Qwen3") + ["message"]
    assert isinstance(whole.output_parsed, Verdict)
    with model.client.responses.stream(**ask) as stream:
        done = [e for e in stream if e.type == "response.output_text.done"]
        assert done[-1].parsed == stream.get_final_response().output_parsed == whole.output_parsed
    if model.family != "ChatML":  # without a template's tools an answer that begins like JSON may be a call
        both = model.client.responses.parse(**{**ask, "tools": [{**TOOL, "strict": False}], "input": QUESTION})
        call = both.output[-1]
        assert (json.loads(call.arguments) == ARGUMENTS) if call.type == "function_call" else isinstance(both.output_parsed, Verdict)


def test_ends(model):
    short = model.ask(max_output_tokens=2)
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"
    assert short.usage.output_tokens == 2 and all(i.status == "incomplete" for i in short.output[-1:])
    assert same(check_order(list(model.ask(max_output_tokens=2, stream=True))), short)


def test_kept(model):
    """By its id: again, as a stream, its items; deleted it is gone; nobody else's."""
    client, other = model.client, model.running.client(api_key="other")
    made = model.ask(metadata={"a": "b"}, instructions="Be brief.", user="u")
    assert client.responses.retrieve(made.id) == made and made.metadata == {"a": "b"} and made.instructions == "Be brief."
    assert check_order(list(client.responses.retrieve(made.id, stream=True))) == made
    for ask in (other.responses.retrieve, other.responses.delete, other.responses.cancel, other.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        other.responses.create(model="m", input="x", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found" and caught.value.param == "previous_response_id"
    items = client.responses.input_items.list(made.id).data
    assert [(i.role, i.content[0].text) for i in items] == [("user", QUESTION)]
    with pytest.raises(openai.BadRequestError, match="ended already"):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    unkept = model.ask(store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)
    key = {"Idempotency-Key": str(uuid.uuid4())}
    assert model.ask(extra_headers=key) == model.ask(extra_headers=key)


def test_pages_of_items(model):
    talk = [{"role": "user", "content": f"{i}"} for i in range(7)] + [{"role": "user", "content": QUESTION}]
    made = model.ask(talk, max_output_tokens=1)
    said = lambda page: [i.content[0].text for i in page]
    list_of = lambda **o: model.client.responses.input_items.list(made.id, **o)
    assert said(list_of(order="asc")) == [*"0123456", QUESTION] and said(list_of())[0] == QUESTION
    assert said(list_of(order="asc", limit=3)) == [*"0123456", QUESTION]  # the library asks for the next pages
    page = list_of(order="asc", limit=3)
    assert said(page.data) == ["0", "1", "2"] and page.has_more and not list_of(order="asc", limit=8).has_more


def test_cancel(keeping):
    """One that runs ends; its reader hears so."""
    client, heard = keeping.client(), []
    asked = {"model": keeping.model, "input": "Go on", "stream": True, "extra_body": {"ignore_eos": True}}
    for _ in range(9):  # the model is fast
        stream = client.responses.create(**asked)
        first = next(iter(stream))
        reader = threading.Thread(target=lambda: heard.extend(stream))
        reader.start()
        try:
            gone = client.responses.cancel(first.response.id)
            break
        except openai.BadRequestError as e:
            assert "ended already" in str(e)
            reader.join(20)
    assert gone.status == "cancelled" and gone.id == first.response.id
    reader.join(20)
    assert heard[-1].type == "response.failed" and heard[-1].response.status == "failed" and heard[-1].response.error.message
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.response.id)
    assert keeping.wait_idle()
    with client.responses.create(**asked) as left:  # a client that leaves ends it, too
        next(iter(left))
    assert keeping.wait_idle()


REFUSED = [
    ({"input": []}, "input: neither"), ({"input": 3}, "input: neither"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, r'input\[0\]: items of type "item_reference"'),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/"}]}]},
     r'input\[0\].content\[0\]: parts of type "input_image"'),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, '"input_file"'),
    ({"input": [{"role": "tool", "content": "x"}]}, r"input\[0\].role"),
    ({"input": [{"type": "function_call", "name": "f"}]}, r"input\[0\]: not"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, r"input\[0\].call_id"),
    ({"input": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}]}, "encrypted_content: not supported"),
    ({"tools": [{"type": "web_search"}]}, r'tools\[0\]: "web_search" is not supported: this server hosts no tools'),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, '"mcp"'), ({"tools": [{"type": "custom", "name": "x"}]}, '"custom"'),
    ({"tool_choice": {"type": "web_search"}}, 'tool_choice: "web_search"'),
    ({"tool_choice": "some"}, "tool_choice"),
    ({"background": True}, "background: only false"), ({"truncation": "auto"}, "truncation: only"),
    ({"conversation": "conv_1"}, "conversation: not supported"), ({"prompt": {"id": "x"}}, "prompt: not supported"),
    ({"top_logprobs": 3}, "top_logprobs"), ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"), ({"reasoning": {"effort": "much"}}, "reasoning"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"), ({"text": {"format": {"type": "grammar"}}}, "text.format.type: none of"),
    ({"text": {"format": "json"}}, "text.format: not an object"), ({"text": {"format": {"type": "text", "strict": True}}}, "text.format.strict"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema: missing"),
    ({"text": {"format": {"type": "json_schema", "json_schema": {"schema": {}}}}}, "text.format.json_schema: not supported"),
    ({"text": {"format": {"type": "json_schema", "schema": {}, "strict": 1}}}, "text.format.strict: an integer"),
    ({"text": {"format": {"type": "json_schema", "schema": {"unevaluatedProperties": {"minimum": 1}}}}}, "unevaluatedProperties: this keyword"),
    ({"text": {"format": {"type": "json_object"}}, "extra_body": {"ignore_eos": True}}, "ignore_eos: not with text.format"),
    ({"metadata": {"a": 3}}, "metadata.a"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata: 17 pairs"),
    ({"max_output_tokens": 0}, "max_output_tokens: 0 is outside"), ({"temperature": 3}, "temperature"),
    ({"store": True}, r"store: this server keeps no answers"),
    ({"previous_response_id": "resp_1"}, "previous_response_id: this server keeps no answers"),
    ({"extra_body": {"frequency": 1}}, 'unknown field "frequency"'),
]


def test_refusals(server):
    client = server.client()
    for changed, text in REFUSED:
        with pytest.raises(openai.BadRequestError, match=text) as caught:
            client.responses.create(**{"model": server.model, "input": "Hello", **changed})
        assert caught.value.param.split(".")[0] == next(iter(changed.get("extra_body") or changed)), (changed, caught.value)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="x")
    plain = client.responses.create(model=server.model, input="Hello", max_output_tokens=4, include=["reasoning.encrypted_content"],
                                    extra_body={"ignore_eos": True})
    assert plain.usage.output_tokens == 4 and not plain.store
    answer = httpx.put(server.url + "/v1/responses/x")
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD, POST, DELETE"
    assert httpx.delete(server.url + "/v1/responses").status_code == 405
    assert httpx.post(server.url + "/v1/responses/x/other").status_code == 404


def test_the_parse_helper(server):
    """Pydantic's own schema, made strict by OpenAI's client; the response repeats it."""
    ask = {"model": server.model, "input": "Order.", "text_format": Order, "max_output_tokens": 320, "temperature": 0.7}
    for seed in range(8):
        try:
            made = server.client().responses.parse(**ask, extra_body={"seed": seed})
            assert isinstance(made.output_parsed, Order)
            with server.client().responses.stream(**ask, extra_body={"seed": seed}) as stream:
                assert stream.get_final_response().output_parsed == made.output_parsed
        except pydantic.ValidationError:  # it was cut
            continue
        said = made.text.format
        assert (said.type, said.name, said.strict, made.text.verbosity) == ("json_schema", "Order", True, "medium")
        assert set(said.schema_["properties"]) == {"paid", "parts", "note"}
        return
    raise AssertionError("no answer came to its end")


SHAPES = {"strict": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True},
          "a schema": {"type": "json_schema", "name": "person", "schema": PERSON, "description": "Somebody."},
          "any object": {"type": "json_object"}, "a text": {"type": "text"}}


@pytest.mark.parametrize("name", SHAPES)
def test_formats_of_texts(keeping, name):
    ask = lambda seed, **o: keeping.client().responses.create(
        model=keeping.model, input="Say.", text={"format": SHAPES[name]}, temperature=0.7, max_output_tokens=320,
        extra_body={"seed": seed}, **o)
    whole = 0
    for seed in range(8):
        made = ask(seed)
        assert made.text.format.to_dict() == SHAPES[name] and keeping.client().responses.retrieve(made.id) == made
        assert same(check_order(list(ask(seed, stream=True))), made)
        if name == "a text":
            return
        ended = made.status == "completed"
        whole += judge(made.output_text, "stop" if ended else "length", PERSON if "schema" in SHAPES[name] else {"type": "object"})
    assert whole > 0


def test_a_schema_that_is_too_large_to_repeat(keeping):
    words = [f"word {i:05d}" for i in range(8000)]
    made = keeping.client().responses.create(model=keeping.model, input="Say.", max_output_tokens=60, text={
        "format": {"type": "json_schema", "name": "word", "schema": {"enum": words}, "strict": True}})
    assert made.text.format is None and json.loads(made.output_text) in words


def test_a_store_that_one_client_fills(keeping):
    """Bounded, and what others keep stays."""
    mine, other = keeping.client(api_key="mine"), keeping.client(api_key="greedy")
    ask = lambda client, **o: client.responses.create(model=keeping.model, input="x" * 200, max_output_tokens=2, **o)
    kept = [ask(mine) for _ in range(3)]
    for _ in range(40):
        last = ask(other)
        assert keeping.metric("responses_kept") <= 16
    assert [mine.responses.retrieve(r.id).id for r in kept] == [r.id for r in kept]
    assert other.responses.retrieve(last.id).id == last.id


def test_hostile_bodies(keeping):
    client = keeping.client()
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x":"' + "y" * 10_000_000 + '"}'}
    for body in ({"input": [{"role": "user", "content": "x"}, call]}, {"tools": [{**TOOL, "name": f"f{i}"} for i in range(10_000)]},
                 {"input": [{"role": "user", "content": "x"}] * 5000}, {"instructions": "z" * 10_000_000},
                 {"input": [{"type": "reasoning", "id": "r", "summary": []}] * 100_000},
                 {"previous_response_id": "x" * 1_000_000}):
        asked = {"model": keeping.model, "input": "x", "max_output_tokens": 1, **body}
        answer = httpx.post(keeping.url + "/v1/responses", json=asked, timeout=60)  # the library takes minutes for these
        assert answer.status_code in (400, 404, 413) and answer.json()["error"]["message"], answer.text[:300]
    assert client.responses.create(model=keeping.model, input="x", max_output_tokens=1).usage.output_tokens == 1


def test_conversations_outlive_a_restart(make_server, tmp_path):
    args = ["qwen3moe-tiny", "--responses", "8", "--exact", "--journal", str(tmp_path / "journal")]
    first = make_server(*args)
    ask = lambda s, **o: s.client().responses.create(model=s.model, temperature=0, max_output_tokens=6, **o)
    a = ask(first, input="And then")
    b = ask(first, input="Go on", previous_response_id=a.id)
    first.stop()
    second = make_server(*args)
    assert second.client().responses.retrieve(b.id) == b
    assert same(ask(second, input="Go on", previous_response_id=a.id), b)
    second.client().responses.delete(a.id)
    assert ask(second, input="More", previous_response_id=b.id).usage.input_tokens > b.usage.input_tokens


def spelled(logprobs):
    return bytes(b for entry in logprobs for b in entry.bytes).decode()


def test_logprobs_are_those_of_the_texts_tokens(model):
    """Not of reasoning, markers and calls, however the answer comes."""
    wish = dict(include=["message.output_text.logprobs"], top_logprobs=2)
    for more in (wish, {**wish, "input": [{"role": "user", "content": QUESTION}, {"role": "user", "content": "#sunny"}]}):
        whole = model.ask(**more)
        parts = [part for item in whole.output if item.type == "message" for part in item.content]
        for part in parts:  # a token may have a marker's beginning, too
            assert part.text in spelled(part.logprobs) and all(len(e.top_logprobs) == 2 for e in part.logprobs)
            assert part.text not in spelled(part.logprobs[1:]) and part.text not in spelled(part.logprobs[:-1])
            assert all(e.top_logprobs[0].logprob >= e.logprob for e in part.logprobs)
        events = list(model.ask(**more, stream=True))
        deltas = [e for e in events if e.type == "response.output_text.delta"]
        assert sum((e.model_dump()["logprobs"] for e in deltas), []) == sum((p.model_dump()["logprobs"] for p in parts), [])
        done = [e for e in events if e.type == "response.output_text.done"]
        assert [e.model_dump()["logprobs"] for e in done] == [p.model_dump()["logprobs"] for p in parts]
        assert [i.model_dump() for i in events[-1].response.output if i.type == "message"] == [
            {**i.model_dump(), "id": j.id} for i, j in zip((i for i in whole.output if i.type == "message"),
                                                           (j for j in events[-1].response.output if j.type == "message"))]
    plain = model.ask()
    assert all(part.logprobs == [] for item in plain.output if item.type == "message" for part in item.content)


def test_logprobs_as_chats_have_them(keeping):
    client = keeping.client()
    body = dict(model=keeping.fixture, temperature=0)
    chat = client.chat.completions.create(**body, messages=[{"role": "user", "content": "Hello"}], max_tokens=12, logprobs=True, top_logprobs=3)
    events = list(client.responses.create(**body, input="Hello", max_output_tokens=12, stream=True, top_logprobs=3,
                                          include=["message.output_text.logprobs"]))
    text = events[-1].response.output_text
    got = [e for i in events[-1].response.output if i.type == "message" for p in i.content for e in p.logprobs]
    want = [e for e in chat.choices[0].logprobs.content][:len(got)]
    assert text == chat.choices[0].message.content and spelled(got) == text
    assert [(e.token, e.logprob) for e in got] == [(e.token, e.logprob) for e in want]


def test_what_went_in_and_came_out(keeping):
    """enable_response_messages, of vLLM: text and tokens of prompt and answer."""
    ask = lambda **more: httpx.post(keeping.url + "/v1/responses", timeout=60,
                                    json={"input": "Hello", "max_output_tokens": 6, "temperature": 0, "store": False, **more})
    body = ask(enable_response_messages=True).json()
    ids = httpx.post(keeping.url + "/tokenize", json={"messages": [{"role": "user", "content": "Hello"}]}).json()["tokens"]
    said = lambda ids: httpx.post(keeping.url + "/detokenize", json={"tokens": ids}).json()["prompt"]
    assert body["input_messages"] == [{"type": "raw_message_tokens", "message": said(ids), "tokens": ids}]
    out = body["output_messages"][0]
    assert out["message"] == said(out["tokens"]) and len(out["tokens"]) == body["usage"]["output_tokens"]
    assert "input_messages" not in ask().json()
    for more in ({"enable_response_messages": 1}, {"enable_response_messages": True, "stream": True}):
        answer = ask(**more)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "enable_response_messages", answer.text
