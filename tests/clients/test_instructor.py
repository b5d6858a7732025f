"""instructor: typed answers by every mode that its clients of OpenAI and Anthropic have for them: whole, in part, in lists, asked again."""
import asyncio
import json
import typing

import anthropic
import instructor
import openai
import pydantic
import pytest
from conftest import PERSON, SCRIPT, call
from instructor import Mode

OTHER = {"name": "Grace", "age": 40}
LIST = json.dumps({"tasks": [PERSON, OTHER]})
YOUNG = json.dumps({**PERSON, "age": 3})
# each also as the call of a function that it makes of the type
WORDS = [SCRIPT[0], ("#young", YOUNG), ("#small", call("Adult", **json.loads(YOUNG))), ("#asAdult", call("Adult", **PERSON)), *SCRIPT[1:],
         ("#list", LIST), ("#items", call("IterablePerson", **json.loads(LIST))),
         ("#fenced", f"```json\n{json.dumps(PERSON)}\n```")]
CALLED = [Mode.TOOLS, Mode.RESPONSES_TOOLS, Mode.ANTHROPIC_TOOLS]  # by a function that has to be called
MODES = [*CALLED, Mode.JSON, Mode.JSON_SCHEMA, Mode.MD_JSON, Mode.ANTHROPIC_JSON]


class Person(pydantic.BaseModel):
    """Somebody."""
    name: str
    age: int


class Adult(Person):
    hint: typing.ClassVar = ""

    @pydantic.field_validator("age")
    @classmethod
    def grown(cls, age):
        if age < 18:
            raise ValueError(f"too young, {cls.hint}")
        return age


@pytest.fixture(scope="module")
def server(make):
    return make(WORDS)


@pytest.fixture(params=MODES, ids=lambda m: m.name)
def client(server, request):
    if request.param.name.startswith("ANTHROPIC"):
        made = instructor.from_anthropic(anthropic.Anthropic(base_url=server.url, api_key="none"), mode=request.param)
    else:
        made = instructor.from_openai(openai.OpenAI(base_url=server.v1, api_key="none"), mode=request.param)
    made.called = request.param in CALLED
    return made


def ask(text):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 500}


def word(client, called, said):
    return called if client.called else "#fenced" if client.mode == Mode.MD_JSON and said == "#person" else said


def test_whole(client):
    assert client.create(response_model=Person, **ask("Who? " + word(client, "#asPerson", "#person"))).model_dump() == PERSON


def test_in_part(client):
    said = [p.model_dump() for p in client.create_partial(response_model=Person, **ask("Who? " + word(client, "#asPerson", "#person")))]
    assert said[-1] == PERSON


def test_asked_again(client):
    """What its validator refuses goes back, with what is wrong."""
    Adult.hint = word(client, "#asAdult", "#person")
    made = client.create(response_model=Adult, max_retries=2, **ask("Who? " + word(client, "#small", "#young")))
    assert made.model_dump() == PERSON


def test_a_list(client):
    made = list(client.create_iterable(response_model=Person, **ask("Who? " + word(client, "#items", "#list"))))
    assert [p.model_dump() for p in made] == [PERSON, OTHER]


def test_several_at_once(server):
    async def run():
        client = instructor.from_openai(openai.AsyncOpenAI(base_url=server.v1, api_key="none"), mode=Mode.JSON_SCHEMA)
        return await asyncio.gather(*[client.create(response_model=Person, **ask("Who? #person")) for _ in range(8)])
    assert [p.model_dump() for p in asyncio.run(run())] == [PERSON] * 8
