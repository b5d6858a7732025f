"""Gangs: --tp, --attention-tp, --expert-tp and plan.json give one rank's bits, and what they cannot do is refused by name."""

import json
import os
import subprocess

import pytest

from test_cli import ROOT, SLUICE, sluice
import sample  # test_cli knows where

GOLDEN = ROOT / "tests" / "golden"
FIXTURE = GOLDEN / "qwen3moe-tiny"
IDS = ",".join(str((7 * i * i + 3 * i) % 90 + 5) for i in range(40))
APART = ["--attention", 1, "--experts", 2, "--expert-tp", 4]


def logits(path, *extra, model=FIXTURE):
    numpy = pytest.importorskip("numpy")
    sluice("logits", model, "--ids", IDS, "--npy", path, "--threads", 1, *extra)
    return numpy.load(path)


def refusal(*extra):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, "logits", FIXTURE, "--ids", IDS, "--npy", os.devnull, *map(str, extra)], capture_output=True, text=True,
                          timeout=60, env=clean)
    assert done.returncode in (1, 2, 3) and done.stdout == "" and "Sanitizer" not in done.stderr
    return done.stderr


def test_numa_is_refused_where_it_means_nothing(tmp_path):
    plan = tmp_path / "plan.json"
    for extra, word in ((["--numa", "on"], "no worker has CPUs of its own"), (["--numa", "auto", "--pin", "auto"], "off or on expected"),
                        (["--numa", "on", "--pin", "auto", "--device", "emulated:H100"], "an emulated device has no weights")):
        assert word in refusal(*extra), extra
    plan.write_text('{"version": 1, "numa": "on", "workers": [{"roles": ["attention", "expert"]}]}')
    assert "numa" in refusal("--plan", plan)


def test_numa_changes_no_bit(tmp_path):
    one = logits(tmp_path / "logits.npy")
    for extra in (["--numa", "on", "--pin", 0], ["--numa", "on", "--pin", "auto", "--tp", 2], ["--numa", "off"]):
        assert (logits(tmp_path / "logits.npy", *extra) == one).all(), extra


MODELS = ["qwen3moe-tiny", "deepseekv2-tiny", "gptoss-tiny", "olmoe-tiny", "mixed.gguf"]


@pytest.mark.parametrize("model", MODELS)
def test_every_number_of_ranks_gives_the_same_bits(model, tmp_path):
    turn, path, model = MODELS.index(model), tmp_path / "logits.npy", GOLDEN / model
    for how in sample.of([["--exact"], ["--exact", "--segments"], []], turn % 3):  # without either, too: no number is added otherwise
        one = logits(path, *how, model=model)
        assert (logits(path, *how, "--tp", 2, model=model) == one).all(), how
        if how:
            assert (logits(path, *how, "--tp", 8, "--tp-ranks", "processes", model=model) == one).all(), how
    exact = logits(path, "--exact", model=model)
    for extra in sample.of([["--tp", 4], [*APART, "--attention-tp", 2], [*APART, "--transport", "shm"]], (turn + 1) % 3):
        assert (logits(path, "--exact", *extra, model=model) == exact).all(), extra


def test_a_plan_says_how_many_ranks(tmp_path):
    plan = tmp_path / "plan.json"
    work = [{"roles": ["attention"]}, {"roles": ["expert"]}]
    said = {"version": 1, "schedule": "dep", "workers": work, "exact": True, "segments": True, "tp": {"attention": 2, "expert": 4}}
    plan.write_text(json.dumps(said))
    path = tmp_path / "logits.npy"
    assert (logits(path, "--plan", plan) == logits(path, "--exact", "--segments")).all()
    said["tp"]["expert"] = 3
    plan.write_text(json.dumps(said))
    assert "1, 2, 4 or 8" in refusal("--plan", plan)
    said["tp"], said["device"] = {"expert": 2}, {}
    plan.write_text(json.dumps(said))
    assert "device.rank_link" in refusal("--plan", plan)
    assert "--rank-link is for an emulated device" in refusal("--tp", 2, "--rank-link", "10:160")
    said["tp"] = {"experts": 2}
    plan.write_text(json.dumps(said))
    assert "experts" in refusal("--plan", plan)


def test_an_emulated_gang_answers_as_one_device(tmp_path):
    """Schedules and messages are real, stages take a gang's times: docs/laboratory.md."""
    device = tmp_path / "device.json"
    device.write_text(json.dumps({"attention": {"row": 400}, "expert": {"row": 800}, "head": {"row": 800},
                                  "rank_link": {"alpha": 5, "byte": 0.0001}}))
    args = ["run", ROOT / "bench/lab/models/top2-8", "--ids", "3,5,7", "-n", 8, "--ignore-eos", "--json", "--device", f"emulated:{device}"]
    one = json.loads(sluice(*args)[0])
    for extra in (["--tp", 2], ["--attention", 1, "--experts", 2, "--attention-tp", 4, "--expert-tp", 2]):
        assert json.loads(sluice(*args, *extra)[0])["ids"] == one["ids"]


@pytest.mark.parametrize("extra, why", [
    (["--tp", 3], "1, 2, 4 or 8"),
    (["--tp", 16], "--tp"),
    (["--attention-tp", 2], "one gang"),
    (["--segments"], "exact"),
])
def test_what_gangs_cannot_do_is_said(extra, why):
    assert why in refusal(*extra)


@pytest.mark.parametrize("extra, exchange", sample.of([([], False), (["--tp", 2], True), (["--tp", 2, "--tp-ranks", "processes"], True), (APART, True)], 0, 2))
def test_bench_says_how_long_ranks_were_in_exchanges(extra, exchange):
    said = json.loads(sluice("bench", FIXTURE, "--n-prompt", 0, "--n-gen", 32, "--batch", 8, "--reps", 2, "--json", *extra)[0])
    assert (said[-1]["ranks_share"] > 0) == exchange, said
