"""litellm: chats, streams, a loop of tools, schemas; by the OpenAI route, by its Anthropic route and as responses."""
import json

import litellm
import pydantic
import pytest
from conftest import FORECAST, LAST, PERSON, PLAIN, SAID, add, get_weather

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {k: {"type": kind} for k, kind in fields.items()}, "required": list(fields)}}}
    for name, fields in (("get_weather", {"city": "string", "days": "integer"}), ("add", {"a": "integer", "b": "integer"}))]
FUNCTIONS = {"get_weather": get_weather, "add": add}


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture(params=["openai/m", "hosted_vllm/m", "anthropic/m"])
def ask(server, request):
    base = server.url if request.param.startswith("anthropic") else server.v1

    def ask(text, **more):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return litellm.completion(request.param, messages, api_base=base, api_key="none", **more)

    ask.route = request.param
    return ask


def test_plain_and_streamed(ask):
    whole = ask("Why is the sea salty?")
    assert whole.choices[0].message.content == PLAIN and whole.choices[0].finish_reason == "stop" and whole.usage.completion_tokens > 0
    chunks = list(ask("Why is the sea salty?", stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == PLAIN
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_tools_in_a_loop(ask, stream):
    messages, said = [{"role": "user", "content": FORECAST}], []
    for _ in range(5):
        answer = ask(messages, tools=TOOLS, stream=stream)
        message = (litellm.stream_chunk_builder(list(answer), messages=messages) if stream else answer).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        said.append(message.content)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": result})
    assert len(said) == 3 and said[0] == SAID and said[2] == LAST


def test_structured(ask):
    word = "#asjson_tool_call" if ask.route.startswith("anthropic") else "#person"  # there it makes a function of the schema, and has to have it called
    answer = ask("Who? " + word, response_format=Person)
    assert Person.model_validate_json(answer.choices[0].message.content) == Person(**PERSON)


def test_responses(server):
    answer = litellm.responses(model="openai/m", input="Why is the sea salty?", api_base=server.v1, api_key="none")
    assert answer.output[0].content[0].text == PLAIN
    events = list(litellm.responses(model="openai/m", input="Why?", stream=True, api_base=server.v1, api_key="none"))
    assert events[-1].type == "response.completed"


def test_an_error_is_its_own(ask):
    with pytest.raises(litellm.BadRequestError):
        ask("Why?", temperature=-3)
