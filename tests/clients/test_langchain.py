"""langchain: chat models and agents; by chats, by responses and by Anthropic's messages."""
import asyncio

import pydantic
import pytest
from conftest import FORECAST, LAST, PERSON, PLAIN, SAID, add, get_weather
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

LOOP = asyncio.new_event_loop()  # one: the library's clients are shared, and bound to it
FUNCTIONS = {"get_weather": get_weather, "add": add}


class Person(pydantic.BaseModel):
    """Somebody."""
    name: str
    age: int


@pytest.fixture(params=["chat", "responses", "messages"])
def model(server, request):
    if request.param == "messages":
        return ChatAnthropic(model="m", base_url=server.url, api_key="none")
    return ChatOpenAI(model="m", base_url=server.v1, api_key="none", use_responses_api=request.param == "responses")


def test_plain_and_streamed(model):
    whole = model.invoke("Why is the sea salty?")
    assert whole.text == PLAIN and whole.usage_metadata["output_tokens"] > 0
    pieces = list(model.stream("Why is the sea salty?"))
    assert "".join(p.text for p in pieces) == PLAIN and len(pieces) > 2
    assert [a.text for a in model.batch(["Why?", "Why is the sea salty?"])] == [PLAIN, PLAIN]

    async def run():
        return [p.text async for p in model.astream("Why?")]
    assert "".join(LOOP.run_until_complete(run())) == PLAIN


def test_a_chain(model):
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "Why is {what} salty?")])
    chain = prompt | model | StrOutputParser()
    assert chain.invoke({"what": "the sea"}) == PLAIN == "".join(chain.stream({"what": "the sea"}))


@pytest.mark.parametrize("stream", [False, True])
def test_tools_in_a_loop(model, stream):
    bound, messages, said = model.bind_tools([get_weather, add]), [HumanMessage(FORECAST)], []
    for _ in range(5):
        if stream:
            pieces = list(bound.stream(messages))
            answer = pieces[0]
            for piece in pieces[1:]:
                answer += piece
        else:
            answer = bound.invoke(messages)
        messages.append(answer)
        said.append(answer.text.strip())
        if not answer.tool_calls:
            break
        messages += [ToolMessage(FUNCTIONS[c["name"]](**c["args"]), tool_call_id=c["id"]) for c in answer.tool_calls]
    assert said == [SAID, "", LAST]


def test_an_agent(model):
    agent = create_agent(model, tools=[get_weather, add], system_prompt="Be brief.")
    done = agent.invoke({"messages": [{"role": "user", "content": FORECAST}]})["messages"]
    assert done[-1].text == LAST and [c["name"] for m in done for c in getattr(m, "tool_calls", [])] == ["get_weather", "add"]
    text = "".join(piece.text for piece, _ in agent.stream({"messages": [{"role": "user", "content": FORECAST}]}, stream_mode="messages")
                   if piece.type == "AIMessageChunk")
    assert text.startswith(SAID) and text.endswith(LAST)


def test_tool_choice(model):
    named = model.bind_tools([get_weather, add], tool_choice="add").invoke("#celsius?").tool_calls
    assert [(c["name"], c["args"]) for c in named] == [("add", {"a": 21, "b": 3})]
    some = model.bind_tools([get_weather, add], tool_choice="any").invoke("#both cities?").tool_calls
    assert [(c["name"], c["args"]) for c in some] == [("get_weather", {"city": "Oslo", "days": 1})]


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured(model, method):
    if isinstance(model, ChatAnthropic) and method == "json_mode":
        return  # which it does not have
    word = "#asPerson" if method == "function_calling" else "#person"
    assert model.with_structured_output(Person, method=method).invoke(f"Who, as JSON? {word}") == Person(**PERSON)


def test_an_agent_with_a_typed_answer(model):
    agent = create_agent(model, tools=[], response_format=ProviderStrategy(Person))
    assert agent.invoke({"messages": [{"role": "user", "content": "Who? #person"}]})["structured_response"] == Person(**PERSON)
