"""Client libraries as their users have them, pointed at `sluice serve` by nothing but a base URL. The model's weights say a script
(tests/api/saying.py): which of its lines, a word with a # in the prompt decides. So it calls functions by itself,
reads their results and goes on, through the template, the parser and the masks of any other model."""
import importlib.metadata
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "api")]
import ended  # noqa: E402
import saying  # noqa: E402
import served  # noqa: E402

TEMPLATE = (ROOT / "tests" / "golden" / "chat" / "templates" / "Qwen2.5-Instruct.jinja").read_text()
TAILS = ["<|im_start|>assistant\n", '", "arguments": {']  # the second one: of a call that was begun for the model
LIBRARIES = {"test_aider": "aider-chat", "test_instructor": "instructor", "test_langchain": "langchain-openai", "test_litellm": "litellm",
             "test_llama_index": "llama-index-core", "test_llm": "llm", "test_openai_agents": "openai-agents",
             "test_pydantic_ai": "pydantic-ai-slim", "test_smolagents": "smolagents"}


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def pytest_ignore_collect(collection_path):
    """A file whose library is not there is left out; what was is in the last lines."""
    package = LIBRARIES.get(collection_path.stem)
    return True if package and not version(package) else None


def pytest_terminal_summary(terminalreporter):
    for package in sorted(LIBRARIES.values()):
        terminalreporter.write_line(f"{package}: {version(package) or 'not installed, left out'}")


def call(name, /, **arguments):
    """What a model of the template's family writes."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


PLAIN = "Rivers carry salt into the sea."
SAID = "I look."
LAST = "It will be 24 degrees in Oslo."
PERSON = {"name": "Ada", "age": 36}
# word -> what is said when it is the last of these in the prompt
SCRIPT = [PLAIN,
          ("#forecast", SAID + "\n" + call("get_weather", city="Oslo", days=3)),  # a question
          ("#celsius", call("add", a=21, b=3)),  # get_weather's result
          ("#sum", LAST),  # add's result
          ("#person", json.dumps(PERSON)),
          ("#both", call("get_weather", city="Oslo", days=1) + "\n" + call("get_weather", city="Rome", days=2)),
          ("#two", "Oslo is warmer than Rome."),
          *((f"#as{name}", call(name, **PERSON)) for name in ("Person", "json_tool_call", "final_result"))]  # functions that libraries make
FORECAST = "#forecast for Oslo, three days from now, and three degrees more?"


def get_weather(city: str, days: int) -> str:
    """The weather of a city.

    Args:
        city: Its name.
        days: From now on.
    """
    return f"{city}, in {days} days: #celsius 21"


def add(a: int, b: int) -> str:
    """The sum of two numbers.

    Args:
        a: One of them.
        b: The other one.
    """
    return f"#sum {a + b}"


class Server(served.Server):
    """Serves a script as the model "m"."""

    def __init__(self, folder, script, *options):
        saying.make(folder, TEMPLATE, TAILS, script)
        super().__init__(folder, "--responses", "64", "--ctx", "32768", *options)
        self.v1 = self.url + "/v1"


@pytest.fixture(scope="session")
def make(tmp_path_factory):
    """Servers of scripts: make(script)."""
    made = []

    def start(script, *options):
        made.append(Server(tmp_path_factory.mktemp("script"), script, *options))
        return made[-1]

    with ended.scope():
        yield start
        for server in made:
            server.stop()


@pytest.fixture(scope="session")
def server(make):
    return make(SCRIPT)
