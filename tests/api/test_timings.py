"""How long an answer took, in the answer: `timings` as llama.cpp says it, `metrics` as vLLM does."""
import json

import pytest

from conftest import HTTP

MESSAGES = [{"role": "user", "content": "Who was Jonah, and where did he flee?"}]
PATHS = {"/v1/chat/completions": {"messages": MESSAGES}, "/v1/completions": {"prompt": "Who was Jonah"}}


def ask(server, path, **more):
    return HTTP.post(server.url + path, json={**PATHS[path], "max_tokens": 9, "temperature": 0, "ignore_eos": True, **more})


def chunks(answer):
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def check(said, n, usage):
    timings, metrics = said["timings"], said["metrics"]
    assert timings["predicted_n"] == n and timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert timings["prompt_ms"] > 0 and timings["prompt_per_second"] == pytest.approx(1e3 * timings["prompt_n"] / timings["prompt_ms"], rel=1e-3)
    assert timings["predicted_ms"] >= 0 and metrics["generation_time_ms"] == timings["predicted_ms"]
    assert metrics["time_to_first_token_ms"] >= timings["prompt_ms"] + metrics["queue_time_ms"] - 1
    if n > 1 and timings["predicted_ms"] > 0:
        assert metrics["mean_itl_ms"] == pytest.approx(timings["predicted_ms"] / (n - 1), rel=1e-3)
        assert timings["predicted_per_second"] == pytest.approx(1e3 * (n - 1) / timings["predicted_ms"], rel=1e-3)
        assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / (n - 1), rel=1e-3)


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_that_was_asked(server, path):
    answer = ask(server, path, timings_per_token=True).json()
    check(answer, 9, answer["usage"])
    plain = ask(server, path).json()
    assert "timings" not in plain and "metrics" not in plain and plain["choices"] == answer["choices"]


@pytest.mark.parametrize("path", PATHS)
def test_each_chunk_of_a_stream(server, path):
    usage = ask(server, path).json()["usage"]
    said = chunks(ask(server, path, stream=True, timings_per_token=True, stream_options={"include_usage": True}))
    with_text = [c for c in said if c["choices"] and not c["choices"][0].get("delta", {}).get("role")]
    counts = [c["timings"]["predicted_n"] for c in with_text]
    assert counts == sorted(counts) and counts[-1] == 9 and len(with_text) > 1
    assert said[-1]["choices"] == [] and said[-1]["usage"]["completion_tokens"] == 9
    check(said[-1], 9, {**usage, "prompt_tokens_details": said[-1]["usage"]["prompt_tokens_details"]})


@pytest.mark.parametrize("more, field", [({"timings_per_token": 1}, "timings_per_token"), ({"timings_per_token": True, "n": 2}, "timings_per_token")])
def test_refused_by_name(server, more, field):
    answer = ask(server, "/v1/completions", **more)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_every_answer_with_the_option(make_server):
    server = make_server("qwen3moe-tiny", "--timings", "--responses", "4")
    for path in PATHS:
        whole = ask(server, path).json()
        check(whole, 9, whole["usage"])
        said = chunks(ask(server, path, stream=True))
        assert ["timings" in c for c in said] == [False] * (len(said) - 1) + [True] and said[-1]["choices"][0]["finish_reason"] == "length"
        said = chunks(ask(server, path, stream=True, stream_options={"include_usage": True}))
        assert ["metrics" in c for c in said] == [False] * (len(said) - 1) + [True] and said[-1]["choices"] == []
        assert "timings" not in ask(server, path, n=2).json()
    key = {"headers": {"Idempotency-Key": "k"}}
    body = {**PATHS["/v1/completions"], "max_tokens": 3}
    assert "timings" not in HTTP.post(server.url + "/v1/completions", json=body, **key).json()
    refused = HTTP.post(server.url + "/v1/completions", json={**body, "timings_per_token": True}, headers={"Idempotency-Key": "l"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "timings_per_token"


def test_one_token_took_no_time(server):
    answer = ask(server, "/v1/completions", max_tokens=1, timings_per_token=True).json()
    assert answer["timings"]["predicted_per_second"] == answer["timings"]["predicted_per_token_ms"] == 0
    assert "mean_itl_ms" not in answer["metrics"] and all(v is not None for v in answer["timings"].values())


def test_the_prompts_text(server):
    """`verbose`: what the template made of the messages."""
    answer = ask(server, "/v1/chat/completions", verbose=True).json()
    ids = HTTP.post(server.url + "/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    assert answer["__verbose"] == HTTP.post(server.url + "/detokenize", json={"tokens": ids}).json()
    assert "__verbose" not in ask(server, "/v1/chat/completions", verbose=False).json()
    assert ask(server, "/v1/completions", verbose=True, prompt="a<|im_end|>").json()["__verbose"] == {"prompt": "a<|im_end|>"}
    for more in ({"stream": True}, {"prompt": ["a", "b"]}, {"verbose": 1}):
        refused = ask(server, "/v1/completions", **{"verbose": True, **more})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "verbose"
