"""A damaged checkpoint: the requests that meet the damage end with an error that says where, and the
others do not notice. The engine's side, on every schedule, is tests/multi/test_broken.c."""
import concurrent.futures
import json
import shutil
import struct

import openai
import pytest

from conftest import GOLDEN

FIXTURE, TOKEN = "qwen3moe-tiny", 300


def damaged(folder):
    """The fixture with one embedding row of NaN; its head is tied, so the token's logit is, too."""
    for path in (GOLDEN / FIXTURE).iterdir():
        if path.suffix != ".npy":
            shutil.copyfile(path, folder / path.name)
    with open(folder / "model.safetensors", "r+b") as f:
        n, = struct.unpack("<Q", f.read(8))
        tensor = json.loads(f.read(n))["model.embed_tokens.weight"]
        width = {"F32": 4, "BF16": 2, "F16": 2}[tensor["dtype"]] * tensor["shape"][1]
        f.seek(8 + n + tensor["data_offsets"][0] + TOKEN * width)
        f.write(b"\xff" * width)
    return folder


def ask(server, prompt, **more):
    answer = server.client().completions.create(model=server.model, prompt=prompt, max_tokens=16,
                                                temperature=0, extra_body={"ignore_eos": True}, **more)
    return answer.choices[0].text


@pytest.mark.parametrize("args", [[], ["--attention", "1", "--experts", "2", "--transport", "shm"]],
                         ids=["one process", "1+2 workers"])
def test_a_damaged_row_ends_its_own_request(args, tmp_path, make_server):
    server = make_server(damaged(tmp_path), *args)
    server.model = server.client().models.list().data[0].id
    healthy = [[5 + i, 17, 40, 41 + 7 * i] for i in range(6)]
    broken = [[TOKEN], [9, 8, TOKEN, 7], list(range(10, 60)) + [TOKEN, 9]]
    alone = [ask(server, p) for p in healthy]
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            streams = [pool.submit(ask, server, p) for p in healthy]
            errors = [pool.submit(ask, server, p) for p in broken]
            for p, error in zip(broken, errors):
                with pytest.raises(openai.InternalServerError) as e:
                    error.result()
                assert e.value.code == "not_finite" and e.value.status_code == 500
                assert f"position {p.index(TOKEN)} (token {TOKEN})" in e.value.message
                assert "router of block 1" in e.value.message
            assert [s.result() for s in streams] == alone
    with pytest.raises(openai.APIError, match="not finite"):  # within a stream
        for _ in server.client().completions.create(model=server.model, prompt=broken[1], stream=True):
            pass
    assert server.get("/health").status_code == 200
    assert server.wait_idle() and server.metric("kv_cache_usage_perc") == 0
