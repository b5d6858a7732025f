"""Experts of workers on GPUs whose weights stay in the machine's memory (--offload-experts): the same tokens as on processors, prompts computed by a GPU
for others who decode, and what it cannot be together with. GPUs are those of the tests' driver."""

import json
import re

import pytest

from test_gpu import APART, FAKE, FIXTURE, RUN, refusal, sluice

PROMPTS = ["--attention", 1, "--experts", 1, "--attention-device", "cuda:0", "--prefill", 1, "--prefill-rows", 8]
ASKED = ["run", FIXTURE, "--ids", ",".join(str((7 * i + 3) % 1000) for i in range(70)), "-n", 12, "--ignore-eos", "--temp", 0, "--exact", "--json"]

needs_fake = pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")


@pytest.fixture(scope="module")
def alone():
    return json.loads(sluice(*ASKED).stdout)


@needs_fake
@pytest.mark.parametrize("extra", [
    ["--device", "cuda:0"],
    ["--attention", 2, "--device", "cuda:0,cuda:1", "--transport", "shm"],
    [*APART, "--expert-device", "cuda:1,cpu", "--schedule", "pingpong"],
    PROMPTS,
    [*PROMPTS, "--transport", "shm", "--schedule", "aep"],
    [*PROMPTS, "--schedule", "findep"],
])
@pytest.mark.parametrize("registers", ["1", "0"])
def test_the_same_tokens_as_on_processors(alone, extra, registers):
    done = sluice(*ASKED, *extra, "--offload-experts", "--log", "info", driver=FAKE, SLUICE_FAKE_CUDA_REGISTER=registers)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ids"] == alone["ids"]
    copied = re.findall(r"([\d.]+) MB of experts' weights were copied, ([\d.]+) by way of pinned", done.stderr)  # processes of their own say less
    assert (copied or "shm" in extra) and all((float(over) == 0) == (registers == "1") for _, over in copied)
    if "--prefill" in extra:
        assert "goes from worker 2 to 0" in done.stderr


@needs_fake
def test_a_plan_says_who_keeps_experts_in_memory(alone, tmp_path):
    plan = tmp_path / "plan.json"
    both = {"roles": ["attention", "expert"], "device": "cuda:0"}
    said = {"version": 1, "schedule": "ep", "workers": [{**both, "offload": True}, both]}
    plan.write_text(json.dumps(said))
    done = sluice(*ASKED, "--plan", plan, "--log", "info", driver=FAKE)
    assert json.loads(done.stdout)["ids"] == alone["ids"] and done.stderr.count("weights were copied") == 1
    said["workers"][0]["device"] = "cpu"
    plan.write_text(json.dumps(said))
    assert "worker 0 keeps experts in its machine's memory (offload), and is on no GPU" in refusal(*RUN, "--plan", plan)


@needs_fake
def test_two_blocks_have_to_fit(alone):
    """Far less than all experts: but places for two blocks are wanted."""
    little = ["--device", "cuda:0", "--offload-experts", "--kv-pages", 8, "--ctx", 128, "--max-num-batched-tokens", 64, "--max-num-seqs", 1]
    done = sluice(*ASKED, *little, "--gpu-memory", 60000000, driver=FAKE)
    assert json.loads(done.stdout)["ids"] == alone["ids"]
    done = sluice(*ASKED, *little, "--gpu-memory", 250000, driver=FAKE)
    assert done.returncode and "a block's experts (--offload-experts)" in done.stderr


@pytest.mark.parametrize("extra, why", [
    ([], "--offload-experts is for workers on GPUs that have experts"),
    ([*APART, "--attention-device", "cuda:0"], "--offload-experts is for workers on GPUs that have experts"),
    (["--attention", 1, "--experts", 1, "--prefill", 1], "for workers for prompts on GPUs that have experts"),
    ([*PROMPTS, "--prefill-experts", 1], "leave out --prefill-experts"),
])
def test_what_cannot_be_is_refused_by_name(extra, why):
    assert why in refusal(*RUN, "--offload-experts", *extra)


def test_random_weights_lie_in_no_file(tmp_path):
    (tmp_path / "config.json").write_text((FIXTURE / "config.json").read_text())
    said = refusal("bench", tmp_path, "--random-weights", "--device", "cuda:0", "--offload-experts", "--n-prompt", 8, "--n-gen", 4)
    assert "not with random weights" in said
