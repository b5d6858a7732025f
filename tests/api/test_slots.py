"""What the server says of itself (`/props`) and of what runs (`/slots`): to each key its own requests alone."""
import contextlib
import json

import httpx

MODEL = "qwen3moe-tiny"
FIRST, SECOND = "first-key-of-all", "second-key-of-all"
LONG = {"prompt": [3, 17, 41, 5], "max_tokens": 480, "temperature": 0, "ignore_eos": True, "stream": True}


def get(server, path, key=None):
    answer = httpx.get(server.url + path, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


@contextlib.contextmanager
def running(server, key=None, **more):
    """The id of a stream that has begun, while it runs."""
    head = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.stream("POST", server.url + "/v1/completions", json={**LONG, **more}, headers=head, timeout=60) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()  # who drops it closes the connection
        yield json.loads(next(line for line in lines if line.startswith("data: "))[6:])["id"]


def test_props(make_server):
    server = make_server("mixtral-tiny", "--attention", "2", "--experts", "1", "--max-num-seqs", "3", "--ctx", "300", "--temp", "0.25",
                         "--served-model-name", "a,b")
    props = get(server, "/props")
    settings = props["default_generation_settings"]
    assert props["total_slots"] == 6 and settings["n_ctx"] == 300 and props["n_ctx_train"] == server.config["max_position_embeddings"]
    assert props["model_alias"] == "a" and props["architecture"] == server.config["architectures"][0]
    assert props["n_vocab"] == server.config["vocab_size"]
    assert props["build_info"] == get(server, "/version")["version"]
    rows = settings["params"]
    assert rows["temperature"] == 0.25 and rows["repetition_penalty"] == 1 and rows["min_p"] == 0
    assert set(rows) == {"temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"}
    caps = props["chat_template_caps"]
    assert caps["tool_format"] == "hermes" and caps["supports_tools"] and not caps["shows_tools"]
    assert not caps["supports_reasoning_effort"] and not caps["supports_enable_thinking"]
    answer = server.client().completions.create(model=None, prompt="And", max_tokens=1)
    assert props["system_fingerprint"] == answer.system_fingerprint
    assert len(get(server, "/slots")) == 6


def test_slots_show_the_callers_own(make_server, tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"{FIRST}\n{SECOND}\n")
    file.chmod(0o600)
    server = make_server(MODEL, "--api-key-file", str(file), "--max-num-seqs", "4", "--isa", "ref")
    for path in ("/slots", "/props"):
        assert httpx.get(server.url + path, timeout=30).status_code == 401
    empty = [{"id": i, "n_ctx": 512, "is_processing": False} for i in range(4)]
    assert get(server, "/slots", FIRST) == empty
    for _ in range(5):  # a busy machine may have ended them before it is asked
        with running(server, FIRST, n=2) as first, running(server, SECOND, max_tokens=400, n=3) as second:
            mine, yours = get(server, "/slots", FIRST), get(server, "/slots", SECOND)
        if "request" in mine[0]:
            break
    assert [s["id"] for s in mine] == [s["id"] for s in yours] == [0, 1, 2, 3]
    assert [s.get("request") for s in mine] == [first, first, None, None]
    assert [s.get("request") for s in yours] == [None, None, second, second]
    assert [s.get("choice") for s in mine[:2]] == [0, 1] == [s["choice"] for s in yours[2:]]
    for own, other, most in [(mine[0], yours[0], 480), (mine[1], yours[1], 480), (yours[2], mine[2], 400)]:
        assert other == {"id": own["id"], "n_ctx": 512, "is_processing": True}
        assert own["is_processing"] and own["params"] == {"max_tokens": most, "n_predict": most}
        assert own["n_prompt_tokens"] == 4
        [token] = own["next_token"]
        assert token["has_next_token"] and token["n_decoded"] + token["n_remain"] == most
    assert mine[0]["n_prompt_tokens_processed"] == 4 and mine[0]["next_token"][0]["n_decoded"] > 0
    assert server.wait_idle()
    assert get(server, "/slots", SECOND) == empty


def test_slots_of_kept_answers(make_server):
    """They are there while nobody reads them; what is asked about their prompts is no token."""
    server = make_server(MODEL, "--responses", "4", "--max-num-seqs", "2", "--isa", "ref", "--responses-grace", "60")
    body = {**LONG, "echo": True, "logprobs": 0}
    for key in "abcde":
        head = {"Idempotency-Key": key}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, headers=head, timeout=60) as stream:
            line = next(line for line in stream.iter_lines() if line.startswith("data: "))
        found = get(server, "/slots")
        if "request" in found[0]:
            break
    assert found[0]["request"] == json.loads(line[6:])["id"] and "request" not in found[1]
    assert found[0]["n_prompt_tokens"] == 4 >= found[0]["n_prompt_tokens_processed"] >= 0
    token = found[0]["next_token"][0]
    assert token["n_decoded"] + token["n_remain"] == 480
    assert "request" not in get(server, "/slots", "somebody-else")[0]
