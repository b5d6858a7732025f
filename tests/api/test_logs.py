"""Log lines of a real server as JSON, and the request id that joins them with an answer."""
import json

from conftest import start


def test_json_lines_carry_the_request_id(tmp_path_factory):
    server = start(tmp_path_factory, "qwen3moe-tiny",
                   ["--log", "info", "--log-format", "json", "--attention", "1", "--experts", "1"])
    try:
        client = server.client()
        body = {"model": server.model, "prompt": [3, 17, 41], "max_tokens": 2, "temperature": 0}
        own = client.completions.with_raw_response.create(**body)
        given = client.completions.with_raw_response.create(
            **body, extra_headers={"X-Request-Id": "my-1"})
        ids = [own.headers["x-request-id"], given.headers["x-request-id"]]
        assert ids[1] == "my-1" and ids[0] != ids[1]
        assert server.wait_idle()
    finally:
        server.stop()
    lines = [json.loads(line) for line in server.log.read_text().splitlines()
             if line.startswith("{")]
    assert lines
    for line in lines:
        assert {"ts", "level", "module", "msg"} <= set(line) <= \
            {"ts", "level", "who", "module", "request", "msg"}
    for request in ids:
        about = [(line["module"], line["msg"]) for line in lines if line.get("request") == request]
        assert [module for module, _ in about if module == "engine"] == ["engine"] * 2
        assert any(module == "serve" and msg.startswith("/v1/completions: 200 after")
                   for module, msg in about), about
