"""smolagents: a task of several steps by an agent that writes Python, and by one that calls tools; each whole and streamed."""
import pytest
from conftest import FORECAST, add, call, get_weather
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

TOOLS = [tool(get_weather), tool(add)]
ANSWER = "24 degrees"
CODE = ["Nothing.",
        ("#forecast", 'Thought: I look.\n<code>\nw = get_weather("Oslo", 3)\nprint(w)\n</code>'),
        ("#celsius", "Thought: I add.\n<code>\nprint(add(int(w.split()[-1]), 3))\n</code>"),
        ("#sum", f'Thought: I know.\n<code>\nfinal_answer("{ANSWER}")\n</code>')]
# which are called in a request that has to call one of them
CALLS = ["Nothing.",
         ("#forecast", call("get_weather", city="Oslo", days=3)),
         ("#celsius", call("add", a=21, b=3)),
         ("#sum", call("final_answer", answer=ANSWER))]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [CodeAgent, ToolCallingAgent])
def test_a_task(make, kind, stream):
    model = OpenAIServerModel(model_id="m", api_base=make(CODE if kind is CodeAgent else CALLS).v1, api_key="none")
    agent = kind(tools=TOOLS, model=model, stream_outputs=stream, max_steps=6)
    assert agent.run(FORECAST) == ANSWER
    assert [s.error for s in agent.memory.steps[1:]] == [None] * 3
