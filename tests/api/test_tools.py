"""Calls of tools and reasoning by OpenAI's own client, of models whose weights say what their family writes (saying.py), with the
family's chat template."""
import json
import uuid

import jsonschema
import openai
import pydantic
import pytest
import saying
from conftest import GOLDEN, start

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Its name."}, "days": {"type": "integer"}}}}}
ARGUMENTS = {"city": "Oslo", "days": 3}
JSON = '{"city": "Oslo", "days": 3}'
QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
RESULT = "#sunny, 21 degrees"  # the word at which the models say that it is
THOUGHT, SAID, ANSWER = "They ask for the weather.", "I look.", "It is sunny in Oslo."

DS = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]
KIMI = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
        "<|tool_calls_section_end|>"]
HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"]
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": ' + JSON + "}\n</tool_call>"

# Templates of families whose published ones are not at hand: their marks, and what is needed for a turn.
ROLES = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
         "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}<|answer|>")
CODER = ROLES.replace("CALL", "<tool_call><function={{ c.function.name }}>{{ c.function.arguments | tojson }}</function></tool_call>")
MISTRAL = ROLES.replace("CALL", "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}")
PYTHONIC = ROLES.replace("CALL", "<|python_start|>[{{ c.function.name }}({{ c.function.arguments | tojson }})]") + \
    "{# [func_name1(params_name1=params_value1)] #}"

# name: template, what its prompts end with, the model's words (thought, text and call; answer), its special tokens
FAMILIES = {
    "Qwen3": ("Qwen3", ["<|im_start|>assistant\n"],
              f"<think>\n{THOUGHT}\n</think>\n\n{SAID}\n{HERMES}", f"<think>\nNow I know.\n</think>\n\n{ANSWER}", []),
    "Qwen3-Thinking": ("Qwen3-Thinking-2507", ["<|im_start|>assistant\n<think>\n"],
                       f"{THOUGHT}\n</think>\n\n{SAID}\n{HERMES}", f"Now I know.\n</think>\n\n{ANSWER}", []),
    "Qwen2.5": ("Qwen2.5-Instruct", ["<|im_start|>assistant\n"], f"{SAID}\n{HERMES}", ANSWER, []),
    "Qwen3-Coder": (CODER, ["<|answer|>"],
                    f"{SAID}\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
                    "</parameter>\n</function>\n</tool_call>", ANSWER, []),
    "DeepSeek-R1": ("DeepSeek-R1-Distill", ["<｜Assistant｜><think>\n", "<｜tool▁outputs▁end｜>"],
                    f"{THOUGHT}\n</think>\n\n{SAID}{DS[0]}{DS[1]}function{DS[2]}get_weather\n```json\n{JSON}\n```{DS[3]}{DS[4]}",
                    ANSWER, DS),
    "DeepSeek-V3.1": ("DeepSeek-V3.1-style", ["<｜Assistant｜></think>", "<｜tool▁output▁end｜>"],
                      f"{SAID}{DS[0]}{DS[1]}get_weather{DS[2]}{JSON}{DS[3]}{DS[4]}", ANSWER, DS),
    "Kimi-K2": ("Kimi-K2-2025-07", ["<|im_assistant|>assistant<|im_middle|>"],
                f"{SAID}{KIMI[0]}{KIMI[1]}functions.get_weather:0{KIMI[2]}{JSON}{KIMI[3]}{KIMI[4]}", ANSWER, KIMI),
    "GLM-4.5": ("GLM-4.5", ["<|assistant|>"],
                f"\n<think>{THOUGHT}</think>\n{SAID}\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
                "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>", f"\n<think></think>\n{ANSWER}", []),
    "Llama-4": ("Llama-4", ["<|header_start|>assistant<|header_end|>\n\n"],
                '{"name": "get_weather", "parameters": ' + JSON + "}", ANSWER, []),
    "Llama-4-pythonic": (PYTHONIC, ["<|answer|>"], '[get_weather(city="Oslo", days=3)]', ANSWER, []),
    "Mistral": (MISTRAL, ["<|answer|>"], f"{SAID}[TOOL_CALLS]get_weather[ARGS]{JSON}", ANSWER, ["[TOOL_CALLS]", "[ARGS]"]),
    "gpt-oss": ("gpt-oss", ["<|start|>assistant"],
                f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary "
                f"<|constrain|>json<|message|>{JSON}", f"<|channel|>final<|message|>{ANSWER}", HARMONY),
    # templates that show no tools
    "ChatML": ("ChatML", ["<|im_start|>assistant\n"], f"{SAID}\n{HERMES}", ANSWER, []),
    "Mixtral": ("Mixtral-Instruct", [" [/INST]"], f"{SAID}\n{HERMES}", ANSWER, []),
}


