"""llama-index: its OpenAI-like model over chats; plain, streams, agents of functions, typed answers."""
import asyncio

import pydantic
import pytest
from conftest import FORECAST, LAST, PERSON, PLAIN, add, get_weather
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


class Person(pydantic.BaseModel):
    """Somebody."""
    name: str
    age: int


@pytest.fixture
def model(server):
    return OpenAILike(model="m", api_base=server.v1, api_key="none", is_chat_model=True, is_function_calling_model=True,
                      context_window=32768)


def test_plain(model):
    assert model.complete("Why is the sea salty?").text == PLAIN
    assert model.chat([ChatMessage(role="user", content="Why?")]).message.content == PLAIN


def test_streamed(model):
    assert "".join(c.delta or "" for c in model.stream_chat([ChatMessage(role="user", content="Why?")])) == PLAIN
    assert list(model.stream_complete("Why?"))[-1].text == PLAIN


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent(model, stream):
    async def run():
        agent = FunctionAgent(tools=[get_weather, add], llm=model, streaming=stream)
        return await agent.run(FORECAST)
    answer = asyncio.run(run())
    assert str(answer) == LAST and [c.tool_name for c in answer.tool_calls] == ["get_weather", "add"]


def test_predict_and_call(model):
    tools = [FunctionTool.from_defaults(f) for f in (get_weather, add)]
    answer = model.predict_and_call(tools, FORECAST)
    assert str(answer) == get_weather("Oslo", 3)


def test_structured(model):
    assert model.as_structured_llm(Person).complete("Who? #asPerson").raw == Person(**PERSON)
