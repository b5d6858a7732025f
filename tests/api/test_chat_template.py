"""A chat template of a file in place of the model's own (`--chat-template`), and its text in `/props`."""
import json
import pathlib

import httpx
import pytest

from conftest import GOLDEN

MODEL = "qwen3moe-tiny"
TALK = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "There."}, {"role": "user", "content": "Then?"}]
TEXT = ("{% for m in messages %}[{{ m.role }}] {{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% if enable_thinking %} <think>{% endif %}{% endif %}")


def shown(server, **more):
    ids = httpx.post(server.url + "/tokenize", json={"messages": TALK, **more}, timeout=30).json()["tokens"]
    return httpx.post(server.url + "/detokenize", json={"tokens": ids}, timeout=30).json()["prompt"]


def fingerprint(server):
    return server.client().completions.create(model=None, prompt="And", max_tokens=1).system_fingerprint


def test_a_template_of_a_file(make_server, tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text(TEXT)
    own, other = make_server(MODEL), make_server(MODEL, "--chat-template", str(file))
    assert shown(other) == "[user] Where?;[assistant] There.;[user] Then?;[assistant]" != shown(own)
    assert shown(other, chat_template_kwargs={"enable_thinking": True}).endswith("[assistant] <think>")
    props = [s.get("/props").json() for s in (own, other)]
    published = json.loads((GOLDEN / MODEL / "tokenizer_config.json").read_text())
    assert props[1]["chat_template"] == TEXT and "chat_template_tool_use" not in props[1]
    if "chat_template" in published:
        assert props[0]["chat_template"] == published["chat_template"]
    # what it is known to do, and the name of what decides an answer, are its own
    assert [p["chat_template_caps"]["supports_enable_thinking"] for p in props] == [False, True]
    assert fingerprint(own) != fingerprint(other) == props[1]["system_fingerprint"]
    answer = other.client().chat.completions.create(model=None, messages=TALK, max_tokens=4, temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 4


def test_a_model_without_a_template_gets_one(make_server, tmp_path):
    folder = tmp_path / MODEL
    folder.mkdir()
    for path in (GOLDEN / MODEL).iterdir():
        (folder / path.name).symlink_to(path)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
    assert make_server(folder).get("/props").json()["chat_template"] is None
    file = tmp_path / "own.jinja"
    file.write_text(TEXT)
    assert shown(make_server(folder, "--chat-template", str(file))).startswith("[user] Where?;")


@pytest.mark.parametrize("text, why", [(None, "no such file"), ("{% for m in messages %}", "own.jinja"), ("{{ nobody(1) }}", None)])
def test_templates_that_are_none(make_server, tmp_path, text, why):
    """The server does not start: who named a file wants it."""
    file = tmp_path / "own.jinja"
    if text is not None:
        file.write_text(text)
    if why is None:  # what is reached only when it runs is said then
        answer = httpx.post(make_server(MODEL, "--chat-template", str(file)).url + "/tokenize", json={"messages": TALK}, timeout=30)
        assert answer.status_code == 400 and "nobody" in answer.json()["error"]["message"]
        return
    with pytest.raises(RuntimeError) as caught:
        make_server(MODEL, "--chat-template", str(file))
    assert str(pathlib.Path(file)) in str(caught.value) and why.lower() in str(caught.value).lower()
