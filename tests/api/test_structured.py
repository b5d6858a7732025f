"""Answers that have a shape: JSON Schema, any JSON, choices, regular expressions, GBNF, calls of strict functions. Values are judged by
jsonschema, texts by re, types by OpenAI's own parse helper."""
import concurrent.futures
import enum
import json
import os
import pathlib
import re
import time

import httpx
import jsonschema
import openai
import pydantic
import pytest
import sample
import saying
from conftest import GOLDEN, KEY, start
from test_tools import DS, FAMILIES, HARMONY, KIMI, QUESTION, TOOL, joined

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3}}}
TREE = {"$defs": {"node": {"type": "object", "additionalProperties": False, "required": ["v"], "properties": {
    "v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}}, "$ref": "#/$defs/node"}
DATED = {"type": "object", "additionalProperties": False, "required": ["day", "code", "n"], "properties": {
    "day": {"type": "string", "format": "date"}, "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "n": {"type": "number", "multipleOf": 0.25, "minimum": -2, "exclusiveMaximum": 2}}}
SCHEMAS = {"person": PERSON, "tree": TREE, "dated": DATED, "choice": {"enum": ["red", "green", 7, None, ["x"]]},
           "list": {"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "items": {"type": "boolean"},
                    "minItems": 3, "maxItems": 5}}
# Models of random words like white space: without it their answers end sooner.
TERSE = {"temperature": 0.7, "max_tokens": 320}


def post(server, path, **body):
    return httpx.post(server.url + path, timeout=120, json={"model": server.model, **body})


def texts(answer):
    assert answer.status_code == 200, answer.text
    return [(c["message"]["content"] if "message" in c else c["text"], c["finish_reason"]) for c in answer.json()["choices"]]


def refusal(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def judge(text, finish, schema):
    """Whether it is whole, and then valid; what is cut off is the beginning of what is."""
    if finish == "stop":
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(text))
    else:
        assert finish == "length"
    return finish == "stop"


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid(server, name):
    schema = SCHEMAS[name]
    forms = [dict(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}),
             dict(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}),
             dict(structured_outputs={"json": schema}), dict(guided_json=schema), dict(guided_json=json.dumps(schema)),
             dict(json_schema=schema), dict(response_format={"type": "json_object", "schema": schema})]
    whole, turn = 0, list(SCHEMAS).index(name)
    forms = list(enumerate(forms)) if sample.WHOLE else list(enumerate(forms))[turn % 3::3]
    for i, form in forms:
        for text, finish in texts(post(server, CHAT, messages=[{"role": "user", "content": "Say."}], n=4, seed=i, **TERSE, **form)):
            whole += judge(text, finish, schema)
    assert whole > 4 * len(forms) // 2


INNER = {"type": "object", "properties": {"n": {"enum": [1, 2]}}}
LISTS = {"object": {"type": "object", "properties": {"a": INNER, "b": {"type": "array", "items": INNER, "maxItems": 2}}},
         "reference": {"$defs": {"i": INNER}, "type": "object", "properties": {"a": {"$ref": "#/$defs/i"}}, "required": ["a"]},
         "any": {"anyOf": [{"type": "object", "properties": {"a": INNER}, "required": ["a"]}, {"type": "null"}]},
         "one": {"oneOf": [{"type": "object", "properties": {"kind": {"const": "x"}, "a": INNER}, "required": ["kind"]},
                           {"type": "object", "properties": {"kind": {"const": "y"}, "b": INNER}, "required": ["kind"]}]}}


def names_in(value):
    inside = value.items() if isinstance(value, dict) else [(None, v) for v in value] if isinstance(value, list) else []
    return {k for k, _ in inside if k is not None}.union(*(names_in(v) for _, v in inside))


@pytest.mark.parametrize("name", LISTS)
def test_objects_have_the_properties_that_they_list(server, name):
    """Where a schema is silent about others there are none; a model of random words would soon write one."""
    whole = 0
    for text, finish in texts(post(server, TEXT, prompt="x", n=8, seed=3, **TERSE, guided_json=LISTS[name])):
        if judge(text, finish, LISTS[name]):
            whole += 1
            assert names_in(json.loads(text)) <= {"a", "b", "n", "kind"}, text
    assert whole > 2


def test_objects_that_ask_for_others_have_them(server):
    null, short = {"type": "null"}, {"propertyNames": {"enum": ["a", "z"]}}
    for schema in ({"properties": {"a": null}, "additionalProperties": null}, {"properties": {"a": null}, "required": ["z"]},
                   {"properties": {"a": null}, "minProperties": 1, "required": ["z"]},
                   {"allOf": [{"properties": {"a": null}}, {"properties": {"z": null}}], "required": ["z"]}):
        others, schema = set(), {"type": "object", "maxProperties": 2, **short, **schema}
        for text, _ in texts(post(server, TEXT, prompt="x", n=8, seed=4, **TERSE, json_schema=schema)):
            others |= {"z"} & set(re.findall(r'"(\w)"\s*:', text))
        assert others, schema


def test_json_without_white_space(server):
    for field, schema in (({"json": PERSON}, PERSON), ({"json_object": True}, {"type": "object"})):
        whole, fields = 0, dict(structured_outputs={"disable_any_whitespace": True, **field})
        for text, finish in texts(post(server, CHAT, messages=[{"role": "user", "content": "x"}], n=8, seed=6, **TERSE, **fields)):
            outside = re.sub(r'"(\\.|[^"\\])*("|$)', "", text)
            assert not re.search(r"\s", outside), text
            whole += judge(text, finish, schema)
        assert whole > 0
    error = refusal(post(server, TEXT, prompt="x", structured_outputs={"choice": ["a"], "disable_any_whitespace": True}))
    assert error["param"] == "structured_outputs" and "disable_any_whitespace" in error["message"]


def test_one_of_two_that_may_both_hold(server):
    """Objects without other properties could be told apart; the schema as it is written is what counts."""
    both = {"oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "object", "properties": {"b": {"type": "integer"}}}]}
    whole = sum(judge(text, finish, both) for seed in range(4)
                for text, finish in texts(post(server, CHAT, messages=[{"role": "user", "content": "x"}], n=4, seed=seed, **TERSE, guided_json=both)))
    assert whole > 0


def test_any_object(server):
    whole = 0
    for seed in range(4):
        for text, finish in texts(post(server, CHAT, messages=[{"role": "user", "content": "Say."}], n=4, seed=seed, **TERSE,
                                       response_format={"type": "json_object"})):
            assert text[0] == "{"
            whole += finish == "stop" and isinstance(json.loads(text), dict)
    for text, _ in texts(post(server, TEXT, prompt="x", max_tokens=20, structured_outputs={"json_object": True})):
        assert text[0] == "{"
    assert whole > 0


@pytest.mark.parametrize("fields, pattern", [
    (dict(structured_outputs={"regex": r"[a-c]{3,9}!\d?"}), r"[a-c]{3,9}!\d?"),
    (dict(guided_regex=r"(yes|no), (sir|madam)"), r"(yes|no), (sir|madam)"),
    (dict(structured_outputs={"choice": ["yes", "no", "maybe not"]}), r"yes|no|maybe not"),
    (dict(guided_choice=["née", "日本"]), r"née|日本"),
    (dict(structured_outputs={"grammar": 'root ::= "a" tail\ntail ::= [bc] tail | "d"'}), r"a[bc]*d"),
    (dict(guided_grammar='root ::= ("x" | "yy"){2,3}'), r"(x|yy){2,3}"),
    (dict(grammar='root ::= "<" name ">"\nname ::= [a-f]+'), r"<[a-f]+>"),
], ids=str)
def test_texts_match(server, fields, pattern):
    for path, prompt in ((TEXT, dict(prompt="x")), (CHAT, dict(messages=[{"role": "user", "content": "x"}]))):
        for text, finish in texts(post(server, path, n=3, seed=5, temperature=1, max_tokens=100, **prompt, **fields)):
            assert finish in ("stop", "length") and (finish == "length" or re.fullmatch(pattern, text)), text


class Colour(str, enum.Enum):
    red, green = "red", "green"


class Part(pydantic.BaseModel):
    colour: Colour
    count: int = pydantic.Field(ge=0, le=99)


class Order(pydantic.BaseModel):
    paid: bool
    parts: list[Part] = pydantic.Field(max_length=2)
    note: str | None = pydantic.Field(max_length=8)


def test_the_parse_helper(server):
    """Pydantic's own schema, made strict by OpenAI's client."""
    for seed in range(6):
        try:
            done = server.client().chat.completions.parse(
                model=server.model, messages=[{"role": "user", "content": "Order."}], response_format=Order, seed=seed, **TERSE)
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(done.choices[0].message.parsed, Order)
        return
    raise AssertionError("no answer came to its end")


def test_streams_say_the_same(server):
    fields = dict(prompt="x", seed=3, temperature=1, max_tokens=200, structured_outputs={"json": PERSON})
    (want, finish), = texts(post(server, TEXT, **fields))
    got = ""
    for chunk in server.client().completions.create(model=server.model, stream=True, prompt="x", seed=3, temperature=1,
                                                    max_tokens=200, extra_body={"structured_outputs": {"json": PERSON}}):
        got += chunk.choices[0].text
    assert got == want and judge(want, finish, PERSON) in (True, False)


def test_it_ends_where_it_may(server):
    """A choice ends with its last token, whatever the model would have said; tokens that end an answer stand nowhere else."""
    eos = set(json.loads((GOLDEN / server.fixture / "generation_config.json").read_text())["eos_token_id"])
    answer = post(server, TEXT, prompt="x", max_tokens=50, temperature=1.5, seed=1, n=8, return_token_ids=True,
                  guided_regex="(ab){10,12}").json()
    for c in answer["choices"]:
        assert c["finish_reason"] == "stop" and re.fullmatch("(ab){10,12}", c["text"])
        assert not eos & set(c["token_ids"][:-1]) and c["token_ids"][-1] in eos
    (text, finish), = texts(post(server, TEXT, prompt="x", max_tokens=3, temperature=0, guided_regex="(ab){10,12}"))
    assert finish == "length" and "ababab".startswith(text[:6])


def test_logprobs_are_the_models(server):
    """They say what the model thinks of its tokens, not what the shape leaves of that."""
    answer = post(server, TEXT, prompt="x", max_tokens=20, temperature=0, logprobs=2, return_token_ids=True,
                  guided_choice=["maybe not"]).json()["choices"][0]
    made = [t for t in answer["token_ids"] if t is not None]
    prompt = httpx.post(server.url + "/tokenize", json={"prompt": "x"}, timeout=30).json()["tokens"]
    said = post(server, TEXT, prompt=prompt + made, max_tokens=1, echo=True, logprobs=2, temperature=0).json()["choices"][0]
    want = said["logprobs"]["token_logprobs"][len(prompt):len(prompt) + len(made)]
    assert answer["logprobs"]["token_logprobs"] == pytest.approx(want, abs=1e-3)


def test_neighbours_do_not_notice(server):
    """Requests without a shape have the same tokens and log-probabilities beside those that have one as alone."""
    plain = [dict(prompt=[3, 17, 41 + i], max_tokens=60, seed=i, temperature=1, logprobs=3, return_token_ids=True) for i in range(4)]

    def ask(fields):
        choice = post(server, TEXT, **fields).json()["choices"][0]
        return choice["text"], choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def noise(i):
        return texts(post(server, TEXT, prompt="x", seed=i, max_tokens=80, structured_outputs={"json": PERSON}))

    alone = [ask(p) for p in plain]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        beside = [pool.submit(noise, i) for i in range(8)]
        together = list(pool.map(ask, plain))
        for b in beside:
            b.result()
    assert together == alone


@pytest.mark.parametrize("fields, param, says", [
    (dict(guided_json={"type": "object", "nullable": True}), "guided_json", "nullable"),
    (dict(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"uniqueItems": True}}}),
     "response_format", "uniqueItems"),
    (dict(guided_regex=r"(a)\1"), "guided_regex", ""),
    (dict(guided_regex="("), "guided_regex", ""),
    (dict(grammar="root ::= root \"a\" | \"b\""), "grammar", "recursion"),
    (dict(grammar="start ::= \"a\""), "grammar", "no rule root"),
    (dict(guided_json={"type": "integer", "minimum": 3, "maximum": 2}), "guided_json", "no "),
    (dict(guided_json={}, guided_regex="a"), "guided_regex", "already"),
    (dict(guided_regex="a", ignore_eos=True), "ignore_eos", "guided_regex"),
    (dict(guided_regex="a", min_tokens=2), "min_tokens", "guided_regex"),
    (dict(structured_outputs={"structural_tag": "x"}), "structured_outputs", "structural_tag"),
    (dict(guided_whitespace_pattern=" "), "guided_whitespace_pattern", ""),
    (dict(response_format={"type": "xml"}), "response_format", "none of text"),
], ids=str)
def test_what_is_not_enforced_is_refused(server, fields, param, says):
    error = refusal(post(server, TEXT, prompt="x", **fields))
    assert error["param"] == param and says in error["message"], error


def deep(n):
    schema = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE = [
    dict(guided_json={"$ref": "#"}),
    dict(guided_json={"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2000)}, "$ref": "#/$defs/d0"}),
    dict(guided_json=deep(50)),
    dict(guided_json={"enum": [f"value number {i}" for i in range(20000)]}),
    dict(guided_json={"enum": [f"value number {i}" for i in range(20001)]}),
    dict(guided_json={"type": "string", "pattern": "(a|b|c|d|e){0,100000}$"}),
    dict(guided_json={"type": "string", "pattern": "^(.*a.{20}|.*b.{21}|.*c.{22})$"}),
    dict(guided_json={"allOf": [{"anyOf": [{"type": "string", "pattern": f".{{{i}}}{c}"} for c in "abcdef"]} for i in range(12)]}),
    dict(guided_json={"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(9000)}}),
    dict(guided_json={"type": "object", "minProperties": 300, "maxProperties": 300, "additionalProperties": False,
                      "properties": {f"p{i}": {} for i in range(600)}}),
    dict(guided_regex="((((a*)*)*)*)*b"), dict(guided_regex="(a{0,1000}){0,1000}"), dict(guided_regex="(.*x){60}.*y.{40}"),
    dict(guided_regex="(" * 190 + "a" + ")" * 190), dict(guided_regex="(" * 300 + "a" + ")" * 300),
    dict(guided_regex="[^a]{100000}"), dict(guided_choice=["x" * 100] * 5000), dict(guided_choice=[f"{i}" for i in range(65537)]),
    dict(grammar="root ::= a\n" + "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(40)) + "\na40 ::= \"x\"\na ::= a0"),
    dict(grammar="root ::= (\"a\" root | \"ab\" root | \"abc\" root | \"b\" root | \"c\")"),
    dict(grammar="root ::= x{2000}\nx ::= \"a\" y\ny ::= \"b\" x | \"c\""),
    dict(grammar="root ::= " + "(" * 5000),
]


def processor_s(pid):
    """Of all its threads so far: on a busy machine time on the wall says nothing."""
    spent = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


def test_hostile_shapes_are_bounded(server):
    """All together take little, refused or answered, and who asks for something else meanwhile hardly notices."""
    before = processor_s(server.process.pid)

    def ask(i):
        began = time.monotonic()
        answer = post(server, TEXT, prompt="x", max_tokens=24, temperature=1, seed=i, **HOSTILE[i])
        return answer, time.monotonic() - began

    with concurrent.futures.ThreadPoolExecutor(len(HOSTILE)) as pool:
        asked = [pool.submit(ask, i) for i in range(len(HOSTILE))]
        waits = []
        while not all(a.done() for a in asked):
            began = time.monotonic()
            assert texts(post(server, TEXT, prompt="x", max_tokens=4, temperature=0))
            waits.append(time.monotonic() - began)
            time.sleep(0.1)  # the processor is for what is asked
        for i, a in enumerate(asked):
            answer, took = a.result()
            assert answer.status_code in (200, 400), (HOSTILE[i], answer.text)
            assert took < 600, (HOSTILE[i], took)
            if answer.status_code == 400:
                assert answer.json()["error"]["message"]
    spent = processor_s(server.process.pid) - before
    assert spent < 60 and max(waits) < 20 + 10 * spent, (spent, waits)
    assert server.wait_idle()
    assert texts(post(server, TEXT, prompt="x", max_tokens=9, guided_choice=["yes"]))[0] == ("yes", "stop")


def test_preempted_answers_go_on(make_server):
    """A few pages for many: answers are put off and computed again, and say what they say alone."""
    tight = make_server("qwen3moe-tiny", "--kv-pages", "12", "--ctx", "256", "--exact")
    words = "([a-z]{3,8} ){150}"
    fields = [dict(prompt="x", seed=i, temperature=1, max_tokens=200, return_token_ids=True, guided_regex=words) for i in range(8)]

    def ask(f):
        choice = post(tight, TEXT, **f).json()["choices"][0]
        assert choice["finish_reason"] == "length" and re.match(r"([a-z]{3,8} ){20}", choice["text"])
        return choice["token_ids"]

    alone = [ask(f) for f in fields]
    with concurrent.futures.ThreadPoolExecutor(len(fields)) as pool:
        for _ in range(3):
            assert list(pool.map(ask, fields)) == alone
    assert tight.metric("num_preemptions_total") > 0
    tight.stop()


# ---- calls of tools ----

STRICT = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city", "days"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer", "minimum": 0, "maximum": 9}}}}}
OTHER = {"type": "function", "function": {"name": "get_time", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False, "required": ["zone"], "properties": {"zone": {"enum": ["UTC", "CET"]}}}}}
PARAMETERS = {t["function"]["name"]: t["function"]["parameters"] for t in (STRICT, OTHER)}


