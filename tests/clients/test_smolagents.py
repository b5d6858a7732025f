"""smolagents: a task of several steps by an agent that writes Python, whole and streamed."""
import pytest
from conftest import FORECAST, add, get_weather
from smolagents import CodeAgent, OpenAIServerModel, tool

TOOLS = [tool(get_weather), tool(add)]
ANSWER = "24 degrees"
CODE = ["Nothing.",
        ("#forecast", 'Thought: I look.\n<code>\nw = get_weather("Oslo", 3)\nprint(w)\n</code>'),
        ("#celsius", "Thought: I add.\n<code>\nprint(add(int(w.split()[-1]), 3))\n</code>"),
        ("#sum", f'Thought: I know.\n<code>\nfinal_answer("{ANSWER}")\n</code>')]


@pytest.mark.parametrize("stream", [False, True])
def test_a_task(make, stream):
    model = OpenAIServerModel(model_id="m", api_base=make(CODE).v1, api_key="none")
    agent = CodeAgent(tools=TOOLS, model=model, stream_outputs=stream, max_steps=6)
    assert agent.run(FORECAST) == ANSWER
    assert [s.error for s in agent.memory.steps[1:]] == [None] * 3
