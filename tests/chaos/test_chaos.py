"""A sample of tests/chaos/run.py, and its oracle: `make check-long ONLY=chaos` runs 300 schedules."""

import copy
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SEEDS = 4
sys.path.insert(0, str(HERE))
import draw  # noqa: E402
import streams  # noqa: E402


def answer():
    a = streams.Answer()
    for i, (text, finish) in enumerate([("ab", None), ("c", None), ("é", "length")]):
        logprobs = {"tokens": [text], "token_logprobs": [f"-0.{i}"], "top_logprobs": [{text: f"-0.{i}"}], "text_offset": [i]}
        a.add({"choices": [{"index": 0, "text": text, "token_ids": [7 + i], "logprobs": logprobs, "finish_reason": finish}]})
    a.add({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}})
    return a


def lose_last(values):
    del values[-1]


def repeat_last(values):
    values.append(values[-1])


FAULTS = {
    "a lost token": lambda a: lose_last(a.choices[0]["ids"]),
    "a repeated token": lambda a: repeat_last(a.choices[0]["ids"]),
    "another token": lambda a: a.choices[0]["ids"].__setitem__(1, 9),
    "another byte": lambda a: a.choices[0].update(text="abcè"),
    "a log-probability's last digit": lambda a: a.choices[0]["logprobs"]["token_logprobs"].__setitem__(2, "-0.20"),
    "another runner-up": lambda a: a.choices[0]["logprobs"]["top_logprobs"].__setitem__(0, {"x": "-0.0"}),
    "no log-probabilities": lambda a: a.choices[0]["logprobs"].clear(),
    "another reason": lambda a: a.choices[0].update(finish="stop"),
    "another usage": lambda a: a.usage.update(completion_tokens=4),
    "a choice too many": lambda a: a.choices.__setitem__(1, a.choices[0]),
    "a lost choice": lambda a: a.choices.clear(),
    "an error": lambda a: setattr(a, "error", "worker 1 is gone"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_oracle_sees(fault):
    got = answer()
    assert streams.differences(got, answer()) == []
    FAULTS[fault](got)
    assert streams.differences(got, answer())


def test_who_left_is_compared_as_far_as_it_read():
    got = answer()
    got.left, got.usage = True, None
    for name in ("ids", "text"):
        got.choices[0][name] = got.choices[0][name][:1]
    got.choices[0]["finish"] = None
    for values in got.choices[0]["logprobs"].values():
        del values[1:]
    assert streams.differences(got, answer()) == []
    wrong = copy.deepcopy(got)
    wrong.choices[0]["ids"] = [8]
    assert streams.differences(wrong, answer())


@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in ("a choice too many", "an error")])
def test_what_was_sent_is_what_is_kept(fault):
    got = answer()
    assert streams.contradictions(got, answer()) == []
    FAULTS[fault](got)
    assert streams.contradictions(got, answer())


def test_what_is_to_be_struck_is_drawn():
    """Rows go again only where each expert is on several workers."""
    drawn = [draw.draw(seed, list(draw.KINDS), ["shm", "tcp"]) for seed in range(1, 301)]
    assert sum(s.covered for s in drawn) > 60 and sum(s.popularity is not None for s in drawn) > 30
    assert sum(s.kept for s in drawn) > 10 and sum("--checksums" in s.options for s in drawn) > 50
    assert sum("--speculate" in s.options for s in drawn) > 50
    rails = [s for s in drawn if "hybrid" in s.options]
    assert len(rails) > 10 and not any(draw.RELAYED & set(s.kinds) for s in rails)
    machines = [s for s in drawn if s.machines]
    assert len(machines) > 15 and sum(x.action == "rank" for s in machines for x in s.strikes) > 3
    assert sum("--max-experts" in s.options or "--max-attention" in s.options for s in drawn) > 10


def test_no_fault_changes_an_answer():
    ran = subprocess.run([sys.executable, HERE / "run.py", str(SEEDS), "-j", "3", "--again"], text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, timeout=900)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout[-12000:]