# What a sample has: one that thinks, texts without quotes, marks that are tokens, calls that cannot be held to a schema, and answers in channels.
TAKEN = ("Qwen3-Thinking", "Qwen3-Coder", "DeepSeek-R1", "Kimi-K2", "GLM-4.5", "Llama-4-pythonic", "gpt-oss")


@pytest.fixture(scope="module", params=sample.of(FAMILIES, *map(list(FAMILIES).index, TAKEN)))
def family(request, tmp_path_factory):
    template, tails, call, answer, special = FAMILIES[request.param]
    path = GOLDEN / "chat" / "templates" / f"{template[:40]}.jinja"
    folder = tmp_path_factory.mktemp("shaped")
    marks = [m for m in ("<think>", "</think>") if "</think>" in call]  # tokens of their own, as published models have them
    saying.make(folder, path.read_text() if path.exists() else template, tails, [call, ("#sunny", answer)], special + marks)
    (folder / "golden.json").write_text("{}")
    running = start(tmp_path_factory, folder, ["--served-model-name", "m"])
    running.name, running.model = request.param, "m"
    yield running
    running.stop()


def ask_tools(server, **more):
    return server.client().chat.completions.create(model="m", **{"messages": QUESTION, "temperature": 0, "max_tokens": 160, **more})


