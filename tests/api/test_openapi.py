"""`GET /openapi.json`: a valid OpenAPI 3.1 document by an independent validator, of paths that are all there, whose schemas say of
bodies what the server says of them."""
import httpx
import jsonschema
import openapi_spec_validator
import pytest

from conftest import KEY

CLIENT = httpx.Client(timeout=60)  # one: to make it takes longer than an answer
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Who?"}]
# booleans and least numbers that want something else beside them, or that this model does not have
ASIDE = {"echo", "continue_final_message", "enable_thinking", "max_reasoning_tokens", "thinking_token_budget", "best_of", "temperature",
         "top_p", "top_k", "stream"}


@pytest.fixture(scope="module")
def document(server):
    answer = server.get("/openapi.json")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    return answer.json()


def schema_of(document, path, method="post"):
    return document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]


def says(schema, body):
    return jsonschema.Draft202012Validator(schema).is_valid(body)


def test_it_is_valid(document):
    openapi_spec_validator.validate(document, cls=openapi_spec_validator.OpenAPIV31SpecValidator)
    ids = [m["operationId"] for p in document["paths"].values() for m in p.values()]
    assert len(ids) == len(set(ids)) > 30
    for path, item in document["paths"].items():
        for method in item.values():
            if "requestBody" in method:
                jsonschema.Draft202012Validator.check_schema(method["requestBody"]["content"]["application/json"]["schema"])


def test_every_path_is_there(server, document):
    for path, item in document["paths"].items():
        for method, what in item.items():
            if path == "/live":
                continue
            asked = path.replace("{id}", "nothing").replace("{file}", "main.js")
            answer = CLIENT.request(method, server.url + asked)
            code = answer.json()["error"].get("code") if answer.status_code >= 400 and "error" in answer.json() else None
            assert answer.status_code != 405 and code != "unknown_url", (path, method, answer.text)
            assert what["security"] == []
    assert not [p for p in document["paths"] if p.startswith("/admin")]