class Model:
    def __init__(self, running, family):
        self.client, self.family, self.log = running.client(), family, running.log
        words = FAMILIES[family][2]
        self.thought = THOUGHT if THOUGHT in words else None
        self.said = SAID if SAID in words else None

    def ask(self, messages=QUESTION, **more):
        more = {"tools": [TOOL], "temperature": 0, **more}
        return self.client.chat.completions.create(model="m", messages=messages, **more)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    template, tails, call, answer, special = FAMILIES[request.param]
    path = GOLDEN / "chat" / "templates" / f"{template[:40]}.jinja"
    folder = tmp_path_factory.mktemp("saying")
    saying.make(folder, path.read_text() if path.exists() else template, tails, [call, ("#sunny", answer)], special)
    (folder / "golden.json").write_text("{}")
    running = start(tmp_path_factory, folder, ["--served-model-name", "m", "--responses", "8"])
    yield Model(running, request.param)
    running.stop()


def joined(stream):
    """(content, reasoning, calls as [id, name, arguments], finish) of a stream; the client's own rules of a delta are checked."""
    content, thought, calls, finish = "", "", [], None
    for chunk in stream:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        thought += getattr(choice.delta, "reasoning_content", None) or ""
        for piece in choice.delta.tool_calls or []:
            if piece.id:
                assert piece.index == len(calls) and piece.type == "function" and piece.function.name
                calls.append([piece.id, piece.function.name, ""])
            assert piece.index == len(calls) - 1
            calls[piece.index][2] += piece.function.arguments
        finish = choice.finish_reason or finish
    return content or None, thought or None, calls, finish


def test_calls_and_reasoning(model):
    choice = model.ask().choices[0]
    message = choice.message
    assert (message.content, getattr(message, "reasoning_content", None)) == (model.said, model.thought)
    assert getattr(message, "reasoning", None) == model.thought
    assert choice.finish_reason == "tool_calls" and len(message.tool_calls) == 1
    function = message.tool_calls[0].function
    assert function.name == "get_weather" and json.loads(function.arguments) == ARGUMENTS
    content, thought, calls, finish = joined(model.ask(stream=True))
    assert (content, thought, finish) == (model.said, model.thought, "tool_calls")
    assert [(name, text) for _, name, text in calls] == [("get_weather", function.arguments)]


def test_reasoning_is_counted(model):
    """Of all choices together, whole, at a stream's end and in the usage so far."""
    model.ask()  # the pages of its prompt are cached for all that follow
    for n in (1, 2):
        counted = [model.ask(n=n).usage, *(list(model.ask(n=n, stream=True, stream_options=options))[-1].usage for options in (
            {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}))]
        assert all(usage == counted[0] for usage in counted)
        thought = counted[0].completion_tokens_details.reasoning_tokens
        assert (thought > 0) == bool(model.thought) and thought < counted[0].completion_tokens
        so_far = [chunk.usage for chunk in model.ask(n=n, stream=True, stream_options={"continuous_usage_stats": True})]
        assert so_far[-1] == counted[0]
        assert [u.completion_tokens_details.reasoning_tokens for u in so_far] == sorted(u.completion_tokens_details.reasoning_tokens for u in so_far)


