"""Answers that go on from the assistant's last message: `continue_final_message`, with the chat templates of several
families, and with tokenizers that drop an answer's first space."""
import json
import shutil

import httpx
import openai
import pytest

from conftest import GOLDEN, KEY
from test_breadth import ids_of, joined
from test_openai import QUESTION, stream_text

WORDS = "Jonah fled to Tarshish,  for"
TALK = [*QUESTION, {"role": "assistant", "content": WORDS}]
GO_ON = {"continue_final_message": True, "add_generation_prompt": False}
TEMPLATES = ["ChatML", "DeepSeek-R1-Distill", "DeepSeek-V3.1", "GLM-4.5", "Kimi-K2-2025-07", "Llama-4", "Mistral-Instruct-0.1",
             "Mixtral-Instruct", "OLMoE-Instruct", "Qwen3", "Qwen3-Thinking-2507", "gpt-oss"]


def folder_with(tmp_path, fixture, template, tokenizer=None):
    """A copy of a fixture with another template: a text, or the name of one of the goldens."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / fixture, folder)
    named = GOLDEN / "chat" / "templates" / f"{template}.jinja"
    (folder / "chat_template.jinja").write_text(template if "{" in template else named.read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    if tokenizer:
        shutil.copy(GOLDEN / "tokenizers" / tokenizer / "tokenizer.json", folder)
        config = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def prompt_of(server, messages, **fields):
    """The text of a prompt, with its special tokens."""
    made = httpx.post(server.url + "/tokenize", json={"messages": messages, **fields}, timeout=30).json()
    assert "tokens" in made, made
    return httpx.post(server.url + "/detokenize", json={"tokens": made["tokens"]}, timeout=30).json()["prompt"]


def chat(server, messages=TALK, **options):
    extra = {**GO_ON, **options.pop("extra_body", {})}
    options = {"max_completion_tokens": 12, "temperature": 0, **options}
    return server.client().chat.completions.create(model=None, messages=messages, extra_body=extra, **options)


@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts_end_with_the_words(make_server, tmp_path, template):
    server = make_server(folder_with(tmp_path, "qwen3moe-tiny", template))
    whole = prompt_of(server, TALK, add_generation_prompt=False)
    shown = prompt_of(server, TALK, **GO_ON)
    assert shown.endswith(WORDS) and whole.startswith(shown)
    assert whole.rindex(WORDS) + len(WORDS) == len(shown)
    # white space at the end stays where the template keeps it, and nothing of the template's goes
    padded = [*QUESTION, {"role": "assistant", "content": WORDS + " \n"}]
    whole = prompt_of(server, padded, add_generation_prompt=False)
    kept = WORDS + " \n" if WORDS + " \n" in whole else WORDS
    assert prompt_of(server, padded, **GO_ON) == shown[:-len(WORDS)] + kept
    # parts are a content, too; no words are gone on with as some are
    parts = [*QUESTION, {"role": "assistant", "content": [{"type": "text", "text": WORDS}]}]
    assert prompt_of(server, parts, **GO_ON) == shown
    none = [*QUESTION, {"role": "assistant", "content": ""}]
    assert prompt_of(server, none, **GO_ON) == shown[:-len(WORDS)]
    server.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_is_what_follows(server, stream):
    """Token for token a completion of the same prompt."""
    asked = chat(server, extra_body={"return_token_ids": True})
    ids, choice = asked.model_extra["prompt_token_ids"], asked.choices[0]
    said = server.client().completions.create(model=server.model, prompt=ids, temperature=0, max_tokens=12,
                                              extra_body={"return_token_ids": True}).choices[0]
    assert ids_of(choice) == ids_of(said) and choice.message.content == said.text
    assert choice.message.role == "assistant" and asked.usage.prompt_tokens == len(ids)
    again = chat(server, stream=stream, extra_body={"echo": True}, n=2)
    assert (joined(again, 2)[0] if stream else [c.message.content for c in again.choices]) == 2 * [WORDS + said.text]
    # stop strings are looked for behind the words
    stopped = chat(server, stop=["Jonah", said.text[3:6]], stream=stream)
    text = stream_text(stopped)[0] if stream else stopped.choices[0].message.content
    assert text == said.text[:said.text.index(said.text[3:6])]


def test_first_spaces_stay(make_server, tmp_path):
    """Where a token begins with a space that the beginning of an answer does not have."""
    server = make_server(folder_with(tmp_path, "mixtral-tiny", "Mixtral-Instruct", "spm_legacy"))
    vocabulary = json.loads((GOLDEN / "tokenizers" / "spm_legacy" / "tokenizer.json").read_text())["model"]["vocab"]
    word = max((w for w in vocabulary if w.startswith("\u2581") and w[1:].isalpha()), key=len)
    force = {"logit_bias": {str(vocabulary[word]): 100}, "max_completion_tokens": 2}
    text = word.replace("\u2581", " ")
    assert chat(server, **force).choices[0].message.content == 2 * text
    assert stream_text(chat(server, stream=True, **force))[0] == 2 * text
    own = chat(server, messages=QUESTION, extra_body={"continue_final_message": False, "add_generation_prompt": True}, **force)
    assert own.choices[0].message.content == (2 * text)[1:]


def test_thoughts_that_the_words_open(make_server, tmp_path):
    server = make_server(folder_with(tmp_path, "qwen3moe-tiny", "Qwen3"))
    ask = lambda text: chat(server, messages=[*QUESTION, {"role": "assistant", "content": text}]).choices[0].message
    thought, said = ask("<think>\nLet me see:"), ask("Let me see:")
    assert thought.model_extra["reasoning_content"] and not thought.content
    assert said.content and "reasoning_content" not in said.model_extra


def test_shapes_and_kept_answers(make_server):
    server = make_server("qwen3moe-tiny", "--responses", "4")
    choice = chat(server, extra_body={"guided_choice": [" three days", " ever"]}).choices[0]
    assert choice.message.content in (" three days", " ever")
    key = dict(extra_headers={"Idempotency-Key": "words"}, extra_body={"echo": True}, max_completion_tokens=9)
    first = chat(server, **key)
    assert first.choices[0].message.content.startswith(WORDS) and chat(server, **key) == first
    assert stream_text(chat(server, stream=True, **{**key, "extra_headers": {"Idempotency-Key": "streamed"}}))[0] == \
        first.choices[0].message.content
    said = httpx.get(f"{server.url}/v1/chat/completions/{first.id}", timeout=30,
                     headers={"Authorization": f"Bearer {KEY}"}).json()
    assert said["choices"][0]["message"]["content"] == first.choices[0].message.content


BAD = {"both": ({"add_generation_prompt": True}, TALK, "continue_final_message"),
       "the user's": ({}, QUESTION, "continue_final_message"),
       "calls": ({}, [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [
           {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}], "continue_final_message"),
       "no boolean": ({"continue_final_message": 1}, TALK, "continue_final_message"),
       "echo alone": ({"continue_final_message": False, "echo": True}, TALK, "echo"),
       "a call": ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, TALK, "tool_choice")}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_gone_on_with(server, name):
    fields, messages, param = BAD[name]
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, messages=messages, extra_body=fields)
    assert caught.value.param == param and param in caught.value.body["message"]
    if param != "continue_final_message":
        return
    asked = {"messages": messages, **GO_ON, **fields}
    refused = httpx.post(server.url + "/tokenize", json=asked, timeout=30)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param


def test_templates_that_do_not_show_the_words(make_server, tmp_path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content[:9] }}\n{% endfor %}"
    server = make_server(folder_with(tmp_path, "qwen3moe-tiny", template))
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server)
    assert caught.value.param == "continue_final_message" and "template" in caught.value.body["message"]


def test_long_words_are_bounded(server):
    context = server.client().models.retrieve(server.model).model_extra["max_model_len"]
    long = [*QUESTION, {"role": "assistant", "content": "a b " * 40 * context}]
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, messages=long)
    assert caught.value.code == "context_length_exceeded"