def test_keys_and_the_admins_paths(make_server, tmp_path):
    file = tmp_path / "admin"
    file.write_text("admin-key-of-all\n")
    file.chmod(0o600)
    server = make_server("qwen3moe-tiny", "--api-key", KEY, "--admin-key-file", str(file))
    assert server.get("/openapi.json").status_code == 401
    document = server.get("/openapi.json", headers={"x-api-key": KEY}).json()
    openapi_spec_validator.validate(document, cls=openapi_spec_validator.OpenAPIV31SpecValidator)
    assert {"drain", "restart", "join", "kill"} == {p.split("/")[-1] for p in document["paths"] if "/admin/workers/{id}/" in p}
    assert document["paths"]["/admin/workers"]["get"]["security"] == [{"admin": []}]
    assert document["paths"][CHAT]["post"]["security"] == [{"key": []}, {"x-api-key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []


def wrong_values(form):
    """What a form of one type does not allow."""
    kind = form["type"][0]
    wrong = {"boolean": [1, "true"], "string": [1, []], "integer": ["1", [], True], "number": ["1", True], "object": [[], 1],
             "array": [{}, 1]}[kind]
    low = form.get("minimum", form.get("exclusiveMinimum"))
    if low is not None:
        wrong += [low - 1, form["maximum"] + 1]
    return wrong + ([low] if "exclusiveMinimum" in form else [])


def simple_fields(schema):
    return {name: form for name, form in schema["properties"].items() if isinstance(form.get("type"), list)}


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_fields_are_as_the_schema_says(server, document, path):
    """What it does not allow is refused by name, what it does is not."""
    schema = schema_of(document, path)
    body = {"messages": MESSAGES} if path == CHAT else {"prompt": "x"}
    ask = lambda **more: CLIENT.post(server.url + path, json={**body, "max_tokens": 2, "ignore_eos": True, **more})
    assert says(schema, body) and not says(schema, {}) and not says(schema, {**body, "nobody_knows": 1})
    fields = simple_fields(schema)
    assert len(fields) > 20 and schema["properties"]["n"]["maximum"] == 128
    for name, form in fields.items():
        for value in wrong_values(form):
            assert not says(schema, {**body, name: value}), (name, value)
            answer = ask(**{name: value})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == name, (name, value, answer.text)
        right = [True, False] if form["type"][0] == "boolean" else [form["minimum"]] if "minimum" in form else []
        for value in right + [None]:
            assert says(schema, {**body, name: value})
            answer = ask(**{name: value})
            assert answer.status_code == 200 or name in ASIDE, (name, value, answer.text)


NAME = {"function": {"name": "f"}}
TOOL = {"type": "function", **NAME}
BODIES = [
    (CHAT, "messages", [], False), (CHAT, "messages", "x", False), (CHAT, "messages", [{"content": "x"}], False),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "text", "text": "x"}]}], True),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], False),
    (CHAT, "messages", [{"role": "user", "content": 3}], False), (CHAT, "messages", [{"role": "user", "content": "x", "odd": 1}], False),
    (CHAT, "messages", [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [{}]}, *MESSAGES], False),
    (CHAT, "tools", [TOOL], True), (CHAT, "tools", [NAME], False), (CHAT, "tools", {}, False), (CHAT, "tool_choice", "sometimes", False),
    (CHAT, "reasoning_effort", "much", False), (CHAT, "response_format", {"type": "text"}, True),
    (CHAT, "response_format", {"type": "xml"}, False), (CHAT, "response_format", {}, False), (CHAT, "chat_template", "{{ 1 }}", False),
    (CHAT, "modalities", ["text"], True), (CHAT, "modalities", ["audio"], False), (CHAT, "functions", [], True),
    (CHAT, "functions", [1], False), (CHAT, "user", {"any": 1}, True), (CHAT, "priority", 0, True), (CHAT, "priority", 1, False),
    (TEXT, "stop", "a", True), (TEXT, "stop", "", False), (TEXT, "stop", ["a"] * 16, True), (TEXT, "stop", ["a"] * 17, False),
    (TEXT, "stop", "a" * 1025, False), (TEXT, "stop", 1, False), (TEXT, "stop_token_ids", [1], True), (TEXT, "stop_token_ids", [-1], False),
    (TEXT, "stop_token_ids", [1 << 30], False), (TEXT, "stop_token_ids", [1] * 65, False), (TEXT, "logit_bias", {"1": 100}, True),
    (TEXT, "logprob_token_ids", [], False), (TEXT, "logprob_token_ids", [1] * 129, False), (TEXT, "allowed_token_ids", [1, 1], True), (TEXT, "allowed_token_ids", [], False), (TEXT, "allowed_token_ids", [1 << 30], False),
    (TEXT, "bad_words", ["a"], True), (TEXT, "bad_words", [""], False), (TEXT, "bad_words", [1], False), (TEXT, "bad_words", ["a"] * 1025, False),
    (TEXT, "logit_bias", {"1": 101}, False), (TEXT, "logit_bias", {"a": 1}, False), (TEXT, "prompt", [1, 2], True),
    (TEXT, "prompt", [1, "a"], True), (TEXT, "prompt", ["a", 1, [2]], False), (TEXT, "prompt", [], False),
    (TEXT, "logit_bias", [["a", 1], [2, 3]], True), (TEXT, "logit_bias", [["a", 101]], False), (TEXT, "logit_bias", [["a"]], False),
    (TEXT, "prompt", [[1], "a"], True), (TEXT, "prompt", 1, False), (TEXT, "prompt", [1 << 30], False), (TEXT, "prompt", ["a"] * 129, False),
    (TEXT, "truncate_prompt_tokens", -1, True), (TEXT, "truncate_prompt_tokens", 0, False), (TEXT, "truncation_side", "right", True), (TEXT, "truncation_side", "up", False), (TEXT, "seed", -5, True),
    (TEXT, "seed", 0.5, False), (TEXT, "guided_choice", ["a"], True), (TEXT, "guided_choice", [], False), (TEXT, "guided_json", 1, False),
    (TEXT, "structured_outputs", {"choice": ["a"]}, True), (TEXT, "structured_outputs", {"odd": 1}, False), (TEXT, "suffix", "a", False),
    (TEXT, "stream_options", {"odd": 1}, False), ("/tokenize", "prompt", "x", True), ("/tokenize", "prompt", 3, False),
    ("/tokenize", "odd", 3, False), ("/detokenize", "tokens", [1, 2], True), ("/detokenize", "tokens", "x", False),
    ("/v1/messages", "max_tokens", 3, True), ("/v1/messages", "temperature", 3, False),
    ("/v1/messages", "container", "x", False), ("/v1/messages", "odd", 3, False), ("/v1/responses", "max_output_tokens", 3, True),
    ("/v1/responses", "temperature", 3, False), ("/v1/responses", "prompt", "x", False)]
LEAST = {CHAT: {"messages": MESSAGES, "max_tokens": 2}, TEXT: {"prompt": "x", "max_tokens": 2}, "/tokenize": {"prompt": "x"}, "/detokenize": {"tokens": [1]},
         "/v1/messages": {"messages": MESSAGES, "max_tokens": 2}, "/v1/responses": {"input": "x", "max_output_tokens": 2}}


@pytest.mark.parametrize("path", LEAST)
def test_bodies_are_as_the_schema_says(server, document, path):
    schema = schema_of(document, path)
    cases = [(name, value, fine) for where, name, value, fine in BODIES if where == path]
    for name, value, fine in [(None, None, True), *cases]:
        body = {**LEAST[path], **({name: value} if name else {})}
        answer = CLIENT.post(server.url + path, json=body)
        assert (answer.status_code == 200) == fine == says(schema, body), (body, answer.text)
    for name in schema.get("required", []):
        body = {k: v for k, v in LEAST[path].items() if k != name}
        assert not says(schema, body) and CLIENT.post(server.url + path, json=body).status_code == 400


def test_plans(server, document):
    schema = schema_of(document, "/plan")
    assert {"model", "cluster", "workload", "measured", "objective", "only", "top"} <= set(schema["properties"])
    for name, value in [("only", []), ("only", "ep"), ("decode_only", 1), ("reserve", "much"), ("objective", ""), ("objective", "x" * 65), ("odd", 1)]:
        body = {"cluster": "cpu-4x10g", name: value}
        answer = CLIENT.post(server.url + "/plan", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name and not says(schema, body), (body, answer.text)
