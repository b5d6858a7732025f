"""Who may ask: keys of a file that is read again at SIGHUP, pages of other sites, bodies that name no model, and what holds where
a request says nothing of sampling."""
import signal
import time

import httpx
import pytest


MODEL = "qwen3moe-tiny"
FIRST, SECOND, THIRD = "first-key-of-all", "second-key-of-all", "third-key-of-all"
SITE = "https://chat.example"
BODY = {"prompt": [3, 17, 41], "max_tokens": 12, "ignore_eos": True}


def status(server, key=None, **more):
    head = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.get(server.url + "/v1/models", headers={**head, **more}).status_code


def write(path, text):
    path.write_text(text)
    path.chmod(0o600)


def hang_up(server, until):
    """SIGHUP; until the log says so."""
    had = server.log.read_text().count(until)
    server.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 20
    while server.log.read_text().count(until) == had and time.monotonic() < end:
        time.sleep(0.02)
    assert server.log.read_text().count(until) > had


def test_keys_of_a_file_are_read_again(make_server, tmp_path):
    file = tmp_path / "keys"
    write(file, f"# of two people\n{FIRST}\n\n  {SECOND}\r\n")
    server = make_server(MODEL, "--api-key-file", str(file), "--api-key", "one-more", "--responses", "8")
    assert [status(server, k) for k in (FIRST, SECOND, "one-more", THIRD, FIRST[:-1], "# of two people", None)] == \
        [200, 200, 200, 401, 401, 401, 401]
    assert status(server, **{"x-api-key": SECOND}) == 200
    made = server.client(api_key=FIRST).completions.create(model=MODEL, prompt="And", max_tokens=2, extra_headers={"Idempotency-Key": "a"})
    with httpx.stream("POST", server.url + "/v1/completions", headers={"Authorization": f"Bearer {SECOND}"}, timeout=60,
                      json={**BODY, "max_tokens": 400, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        write(file, f"{FIRST}\n{THIRD}\n")
        hang_up(server, "hold from now on")
        assert [status(server, k) for k in (FIRST, SECOND, "one-more", THIRD)] == [200, 401, 200, 200]
        assert "data: [DONE]" in list(lines)  # what was let in goes on
    # what a key made is its caller's still
    assert server.client(api_key=FIRST).get(f"/completions/{made.id}", cast_to=httpx.Response).status_code == 200
    for wrong in ("# nothing\n", "short\n", f"{FIRST}\nwith a space in it\n", "k" * 257 + "\n"):
        write(file, wrong)
        hang_up(server, "the keys are as before")
        assert [status(server, k) for k in (FIRST, SECOND, THIRD)] == [200, 401, 200]
    file.unlink()
    hang_up(server, "the keys are as before")
    assert status(server, THIRD) == 200
    text = server.log.read_text()
    assert "line 2: a key has 8 to 256" in text and not any(k in text for k in (FIRST, SECOND, THIRD, "with a space in it"))


@pytest.mark.parametrize("text,mode,said", [("", 0o600, "no key"), ("short\n", 0o600, "line 1"), (FIRST, 0o644, "chmod 600")])
def test_a_file_without_keys_starts_nothing(tmp_path, text, mode, said, make_server):
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(RuntimeError, match=said):
        make_server(MODEL, "--api-key-file", str(file))


def preflight(server, origin, asked="authorization,content-type,x-stainless-lang", path="/v1/chat/completions"):
    return httpx.options(server.url + path, headers={"Origin": origin, "Access-Control-Request-Method": "POST",
                                                     "Access-Control-Request-Headers": asked})


def test_pages_of_named_sites(make_server):
    server = make_server(MODEL, "--cors-origin", f"{SITE},http://localhost:3000")
    answer = preflight(server, SITE)
    assert answer.status_code == 204 and answer.content == b"" and answer.headers["Access-Control-Allow-Origin"] == SITE
    assert "POST" in answer.headers["Access-Control-Allow-Methods"] and answer.headers["Vary"] == "Origin"
    assert answer.headers["Access-Control-Allow-Headers"] == "authorization,content-type,x-stainless-lang"
    body = {**BODY, "stream": True}
    for origin, code in ((SITE, 200), ("http://localhost:3000", 200), ("https://other.example", 403), (SITE + ".evil.example", 403), ("null", 403)):
        answer = httpx.post(server.url + "/v1/completions", json=body, headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == code
        assert answer.headers.get("Access-Control-Allow-Origin") == (origin if code == 200 else None)
    # an error can be read, too
    wrong = httpx.post(server.url + "/v1/completions", json={"prompt": 3}, headers={"Origin": SITE})
    assert wrong.status_code == 400 and wrong.headers["Access-Control-Allow-Origin"] == SITE
    assert "X-Request-Id" in wrong.headers["Access-Control-Expose-Headers"]
    assert preflight(server, "https://other.example").status_code == 403
    assert preflight(server, SITE, path="/admin/workers").status_code == 403
    assert preflight(server, SITE, asked="x" * 3000).status_code == 400
    assert httpx.options(server.url + "/v1/models").status_code == 405
    # a name that leads here is no site
    assert httpx.get(server.url + "/v1/models", headers={"Host": "rebound.example", "Origin": SITE}).status_code == 403


def test_pages_of_any_site_want_a_key(make_server):
    with pytest.raises(RuntimeError, match="give it an API key"):
        make_server(MODEL, "--cors-origin", "*")
    for wrong in ("chat.example", "https://chat.example/", "https://a.example,", "https://"):
        with pytest.raises(RuntimeError, match="cors-origin"):
            make_server(MODEL, "--cors-origin", wrong)
    server = make_server(MODEL, "--cors-origin", "*", "--api-key", FIRST)
    assert preflight(server, "https://any.example").headers["Access-Control-Allow-Origin"] == "*"
    refused = httpx.post(server.url + "/v1/completions", json=BODY, headers={"Origin": SITE})
    assert refused.status_code == 401 and refused.headers["Access-Control-Allow-Origin"] == "*"
    fine = httpx.post(server.url + "/v1/completions", json=BODY, headers={"Origin": SITE, "Authorization": f"Bearer {FIRST}"})
    assert fine.status_code == 200 and "Vary" not in fine.headers


def test_without_the_option_no_page_may(server):
    answer = httpx.get(server.url + "/health", headers={"Host": httpx.URL(server.url).netloc.decode()})
    assert not any(h.lower().startswith("access-control") for h in answer.headers)
    assert preflight(server, SITE).status_code == 403


def test_no_model_is_the_one_there_is(server):
    talk = [{"role": "user", "content": "Then"}]
    for path, body in (("/v1/completions", BODY), ("/v1/chat/completions", {"messages": talk, "max_tokens": 3}),
                       ("/v1/responses", {"input": "Then", "max_output_tokens": 3}), ("/v1/messages", {"messages": talk, "max_tokens": 3}),
                       ("/v1/messages/count_tokens", {"messages": talk})):
        for model in ({}, {"model": None}, {"model": server.model}):
            answer = httpx.post(server.url + path, json={**body, **model}, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json().get("model", server.model) == server.model
        assert httpx.post(server.url + path, json={**body, "model": "other"}).status_code == 404
        assert httpx.post(server.url + path, json={**body, "model": 7}).status_code == 400


def test_sampling_where_a_request_says_nothing(make_server):
    """request > option > the model's generation_config.json > standard"""
    server = make_server(MODEL, "--temp", "0", "--top-k", "5")
    ask = lambda **o: httpx.post(server.url + "/v1/completions", json={**BODY, "prompt": "Zq xv 7,", "max_tokens": 40, **o}, timeout=60).json()["choices"][0]["text"]
    greedy = ask(temperature=0)
    assert [ask() for _ in range(3)] == [greedy] * 3
    hot = [ask(temperature=2, seed=i) for i in range(4)]
    assert hot == [ask(temperature=2, seed=i, top_k=5) for i in range(4)] and hot != [greedy] * 4
    assert hot != [ask(temperature=2, seed=i, top_k=0) for i in range(4)]
    other = make_server(MODEL)
    same = lambda **o: httpx.post(other.url + "/v1/completions", json={**BODY, "prompt": "Zq xv 7,", "max_tokens": 40, **o}, timeout=60).json()["choices"][0]["text"]
    assert [same(temperature=2, seed=i, top_k=5) for i in range(4)] == hot


def test_an_answer_is_its_keys_whatever_stands_beside_it(make_server, tmp_path):
    """A proxy's Authorization makes no caller of two clients that have keys of their own, nor two of one."""
    file = tmp_path / "keys"
    write(file, f"{FIRST}\n{SECOND}\n")
    server = make_server(MODEL, "--api-key-file", str(file), "--responses", "8")

    def ask(key, beside, made=None):
        headers = {"x-api-key": key, "Authorization": beside, "Idempotency-Key": "a"}
        if made:
            return httpx.get(f"{server.url}/v1/completions/{made}", headers=headers, timeout=60)
        return httpx.post(server.url + "/v1/completions", headers=headers, json=BODY, timeout=60)

    first, second = (ask(key, "Basic cHJveHk=").json()["id"] for key in (FIRST, SECOND))
    assert first != second
    assert [ask(key, beside, first).status_code for key in (FIRST, SECOND) for beside in ("Basic cHJveHk=", "Basic b3RoZXI=")] == [200, 200, 404, 404]


def test_least_tokens_beyond_the_silent_limit_are_refused(make_server):
    server = make_server(MODEL)
    answers = [httpx.post(server.url + "/v1/completions", json={"model": MODEL, "prompt": "And", "min_tokens": n}, timeout=60) for n in (16, 17)]
    assert [a.status_code for a in answers] == [200, 400]
    assert "16" in answers[1].json()["error"]["message"] and answers[1].json()["error"]["param"] == "min_tokens"
