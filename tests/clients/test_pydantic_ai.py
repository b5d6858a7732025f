"""pydantic-ai: an agent with functions and typed answers, whole and streamed; by chats, responses and messages."""
import asyncio

import pydantic
import pytest
from conftest import FORECAST, LAST, PERSON, PLAIN, SAID, add, get_weather
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Person(pydantic.BaseModel):
    """Somebody."""
    name: str
    age: int


@pytest.fixture(params=["chat", "responses", "messages"])
def model(server, request):
    if request.param == "messages":
        profile = AnthropicModelProfile(supports_json_schema_output=True)  # which it knows of Anthropic's own models only
        return AnthropicModel("m", provider=AnthropicProvider(base_url=server.url, api_key="none"), profile=profile)
    kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return kind("m", provider=OpenAIProvider(base_url=server.v1, api_key="none"))


def test_plain(model):
    result = Agent(model, instructions="Be brief.").run_sync("Why is the sea salty?")
    assert result.output == PLAIN and result.usage.output_tokens > 0


def test_streamed(model):
    async def run():
        async with Agent(model).run_stream("Why is the sea salty?") as stream:
            return [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    for _ in range(40):  # a reader that was late gets all in one piece
        pieces = asyncio.run(run())
        assert "".join(pieces) == PLAIN
        if len(pieces) > 1:
            return
    pytest.fail("never in pieces")


def test_tools_in_a_loop(model):
    result = Agent(model, tools=[get_weather, add]).run_sync(FORECAST)
    assert result.output == LAST
    calls = [p.tool_name for m in result.all_messages() for p in m.parts if p.part_kind == "tool-call"]
    assert calls == ["get_weather", "add"]
    again = Agent(model).run_sync("Why is the sea salty? #person", message_history=result.all_messages())
    assert again.output.startswith("{")


def test_tools_in_a_loop_streamed(model):
    """Every event on the way, of text and of calls."""
    async def run():
        async with Agent(model, tools=[get_weather, add]).run_stream_events(FORECAST) as events:
            return [event async for event in events]
    events = asyncio.run(run())
    assert events[-1].result.output == LAST
    assert [e.part.tool_name for e in events if e.event_kind == "function_tool_call"] == ["get_weather", "add"]
    text = "".join(e.part.content if e.event_kind == "part_start" else e.delta.content_delta for e in events
                   if (e.event_kind == "part_start" and e.part.part_kind == "text")
                   or (e.event_kind == "part_delta" and e.delta.part_delta_kind == "text"))
    assert text.startswith(SAID) and text.endswith(LAST)


@pytest.mark.parametrize("form", [NativeOutput, PromptedOutput, ToolOutput])
def test_a_typed_answer(model, form):
    word = "#asfinal_result" if form is ToolOutput else "#person"
    assert Agent(model, output_type=form(Person)).run_sync(f"Who? {word}").output == Person(**PERSON)


def test_a_typed_answer_streamed(model):
    async def run():
        async with Agent(model, output_type=NativeOutput(Person)).run_stream("Who? #person") as stream:
            async for _ in stream.stream_output(debounce_by=None):
                pass
            return await stream.get_output()
    assert asyncio.run(run()) == Person(**PERSON)


def test_an_error_is_its_own(model):
    with pytest.raises(ModelHTTPError) as caught:
        Agent(model).run_sync("Why?", model_settings={"max_tokens": 0})
    assert caught.value.status_code == 400
