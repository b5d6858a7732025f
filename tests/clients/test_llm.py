"""llm, the command line, with a file of models and no plugin: plain, streamed, a conversation, tools in a chain, schemas."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import FORECAST, LAST, PERSON, PLAIN

FUNCTIONS = pathlib.Path(__file__).with_name("conftest.py").read_text()
FUNCTIONS = FUNCTIONS[FUNCTIONS.index("def get_weather"):FUNCTIONS.index("class Server")]
MODELS = """- model_id: m
  model_name: m
  api_base: {}
  supports_tools: true
  supports_schema: true
"""


@pytest.fixture
def llm(server, tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(server.v1))

    def run(*words):
        done = subprocess.run([pathlib.Path(sys.executable).with_name("llm"), *words], text=True, capture_output=True, timeout=120,
                              env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.parametrize("stream", [[], ["--no-stream"]])
def test_the_command(llm, stream):
    assert llm("-m", "m", "Why is the sea salty?", *stream) == PLAIN
    assert llm("-m", "m", "-c", "Why?", *stream) == PLAIN
    assert llm("-m", "m", "--functions", FUNCTIONS, FORECAST, *stream).endswith(LAST)
    assert json.loads(llm("-m", "m", "--schema", "name, age int", "Who? #person", *stream)) == PERSON
