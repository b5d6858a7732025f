"""Guesses of what is said next, looked up or made by a checkpoint's own block: the same tokens with and without them, on every schedule,
sampled or not, under a shape, while workers are killed; and how many of them were right."""
import functools
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import sample  # noqa: E402
import served  # noqa: E402
from test_kill import ROOT, SLUICE, Server, Stream, join_all, nobody_is_left, of_all_workers, wait_until  # noqa: E402, F401

CIRCLE = [3, 17, 41, 5, 9, 77, 101] * 6
# Greedy answers of the fixture end in circles; these of other kinds stray from what they said.
REQUESTS = [{}, {"prompt": CIRCLE}, {"prompt": CIRCLE, "temperature": 0.8, "seed": 3}, {"prompt": CIRCLE, "presence_penalty": 0.5, "frequency_penalty": 0.2},
            {"prompt": CIRCLE[:20], "logprobs": 2}, {"ignore_eos": False, "temperature": 1, "seed": 5, "structured_outputs": {"regex": "((ab|cd)éß ){40}end"}}]
DEPLOYMENTS = [("ep", ["--transport", "loop"]), ("dep", ["--attention", "1", "--experts", "2"]), ("findep", ["--attention", "2", "--experts", "2"]),
               ("pingpong", ["--attention", "1", "--experts", "1"]), ("aep", ["--attention", "2", "--experts", "1"]), ("eps", ["--attention", "2"])]
TOKENS = 240
GOLDEN = ROOT / "tests" / "golden"
# Checkpoints with a block that predicts a further token, a family each; the block at one device, and cut by ranks.
MTP = [("glm4moe-tiny" if i % 2 else "deepseekv3-tiny", *d, []) for i, d in enumerate(DEPLOYMENTS)]
HYBRID = [("qwen3next-tiny", *d, []) for d in DEPLOYMENTS]  # what guesses left in a state is taken back
RANKS = [("deepseekv3-tiny", "ep", ["--transport", "loop"], ["--tp", "2"]), ("glm4moe-tiny", "ep", [], ["--tp", "4", "--tp-ranks", "processes"]),
         ("glm4moe-tiny", "dep", ["--attention", "2", "--experts", "1"], ["--attention-tp", "2"]),
         ("deepseekv3-tiny", "aep", ["--attention", "1", "--experts", "1"], ["--attention-tp", "2", "--tp-ranks", "processes"]),
         ("glm4moe-tiny", "pingpong", ["--transport", "loop"], ["--pp", "2"]), ("deepseekv3-tiny", "ep", ["--attention", "2"], ["--pp", "2", "--tp", "2"])]
# Both kinds at once, some of the same deployments.
BOTH = [("glm4moe-tiny", "ep", ["--transport", "loop"], []), ("deepseekv3-tiny", "dep", ["--attention", "1", "--experts", "2"], []),
        ("glm4moe-tiny", "pingpong", ["--attention", "1", "--experts", "1"], []), ("deepseekv3-tiny", "aep", ["--attention", "2", "--experts", "1"], []),
        ("deepseekv3-tiny", "ep", ["--transport", "loop"], ["--tp", "2"]), ("glm4moe-tiny", "pingpong", ["--transport", "loop"], ["--pp", "2"])]
BLOCK, BOTH = sample.of(MTP + RANKS, 1, 5, 7, 10) + sample.of(HYBRID, 3, 4), sample.of(BOTH + HYBRID, 0, 4, 7)
MTP_TOKENS = 150


def ask(server, tokens=TOKENS):
    streams = [Stream(server, i, max_tokens=tokens) for i in range(len(REQUESTS))]
    for s, fields in zip(streams, REQUESTS, strict=True):
        s.fields.update(fields)
    return streams


def answers(server, at_once=True, tokens=TOKENS):
    streams = ask(server, tokens)
    for s in streams:
        s.start()
        if not at_once:
            s.join(60)
    join_all(streams)
    for s in streams:
        assert s.done and not s.error, s.error
    return [(s.ids, s.logprobs) for s in streams]