def judge_calls(message):
    for call in message.tool_calls or []:
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS[call.function.name])
    return [c.function.name for c in message.tool_calls or []]


def test_one_of_several_has_to_be_called(family):
    for tools in ([STRICT, OTHER], [OTHER, STRICT]):
        choice = ask_tools(family, tools=tools, tool_choice="required").choices[0]
        assert choice.finish_reason in ("tool_calls", "length")
        if choice.finish_reason == "tool_calls":
            assert len(judge_calls(choice.message)) == 1


@pytest.mark.parametrize("strict", [False, True])
def test_a_call_that_has_to_be_made_ends_as_the_models_do(tmp_path, tmp_path_factory, strict):
    """One token may have the end of the arguments and what closes the call: it is no other answer than without being held to a call."""
    template = (GOLDEN / "chat" / "templates" / "Qwen2.5-Instruct.jinja").read_text()
    said = '<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "Oslo", "days": {}}}}}\n</tool_call>'
    script = [said.format(0), *((f"#n{n}", said.format(n)) for n in range(1, 6))]
    saying.make(tmp_path, template, ["<|im_start|>assistant\n"], script)
    (tmp_path / "golden.json").write_text("{}")
    running = start(tmp_path_factory, tmp_path, ["--served-model-name", "m"])
    tools, across = [{"type": "function", "function": {**t["function"], "strict": strict}} for t in (STRICT, OTHER)], 0
    for n in range(1, 6):
        fields = dict(messages=[{"role": "user", "content": f"#n{n}"}], tools=tools, extra_body={"return_token_ids": True})
        free, held = (ask_tools(running, tool_choice=choice, **fields).choices[0] for choice in ("auto", "required"))
        calls = [[(c.function.name, json.loads(c.function.arguments)) for c in a.message.tool_calls] for a in (free, held)]
        assert calls[0] == calls[1] == [("get_weather", {"city": "Oslo", "days": n})] and held.finish_reason == "tool_calls"
        ids = held.model_extra["token_ids"]  # up to where the call is whole
        assert held.message.content is None and ids == free.model_extra["token_ids"][:len(ids)]
        texts = [httpx.post(running.url + "/detokenize", json={"tokens": [t]}).json()["prompt"] for t in ids]
        across += any(re.search("}[^}]", t) for t in texts)
    assert across > 0
    running.stop()


