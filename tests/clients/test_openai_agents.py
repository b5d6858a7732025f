"""openai-agents: an agent with functions, typed answers, hand-offs and sessions; by responses, which is its own choice, and by chats."""
import asyncio

import agents
import pydantic
import pytest
from conftest import FORECAST, LAST, PERSON, PLAIN, add, call, get_weather
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

TOOLS = [agents.function_tool(get_weather), agents.function_tool(add)]  # strict ones


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture(params=[agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel])
def make_agent(server, request):
    agents.set_tracing_disabled(True)

    def make(**options):
        client = AsyncOpenAI(base_url=server.v1, api_key="none")
        return agents.Agent(name="A", model=request.param(model="m", openai_client=client), **options)

    make.model = request.param
    return make


async def run_streamed(agent, text, **options):
    """The last output, what it said on the way, and the kinds of what happened."""
    result, said, kinds = agents.Runner.run_streamed(agent, text, **options), "", []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            said += event.data.delta
        elif event.type == "run_item_stream_event":
            kinds.append(event.item.type)
    return result.final_output, said, kinds


def both(agent, text):
    """The same whole and streamed, in one loop of events, to which a client is bound."""
    async def run():
        return await agents.Runner.run(agent, text), await run_streamed(agent, text)
    return asyncio.run(run())


def test_plain_and_streamed(make_agent):
    result, (output, said, kinds) = both(make_agent(instructions="Be brief."), "Why is the sea salty?")
    assert result.final_output == output == said == PLAIN and result.context_wrapper.usage.output_tokens > 0
    assert kinds == ["message_output_item"]


def test_tools_in_a_loop(make_agent):
    result, (output, said, streamed) = both(make_agent(tools=TOOLS), FORECAST)
    assert result.final_output == output == LAST and said.endswith(LAST)
    kinds = [item.type for item in result.new_items]
    assert kinds.count("tool_call_item") == kinds.count("tool_call_output_item") == 2 and sorted(streamed) == sorted(kinds)


@pytest.mark.parametrize("stream", [False, True])
def test_a_typed_answer(make_agent, stream):
    agent = make_agent(output_type=Person)
    output = asyncio.run(run_streamed(agent, "Who? #person"))[0] if stream else agents.Runner.run_sync(agent, "Who? #person").final_output
    assert output == Person(**PERSON)


def test_a_function_that_has_to_be_called(make_agent):
    agent = make_agent(tools=TOOLS, model_settings=agents.ModelSettings(tool_choice="required"), tool_use_behavior="stop_on_first_tool")
    assert asyncio.run(agents.Runner.run(agent, "#both cities?")).final_output == get_weather("Oslo", 1)


def test_hand_offs(make, make_agent):
    server = make(["Nothing.", ("#weather", call("transfer_to_weather")), ("{'assistant': 'weather'}", LAST), ('{"assistant": "weather"}', LAST)])
    model = make_agent.model(model="m", openai_client=AsyncOpenAI(base_url=server.v1, api_key="none"))
    weather = agents.Agent(name="weather", model=model)
    desk = agents.Agent(name="desk", model=model, handoffs=[weather])
    result = asyncio.run(agents.Runner.run(desk, "How is the #weather?"))
    assert result.final_output == LAST and result.last_agent is weather


def test_a_session(make_agent):
    """What was said before goes back with the next question."""
    agent, session = make_agent(tools=TOOLS), agents.SQLiteSession("s")

    async def run():
        first = await agents.Runner.run(agent, "Why is the sea salty?", session=session)
        second = await agents.Runner.run(agent, FORECAST, session=session)
        return first, second, await session.get_items()

    first, second, items = asyncio.run(run())
    assert (first.final_output, second.final_output) == (PLAIN, LAST) and len(items) >= 7


@pytest.mark.parametrize("make_agent", [agents.OpenAIResponsesModel], indirect=True)
def test_what_the_server_keeps(make_agent):
    """A conversation goes on from the response before, without what it held."""
    agent = make_agent()
    first = agents.Runner.run_sync(agent, "Who? #person")
    second = agents.Runner.run_sync(agent, "Who else?", previous_response_id=first.last_response_id)
    assert second.final_output.startswith("{") and second.raw_responses[0].usage.input_tokens > first.raw_responses[0].usage.input_tokens