@pytest.fixture(scope="module")
def plain():
    server = Server("--exact", "--transport", "loop")
    ids = answers(server)
    assert of_all_workers(server, "worker_guesses_total") == 0
    assert server.stop() == 0
    return ids


def settle(server):
    """Workers report twice a second, or later on a busy machine: until they have told of all tokens, and of what followed the last of them. Nobody was lost."""
    wait_until(lambda: of_all_workers(server, "worker_tokens_total") >= of_all_workers(server, "generation_tokens_total"), "a worker does not report", 60)
    time.sleep(1)


def told(server):
    """(guesses, those that were right)"""
    settle(server)
    guesses, right = (of_all_workers(server, f"worker_guesses_{name}") for name in ("total", "right_total"))
    print(f"{right:.0f} of {guesses:.0f} guesses were right")
    return guesses, right


@pytest.mark.parametrize("schedule, options", sample.of(DEPLOYMENTS, 1, 4), ids=lambda v: v if isinstance(v, str) else "")
def test_no_token_depends_on_guesses(plain, schedule, options):
    server = Server("--exact", "--schedule", schedule, "--speculate", "always", *options)
    assert answers(server) == plain
    assert answers(server, at_once=False) == plain
    guesses, right = told(server)
    assert right > 0.1 * guesses > 0
    assert guesses > right
    assert server.stop() == 0


@pytest.mark.parametrize("schedule, options, killed", [("dep", ["--attention", "2", "--experts", "2"], [0, 3]), ("aep", ["--attention", "2", "--experts", "2"], [1])],
                         ids=["dep", "aep"])
def test_kills_in_the_midst(plain, schedule, options, killed):
    server = Server("--exact", "--schedule", schedule, "--speculate", "always", "--transport", "shm", *options)
    streams = ask(server)
    for s in streams:
        s.start()
    for worker in killed:
        wait_until(lambda: any(len(s.ids) > 20 for s in streams), "no tokens")
        os.kill(server.worker_pid(worker), signal.SIGKILL)
    join_all(streams)
    assert [(s.ids, s.logprobs) for s in streams] == plain
    assert server.stop() == 0


def test_only_what_pays_is_run(plain):
    """Requests that never say anything twice have no rows of guesses, but for those that were right: it is learnt from what was drawn."""
    server = Server("--exact", "--speculate", "lookup", "--transport", "loop")
    assert answers(server) == plain
    wild = [Stream(server, i, max_tokens=400, temperature=3, prompt=CIRCLE) for i in range(2)]
    settle(server)
    before = of_all_workers(server, "worker_guesses_total")
    for s in wild:
        s.fields["seed"] = s.seed
        s.start()
    join_all(wild)
    settle(server)
    assert of_all_workers(server, "worker_guesses_total") - before < 120
    assert server.stop() == 0


# ---- the checkpoint's own block ----


@functools.cache
def plain_of(folder):
    server = served.Server(GOLDEN / folder, "--exact", "--transport", "loop")
    ids = answers(server, tokens=MTP_TOKENS)
    assert server.stop() == 0
    return ids


def names_of(deployments):
    return ["-".join([schedule, *(o.strip("-") for o in ranks)]) for _, schedule, _, ranks in deployments]


def same_tokens(how, folder, schedule, options, ranks):
    server = served.Server(GOLDEN / folder, "--exact", "--schedule", schedule, "--speculate", how, *options, *ranks)
    assert answers(server, tokens=MTP_TOKENS) == plain_of(folder)
    guesses, right = told(server)
    assert guesses > right > 0.05 * guesses
    assert server.stop() == 0


@pytest.mark.parametrize("deployment", BLOCK, ids=names_of(BLOCK))
def test_no_token_depends_on_the_block(deployment):
    same_tokens("mtp-always", *deployment)


@pytest.mark.parametrize("deployment", BOTH, ids=names_of(BOTH))
def test_no_token_depends_on_both(deployment):
    same_tokens("both-always", *deployment)


