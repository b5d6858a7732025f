"""Models with linear attention: what they cannot have is refused by name, what they can have gives the same tokens, and requests that
cannot go on with pages begin anew."""
import json
import os
import pathlib
import signal
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[1] / "multi")]
import served  # noqa: E402
from test_cli import ROOT, refused, sluice  # noqa: E402
from test_gpu import FAKE  # noqa: E402

MODEL = ROOT / "tests" / "golden" / "qwen3next-tiny"
IDS = ",".join(str((7 * i * i + 3 * i) % 900 + 3) for i in range(70))
APART = ["--attention", 1, "--experts", 1]


def said(*options, env=None):
    out, _ = sluice("run", MODEL, "--ids", IDS, "-n", 30, "--ignore-eos", "--temp", 0, "--json", "--exact", *options, env=env)
    return json.loads(out)["ids"]


@pytest.mark.parametrize("options, what", [
    (["--tp", 2], "gangs (--tp, --attention-tp)"),
    ([*APART, "--attention-tp", 2], "gangs (--tp, --attention-tp)"),
    (["--exact", "--segments"], "sums in segments (--segments)"),
    (["--pp", 2], "pipelines (--pp)"),
    (["--attention", 2, "--experts", 1, "--kv-replicas", 1], "copies of KV (--kv-replicas)"),
    (["--attention", 1, "--experts", 1, "--prefill", 1], "workers for prompts (--prefill)"),
    (["--device", "cuda:0"], "attention on GPUs"),
])  # fmt: skip
def test_what_states_cannot_have_is_refused(options, what):
    err = refused(1, "run", MODEL, "--ids", "3,17", "-n", 2, *options)
    assert what in err and "Qwen3NextForCausalLM has blocks of linear attention" in err, err


def test_experts_may_have_ranks_and_be_on_a_gpu():
    plain = said()
    assert said(*APART, "--expert-tp", 2) == plain
    if FAKE.exists():
        gpu = ["--attention-device", "cpu", "--expert-device", "cuda:0"]
        assert said(*APART, *gpu, env={"SLUICE_CUDA_DRIVER": str(FAKE)}) == plain


def test_inspect_counts_states():
    out, _ = sluice("inspect", MODEL)
    assert "linear        3 of the blocks" in out and "a request, of 3 blocks of linear attention" in out
    out, _ = sluice("inspect", "qwen3-next-80b-a3b", "--json")
    counted = json.loads(out)
    counted = counted.get("accounting", counted)
    assert counted["state_bytes_per_request"] == 2 * 36 * 4 * (32 * 128 * 128 + 3 * 8192)
    assert counted["kv_bytes_per_token"] == 12 * 2 * 2 * 256 * 2
    assert counted["stages"]["linear"]["count"] == 36 and counted["stages"]["attention"]["count"] == 12


def test_a_lost_attention_worker_costs_no_token():
    """Its states are gone with it: what it had computed is computed again."""
    body = {"model": "m", "prompt": [int(i) for i in IDS.split(",")], "max_tokens": 300, "temperature": 0, "ignore_eos": True, "return_token_ids": True}

    def answer(kills):
        server = served.Server(MODEL, "--exact", "--attention", "2", "--experts", "1", "--transport", "shm")
        try:
            return ask(server, body, kills)
        finally:
            server.stop()
    assert answer(True) == answer(False)


def ask(server, body, kills):
    with server.request("POST", "/v1/completions", {**body, "stream": True}, timeout=60) as events:
        ids = []
        for line in events:
            if not line.startswith(b"data: {"):
                continue
            ids += json.loads(line[6:])["choices"][0].get("token_ids") or []
            if kills and len(ids) > 40:
                for worker in (0, 1):  # whichever has it
                    os.kill(server.worker_pid(worker), signal.SIGKILL)
                kills = False
        return ids
