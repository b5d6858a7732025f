"""Answers that have a shape while workers are killed: the same tokens as undisturbed, on every schedule, and valid."""
import json
import os
import pathlib
import re
import signal
import sys
import time

import jsonschema
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_kill import Server, Stream, join_all, nobody_is_left  # noqa: E402, F401

SCHEMA = {"type": "array", "minItems": 3, "maxItems": 9, "items": {
    "type": "object", "additionalProperties": False, "required": ["id", "tag"],
    "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99999}, "tag": {"type": "string", "minLength": 3, "maxLength": 9}}}}
WORDS = "([a-z]{3,8} ){50}end"
SHAPES = [{"regex": WORDS}, {"json": SCHEMA}]
FIELDS = dict(ignore_eos=False, temperature=1, max_tokens=480)
STREAMS = 4


def text_of(server, ids):
    answer = server.request("POST", "/detokenize", {"tokens": ids})
    return json.loads(answer.read())["prompt"]


@pytest.mark.parametrize("schedule, options, killed", [
    ("dep", ["--attention", "1", "--experts", "2"], [0]),
    ("findep", ["--attention", "2", "--experts", "2"], [3]),
    ("pingpong", ["--attention", "1", "--experts", "1"], [0, 1]),
    ("aep", ["--attention", "2", "--experts", "2"], [0, 2]),
    ("eps", ["--attention", "2"], [1]),
], ids=lambda v: v if isinstance(v, str) else "")
def test_a_kill_in_the_midst(schedule, options, killed):
    server = Server("--schedule", schedule, "--exact", "--transport", "shm", *options)
    def run(kill):
        streams = [Stream(server, i, **FIELDS) for i in range(STREAMS)]
        for i, s in enumerate(streams):
            s.fields.update(seed=11 + i, structured_outputs=SHAPES[i % 2])
            s.start()
        for worker in killed if kill else []:
            while all(len(s.ids) < 25 for s in streams):
                time.sleep(0.002)
            os.kill(server.worker_pid(worker), signal.SIGKILL)
        join_all(streams)
        return streams

    disturbed, alone = run(True), run(False)
    for s, want in zip(disturbed, alone, strict=True):
        assert s.done and not s.error, s.error
        assert s.ids == want.ids
    for i, s in enumerate(alone):
        text = text_of(server, s.ids)
        if i % 2 == 0:
            assert re.match(WORDS, text), text
        elif len(s.ids) < FIELDS["max_tokens"]:
            jsonschema.validate(json.loads(text[:text.rindex("]") + 1]), SCHEMA)
    assert server.metrics("workers_lost_total")[0] >= len(killed)
    assert server.stop() == 0


# Between words it is the shape alone that decides, a byte at a time.
DECIDED = "([a-z]{2,5}éßü ){25}end"


@pytest.mark.parametrize("schedule, options", [
    ("ep", []), ("pingpong", ["--attention", "1", "--experts", "1"]), ("aep", ["--attention", "2", "--experts", "1"])], ids=lambda v: v if isinstance(v, str) else "")
def test_tokens_that_the_shape_alone_decides(schedule, options):
    """They run with the token before them, and are those of a step each: as with log-probabilities, which want the logits of each."""
    server = Server("--schedule", schedule, "--exact", *(options or ["--transport", "loop"]))
    def run(n, **fields):
        streams = [Stream(server, i, **FIELDS, structured_outputs={"regex": DECIDED}, **fields) for i in range(n)]
        for i, s in enumerate(streams):
            s.fields["seed"] = 11 + i
            s.start()
        join_all(streams)
        return [s.ids for s in streams]

    stepwise = run(STREAMS, logprobs=1)
    assert sum(server.metrics("worker_forced_tokens_total")) == 0
    assert run(STREAMS) == stepwise
    time.sleep(1)  # workers report twice a second
    forced = sum(server.metrics("worker_forced_tokens_total"))
    assert forced >= 0.1 * sum(len(ids) for ids in stepwise)
    assert run(1) == stepwise[:1]
    for ids in stepwise:
        text = text_of(server, ids)
        assert re.match(DECIDED, text) or len(ids) == FIELDS["max_tokens"], text
    assert server.stop() == 0
