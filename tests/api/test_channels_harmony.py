"""Channels of a harmony answer at the API: what is not in the channel final is reasoning_content."""

import re

import pytest
from conftest import KEY, start

ASKED = ("But Ruth said", "In the days when the judges judged", "Then the LORD", "Vanity of vanities", "He said")


@pytest.fixture(scope="module")
def harmony(tmp_path_factory):
    running = start(tmp_path_factory, "gptoss-tiny", ["--api-key", KEY])
    yield running
    running.stop()


def split(raw):
    """(content, reasoning) of an answer with its markers."""
    parts = {True: "", False: ""}
    for message in re.split(r"<\|start\|>[^<]*", raw):
        found = re.match(r"(?:<\|channel\|>([^<]*))?(?:<\|constrain\|>[^<]*)?<\|message\|>(.*)", message, re.S)
        if found:
            text = re.sub(r"<\|(?:end|return|call)\|>.*", "", found[2], flags=re.S)
            parts[found[1] in (None, "final")] += text
    return parts[True], parts[False]


def ask(harmony, question, **more):
    extra = more.pop("extra_body", {})
    return harmony.client().chat.completions.create(
        model=harmony.model, temperature=0, max_tokens=90, extra_body=extra,
        messages=[{"role": "user", "content": question}], **more)


def test_channels_are_told_apart(harmony):
    seen = {"content": 0, "reasoning": 0}
    for question in ASKED:
        raw = ask(harmony, question, extra_body={"skip_special_tokens": False}).choices[0].message
        content, reasoning = split(raw.content)
        whole = ask(harmony, question).choices[0].message
        assert "<|" in raw.content and not hasattr(raw, "reasoning_content")
        assert (whole.content, getattr(whole, "reasoning_content", "")) == (content, reasoning)
        seen["content"] += bool(content)
        seen["reasoning"] += bool(reasoning)
    assert all(seen.values()), seen


def test_streams_say_the_same(harmony):
    for question in ASKED:
        whole = ask(harmony, question).choices[0]
        deltas = [c.choices[0].delta for c in ask(harmony, question, stream=True)]
        assert "".join(d.content or "" for d in deltas) == whole.message.content
        thought = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
        assert thought == getattr(whole.message, "reasoning_content", "")
