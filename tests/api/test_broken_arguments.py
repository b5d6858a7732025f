"""Calls in a history whose arguments are no JSON, as answers that were cut have them: they are taken as texts. And what
generation_config.json says of sampling at all."""
import json

import httpx
import pytest

from conftest import GOLDEN
from test_openai import QUESTION
from test_prefill import folder_with, prompt_of

CUT = '{"city": "Os\u00e9'
TEXTS = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name + '(' + c.function.arguments + ')' }}>" \
        "{% endfor %}\n{% endfor %}"


def call(arguments):
    return {"id": "call_abcdefghijklmnopqrstuvwx", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def talk(*arguments):
    return [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call(a) for a in arguments]},
            *[{"role": "tool", "tool_call_id": "call_abcdefghijklmnopqrstuvwx", "content": "sunny"} for _ in arguments], *QUESTION]


# how the template shows it: as the text it is, or as a JSON string of it
AS_IT_IS, AS_JSON = CUT, json.dumps(CUT, ensure_ascii=False)
TEMPLATES = {"Qwen3": AS_IT_IS, "Kimi-K2-2025-07": AS_JSON, "DeepSeek-V3.1": AS_JSON, "Llama-4": AS_JSON, TEXTS: AS_IT_IS}


@pytest.mark.parametrize("template", TEMPLATES, ids=[t[:16] for t in TEMPLATES])
def test_they_are_texts(make_server, tmp_path, template):
    server = make_server(folder_with(tmp_path, "qwen3moe-tiny", template))
    whole = prompt_of(server, talk('{"city": "Oslo"}'))
    cut = prompt_of(server, talk(CUT))
    assert "get_weather" in cut and TEMPLATES[template] in cut and CUT not in whole
    if TEMPLATES[template] == AS_IT_IS:
        assert json.dumps(CUT) not in cut
    # one beside whole ones, two of one message, a key twice
    for arguments in (['{"city": "Oslo"}', CUT], [CUT, CUT], ['{"a": 1, "a": 2}'], ["[1"]):
        if template == "Llama-4" and len(arguments) > 1:
            continue  # its template takes one call a message
        assert prompt_of(server, talk(*arguments)).count("get_weather") == len(arguments)
    answer = httpx.post(server.url + "/v1/chat/completions", json={"messages": talk(CUT), "max_tokens": 2}, timeout=30)
    assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] > 10


def test_templates_without_calls_show_them(make_server, tmp_path):
    server = make_server(folder_with(tmp_path, "qwen3moe-tiny", "ChatML"))
    assert "get_weather" in prompt_of(server, talk(CUT))


def test_templates_that_want_an_object_say_so(make_server, tmp_path):
    server = make_server(folder_with(tmp_path, "qwen3moe-tiny", "GLM-4.5"))
    assert "<arg_value>Oslo" in prompt_of(server, talk('{"city": "Oslo"}'))
    refused = httpx.post(server.url + "/v1/chat/completions", json={"messages": talk(CUT), "max_tokens": 2}, timeout=30)
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == "messages" and "items" in error["message"]


@pytest.mark.parametrize("said, want", [([], 0), (["--temp", "1.5"], 1.5)])
def test_do_sample(make_server, tmp_path, said, want):
    """What does not sample is greedy, unless the option or the request says otherwise."""
    folder = folder_with(tmp_path, "qwen3moe-tiny", "ChatML")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_sample": False, "temperature": 0.75, "top_k": 9}))
    server = make_server(folder, *said)
    rows = server.get("/props").json()["default_generation_settings"]["params"]
    assert rows["temperature"] == want and rows["top_k"] == 9
    golden = next(c for c in json.loads((GOLDEN / "qwen3moe-tiny" / "golden.json").read_text())["cases"] if c["name"] == "line")
    ask = lambda **more: server.client().completions.create(model=None, prompt=golden["prompt_ids"], max_tokens=32, seed=3,
                                                            extra_body={"ignore_eos": True}, **more).choices[0].text
    greedy = ask(temperature=0)
    assert golden["greedy_text"].startswith(greedy) and ask(temperature=1.5) != greedy
    assert (ask() == greedy) == (want == 0)


def test_repetition_penalty(make_server, tmp_path):
    """Where a request is silent it is the model's."""
    folder = folder_with(tmp_path, "qwen3moe-tiny", "ChatML")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.75}))
    server = make_server(folder)
    assert server.get("/props").json()["default_generation_settings"]["params"]["repetition_penalty"] == 1.75
    golden = next(c for c in json.loads((GOLDEN / "qwen3moe-tiny" / "golden.json").read_text())["cases"] if c["name"] == "line")
    ask = lambda **more: server.client().completions.create(model=None, prompt=golden["prompt_ids"], max_tokens=48, temperature=0,
                                                            extra_body={"ignore_eos": True, **more}).choices[0].text
    plain = ask(repetition_penalty=1)
    assert golden["greedy_text"].startswith(plain) and ask() == ask(repetition_penalty=1.75) != plain
