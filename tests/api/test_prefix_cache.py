"""Requests that begin with pages that others computed: how many tokens, whose, where, the same answer, and every dialect's word for it."""
import threading
import time

import anthropic
import httpx
import pytest

MODEL = "qwen3moe-tiny"
PAGE = 32
TEXT = [(7 * i * i + 3 * i) % 900 + 3 for i in range(200)]
FIRST, SECOND = "first-key-of-all", "second-key-of-all"


def ask(server, prompt=TEXT, key=None, **body):
    """The answer, and how many tokens of its prompt were cached."""
    head = {"Authorization": f"Bearer {key}"} if key else {}
    got = httpx.post(server.url + "/v1/completions", headers=head, timeout=120,
                     json={"model": MODEL, "prompt": prompt, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True,
                           "temperature": 0, **body})
    assert got.status_code == 200, got.text
    got = got.json()
    assert got["usage"]["total_tokens"] == got["usage"]["prompt_tokens"] + got["usage"]["completion_tokens"]
    return got, got["usage"]["prompt_tokens_details"]["cached_tokens"]


def cached(server, *args, **more):
    return ask(server, *args, **more)[1]


def test_full_pages_are_found_and_answers_are_the_same(make_server):
    server = make_server(MODEL, "--exact")
    cold, none = ask(server, logprobs=3)
    assert none == 0
    warm, found = ask(server, logprobs=3)
    assert found == 192 and warm["choices"] == cold["choices"]
    alone, none = ask(server, logprobs=3, cache=False)
    assert none == 0 and alone["choices"] == cold["choices"]
    # of a prompt that is all there the last page is computed; of another one what is the same
    assert cached(server, TEXT[:192]) == 160
    assert cached(server, TEXT[:193]) == 192
    assert cached(server, TEXT[:100] + [5] * 100) == 96
    assert cached(server, [5] + TEXT) == 0
    # what was answered is there, too, as far as it filled pages
    long, _ = ask(server, TEXT[:60], max_tokens=80)
    turn = TEXT[:60] + long["choices"][0]["token_ids"]
    assert len(turn) == 140 and cached(server, turn + [9] * 40) == 128
    # what is asked about the prompt is computed
    echo, found = ask(server, echo=True, logprobs=1)
    again, twice = ask(server, echo=True, logprobs=1)
    assert found == twice == 0 and echo["choices"] == again["choices"]
    assert server.metric("prefix_cache_hits_total") >= 192 + 160 + 192 + 96 + 128
    assert server.metric("prefix_cache_queries_total") > server.metric("prefix_cache_hits_total")
    assert server.wait_idle() and server.metric("kv_cache_usage_perc") == 0
    end = time.monotonic() + 10  # workers are shown twice a second
    used = here = None
    while (used, here) != (0, server.metric("kv_pages_cached")) and time.monotonic() < end:
        time.sleep(0.05)
        used, here, free = (server.metric("worker_kv_pages", state=s) for s in ("used", "cached", "free"))
    assert used == 0 and here == server.metric("kv_pages_cached") > 6 and free > 0


def keys_of(folder, key):
    file = folder / "keys"
    file.write_text(key + "\n")
    file.chmod(0o600)
    return str(file)


def test_by_whom(make_server, tmp_path):
    server = make_server(MODEL, "--api-key", FIRST, "--api-key-file", keys_of(tmp_path, SECOND))
    assert [cached(server, key=k) for k in (FIRST, FIRST, SECOND, SECOND)] == [0, 192, 0, 192]
    assert [cached(server, key=FIRST, cache_salt=s) for s in ("a", "a", "b", None)] == [0, 192, 0, 192]
    assert [cached(server, key=FIRST, cache=c) for c in (False, True, None)] == [0, 192, 192]
    for wrong in ({"cache_salt": ""}, {"cache_salt": 3}, {"cache": "no"}):
        got = httpx.post(server.url + "/v1/completions", headers={"Authorization": f"Bearer {FIRST}"},
                         json={"model": MODEL, "prompt": [3], **wrong})
        assert got.status_code == 400 and got.json()["error"]["param"] == next(iter(wrong))