def test_both_take_the_likelier():
    """Answers that go in circles are looked up, and the block of weights that nobody trained is right of others as of all: more than either kind alone."""
    right = {}
    for how in ("always", "mtp-always", "both-always"):
        server = served.Server(GOLDEN / "glm4moe-tiny", "--exact", "--transport", "loop", "--speculate", how)
        assert answers(server, at_once=False, tokens=MTP_TOKENS) == plain_of("glm4moe-tiny")
        right[how] = told(server)[1]
        assert server.stop() == 0
    assert right["both-always"] > 0.9 * max(right.values()) > 0


def alone(folder, *options):
    """(ids, guesses, those that were right) of requests one after another, each too short to wait for what the front end has seen of it
    (SL_MAX_AHEAD): what they guess depends on nothing else, and not on how busy the machine is."""
    server = served.Server(GOLDEN / folder, "--exact", "--schedule", "ep", "--speculate", "mtp-always", *options)
    streams = [Stream(server, 0, max_tokens=24, prompt=CIRCLE[i:]) for i in range(5)]
    for stream in streams:
        stream.start()
        join_all([stream])
    counts = told(server)
    assert server.stop() == 0
    return [s.ids for s in streams], *counts


@pytest.mark.parametrize("folder", sample.of(["deepseekv3-tiny", "glm4moe-tiny"], 0))
def test_ranks_guess_what_one_device_guesses(folder):
    want = alone(folder)
    assert want[1] > want[2] > 0
    for ranks in (["--tp", "2"], ["--tp", "4", "--tp-ranks", "processes"], ["--pp", "3"]):
        assert alone(folder, *ranks) == want, ranks


@pytest.mark.parametrize("folder, schedule, options, killed", [
    ("deepseekv3-tiny", "dep", ["--attention", "2", "--experts", "2", "--kv-replicas", "1"], [0, 3]),
    ("glm4moe-tiny", "aep", ["--attention", "2", "--experts", "2"], [1]),
    ("qwen3next-tiny", "dep", ["--attention", "2", "--experts", "2"], [0, 3]),
    ("glm4moe-tiny", "dep", ["--attention", "2", "--experts", "1", "--attention-tp", "2", "--kv-replicas", "1"], [0])],
    ids=["dep", "aep", "states", "dep-attention-tp"])  # fmt: skip
def test_kills_while_the_block_guesses(folder, schedule, options, killed):
    server = served.Server(GOLDEN / folder, "--exact", "--schedule", schedule, "--speculate", "mtp-always", "--transport", "shm", *options)
    streams = ask(server, MTP_TOKENS)
    for s in streams:
        s.start()
    for worker in killed:
        wait_until(lambda: any(len(s.ids) > 20 for s in streams), "no tokens")
        os.kill(server.worker_pid(worker), signal.SIGKILL)
    join_all(streams)
    assert [(s.ids, s.logprobs) for s in streams] == plain_of(folder)
    assert server.stop() == 0


def test_the_block_guesses_where_that_pays():
    """Measured: some rows for requests that are alone, few for what it never says right, and the same tokens."""
    server = served.Server(GOLDEN / "glm4moe-tiny", "--exact", "--speculate", "mtp", "--transport", "loop")
    assert answers(server, at_once=False, tokens=MTP_TOKENS) == plain_of("glm4moe-tiny")
    before, _ = told(server)
    assert before > 0
    wild = [Stream(server, i, max_tokens=300, temperature=5, prompt=CIRCLE) for i in range(2)]
    for s in wild:
        s.fields["seed"] = s.seed
        s.start()
    join_all(wild)
    guesses, _ = told(server)
    assert guesses - before < 120
    assert server.stop() == 0


def refused(*options):
    done = subprocess.run([SLUICE, "serve", *options, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, None)
    return done.stderr


@pytest.mark.parametrize("how", ["mtp", "both"])
def test_who_has_no_block_is_refused_by_name(how):
    text = refused(GOLDEN / "qwen3moe-tiny", "--speculate", how)
    assert f"speculate {how}: the model has no block that predicts a further token (num_nextn_predict_layers of config.json" in text