def test_reasoning_is_left_out(model):
    """It is made, and counted; with the words that stand for it."""
    whole, hidden = model.ask(), model.ask(extra_body={"include_reasoning": False})
    message = hidden.choices[0].message
    assert not {"reasoning", "reasoning_content"} & set(message.model_extra)
    assert message.content == whole.choices[0].message.content and hidden.usage == whole.usage
    assert [c.function for c in message.tool_calls] == [c.function for c in whole.choices[0].message.tool_calls]
    content, thought, calls, finish = joined(model.ask(stream=True, extra_body={"include_reasoning": False}))
    assert (content, thought, finish) == (model.said, None, "tool_calls")
    assert [text for _, _, text in calls] == [c.function.arguments for c in message.tool_calls]
    with pytest.raises(openai.BadRequestError) as caught:
        model.ask(tools=[], extra_body={"include_reasoning": False, "skip_special_tokens": False})
    assert caught.value.param == "include_reasoning"


def test_a_budget_needs_a_token_that_ends_a_thought(model):
    with pytest.raises(openai.BadRequestError) as caught:
        model.ask(extra_body={"max_reasoning_tokens": 3})
    assert caught.value.param == "max_reasoning_tokens"


@pytest.mark.parametrize("family", ["Qwen3", "Qwen3-Thinking", "GLM-4.5"])
def test_a_thought_has_a_budget(tmp_path_factory, family):
    """It is ended by its marker when it has so many tokens, and the answer goes on behind that."""
    template, tails, call, answer, special = FAMILIES[family]
    path = GOLDEN / "chat" / "templates" / f"{template[:40]}.jinja"
    folder = tmp_path_factory.mktemp("saying")
    saying.make(folder, path.read_text(), tails, [call, ("#sunny", answer)], [*special, "<think>", "</think>"])
    (folder / "golden.json").write_text("{}")
    running = start(tmp_path_factory, folder, ["--served-model-name", "m"])
    try:
        model = Model(running, family)
        whole = model.ask(logprobs=True)
        assert whole.choices[0].message.reasoning_content == THOUGHT
        for name, n in (("max_reasoning_tokens", 0), ("max_reasoning_tokens", 3), ("thinking_token_budget", 5)):
            got = model.ask(extra_body={name: n}, max_tokens=20, logprobs=True)
            said = [t.token for t in got.choices[0].logprobs.content]
            begin = said.index("<think>") + 1 if "<think>" in said else 0
            assert said[begin:].index("</think>") == n
            assert said[:begin + n] == [t.token for t in whole.choices[0].logprobs.content][:begin + n]
            assert "".join(said[begin:begin + n]).strip() == (getattr(got.choices[0].message, "reasoning_content", None) or "").strip()
        enough = model.ask(extra_body={"max_reasoning_tokens": 1000}).choices[0].message
        assert (enough.content, enough.reasoning_content) == (whole.choices[0].message.content, THOUGHT)
        for body in ({"max_reasoning_tokens": 3, "thinking_token_budget": 4}, {"max_reasoning_tokens": -1}):
            with pytest.raises(openai.BadRequestError):
                model.ask(extra_body=body)
    finally:
        running.stop()


def test_arguments_come_as_they_are_made(model):
    pieces = [piece for chunk in model.ask(stream=True) for piece in chunk.choices[0].delta.tool_calls or []]
    assert all(p.id is None and p.function.name is None for p in pieces[1:])
    assert "".join(p.function.arguments for p in pieces) and pieces[0].function.name == "get_weather"


def test_tools_in_a_loop(model):
    """What came goes back as the client's library writes it, with the result; the answer follows."""
    for stream in (False, True):
        message = model.ask().choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}
        answer = model.ask([*QUESTION, message, result], stream=stream)
        content, finish = joined(answer)[::3] if stream else (answer.choices[0].message.content,
                                                              answer.choices[0].finish_reason)
        assert content == ANSWER and finish == "stop"


def test_without_tools_the_text_is_kept(model):
    """Nobody asked for calls: what looks like one is the answer's text, but for special tokens; or reasoning, with channels."""
    choice = model.ask(tools=openai.omit).choices[0]
    assert choice.finish_reason == "stop" and not choice.message.tool_calls
    text = (choice.message.content or "") + (getattr(choice.message, "reasoning_content", None) or "")
    assert "Oslo" in text and ("get_weather" in text or model.family == "gpt-oss")
    assert model.ask(tool_choice="none").choices[0].message.content == choice.message.content