def test_shared_by_all_or_by_none(make_server, tmp_path):
    server = make_server(MODEL, "--api-key", FIRST, "--api-key-file", keys_of(tmp_path, SECOND), "--prefix-cache", "shared")
    assert [cached(server, key=k) for k in (FIRST, SECOND)] == [0, 192]
    server = make_server(MODEL, "--prefix-cache", "off")
    assert [cached(server) for _ in range(2)] == [0, 0]
    assert server.metric("kv_pages_cached") == server.metric("prefix_cache_queries_total") == 0


def test_pages_go_when_somebody_wants_them(make_server):
    server = make_server(MODEL, "--ctx", "256", "--kv-pages", "16", "--max-num-seqs", "2")
    texts = [[(i + k) % 900 + 3 for i in range(200)] for k in range(0, 500, 100)]
    assert [cached(server, t) for t in texts] == [0] * 5
    assert cached(server, texts[-1]) == 192
    assert cached(server, texts[0]) == 0
    assert server.metric("kv_pages_evicted_total") > 6
    assert server.metric("num_preemptions_total") == 0


def test_a_conversation_stays_where_it_was(make_server):
    server = make_server(MODEL, "--attention", "2", "--experts", "1", "--exact")
    turns = [TEXT, [(11 * i) % 900 + 3 for i in range(200)]]
    for _ in range(3):
        for i, turn in enumerate(turns):
            got, found = ask(server, turn, max_tokens=20)
            assert found == (len(turn) - 1) // PAGE * PAGE or found == 0 and len(turn) == 200
            turns[i] = turn + got["choices"][0]["token_ids"]
    alone, none = ask(server, turns[0], cache=False)
    warm, found = ask(server, turns[0])
    assert none == 0 and found > 192 and alone["choices"] == warm["choices"]


def test_requests_beside_each_other(make_server):
    """A hundred with one beginning, cold at first, with few pages: all the same answers."""
    server = make_server(MODEL, "--exact", "--ctx", "512", "--kv-pages", "64", "--max-num-seqs", "16")
    prompts = [TEXT[:150] + [k] * (k % 40) for k in range(3, 28)]
    want = [ask(server, p, cache=False, max_tokens=40, seed=1, temperature=1)[0]["choices"][0]["token_ids"] for p in prompts]
    got = [None] * 100

    def one(i):
        got[i] = ask(server, prompts[i % 25], max_tokens=40, seed=1, temperature=1)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(100)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [g[0]["choices"][0]["token_ids"] for g in got] == want * 4
    assert sum(g[1] for g in got) > 50 * 128
    assert server.metric("num_preemptions_total") > 0 or server.metric("kv_pages_evicted_total") > 0


CHAT = [{"role": "user", "content": "Tell me of rivers, weirs and gates. " * 12}]


def test_every_dialect_says_it(make_server):
    server = make_server(MODEL, "--responses", "8")
    client = server.client()
    for found in (False, True):
        got = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=4)
        assert (got.usage.prompt_tokens_details.cached_tokens > 0) == found
    n = got.usage.prompt_tokens
    some = got.usage.prompt_tokens_details.cached_tokens
    assert some == (n - 1) // PAGE * PAGE
    stream = list(client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=4, stream=True, stream_options={"include_usage": True}))
    assert stream[-1].usage.prompt_tokens_details.cached_tokens == some
    for _ in range(2):
        made = client.responses.create(model=MODEL, input=CHAT, max_output_tokens=16)
    assert made.usage.input_tokens_details.cached_tokens == some
    assert client.responses.retrieve(made.id).usage.input_tokens_details.cached_tokens == some
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    for _ in range(2):  # a key is another caller
        said = claude.messages.create(model=MODEL, messages=CHAT, max_tokens=4)
    assert (said.usage.cache_read_input_tokens, said.usage.input_tokens) == (some, n - some)
    with claude.messages.stream(model=MODEL, messages=CHAT, max_tokens=4) as events:
        last = events.get_final_message()
    assert (last.usage.cache_read_input_tokens, last.usage.input_tokens) == (some, n - some)


@pytest.mark.parametrize("args", [[], ["--attention", "2", "--experts", "1"]], ids=["one process", "2+1 workers"])
def test_several_choices_and_prompts(make_server, args):
    server = make_server(MODEL, "--exact", *args)
    other = [(5 * i) % 900 + 3 for i in range(100)]
    assert cached(server, [TEXT, other], n=2, seed=3, temperature=1) == 0
    assert cached(server, [TEXT, other], n=2, seed=3, temperature=1) == 192 + 96