def test_a_strict_function_that_is_named(family):
    named = {"type": "function", "function": {"name": "get_time"}}
    choice = ask_tools(family, tools=[STRICT, OTHER], tool_choice=named).choices[0]
    assert choice.finish_reason in ("tool_calls", "length")
    if choice.finish_reason == "tool_calls":
        assert judge_calls(choice.message) == ["get_time"]


def refuses(family, **fields):
    """Llama's Python lists cannot be held to a schema."""
    if family.name != "Llama-4-pythonic":
        return False
    with pytest.raises(openai.BadRequestError) as caught:
        ask_tools(family, **fields)
    assert caught.value.param == "tools" and "llama-pythonic" in caught.value.body["message"]
    return True


def test_strict_arguments_wherever_calls_are_made(family):
    """The model says what it says without `strict`; what it says in a call is valid."""
    if refuses(family, tools=[STRICT]):
        return
    loose = {"type": "function", "function": {**STRICT["function"], "strict": False}}
    want = ask_tools(family, tools=[loose]).choices[0]
    got = ask_tools(family, tools=[STRICT]).choices[0]
    assert judge_calls(got.message) == judge_calls(want.message) == ["get_weather"]
    assert got.message.content == want.message.content
    assert json.loads(got.message.tool_calls[0].function.arguments) == json.loads(want.message.tool_calls[0].function.arguments)