def test_an_answer_that_is_asked_again_has_the_same_ids(model):
    key = {"Idempotency-Key": str(uuid.uuid4())}
    first = model.ask(extra_headers=key).choices[0].message
    again = model.ask(extra_headers=key).choices[0].message
    assert first == again and first.tool_calls[0].id != model.ask().choices[0].message.tool_calls[0].id or \
        model.family == "Kimi-K2"  # whose ids are the model's own


NAMED = {"type": "function", "function": {"name": "get_weather"}}


def test_a_named_function_is_called(model):
    """Its arguments are those of its parameters, though it is not strict. What these models would say otherwise they cannot."""
    for choice in (NAMED, "required"):
        answer = model.ask(tool_choice=choice, max_tokens=200).choices[0]
        assert answer.finish_reason in ("tool_calls", "length") and not answer.message.content
        for call in answer.message.tool_calls or []:
            assert call.function.name == "get_weather"
            if answer.finish_reason == "tool_calls" and model.family != "Llama-4-pythonic":
                jsonschema.validate(json.loads(call.function.arguments), {**TOOL["function"]["parameters"], "additionalProperties": False})


def test_a_call_that_is_not_there_yet(model):
    """One token is no call, though it may be a part of its beginning."""
    answer = model.ask(tool_choice=NAMED, max_tokens=1).choices[0]
    assert answer.finish_reason == "length"
    assert not answer.message.tool_calls or model.family == "Llama-4-pythonic"  # whose calls are begun


def test_a_named_function_that_is_not_enforced(model):
    """Its arguments are an object, of whatever; of one of several, too."""
    vague = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string", "contentEncoding": "base64"}}}
    tools = [{"type": "function", "function": {**TOOL["function"], "name": name, "parameters": vague}} for name in ("get_weather", "look")]
    for choice, some in ((NAMED, tools), ("required", tools), ("required", tools[:1])):
        answer = model.ask(tools=some, tool_choice=choice, max_tokens=200).choices[0]
        assert answer.finish_reason in ("tool_calls", "length") and not answer.message.content
        for call in answer.message.tool_calls or []:
            assert call.function.name in ("get_weather", "look")[:1 if choice == NAMED else len(some)]
            if answer.finish_reason == "tool_calls" and model.family not in ("Llama-4-pythonic", "Qwen3-Coder", "GLM-4.5"):
                assert isinstance(json.loads(call.function.arguments), dict)


def test_a_call_that_is_begun(model):
    """Where there can be no mask. The model goes on from there; this one says its text again, so that only the name is certain."""
    for choice in (NAMED, "required"):
        answer = model.ask(tool_choice=choice, max_tokens=8, extra_body={"min_tokens": 1}).choices[0]
        called = answer.message.tool_calls
        # the parts of a call that a model of no mind says are no arguments; GLM's begin with a key
        assert [c.function.name for c in called or []] == ["get_weather"] or model.family == "GLM-4.5"
        assert answer.message.content is None


def test_a_template_that_shows_no_tools_is_in_the_log(model):
    model.ask()
    shows_none = model.family in ("ChatML", "Mixtral", "DeepSeek-R1")
    assert model.log.read_text().count("the chat template shows no tools") == shows_none


class GetWeather(pydantic.BaseModel):
    city: str
    days: int


def test_the_clients_own_parsing(model):
    """The library's stream helper and its parsing of arguments into types."""
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    client = model.client
    if model.family == "Llama-4-pythonic":  # the helper wants strict functions, and Python's lists cannot be held to a schema
        with pytest.raises(openai.BadRequestError, match="llama-pythonic"):
            client.chat.completions.parse(model="m", messages=QUESTION, tools=[tool], temperature=0)
        return
    with client.chat.completions.stream(model="m", messages=QUESTION, tools=[tool], temperature=0) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message
    done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    assert [e.name for e in done] == ["get_weather"] and json.loads(done[0].arguments) == ARGUMENTS
    assert message.tool_calls[0].function.parsed_arguments == GetWeather(**ARGUMENTS)
    parsed = client.chat.completions.parse(model="m", messages=QUESTION, tools=[tool], temperature=0).choices[0].message
    assert parsed.tool_calls[0].function.parsed_arguments == GetWeather(**ARGUMENTS)
