"""Tokens drawn of what a GPU finds of their logits (SLUICE_CUDA_FORMS=try): those that all logits give, for every way of drawing, and how many rows came
whole. Over the tests' emulated GPU."""

import concurrent.futures
import json
import os
import re

import pytest

from test_gpu import FAKE, FIXTURE, sample, served

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")

PROMPT = [3, 17, 41, 90, 5, 7, 700]
# a body of /v1/completions each, and whether what is sought is always enough for it
FOUND = [
    {"temperature": 0},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "presence_penalty": 1.5},
    {"temperature": 1, "top_k": 40, "min_p": 0.05, "logprobs": 5},
    {"temperature": 1, "top_p": 1},
    {"temperature": 1, "top_p": 1, "min_p": 0.1, "logprobs": 3},
    {"temperature": 0, "logprobs": 1, "repetition_penalty": 1.2},
    {"temperature": 0, "logit_bias": {"5": 3, "6": -100}},
    {"temperature": 0.8, "top_k": 5, "min_tokens": 12, "ignore_eos": False},
]
PERHAPS = [
    {"temperature": 0.5, "top_p": 0.9},
    {"temperature": 0.3, "top_p": 0.5, "logprobs": 2},
    {"temperature": 0.9, "top_k": 50, "frequency_penalty": 2},
]
WHOLE = [
    {"temperature": 1, "top_p": 1, "presence_penalty": 1},
    {"temperature": 0.7, "top_k": 300},
    {"temperature": 0, "presence_penalty": -1},
    {"temperature": 0.6, "top_p": 0.9, "structured_outputs": {"regex": "[a-z ]{4,30}"}},
]
SHAPED = [{"temperature": 0, "structured_outputs": {"regex": "[a-z ]{4,30}"}}]


def answers(bodies, *options, **variables):
    """What each body gets, all at once, and what the server says."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    server = served.Server(str(FIXTURE), "--ctx", "128", "--max-num-seqs", "16", "--exact", "--kv-type", "f32", "--log", "info", *options,
                           environment={**clean, "SLUICE_CUDA_DRIVER": str(FAKE), **variables})

    def ask(numbered):
        seed, body = numbered
        whole = {"model": "m", "prompt": PROMPT, "max_tokens": 24, "seed": seed, "return_token_ids": True, "top_k": 0,
                 **({} if "structured_outputs" in body else {"ignore_eos": True}), **body}
        reply = server.request("POST", "/v1/completions", whole)
        said = json.loads(reply.read())
        assert reply.status == 200, said
        choice = said["choices"][0]
        return choice["text"], choice["token_ids"], choice["logprobs"], choice["finish_reason"]
    try:
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            got = list(pool.map(ask, enumerate(bodies)))
    finally:
        server.stop_well()
    return got, "".join(server.log)


def rows(log):
    """Rows that were found on the GPU, of these those that came whole after all, those that came whole at once."""
    said = [tuple(map(int, found)) for found in re.findall(r"draws: (\d+) rows were found on the GPU, of which (\d+) came whole after all; (\d+) came", log)]
    return tuple(map(sum, zip(*said))) if said else (0, 0, 0)


@pytest.mark.parametrize("extra", sample.of([["--device", "cuda:0"], ["--attention", "1", "--experts", "1", "--attention-device", "cuda:0", "--transport", "loop", "--speculate",
                                              "lookup"]], 1))
def test_the_tokens_of_all_logits(extra):
    bodies = FOUND + PERHAPS + WHOLE + SHAPED
    cpu, _ = answers(bodies)
    plain, quiet = answers(bodies if sample.WHOLE else bodies[:3], *extra)
    tried, told = answers(bodies, *extra, SLUICE_CUDA_FORMS="try")
    assert plain == cpu[:len(plain)] and rows(quiet) == (0, 0, 0)
    for body, want, got in zip(bodies, cpu, tried):
        assert got == want, body
    found, after, whole = rows(told)
    assert found >= 24 * (len(FOUND) + len(PERHAPS)) and after > 0 and whole >= 24 * 3, told


def test_what_most_requests_ask_for_brings_no_logits():
    _, told = answers(FOUND, "--device", "cuda:0", SLUICE_CUDA_FORMS="try")
    found, after, whole = rows(told)
    assert found >= 20 * len(FOUND) and after == 0 and whole == 0, told