def test_strict_calls_in_a_stream(family):
    if refuses(family, tools=[STRICT]):
        return
    whole = ask_tools(family, tools=[STRICT])
    content, _, calls, finish = joined(ask_tools(family, tools=[STRICT], stream=True))
    assert finish == whole.choices[0].finish_reason and content == (whole.choices[0].message.content or None)
    assert [c[1:] for c in calls] == [[c.function.name, c.function.arguments] for c in whole.choices[0].message.tool_calls]


def test_a_shape_beside_tools(family):
    """Either the answer, or a call: what the model would say otherwise it cannot."""
    fields = dict(tools=[TOOL], response_format={"type": "json_object"})
    try:
        choice = ask_tools(family, **fields).choices[0]
    except openai.BadRequestError as error:
        assert error.param == "response_format" and "cannot be told from a call" in error.body["message"]
        assert family.name.startswith("Llama")
        return
    if choice.finish_reason == "stop" and choice.message.content and not choice.message.tool_calls:
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("city", [{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^O"}, {"enum": ["5", "6"]},
                                  {"anyOf": [{"type": "string"}, {"type": "integer"}]}], ids=str)
def test_texts_without_quotes(family, city):
    """Where arguments are no JSON, what is asked of a text beyond its being one is refused by the parameter's name."""
    function = {**STRICT["function"], "parameters": {**PARAMETERS["get_weather"], "properties": {"city": city}, "required": []}}
    fields = dict(tools=[{"type": "function", "function": function}])
    if family.name not in ("Qwen3-Coder", "GLM-4.5"):
        if not refuses(family, **fields):
            ask_tools(family, **fields)
        return
    with pytest.raises(openai.BadRequestError) as caught:
        ask_tools(family, **fields)
    assert caught.value.param == "tools" and '"city"' in caught.value.body["message"]


def test_strict_beside_a_shape(family):
    """Agents have both: an answer of a type, and functions that are called on the way to it."""
    fields = dict(tools=[STRICT], response_format={"type": "json_object"})
    if family.name.startswith("Llama") or family.name == "gpt-oss":
        with pytest.raises(openai.BadRequestError):
            ask_tools(family, **fields)
        return
    message = ask_tools(family, **fields).choices[0].message
    judge_calls(message)


def test_a_shape_after_reasoning(family):
    """The thought is the model's own; the answer behind it has the shape."""
    schema = {"type": "object", "additionalProperties": False, "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}
    free = ask_tools(family).choices[0].message
    choice = ask_tools(family, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}).choices[0]
    thought = getattr(choice.message, "reasoning_content", None) or ""
    assert thought.startswith(getattr(free, "reasoning_content", None) or "")
    if choice.finish_reason == "stop":
        jsonschema.validate(json.loads(choice.message.content), schema)
    else:
        assert choice.finish_reason == "length"


def test_an_answer_is_no_thought(family):
    """Without a thought, too, the answer has the shape from its first byte on."""
    body = dict(model="m", prompt="Oslo", max_tokens=30, temperature=0, guided_regex="(ok|no)[.!]{3}")
    answer = httpx.post(family.url + TEXT, json=body, timeout=60, headers={"Authorization": f"Bearer {KEY}"}).json()
    assert re.fullmatch("(ok|no)[.!]{3}", answer["choices"][0]["text"])


assert DS and KIMI and HARMONY  # families whose markers are special tokens are among them
