"""Guesses of what is said next: the same tokens with and without them, on every schedule, sampled or not, under a shape, while workers are
killed; and how many of them were right."""
import os
import pathlib
import signal
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_kill import Server, Stream, join_all, nobody_is_left, of_all_workers, wait_until  # noqa: E402, F401

CIRCLE = [3, 17, 41, 5, 9, 77, 101] * 6
# Greedy answers of the fixture end in circles; these of other kinds stray from what they said.
REQUESTS = [{}, {"prompt": CIRCLE}, {"prompt": CIRCLE, "temperature": 0.8, "seed": 3}, {"prompt": CIRCLE, "presence_penalty": 0.5, "frequency_penalty": 0.2},
            {"prompt": CIRCLE[:20], "logprobs": 2}, {"ignore_eos": False, "temperature": 1, "seed": 5, "structured_outputs": {"regex": "((ab|cd)éß ){40}end"}}]
DEPLOYMENTS = [("ep", ["--transport", "loop"]), ("dep", ["--attention", "1", "--experts", "2"]), ("findep", ["--attention", "2", "--experts", "2"]),
               ("pingpong", ["--attention", "1", "--experts", "1"]), ("aep", ["--attention", "2", "--experts", "1"]), ("eps", ["--attention", "2"])]
TOKENS = 240


def ask(server):
    streams = [Stream(server, i, max_tokens=TOKENS) for i in range(len(REQUESTS))]
    for s, fields in zip(streams, REQUESTS, strict=True):
        s.fields.update(fields)
    return streams


def answers(server, at_once=True):
    streams = ask(server)
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


@pytest.mark.parametrize("schedule, options", DEPLOYMENTS, ids=[d[0] for d in DEPLOYMENTS])
def test_no_token_depends_on_guesses(plain, schedule, options):
    server = Server("--exact", "--schedule", schedule, "--speculate", "always", *options)
    assert answers(server) == plain
    assert answers(server, at_once=False) == plain
    time.sleep(1)  # workers report twice a second
    guesses, right = (of_all_workers(server, f"worker_guesses_{name}") for name in ("total", "right_total"))
    print(f"{right:.0f} of {guesses:.0f} guesses were right")
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
    time.sleep(1)
    before = of_all_workers(server, "worker_guesses_total")
    for s in wild:
        s.fields["seed"] = s.seed
        s.start()
    join_all(wild)
    time.sleep(1)
    assert of_all_workers(server, "worker_guesses_total") - before < 120
    assert server.stop() == 0
