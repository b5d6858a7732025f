"""`system_fingerprint`: the same where bits are the same, and another where they may not be."""
import re

import pytest

from test_openai import QUESTION

EXACT = [[], ["--attention", "1", "--experts", "2", "--schedule", "dep"],
         ["--attention", "2", "--experts", "2", "--schedule", "pingpong"],
         ["--attention", "1", "--experts", "3", "--schedule", "aep"], ["--max-num-batched-tokens", "64", "--threads", "1"]]


def fingerprint(server):
    answer = server.client().completions.create(model=server.model, prompt="And", max_tokens=1)
    return answer.system_fingerprint


def of(make_server, fixture, *args):
    running = make_server(fixture, *args)
    found = fingerprint(running)
    running.stop()
    return found


def test_every_answer_and_chunk_has_it(server, client):
    found = fingerprint(server)
    assert re.fullmatch("fp_[0-9a-f]{32}", found)
    chat = dict(model=server.model, messages=QUESTION, max_completion_tokens=4, stream_options={"include_usage": True})
    text = dict(model=server.model, prompt="And", max_tokens=4, stream_options={"include_usage": True})
    assert client.chat.completions.create(**{**chat, "stream_options": None}).system_fingerprint == found
    for chunks in (client.chat.completions.create(**chat, stream=True), client.completions.create(**text, stream=True)):
        chunks = list(chunks)
        assert len(chunks) > 2 and {c.system_fingerprint for c in chunks} == {found}


def test_exact_deployments_have_one(make_server):
    found = {of(make_server, "qwen3moe-tiny", "--exact", *args) for args in EXACT}
    assert len(found) == 1
    # another order of sums, and another rounding
    others = [["--segments"], ["--wire", "bf16"], ["--activations", "f32"]]
    assert len(found | {of(make_server, "qwen3moe-tiny", "--exact", *args) for args in others}) == 4
    assert of(make_server, "qwen3moe-tiny", "--exact", "--tp", "2") in found


def test_without_exact_placements_differ(make_server):
    apart = ["--attention", "1", "--experts", "2"]
    found = of(make_server, "qwen3moe-tiny", *apart)
    assert of(make_server, "qwen3moe-tiny", *apart) == found
    # what sums nothing else has the same bits
    assert of(make_server, "qwen3moe-tiny", *apart, "--schedule", "pingpong", "--max-num-batched-tokens", "64") == found
    others = [["--exact"], [], ["--attention", "1", "--experts", "3"], [*apart, "--schedule", "aep"]]
    assert len({found} | {of(make_server, "qwen3moe-tiny", *args) for args in others}) == 5
    assert of(make_server, "qwen3moe-tiny", "--tp", "2") == of(make_server, "qwen3moe-tiny")  # ranks add nothing otherwise


@pytest.mark.parametrize("fixture", ["deepseekv2-tiny"])
def test_latent_models_say_that_they_vary(make_server, fixture):
    assert of(make_server, fixture).endswith("-varies")
    exact = of(make_server, fixture, "--exact")
    assert re.fullmatch("fp_[0-9a-f]{32}", exact)
    assert of(make_server, "qwen3moe-tiny", "--exact") != exact
